package drain

import (
	"context"
	"sync"
	"time"
)

// slots limits the number of concurrent drains. A free slot goes to the waiting drain with the earliest deadline. So a
// spot instance with two minutes left does not wait for a drain that has an hour.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting []*waiter
}

type waiter struct {
	deadline func() time.Time
	granted  chan struct{}
}

// acquire waits for a slot. It returns false if ctx ends first. Whenever a slot becomes free, deadline is called again,
// because a deadline may change.
func (s *slots) acquire(ctx context.Context, deadline func() time.Time) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return true
	}
	w := &waiter{deadline, make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, other := range s.waiting {
		if other == w {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			s.mu.Unlock()
			return false
		}
	}
	s.mu.Unlock()
	// ctx has ended, but the slot was granted to this drain at the same moment. Give the slot back.
	s.release()
	return false
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	next := 0
	for i, w := range s.waiting {
		if w.deadline().Before(s.waiting[next].deadline()) {
			next = i
		}
	}
	w := s.waiting[next]
	s.waiting = append(s.waiting[:next], s.waiting[next+1:]...)
	close(w.granted)
}
