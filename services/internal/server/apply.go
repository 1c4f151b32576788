package server

import (
	"context"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

const (
	// lookInterval is the interval at which the leader reads the configuration's version in the bucket, with one GET.
	// It applies a new version immediately. This is needed because `tofu apply` changes only the bucket.
	lookInterval = 10 * time.Second
	// configInterval is the interval at which the leader also checks what changes without a new configuration, such as
	// the groups and the CA.
	configInterval = 3 * time.Minute
	// reloadEvery is the number of configuration checks after which the leader reads the boot scripts and the workload
	// CAs again. A new VM may get a script that was read up to an hour ago.
	reloadEvery = 10
)

// applier applies configurations during one term of a leader. It implements shardconfig.Applier.
type applier struct {
	*server
	ctx        context.Context // of the term
	authority  *lease.Authority
	leadership *leadership
}

// ApplyConfig puts a configuration in force. It may take some seconds, because it looks up new images and reads the
// boot scripts.
func (a *applier) ApplyConfig(shard *config.Shard, groups map[config.GroupKey]config.Group) {
	l := a.leadership
	a.configureProvider(a.ctx, l, shard)
	inTime, cancel := context.WithTimeout(a.ctx, imagePatience)
	_ = a.resolveImages(inTime, l, shard, newImages) // a failure raises an alert, and refreshImages retries
	cancel()
	a.describe(l)
	if err := l.generator.Reload(a.ctx, groups); err != nil {
		a.log.Warn("templates not compiled", "error", err)
	}
	l.leader.State.Configure(shard, groups)
	a.noteImages(l, groups)
	a.agents.Configured()
	etag := a.manager.Status().ETag
	a.authority.SetAppliedETag(etag)
	now := time.Now()
	l.configured.Store(&now)
	l.journal.Record(record.Event{Kind: record.EventConfigApplied, Actor: "leader", Message: "version " + etag})
}

// ApplyGroups puts changed groups in force. It does not block, because their templates are compiled in the background.
func (a *applier) ApplyGroups(groups map[config.GroupKey]config.Group, changed []config.GroupKey) {
	l := a.leadership
	l.leader.State.ConfigureGroups(groups, changed)
	a.agents.Configured()
	warm := make(map[config.GroupKey]config.Group, len(changed))
	for _, key := range changed {
		if group, ok := groups[key]; ok {
			warm[key] = group
		}
	}
	a.env.Go("compile templates", func() {
		if err := l.generator.Warm(a.ctx, warm); err != nil && a.ctx.Err() == nil {
			a.log.Warn("templates not compiled", "error", err)
		}
		a.noteImages(l, warm)
	})
}

// OverridesEnded records the ends in the journal.
func (a *applier) OverridesEnded(key config.GroupKey, lines []string) {
	for _, line := range lines {
		a.leadership.journal.Record(record.Event{Kind: record.EventOverrideEnded, Tenant: key.Tenant, Group: key.Group,
			Actor: "leader", Message: line})
	}
}

// describe passes the current configuration and images to the generator, which makes files and VM parameters from them.
func (s *server) describe(l *leadership) {
	l.describing.Lock()
	defer l.describing.Unlock()
	shard := s.manager.Shard()
	var registration, agent []string
	for _, p := range s.generations() {
		registration = appendNew(registration, p.leader.Registration)
		agent = appendNew(agent, p.leader.Agent)
	}
	l.agentAddrs = s.agentAddrs()
	l.generator.Configure(filegen.Shard{
		Cluster: render.Cluster{ID: shard.Cluster.ID, CACert: string(l.caPEM),
			WorkloadCACert: string(l.workloadCAPEM)},
		Server: render.Server{Shard: s.opts.Shard, RegistrationAddr: strings.Join(registration, ","),
			AgentAddr:    strings.Join(agent, ","),
			OperatorAddr: s.ports.leader.Operator},
		Provider: render.Provider{Kind: shard.Server.Provider.Kind, Region: shard.Server.Provider.Region,
			Zone: shard.Server.Provider.Zone},
		Image:        l.images.ids(shard),
		Certificates: shard.Certificates,
		NonceTTL:     shard.Server.GarbageCollection.RegistrationTimeout.D(),
	})
}

// pollConfig applies a newer configuration within lookInterval. At every configInterval it also checks the other
// documents of the shard. At every reloadEvery-th of these checks it also reads the boot scripts, so that the creation
// of a VM does not wait for them, and looks for changed workload CAs.
func (s *server) pollConfig(ctx context.Context, leader *leader.Leader, l *leadership) error {
	const looks = int(configInterval / lookInterval)
	for n := 1; s.env.Sleep(ctx, lookInterval) == nil; n++ {
		full := n%looks == 0
		s.manager.DropEnded(ctx, s.env.Now())
		// A failed look is not logged, because the check at configInterval fails too.
		if changed, err := s.manager.Changed(ctx); !full && (err != nil || !changed) {
			continue
		}
		if _, _, err := s.refresh(ctx, leader); err != nil && ctx.Err() == nil {
			s.log.Warn("configuration not looked up", "error", err)
		}
		if n%(looks*reloadEvery) == 0 {
			if err := l.generator.Reload(ctx, s.manager.Groups()); err != nil && ctx.Err() == nil {
				s.log.Warn("templates not compiled", "error", err)
			}
			if err := s.followWorkloadCA(ctx, l); err != nil && ctx.Err() == nil {
				s.log.Warn("workload CA not looked up", "error", err)
			}
		}
	}
	return nil
}

// refresh applies a newer configuration if there is one.
func (s *server) refresh(ctx context.Context, leader *leader.Leader) (shardconfig.Result, config.Problems, error) {
	result, problems, err := s.manager.Refresh(ctx)
	if err != nil {
		return result, nil, err
	}
	s.reportRefused(leader, problems)
	s.announceAddresses()
	if result == shardconfig.Restart {
		s.restartForConfig()
	}
	if err := s.followCA(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("CA not looked up", "error", err) // the configuration is in force nevertheless
	}
	return result, problems, nil
}

// announceAddresses tells agents and new VMs the addresses of the leader, if they have changed. They include the
// addresses that the leader will have after a restart, or after a replacement of the servers.
func (s *server) announceAddresses() {
	l := s.leading.Load()
	if l == nil {
		return
	}
	addrs := s.agentAddrs()
	l.describing.Lock()
	same := l.agentAddrs == addrs
	l.describing.Unlock()
	if !same {
		s.log.Info("announcing the leader's addresses", "addresses", addrs)
		s.describe(l)
		s.agents.Configured()
	}
}

// generations returns the server's addresses in each configuration that clients may need: the present one, one that
// waits for a restart of this server, and one that waits for new servers.
func (s *server) generations() []ports {
	out := []ports{s.ports}
	for _, next := range []*config.Shard{s.manager.Pending(), s.manager.Successor()} {
		if next == nil {
			continue
		}
		if ports, err := portsOf(next, s.opts); err == nil {
			out = append(out, ports)
		}
	}
	return out
}

// agentAddrs returns the addresses of the leader that the server sends to agents, separated by commas. It is empty if
// the leader has no fixed address: agents then know the addresses of all servers from their boot scripts.
func (s *server) agentAddrs() string {
	if s.manager.Shard().Server.LeaderNetwork == nil {
		return ""
	}
	var addrs []string
	for _, p := range s.generations() {
		addrs = appendNew(addrs, p.agentAddrs()...)
	}
	return strings.Join(addrs, ",")
}

// reportRefused raises an alert if the newest configuration was refused, or if this server cannot apply it and a new
// server must. Otherwise it resolves the alert.
func (s *server) reportRefused(leader *leader.Leader, problems config.Problems) {
	key := shardstate.ErrorKey{Kind: plan.AlertConfig}
	if len(problems) > 0 {
		s.metrics.ConfigRefused.Set(1)
		leader.State.RaiseError(key, "configuration refused: "+problems.Error())
		return
	}
	s.metrics.ConfigRefused.Set(0)
	if next := s.manager.Successor(); next != nil {
		leader.State.RaiseError(key, "the configuration waits for servers with --leader-interface "+
			next.Server.LeaderNetwork.InterfaceID+", which replace the present ones")
		return
	}
	leader.State.ResolveError(key)
}
