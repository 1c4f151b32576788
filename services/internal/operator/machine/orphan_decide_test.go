package machine

import (
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

func TestDecideOrphan(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	empty := shardView{id: "east", reachable: true, synced: true}
	silent, unlisted, has, had := empty, empty, empty, empty
	silent.reachable, unlisted.synced = false, false
	has.instance = &nstancev1.InstanceStatus{State: "created"}
	had.instance = &nstancev1.InstanceStatus{State: stateDeleted}
	for name, c := range map[string]struct {
		infrastructure bool
		shards         []shardView
		age            time.Duration
		reap           bool
		again          time.Duration
		// forgets: the minute starts again.
		forgets bool
	}{
		"first seen":        {shards: []shardView{empty, had}, again: orphanGrace},
		"before a minute":   {shards: []shardView{empty}, age: 20 * time.Second, again: 40 * time.Second},
		"after a minute":    {shards: []shardView{empty, had}, age: time.Minute, reap: true},
		"an NstanceMachine": {infrastructure: true, shards: []shardView{empty}, age: time.Hour, forgets: true},
		"an instance": {shards: []shardView{empty, has}, age: 2 * orphanGrace, again: orphanRecheck,
			forgets: true},
		"a shard is silent": {shards: []shardView{empty, silent}, age: 2 * orphanGrace, again: orphanRecheck,
			forgets: true},
		"a shard has not listed": {shards: []shardView{unlisted, empty}, age: 2 * orphanGrace, again: orphanRecheck,
			forgets: true},
	} {
		t.Run(name, func(t *testing.T) {
			in := orphanInput{infrastructure: c.infrastructure, shards: c.shards, now: now}
			if c.age > 0 {
				in.since = now.Add(-c.age)
			}
			reap, again := decideOrphan(&in)
			if reap != c.reap || again != c.again || in.since.IsZero() != c.forgets {
				t.Errorf("reap %t, again %s, since %s; want %+v", reap, again, in.since, c)
			}
		})
	}
}
