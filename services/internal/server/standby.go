package server

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/lease"
)

const (
	// copyAgain is how long an heir waits at least before it looks for records that have changed since it copied them, whatever the reason: an heir that
	// comes and goes is no cause for thousands of requests.
	copyAgain = 10 * time.Minute
	// copyRarely is how long it waits where nothing changes; the pause doubles until then. A look is a request for a thousand records.
	copyRarely = 2 * time.Hour
	// copyAtOnce is how many are read at a time. Nobody waits for them.
	copyAtOnce = 8
	// copyLook is how often this server looks whether it has become the heir.
	copyLook = 500 * time.Millisecond
)

// records are the shard's, for a leader: what this server copied as the heir it does not read again.
type records struct {
	*clusterstate.State
	server *server
}

// LoadInstances implements reconcile.Records.
func (r records) LoadInstances(ctx context.Context, take func(record.Instance, objstore.Token)) error {
	loaded := 0
	spared, err := r.server.standby.LoadInstances(ctx, func(rec record.Instance, token objstore.Token) {
		loaded++
		take(rec, token)
	})
	if err == nil {
		r.server.log.Info("records loaded", "records", loaded, "copied_before", spared)
	}
	return err
}

// standBy keeps a copy of the shard's records while this server is its leader's heir, until ctx ends.
func (s *server) standBy(ctx context.Context) {
	var last time.Time // when it looked
	pause := time.Duration(0)
	for s.env.Sleep(ctx, copyLook) == nil {
		if s.copyGone.Swap(false) { // it led
			pause = min(pause, copyAgain)
		}
		if !s.isHeir() || time.Since(last) < pause {
			continue
		}
		last = time.Now()
		changed, err := s.standby.Refresh(ctx, copyAtOnce)
		pause = nextCopy(pause, changed, err)
		switch {
		case err == nil:
			s.log.Info("the shard's records are copied, for when this server leads", "changed", changed, "took", time.Since(last).String())
		case ctx.Err() == nil:
			s.log.Warn("the shard's records are not all copied, next try later", "error", err, "in", pause.String())
		}
	}
}

// nextCopy is how long to wait after a look that found so many changed records, and came after a pause.
func nextCopy(pause time.Duration, changed int, err error) time.Duration {
	if err != nil || changed > 0 || pause == 0 {
		return copyAgain
	}
	return min(2*pause, copyRarely)
}

func (s *server) isHeir() bool {
	status := s.status.Load()
	return status != nil && status.Role == lease.Candidate && status.Holder.Heir == s.identity.Peer()
}
