package server

import (
	"net/http"

	"github.com/nstance-kit/nstance/services/internal/health"
)

func (s *server) handler() http.Handler {
	s.metrics.Watch("nstance_instances", "Live instances of the shard, while leading.", func() float64 {
		return s.number(1)
	})
	s.metrics.Watch("nstance_groups", "Groups of the shard, while leading.", func() float64 { return s.number(0) })
	s.metrics.Watch("nstance_agents_connected", "Agents with an open health stream, while leading.", func() float64 {
		return s.number(2)
	})
	s.metrics.Watch("nstance_reservations", "Instance IDs reserved ahead, while leading.", func() float64 {
		return s.number(3)
	})
	return s.metrics.Handler()
}

// pages are the pages that only this daemon has on the health port.
func (s *server) pages() []health.Page {
	return []health.Page{{Path: "/leader", Handler: http.HandlerFunc(s.serveLeader)}}
}

func (s *server) number(i int) float64 {
	l := s.leading.Load()
	if l == nil {
		return 0
	}
	groups, instances, connected, reserved, _, _ := l.leader.State.Numbers()
	return float64([]int{groups, instances, connected, reserved}[i])
}

// alive returns true, for systemd. If the leader hangs while it holds its locks, alive blocks.
func (s *server) alive() bool {
	_ = s.number(0)
	return true
}
