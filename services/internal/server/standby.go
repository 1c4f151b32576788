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
	// copyEvery is how often an heir looks for records that have changed since it copied them: a request for a thousand of them, and one for each that has.
	copyEvery = 2 * time.Hour
	// copyAgain is how long it waits at least before it looks again, whatever the reason: an heir that comes and goes is no cause for thousands of requests.
	copyAgain = 10 * time.Minute
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
	var last, next time.Time
	for s.env.Sleep(ctx, copyLook) == nil {
		if s.copyGone.Swap(false) { // it led
			next = last.Add(copyAgain)
		}
		if !s.isHeir() || time.Now().Before(next) {
			continue
		}
		last = time.Now()
		next = last.Add(copyEvery)
		switch err := s.standby.Refresh(ctx, copyAtOnce); {
		case err == nil:
			s.log.Info("the shard's records are copied, for when this server leads", "after", time.Since(last).String())
		case ctx.Err() == nil:
			s.log.Warn("the shard's records are not all copied, next try later", "error", err, "in", copyAgain.String())
			next = last.Add(copyAgain)
		}
	}
}

func (s *server) isHeir() bool {
	status := s.status.Load()
	return status != nil && status.Role == lease.Candidate && status.Holder.Heir == s.identity.Peer()
}
