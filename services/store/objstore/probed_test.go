package objstore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// countingStore counts puts, and fails them while fail is set.
type countingStore struct {
	objstore.Store
	puts atomic.Int64
	fail error
}

func (s *countingStore) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token,
	error) {
	s.puts.Add(1)
	if s.fail != nil {
		return "", s.fail
	}
	return s.Store.Put(ctx, key, body, cond)
}

func TestWithProbeRefusesAnUnconditionalStore(t *testing.T) {
	inner := &countingStore{Store: mem.New()}
	ignoring := liar{Store: inner, change: func(string, objstore.Condition) objstore.Condition {
		return objstore.Always()
	}}
	store := objstore.WithProbe(ignoring, "probe/n")
	for range 2 {
		before := inner.puts.Load()
		if _, err := store.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent()); !errors.Is(err,
			objstore.ErrUnconditional) {
			t.Fatalf("put: %v, want ErrUnconditional", err)
		}
		if before > 0 && inner.puts.Load() > before {
			t.Error("the probe runs again, although its result is final")
		}
	}
	if entries, err := inner.List(t.Context(), ""); err != nil || len(entries) != 0 {
		t.Errorf("the store holds %v (%v), want nothing", entries, err)
	}
}

func TestWithProbeRunsUntilItHasAResult(t *testing.T) {
	inner := &countingStore{Store: mem.New(), fail: errors.New("no connection")}
	store := objstore.WithProbe(inner, "probe/n")
	put := func(key string) error {
		_, err := store.Put(t.Context(), key, []byte("x"), objstore.IfAbsent())
		return err
	}
	if err := put("a"); !errors.Is(err, inner.fail) || inner.puts.Load() != 1 {
		t.Fatalf("put without connection: %v after %d puts, want the probe's error after one", err, inner.puts.Load())
	}
	inner.fail = nil
	if err := put("a"); err != nil {
		t.Fatal(err)
	}
	probed := inner.puts.Load()
	if err := put("b"); err != nil || inner.puts.Load() != probed+1 {
		t.Errorf("the second put: %v, %d puts, want one", err, inner.puts.Load()-probed)
	}
	if entries, err := store.List(t.Context(), ""); err != nil || len(entries) != 2 {
		t.Errorf("the store holds %v (%v), want a and b", entries, err)
	}
}
