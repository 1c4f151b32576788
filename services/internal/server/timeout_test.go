package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// deadlineStore records the longest timeout of any request for an instance record.
type deadlineStore struct {
	objstore.Store
	mu      sync.Mutex
	longest time.Duration
}

func (s *deadlineStore) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token,
	error) {
	if strings.HasPrefix(key, keys.InstancePrefix("a")) {
		deadline, _ := ctx.Deadline()
		s.mu.Lock()
		s.longest = max(s.longest, time.Until(deadline))
		s.mu.Unlock()
	}
	return s.Store.Put(ctx, key, body, cond)
}

func (s *deadlineStore) longestTimeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}

func TestRequestTimeoutBoundsRequestsToTheBucket(t *testing.T) {
	r := newTestShard(t)
	store := &deadlineStore{Store: r.bucket}
	r.bucket = store
	r.configure(func(doc map[string]any) { doc["server"].(map[string]any)["request_timeout"] = "7m" })
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	if got := store.longestTimeout(); got <= 6*time.Minute || got > 7*time.Minute {
		t.Errorf("a write of an instance record could take %v, want request_timeout, 7m", got)
	}
}
