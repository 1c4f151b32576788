package server

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
)

// homeLogEvery is the time between two log lines about a bucket that is not the home of the shard.
const homeLogEvery = time.Minute

// awaitHome waits until the bucket of this server is the home of the shard, or ctx ends. A copy of the bucket also has
// a copy of the lock. Once that lock has expired, a server that stands for election would lead, and would delete the
// VMs of the shard as orphans.
func (s *server) awaitHome(ctx context.Context) error {
	var logged time.Time
	for try := 1; ; try++ {
		err := s.state.CheckHome(ctx, s.here)
		var other *clusterstate.NotHomeError
		if errors.As(err, &other) && s.provedHome(ctx) {
			s.log.Info("the bucket got another name", "home", other.Home.String(), "name", s.here.String())
			err = s.state.NameHome(ctx, s.here)
		}
		if err == nil {
			s.metrics.NotHome.Set(0)
			s.endpoints.mu.Lock()
			defer s.endpoints.mu.Unlock()
			if s.endpoints.notHome = false; !s.endpoints.portTaken { // without that port the services are not served
				s.probe.Ready()
			}
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if errors.As(err, &other) {
			s.metrics.NotHome.Set(1)
		}
		s.endpoints.mu.Lock()
		s.endpoints.notHome = true
		s.probe.NotReady(err.Error())
		s.endpoints.mu.Unlock()
		if now := s.env.Now(); logged.IsZero() || now.Sub(logged) >= homeLogEvery {
			logged = now
			s.log.Error("not standing for election", "error", err)
		}
		if err := s.env.Sleep(ctx, retryPause(try)); err != nil {
			return err
		}
	}
}

// provedHome reports whether the leader of the shard has a link with this server. A leader accepts a link only after
// this server has proved that both use the same bucket. So this bucket is the home, under another name.
func (s *server) provedHome(ctx context.Context) bool {
	lock, _, err := s.state.ReadLock(ctx, s.opts.Shard)
	if err != nil || lock.Released {
		lock = record.Lock{}
	}
	holder := election.Peer{ID: lock.LeaderID, Incarnation: lock.Incarnation}
	if s.peers.Linked(holder) {
		return true
	}
	s.peers.Follow(lock)
	return false
}

// orphansConfirmed stores that a person has confirmed the orphans. After a restore, this ends the time in which orphans
// wait for a confirmation however few they are.
func (s *server) orphansConfirmed(ctx context.Context) {
	if err := s.state.EndOrphansWait(ctx); err != nil {
		s.log.Warn("the confirmation of orphans is not in the bucket: the next leader asks for it again", "error", err)
	}
}
