package server

import (
	"context"
	"errors"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
)

// elect takes part in the election until ctx ends. If a term cannot begin or ends with an error, elect releases the
// lock, so that another server may lead. After a pause, it takes part again. It returns only errors that a retry cannot
// fix.
func (s *server) elect(ctx context.Context) error {
	for try := 1; ; try++ {
		if err := s.awaitHome(ctx); err != nil {
			return ended(ctx, err)
		}
		err := s.stand(ctx)
		var fatal *fatalError
		switch {
		case errors.As(err, &fatal):
			return err
		case ctx.Err() != nil:
			return s.besidesTerm(err)
		}
		if errors.Is(err, errSteppedDown) {
			try = 0
			s.log.Info("stepped down", "again_in", stepDownPause.String())
			if s.env.Sleep(ctx, stepDownPause) != nil {
				return nil
			}
			continue
		}
		if s.served.Swap(false) {
			try = 1
		}
		wait := retryPause(try)
		s.metrics.TermFailures.Inc()
		s.log.Error("leadership given up", "error", err, "try", try, "again_in", wait.String())
		if s.env.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// termError is the reason why a term could not begin, or ended early.
type termError struct{ err error }

func (e *termError) Error() string { return e.err.Error() }
func (e *termError) Unwrap() error { return e.err }

// besidesTerm logs the termError inside err and returns the other errors in err. elect calls it after a request to
// stop. A term that failed before that request does not count as a failure to stop.
func (s *server) besidesTerm(err error) error {
	var term *termError
	if !errors.As(err, &term) {
		return err
	}
	s.log.Warn("leadership ended with an error", "error", term)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	return errors.Join(slices.DeleteFunc(slices.Clone(joined.Unwrap()), func(err error) bool {
		return errors.Is(err, term)
	})...)
}

// stand takes part in the election until ctx ends or a term fails.
func (s *server) stand(ctx context.Context) error {
	shard := s.manager.Shard()
	settings := shard.Server.LeaderElection
	return lease.Run(ctx, lease.Config{
		Store: s.store, Key: keys.Leader(s.opts.Shard), Self: s.identity,
		Options: election.Options{Lease: settings.LeaseDuration.D(), Renew: settings.RenewInterval.D(),
			PeerLease:    settings.PeerLease.D(),
			PeerInterval: settings.PeerInterval.D(), HeirLease: s.cfg.Heir.HeirLease, HeirRenew: s.cfg.Heir.HeirRenew,
			HeirProbation: s.cfg.Heir.HeirProbation},
		Links:       s.peers,
		Disabled:    settings.Enabled != nil && !*settings.Enabled,
		Clock:       lease.SystemClock(),
		Marks:       s.inUse.Load().marks,
		Machine:     evidence(s.machine.Provider),
		HighestTerm: s.state.HighestTerm,
		Lead:        s.lead,
		StopTimeout: shard.Server.ShutdownTimeout.D(),
		Watch:       s.watchElection,
		Log:         s.log,
	})
}

// watchElection stores the election's status for other parts of the server, and updates the metrics of the election.
func (s *server) watchElection(status lease.Status) {
	before := s.status.Swap(&status)
	s.metrics.Term.Set(float64(status.Holder.Term))
	heir := 0.0
	if status.Role != election.Leader && status.Holder.Heir.Incarnation == s.incarnation {
		heir = 1
	}
	s.metrics.Heir.Set(heir)
	if status.Role == election.Leader && (before == nil || before.Role != election.Leader) {
		s.metrics.LeaderChanges.WithLabelValues(string(s.leaderChange(before))).Inc()
	}
}

// leaderChange returns why the previous leader's term ended. `before` is the status of the election just before this
// server became leader.
func (s *server) leaderChange(before *lease.Status) metrics.LeaderChange {
	switch {
	case before == nil || before.Holder.Term == 0:
		return metrics.LeaderFirst
	case before.Holder.Released:
		return metrics.LeaderReleased
	case before.Holder.Heir.Incarnation == s.incarnation:
		return metrics.LeaderHeir
	}
	return metrics.LeaderExpired
}
