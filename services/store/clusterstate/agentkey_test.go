package clusterstate_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// TestTakeKey checks that the first instance of the cluster that takes a key keeps it, also if the result of the write
// was unknown, and that an object that cannot be read is not taken for an answer.
func TestTakeKey(t *testing.T) {
	var fault func(mem.Request) mem.Fault
	bucket := mem.New(mem.Options{Inject: func(_ context.Context, r mem.Request) mem.Fault {
		if fault == nil {
			return mem.Fault{}
		}
		return fault(r)
	}})
	here := open(t, bucket, 1)
	elsewhere := open(t, bucket, 2, func(o *clusterstate.Options) { o.ShardID = "elsewhere" })
	first, second := newID(t, "knd", 1), newID(t, "knd", 2)
	key := bytes.Repeat([]byte{7}, 32)

	lost := false
	fault = func(r mem.Request) mem.Fault {
		if r.Op == mem.Put && !lost {
			lost = true
			return mem.Fault{Lost: true}
		}
		return mem.Fault{}
	}
	for range 2 {
		if err := here.TakeKey(t.Context(), key, "prod", first); err != nil {
			t.Fatal(err)
		}
	}
	if !lost {
		t.Error("no write was lost")
	}
	fault = nil
	for name, state := range map[string]*clusterstate.State{"same shard": here, "another shard": elsewhere} {
		var taken *clusterstate.KeyTakenError
		if err := state.TakeKey(t.Context(), key, "prod", second); !errors.As(err, &taken) ||
			taken.Holder != first || taken.Shard != shard {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := elsewhere.TakeKey(t.Context(), bytes.Repeat([]byte{8}, 32), "prod", second); err != nil {
		t.Errorf("another key: %v", err)
	}

	if _, err := bucket.Put(t.Context(), keys.AgentKey(key), []byte("{"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	var taken *clusterstate.KeyTakenError
	if err := here.TakeKey(t.Context(), key, "prod", first); !errors.Is(err, clusterstate.ErrDamaged) ||
		errors.As(err, &taken) {
		t.Errorf("a damaged object: %v", err)
	}
}
