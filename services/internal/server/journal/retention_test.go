package journal_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// slowStore is a bucket that needs 100 ms for each page of 1,000 keys of a list and for each deletion. The first
// failing deletions fail. It keeps the parts of earlier leaders in a map, because a mem.Store with so many keys moves
// them all for each change.
type slowStore struct {
	*mem.Store
	failing atomic.Int64
	mu      sync.Mutex
	old     map[string]struct{}
}

// list returns the entries below a prefix immediately.
func (s *slowStore) list(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	entries, err := s.Store.List(ctx, prefix)
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.old {
		if strings.HasPrefix(key, prefix) {
			entries = append(entries, objstore.Entry{Key: key})
		}
	}
	return entries, err
}

func (s *slowStore) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	entries, err := s.list(ctx, prefix)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(1+len(entries)/1000) * 100 * time.Millisecond):
		return entries, err
	}
}

func (s *slowStore) Delete(ctx context.Context, key string) error {
	if s.failing.Add(-1) >= 0 {
		return errors.New("503")
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(100 * time.Millisecond):
	}
	s.mu.Lock()
	_, found := s.old[key]
	delete(s.old, key)
	s.mu.Unlock()
	if found {
		return nil
	}
	return s.Store.Delete(ctx, key)
}

// TestRetentionOfABusyShard starts with 60 days of a journal of 2,880 parts a day (one every 30 s; 200 parts with
// -short), in a slow bucket of which the first deletions fail. A day later, all parts older than the retention of 30
// days must be gone, and all younger ones there.
func TestRetentionOfABusyShard(t *testing.T) {
	partsADay := 2880
	if testing.Short() {
		partsADay = 200
	}
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{Store: mem.New(), old: map[string]struct{}{}}
		store.failing.Store(2)
		now := time.Now()
		for day := range 60 {
			for part := range partsADay {
				key := keys.Journal("a", now.AddDate(0, 0, -day), 1, uint64(100_000_000-day*10_000+part))
				store.old[key] = struct{}{}
			}
		}
		c, err := localdb.Open(t.Context(), localdb.Path(t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		j := journal.New(journal.Options{Shard: "a", Term: 2, Store: store, DB: c, Now: time.Now,
			Retention: func() time.Duration { return 30 * 24 * time.Hour }, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		began := time.Now()
		for day := 1; day <= 3; day++ {
			time.Sleep(24 * time.Hour)
			oldest := time.Now().AddDate(0, 0, -30).UTC().Truncate(24 * time.Hour)
			kept, err := store.list(t.Context(), keys.JournalPrefix("a"))
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range kept {
				if key, err := keys.Parse(entry.Key); err != nil || key.Time.Before(oldest.AddDate(0, 0, -1)) {
					t.Fatalf("after %s, %s is there: %v", time.Since(began), entry.Key, err)
				}
			}
			if want := (30 - day) * partsADay; len(kept) < want {
				t.Errorf("after %s, %d parts are there, want at least %d", time.Since(began), len(kept), want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
