package server

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/agentapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
)

// leadership holds the objects of one term of this server.
type leadership struct {
	leader       *leader.Leader
	registration *registerapi.Registrar
	agent        *agentapi.Leadership
	operator     *operatorapi.Leader
	stepDown     <-chan struct{} // closed when an operator asks the leader to step down
	// restarting is true while the leader waits for its standbys, to restart with a new configuration.
	restarting atomic.Bool
	// configWaits says what the restart waits for. It is nil or "" if no configuration waits.
	configWaits atomic.Pointer[string]

	authority *lease.Authority
	journal   *journal.Journal
	generator *filegen.Generator
	caPEM     []byte
	// workloadCAPEM holds the certificates of the workload CAs. These CAs sign the certificates that are among the
	// files of instances.
	workloadCAPEM []byte
	ca            authority.CA
	workloadCAs   authority.WorkloadCAs
	// configured is when the present configuration was put in force.
	configured atomic.Pointer[time.Time]
	images     *imageBook
	// A goroutine locks `describing` while it reads the configuration and passes it to the generator. Without the lock,
	// an older configuration could overwrite a newer one.
	describing sync.Mutex
	// agentAddrs are the addresses of the leader that were last sent to agents, separated by commas.
	agentAddrs string
}

// lead runs one term. Its plans use nothing that was read before the server won the lock.
func (s *server) lead(ctx context.Context, a *lease.Authority) error {
	s.log.Info("leading", "term", a.Term())
	s.metrics.Leader.Set(1)
	defer s.metrics.Leader.Set(0)
	defer s.metrics.ConfigRefused.Set(0)
	err := s.term(ctx, a)
	reason := context.Cause(ctx)
	if reason == nil {
		reason = err // the term ended before the leadership did
	}
	if reason == nil {
		reason = errors.New("the leader's tasks have ended")
	}
	s.log.Info("leading no more", "term", a.Term(), "reason", reason)
	if ctx.Err() != nil {
		if err != nil && !errors.Is(err, context.Canceled) {
			s.log.Warn("leadership ended with an error", "term", a.Term(), "error", err)
		}
		return nil // the server was asked to stop
	}
	if err != nil {
		return &termError{err}
	}
	return nil
}

