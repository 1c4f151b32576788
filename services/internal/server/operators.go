package server

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// operatorLeader returns what the operator service needs to answer requests during a term.
func (s *server) operatorLeader(ctx context.Context, a *lease.Authority, leader *leader.Leader,
	events *operatorapi.Events, journal *journal.Journal, issuer transport.Issuer,
	stepDown chan<- struct{}) *operatorapi.Leader {
	return &operatorapi.Leader{
		Context: ctx, Cluster: s.manager.Shard().Cluster.ID, Shard: s.opts.Shard, ID: s.opts.ID,
		Incarnation: s.incarnation, Leader: leader,
		Config: s.manager,
		Refresh: func(ctx context.Context) (shardconfig.Result, config.Problems, error) {
			result, problems, err := s.refresh(ctx, leader)
			if err == nil && result == shardconfig.Updated {
				a.SetAppliedETag(s.manager.Status().ETag)
			}
			return result, problems, err
		},
		ConfigModified: func(ctx context.Context) (time.Time, error) {
			return s.state.ConfigModified(ctx, s.opts.Shard)
		},
		OrphansConfirmed: s.orphansConfirmed,
		Status:           func() operatorapi.Leading { return s.leadingStatus(a) },
		StepDown:         sync.OnceFunc(func() { close(stepDown) }),
		Events:           events, Journal: journal, Store: s.state, Issuer: issuer, Now: time.Now, Log: s.log,
	}
}

// eventFanout passes events to the watch streams and the journal, counts errors, and deletes the data about deleted
// instances.
type eventFanout struct {
	*operatorapi.Events
	metrics *metrics.Server
	journal *journal.Journal
	forget  func(ident.ID)
	// removeUserdata is called for each instance whose agent has registered.
	removeUserdata func(ident.ID)
}

func (t eventFanout) Instance(e shardstate.InstanceEvent) {
	switch e.Type {
	case shardstate.EventDeleted:
		t.forget(e.Instance)
	case shardstate.EventRegistered:
		t.removeUserdata(e.Instance)
	}
	t.Events.Instance(e)
	journalInstance(t.journal, e)
}

func (t eventFanout) Error(e shardstate.ErrorEvent) {
	if !e.Resolved {
		t.metrics.Alerts.WithLabelValues(string(e.Kind)).Inc()
	}
	t.Events.Error(e)
	journalAlert(t.journal, e)
}

// handleOrphanConfirmations tells the leader on this server that a person has confirmed the orphans. It runs until ctx
// ends.
func (s *server) handleOrphanConfirmations(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cfg.ConfirmOrphans:
		}
		l := s.leading.Load()
		if l == nil {
			s.log.Warn("orphans not confirmed", "reason", "this server does not lead")
			continue
		}
		vms := l.leader.State.ConfirmOrphans()
		if len(vms) > 0 {
			s.orphansConfirmed(ctx)
		}
		for _, vm := range vms {
			s.log.Info("orphan confirmed", "instance", vm.Tags.Instance.String(), "tenant", vm.Tags.Tenant, "group",
				vm.Tags.Group, "vm", vm.ProviderID)
		}
		s.log.Info("orphans confirmed", "count", len(vms))
	}
}
