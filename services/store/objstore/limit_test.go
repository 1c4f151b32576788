package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

func TestWithLimitConformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return objstore.WithLimit(mem.New(mem.Options{}), 2) })
}

func TestWithLimit(t *testing.T) {
	const calls, limit = 40, 4
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var running, most, made int
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return made
		}
		inner := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault {
			return mem.Fault{Before: time.Second}
		},
			Sleep: func(_ context.Context, d time.Duration) error {
				mu.Lock()
				made, running = made+1, running+1
				most = max(most, running)
				mu.Unlock()
				time.Sleep(d)
				mu.Lock()
				defer mu.Unlock()
				running--
				return nil
			}})
		store := objstore.WithLimit(inner, limit)
		for i := range calls {
			key := fmt.Sprintf("k%d", i/4)
			go func() {
				var err error
				switch i % 4 {
				case 0:
					_, err = store.Put(t.Context(), key, nil, objstore.Always())
				case 1:
					err = store.Delete(t.Context(), key)
				case 2:
					_, err = store.List(t.Context(), "")
				case 3:
					_, err = store.Get(t.Context(), key)
				}
				if err != nil && !errors.Is(err, objstore.ErrNotFound) {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		before := count()
		hurried, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := store.Put(hurried, "late", nil, objstore.Always())
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, objstore.ErrIndeterminate) {
			t.Errorf("who did not get a turn: %v", err)
		}
		if n := count(); n != before {
			t.Errorf("%d requests went out meanwhile", n-before)
		}
		time.Sleep(calls/limit*time.Second + time.Second)
		if count() != calls || most != limit {
			t.Errorf("%d calls, at most %d at a time; want %d and %d", count(), most, calls, limit)
		}
	})
}
