package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/lead/peer"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
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
			why := "this server stepped down, and stands for election again at " +
				s.clockTime(s.env.Now().Add(stepDownPause))
			if s.stay(why, func() error { return s.env.Sleep(ctx, stepDownPause) }) != nil {
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
		why := fmt.Sprintf("this server gave up its leadership, and stands for election again at %s: %v",
			s.clockTime(s.env.Now().Add(wait)), err)
		if s.stay(why, func() error { return s.env.Sleep(ctx, wait) }) != nil {
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
		Clock:       s.clock,
		Failing:     s.failing,
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
		s.former.Store(before)
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

// openPeers creates the network over which the shard's servers exchange election messages. It serves that network at
// the election port once the cluster has a CA.
func (s *server) openPeers(ctx context.Context, listener net.Listener) {
	s.peers = peer.New(peer.Options{Self: s.identity.Peer(), Shard: s.opts.Shard, Source: s.endpoints.certificates,
		Log: s.log, Sleep: s.env.Sleep, Joined: s.refreshForPeer,
		Bucket: s.documents, Refused: s.metrics.StandbysRefused.Inc,
		Config:  func() string { return s.manager.Status().ETag },
		Restart: func(version string) string { return s.restartAsked(ctx, version) }})
	// A leader hands over to its heir after ctx has ended, so the network must outlive ctx.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.endpoints.onStop(stop)
	s.env.Go("follow the leader", func() { s.peers.Run(following) })
	s.env.Go("election endpoint", func() {
		select {
		case <-s.endpoints.sourced: // the services wait for the first leader of the cluster to create its CA
		case <-following.Done():
			_ = listener.Close()
			return
		}
		g := s.peers.Server(s.endpoints.certificates())
		stopped := !s.endpoints.onStop(g.Stop)
		if err := g.Serve(listener); err != nil && !stopped { // Stop has closed the listener.
			s.log.Warn("election endpoint ended", "error", err)
		}
	})
}

// refreshForPeer makes the leader look for a newer configuration. It is called when another server of the shard has
// become ready, because that server may have a newer configuration and replace this one. VMs must learn the addresses
// in that configuration before this server ends.
func (s *server) refreshForPeer() {
	l := s.leading.Load()
	if l == nil {
		return
	}
	s.env.Go("look for a configuration", func() {
		if _, _, err := s.refresh(l.agent.Context, l.leader); err != nil && l.agent.Context.Err() == nil {
			s.log.Warn("configuration not looked up", "error", err)
		}
	})
}

// serveLeader is for load balancers and people. It answers with status 200 on the leader and 503 on other servers. The
// text of the answer has the leader's name and term, or says why there is no leader.
func (s *server) serveLeader(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	status := s.status.Load()
	switch {
	case s.leading.Load() != nil && status != nil:
		fmt.Fprintf(w, "leader term=%d", status.Term)
		if heir := status.Holder.Heir.ID; heir != "" {
			fmt.Fprintf(w, " heir=%s", heir)
		}
		fmt.Fprintln(w)
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
		v := s.standing()
		if v.NoLeader == "" && v.Role == "standby" {
			fmt.Fprintf(w, "follower leader=%s term=%d\n", v.Leader, v.Term)
			return
		}
		fmt.Fprintln(w, v.says)
	}
}

// stepDownPause is how long a server that stepped down takes no part in the election, so that another server can lead.
const stepDownPause = 15 * time.Second

// errSteppedDown ends a term because an operator asked for it.
var errSteppedDown = errors.New("an operator asked the leader to step down")

// awaitStepDown returns errSteppedDown after requested is closed, or nil when ctx ends. It waits a moment after the
// request, so that the operator receives the answer.
func awaitStepDown(ctx context.Context, requested <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-requested:
	}
	answered := time.NewTimer(200 * time.Millisecond)
	defer answered.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-answered.C:
		return errSteppedDown
	}
}

// leadingStatus describes the current leadership.
func (s *server) leadingStatus(a *lease.Authority) operatorapi.Leading {
	out := operatorapi.Leading{Version: s.cfg.Version}
	settings := s.manager.Shard().Server.LeaderElection
	if settings.Enabled == nil || *settings.Enabled {
		left := a.Remaining() // with an heir, this is the rest of the heir's promise
		if status := s.status.Load(); status != nil && status.Wait.LeaseEnds > 0 {
			left = max(0, status.Wait.LeaseEnds.Sub(s.clock.Now()))
		}
		out.LeaseLeft = &left
	}
	if status := s.status.Load(); status != nil {
		out.Heir = status.Holder.Heir.ID
	}
	if s.peers != nil {
		for _, peer := range s.peers.Standbys() {
			if !slices.Contains(out.Standbys, peer.ID) {
				out.Standbys = append(out.Standbys, peer.ID)
			}
		}
	}
	slices.Sort(out.Standbys)
	if l := s.leading.Load(); l != nil {
		if waits := l.configWaits.Load(); waits != nil {
			out.ConfigWaits = *waits
		}
	}
	return out
}
