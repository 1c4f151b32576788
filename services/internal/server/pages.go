package server

import (
	"net/http"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/health"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
)

// pages returns the pages that nstance-server adds to the health port.
func (s *server) pages() []health.Page {
	return []health.Page{{Path: "/leader", Handler: http.HandlerFunc(s.serveLeader)}}
}

// readShard returns the state of the shard for metrics. It locks the leader's State separately for each group, not for
// the whole time.
func (s *server) readShard() metrics.Shard {
	var shard metrics.Shard
	if source := s.endpoints.certificates(); source != nil {
		shard.CAs = append(shard.CAs, metrics.CA{Name: "cluster", Expires: source.CAExpires()})
	}
	l := s.leading.Load()
	if l == nil {
		return shard
	}
	state := l.leader.State
	shard.Leads = true
	counts := state.Count()
	shard.Instances, shard.AgentsConnected, shard.Reserved = counts.Instances, counts.Connected, counts.Reservations
	for _, key := range state.GroupKeys() {
		if g, ok := state.GroupView(key); ok {
			shard.Groups = append(shard.Groups, metrics.Group{Tenant: key.Tenant, Name: key.Group, Desired: g.Size,
				Actual: g.Actual, Healthy: g.Healthy, Drifted: g.Outdated, Paused: g.Rollout.Paused})
		}
	}
	shard.Alerts = state.Alerts()
	settings := s.manager.Shard().Server.LeaderElection
	if settings.Enabled == nil || *settings.Enabled {
		left := l.authority.Remaining()
		shard.LeaseRemaining = &left
	}
	shard.JournalLag = l.journal.Lag()
	if at := l.configured.Load(); at != nil {
		shard.ConfigApplied = *at
	}
	if len(l.workloadCAs) > 0 {
		shard.CAs = append(shard.CAs, metrics.CA{Name: "workload",
			Expires: l.workloadCAs.At(time.Now(), l.ca).Certificate().NotAfter})
	}
	return shard
}

// alive always returns true. It is called before each notification that the server sends to systemd's watchdog. If the
// leader hangs while it holds its locks, alive does not return, and systemd restarts the server.
func (s *server) alive() bool {
	if l := s.leading.Load(); l != nil {
		l.leader.State.Count()
	}
	return true
}
