package server

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/lease"
)

// maxPause is how long a server that cannot lead waits at most before it stands again.
const maxPause = time.Minute

// elect stands for election until ctx ends. A term that cannot begin, or ends by an error, is given up: the lock is released, so that
// another server may try, and this one stands again after a pause. Only what no repetition mends is returned.
func (s *server) elect(ctx context.Context) error {
	for try := 1; ; try++ {
		err := s.stand(ctx)
		var fatal *fatalError
		if ctx.Err() != nil || errors.As(err, &fatal) {
			return err
		}
		if s.served.Swap(false) {
			try = 1
		}
		wait := min(pause(try), maxPause)
		s.metrics.Errors.WithLabelValues("leadership").Inc()
		s.log.Error("leadership given up", "error", err, "try", try, "again_in", wait.String())
		if s.env.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// stand takes part in the election until ctx ends or a term fails.
func (s *server) stand(ctx context.Context) error {
	shard := s.manager.Shard()
	election := shard.Server.LeaderElection
	return lease.Run(ctx, lease.Config{
		Store: s.store, Key: keys.Leader(s.opts.Shard), Self: s.identity,
		Options: lease.Options{Lease: election.LeaseDuration.D(), Renew: election.RenewInterval.D(), PeerLease: election.PeerLease.D(),
			PeerInterval: election.PeerInterval.D(), HeirLease: s.cfg.Heir.HeirLease, HeirRenew: s.cfg.Heir.HeirRenew, Steady: s.cfg.Heir.Steady},
		Peers:       s.peers,
		Disabled:    election.Enabled != nil && !*election.Enabled,
		Clock:       lease.SystemClock(),
		Machine:     evidence(s.machine.Provider),
		HighestTerm: s.state.HighestTerm,
		Lead:        s.lead,
		StopTimeout: shard.Server.ShutdownTimeout.D(),
		Watch: func(status lease.Status) {
			s.status.Store(&status)
			s.metrics.Term.Set(float64(status.Holder.Term))
		},
		Log: s.log,
	})
}
