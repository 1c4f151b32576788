package leader

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

const (
	// recheckFirst is the delay of the first check for late writes. An earlier leader may have sent writes before its
	// lease ended. Almost all of them have succeeded or failed within a minute, because clients time out sooner.
	recheckFirst = time.Minute
	// recheckEvery is the interval of later checks. A record that the State lacks is found after this time at the
	// latest. A check costs one request per thousand records.
	recheckEvery = 10 * time.Minute
)

// Recheck looks for records that an earlier leader wrote after TakeOver had read them. Such a write happens if the
// earlier leader's process was suspended between its last check of the lease and its request. The leader would notice
// the write only when it writes the same record, because then the versions conflict. Recheck returns when ctx ends.
func (l *Leader) Recheck(ctx context.Context) {
	for wait := recheckFirst; l.Executor.Env.Sleep(ctx, wait) == nil; wait = recheckEvery {
		err := l.records.LoadUnseen(ctx, l.State.Seen, func(rec record.Instance, token objstore.Token) {
			if rec.Term < l.State.Term() {
				l.Executor.Log.Info("found a record that an earlier leader wrote late", "instance", rec.ID.String(),
					"state", string(rec.State), "term", rec.Term)
			}
			l.found(rec, token)
		})
		if err != nil && ctx.Err() == nil {
			l.Executor.Log.Warn("records not compared with the bucket's, next try later", "error", err,
				"in", recheckEvery)
		}
	}
}

// found stores a record that this leader did not know. If the State already has a newer version of the record, found
// keeps the newer version.
func (l *Leader) found(rec record.Instance, token objstore.Token) {
	_, _, lives := l.State.Record(rec.ID)
	_, dead := l.State.Tombstone(rec.ID)
	switch {
	case rec.Term > l.State.Term():
		l.Executor.Authority.Refuse(rec.Term)
	case rec.State != record.Reserved:
		l.State.PutRecord(rec, token)
	case rec.ReservedTerm < l.State.Term() && !lives && !dead:
		l.State.AddLeftover(shardstate.Reservation{Record: rec, Token: token})
	}
}
