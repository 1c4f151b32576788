package leader

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

const (
	// recheckFirst is when most of what an earlier leader had sent when its lease ended has landed or never will:
	// clients give up sooner.
	recheckFirst = time.Minute
	// recheckEvery bounds for how long the picture may lack what is in the bucket; it costs a request for a thousand
	// records.
	recheckEvery = 10 * time.Minute
)

// Recheck looks for records that somebody else wrote after TakeOver had read them: a write of an earlier leader whose
// process stood still between its last look at the lease and its request is fenced by the record's version only, and a
// leader that does not write this record would never know. It returns when ctx ends.
func (l *Leader) Recheck(ctx context.Context) {
	for wait := recheckFirst; l.parts.Env.Sleep(ctx, wait) == nil; wait = recheckEvery {
		err := l.parts.Records.LoadUnseen(ctx, l.World.Seen, func(rec record.Instance, token objstore.Token) {
			if rec.Term < l.World.Term() {
				l.parts.Log.Info("found a record that an earlier leader wrote late", "instance", rec.ID.String(),
					"state", string(rec.State), "term", rec.Term)
			}
			l.found(rec, token)
		})
		if err != nil && ctx.Err() == nil {
			l.parts.Log.Warn("records not compared with the bucket's, next try later", "error", err, "in", recheckEvery)
		}
	}
}

// found takes a record that this leader did not know of. What it has learnt since the record was read is newer.
func (l *Leader) found(rec record.Instance, token objstore.Token) {
	_, _, lives := l.World.Record(rec.ID)
	_, dead := l.World.Tombstone(rec.ID)
	switch {
	case rec.Term > l.World.Term():
		l.parts.Authority.Refuse(rec.Term)
	case rec.State != record.Reserved:
		l.World.PutRecord(rec, token)
	case rec.ReservedTerm < l.World.Term() && !lives && !dead:
		l.World.AddLeftover(shardstate.Reservation{Record: rec, Token: token})
	}
}