func (s *server) term(ctx context.Context, a *lease.Authority) (err error) {
	env, wait := tasks.Real()
	defer wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() { cancel(err) }() // the journal records why the term ended

	var home record.Home
	var keys clusterKeys
	err = env.ForEach(ctx, 2, 2, func(ctx context.Context, i int) (err error) {
		if i == 0 {
			home, err = s.state.ClaimHome(ctx, s.here)
			return err
		}
		keys, err = s.keys(ctx)
		return err
	})
	if err != nil {
		return err
	}
	workloadCAs, created, err := s.state.EnsureWorkloadCA(ctx, keys.ca)
	if err != nil {
		return err
	}
	if created {
		s.log.Info("made the CA of the workloads", "fingerprint",
			authority.Fingerprint(workloadCAs[0].Certificate()), "starts", workloadCAs[0].Starts())
	}
	if err := s.ensureServicesToLead(ctx); err != nil {
		return err
	}

	// Use the configuration that the server loaded at its start. If a setting used here has changed in the bucket, Lead
	// below keeps the last applied configuration, or returns ErrRestart.
	shard := s.manager.Shard()
	generator := filegen.New(filegen.Options{CA: keys.ca, WorkloadCAs: workloadCAs, NonceKey: keys.nonce,
		Secrets: s.secrets, ReadFile: s.state.ReadFile,
		CacheTTL: shard.Cluster.Secrets.CacheTTL.D(), Rand: rand.Reader, Now: time.Now})
	caPEM := authority.EncodeBundle(keys.bundle...)
	if err := s.endpoints.use(keys.ca, keys.bundle); err != nil {
		return err
	}

	wake := make(chan struct{}, 1)
	stepDown := make(chan struct{})
	events, journal := operatorapi.NewEvents(), s.openJournal(ctx, a.Term())
	leader := leader.NewLeader(&execute.Executor{
		Owner: infra.Owner{Cluster: shard.Cluster.ID, Shard: s.opts.Shard}, Incarnation: s.incarnation, Authority: a,
		Provider: s.machine.Provider, Renderer: generator, Files: s.agents, Groups: s.manager, Env: env,
		Log:          s.log,
		Batches:      s.batches,
		Entered:      func(after time.Duration) { s.metrics.CreateStart.Observe(after.Seconds()) },
		CreateFailed: func(class string) { s.metrics.CreateFailures.WithLabelValues(class).Inc() },
	}, s.state, eventFanout{events, s.metrics, journal, s.forget(ctx, env),
		s.userdataRemover(ctx, env)}, func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if home.OrphansWait {
		leader.State.HoldOrphans()
	}
	leader.Loop.CreateEvery = func() time.Duration { return s.manager.Shard().Server.CreateRateLimit.D() }
	leader.Loop.Started = func(kind plan.Kind) { s.metrics.Actions.WithLabelValues(string(kind)).Inc() }
	leader.Loop.Planned = func(took time.Duration) { s.metrics.PlanDuration.Observe(took.Seconds()) }
	issuer := transport.Issuer{CA: keys.ca, Bundle: caPEM, Trust: authority.Trust(keys.ca.Certificate(), keys.bundle),
		Rand: rand.Reader, Now: time.Now}
	addresses := &vmaddress.Checker{State: leader.State, Now: time.Now,
		Ask:     func(call context.Context, id ident.ID) error { return leader.Asker.Await(call, ctx, id) },
		Enabled: func() bool { return *s.manager.Shard().Server.CheckRegistrationAddress }}
	l := &leadership{
		leader: leader,
		registration: &registerapi.Registrar{Context: ctx, Cluster: shard.Cluster.ID, Shard: s.opts.Shard,
			Term:        a.Term(),
			Incarnation: s.incarnation,
			State:       leader.State, Records: leader.Executor, Store: s.state, NonceKeys: keys.nonce.Accepted(),
			Issuer: issuer, Addresses: addresses, Attest: s.attest, Attested: s.attested, Record: journal.Record},
		agent: &agentapi.Leadership{Context: ctx, Cluster: shard.Cluster.ID, Shard: s.opts.Shard, Term: a.Term(),
			Incarnation: s.incarnation,
			State:       leader.State, Records: leader.Executor, Store: s.state, Issuer: issuer, Files: generator,
			// After a change of the workload CAs, check the instances' files again. The instances must receive a new
			// workload CA before that CA issues certificates.
			RecheckFiles: len(workloadCAs) > 1 || time.Now().Before(workloadCAs[0].Starts()),
			Interval:     func() time.Duration { return s.manager.Shard().Server.HealthCheckInterval.D() },
			Endpoints:    s.agentAddrs, Addresses: addresses},
		operator:  s.operatorLeader(ctx, a, leader, events, journal, issuer, stepDown),
		stepDown:  stepDown,
		authority: a, journal: journal, generator: generator, caPEM: caPEM, workloadCAs: workloadCAs, ca: keys.ca,
		workloadCAPEM: workloadCAs.EncodeCertificates(),
		images:        &imageBook{provider: s.machine.Provider, env: env, entries: map[string]imageEntry{}},
	}

	err = s.manager.Lead(ctx, a.Term(), &applier{server: s, ctx: ctx, authority: a, leadership: l})
	if errors.Is(err, shardconfig.ErrRestart) {
		s.restart(ErrRestart) // this also ends ctx
		return nil
	}
	if err != nil {
		return err
	}
	defer s.manager.Follow()
	s.reportRefused(leader, s.manager.Status().Problems)
	return tasks.Run(ctx,
		// Run this beside the takeover: acquiring the shard's fixed address takes seconds, and the takeover does not
		// need it.
		func(ctx context.Context) error { return s.holdAddress(ctx, leader) },
		func(ctx context.Context) error {
			if err := leader.TakeOver(ctx); err != nil {
				return err
			}
			return s.act(ctx, l, env, wake)
		},
	)
}

// act runs the leader's tasks until the term ends. The caller has already loaded the shard's state with TakeOver.
func (s *server) act(ctx context.Context, l *leadership, env tasks.Env, wake <-chan struct{}) error {
	leader := l.leader
	s.leading.Store(l)
	defer s.leading.Store(nil)
	leader.State.Serving()
	s.served.Store(true)
	s.log.Info("serving as leader", "term", leader.State.Term())
	if s.manager.Pending() != nil { // the former leader has not handed over to a server with that configuration
		s.restartForConfig(s.predecessor()...)
	}
	env.Go("restore the journal", func() {
		if err := l.journal.Restore(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("journal of earlier leaders not read", "error", err)
		}
	})
	env.Go("forget keys", func() { // keys of instances that ended under other leaders
		err := s.localDB.KeepKeys(ctx, func(id ident.ID) bool { _, _, lives := leader.State.Record(id); return lives })
		if err != nil && ctx.Err() == nil {
			s.log.Warn("cache not cleaned", "error", err)
		}
	})
	return tasks.Run(ctx,
		func(ctx context.Context) error { return leader.Loop.Run(ctx, wake) },
		func(ctx context.Context) error { leader.Collect(ctx); return nil },
		func(ctx context.Context) error { leader.Recheck(ctx); return nil },
		func(ctx context.Context) error { leader.FollowBalancers(ctx); return nil },
		func(ctx context.Context) error { s.watchVMs(ctx, leader); return nil },
		func(ctx context.Context) error { s.alertOutages(ctx, leader.State); return nil },
		func(ctx context.Context) error { s.watchCluster(ctx); return nil },
		func(ctx context.Context) error { journalSizes(ctx, leader.State, l.journal.Record); return nil },
		func(ctx context.Context) error { return s.pollConfig(ctx, leader, l) },
		func(ctx context.Context) error { return s.refreshImages(ctx, l) },
		func(ctx context.Context) error { return s.scaleGroups(ctx, l, env) },
		func(ctx context.Context) error { return awaitStepDown(ctx, l.stepDown) },
	)
}

// watchVMs watches the VMs until ctx ends, if the provider can report changes. It asks the provider about each VM that
// has changed.
func (s *server) watchVMs(ctx context.Context, leader *leader.Leader) {
	if watcher, ok := infra.Capability[infra.Watcher](s.machine.Provider); ok {
		watcher.Watch(ctx, func(id ident.ID) { leader.Asker.Ask(ctx, id) })
	}
	<-ctx.Done()
}

// forget returns a function that deletes the server's data about an instance's agent in the background.
func (s *server) forget(ctx context.Context, env tasks.Env) func(ident.ID) {
	return func(id ident.ID) { env.Go("forget an agent", func() { s.agents.Deleted(ctx, id) }) }
}

const (
	// removeUserdataTries is the number of calls to remove the userdata of a VM. If all of them fail, the userdata
	// stays. That does no harm, because the nonce in it is consumed.
	removeUserdataTries = 5
	removeUserdataPause = 10 * time.Second
)

// userdataRemover returns a function that removes the userdata of a VM in the background. If the provider cannot remove
// userdata, the function does nothing. The removal needs no authority, because the nonce stays consumed, whichever
// server leads.
func (s *server) userdataRemover(ctx context.Context, env tasks.Env) func(ident.ID) {
	remover, ok := infra.Capability[infra.UserdataRemover](s.machine.Provider)
	if !ok {
		return func(ident.ID) {}
	}
	owner := infra.Owner{Cluster: s.manager.Shard().Cluster.ID, Shard: s.opts.Shard}
	return func(id ident.ID) {
		env.Go("remove the userdata of a VM", func() {
			if err := removeUserdata(ctx, env, remover, owner, id); err != nil {
				s.log.Warn("the userdata of a VM stays, with its consumed nonce", "instance", id.String(), "error", err)
			}
		})
	}
}

// removeUserdata removes the userdata of a VM. It also returns nil if the VM no longer exists.
func removeUserdata(ctx context.Context, env tasks.Env, remover infra.UserdataRemover, owner infra.Owner,
	id ident.ID) (err error) {
	for range removeUserdataTries {
		err = remover.RemoveUserdata(ctx, owner, id)
		if err == nil || errors.Is(err, infra.NotFound) {
			return nil
		}
		if env.Sleep(ctx, removeUserdataPause) != nil {
			return err
		}
	}
	return err
}

// holdAddress keeps the shard's fixed address on this machine until ctx ends. If the shard has no such address, it only
// waits for the end of ctx.
func (s *server) holdAddress(ctx context.Context, leader *leader.Leader) error {
	if address := s.machine.address; address != nil {
		leader.HoldAddress(ctx, address, s.machine.ID, s.machine.addressInterval)
		return nil
	}
	<-ctx.Done()
	return nil
}
