package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
)

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
		left := a.Remaining()
		out.LeaseLeft = &left
	}
	if status := s.status.Load(); status != nil {
		out.Heir = status.Holder.Heir.ID
	}
	if s.peers != nil {
		for _, peer := range s.peers.Peers() {
			if !slices.Contains(out.Standbys, peer.ID) {
				out.Standbys = append(out.Standbys, peer.ID)
			}
		}
	}
	slices.Sort(out.Standbys)
	return out
}
