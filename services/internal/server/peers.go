package server

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/nstance-kit/nstance/services/internal/server/lead/peer"
)

// openPeers creates the network over which the shard's servers exchange election messages. It serves that network at
// the election port once the cluster has a CA.
func (s *server) openPeers(ctx context.Context, listener net.Listener) {
	s.peers = peer.New(peer.Options{Self: s.identity.Peer(), Shard: s.opts.Shard, Source: s.endpoints.certificates,
		Log: s.log, Sleep: s.env.Sleep, Joined: s.refreshForPeer,
		Bucket: s.documents, Refused: s.metrics.StandbysRefused.Inc})
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
// text of the answer has the leader's name and term.
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
	case status == nil || status.Holder.Term == 0:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "no leader known")
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "follower leader=%s term=%d\n", status.Holder.LeaderID, status.Holder.Term)
	}
}
