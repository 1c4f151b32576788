package sim

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// homeRetry is how long a server waits before it looks again whether its bucket is the home of the shard.
const homeRetry = time.Second

// planCopies decides whether and when a person copies the bucket and starts a server that uses the copy. That server
// reaches the same provider, but no other server. So to that server, the leader seems to be dead.
func (w *World) planCopies() {
	moment := w.roll("copy")
	own := dice{moment.state}
	if own.IntN(3) == 0 {
		w.sched.after(own.between(time.Minute, w.opts.Faulty), func() { w.copyBucket(moment.state) })
	}
}

// copyBucket copies the bucket and starts a server that uses the copy. It does nothing before the first leader.
func (w *World) copyBucket(moment uint64) {
	if _, err := w.store.Get(w.outside, keys.Home(shardName)); err != nil || !w.faults.admit(moment, bucketCopied) {
		return
	}
	w.faults.about("a server uses the copy")
	other := mem.New(mem.Options{Now: func() time.Time { return w.sched.now }})
	entries, err := w.store.List(w.outside, "")
	if err != nil {
		panic(err)
	}
	for _, entry := range entries {
		object, err := w.store.Get(w.outside, entry.Key)
		if err == nil {
			_, err = other.Put(context.Background(), entry.Key, object.Body, objstore.Always())
		}
		if err != nil {
			panic(err)
		}
	}
	w.stranger = &server{world: w, name: "stranger", rate: 1, index: len(w.ways) - 1, options: w.electionOptions(0),
		copied: other}
	w.stranger.start()
}

// here returns the name by which this server knows its bucket.
func (s *server) here() record.Bucket {
	if s.copied != nil {
		return record.Bucket{Provider: "sim", Name: "copy"}
	}
	return record.Bucket{Provider: "sim", Name: "original"}
}

// stand makes the server take part in the election once its bucket is the home of the shard.
func (s *server) stand() {
	w, life := s.world, s.lives
	none := func() {}
	env := w.sched.env(s.process, s.wallSkew, none, none)
	w.sched.spawn(s.process, "check the home", func() {
		for {
			err := s.state(env).CheckHome(context.Background(), s.here())
			if err == nil {
				break
			}
			w.trace("%s does not stand for election: %v", s.process.name, err)
			if env.Sleep(context.Background(), homeRetry) != nil {
				return
			}
		}
		w.sched.after(0, func() {
			if s.lives == life {
				s.give(election.Tick{})
			}
		})
	})
}
