// Package watch distributes events to watch streams. It queues events per subscriber in bounded queues, coalesces them
// per key, and never blocks the publisher.
//
// Invariant: for every key, a subscriber gets the newest event published since it subscribed. Keys come in the order of
// their first unread event. A subscriber that is too slow gets ErrSlow instead, and must list again. A subscriber that
// stops reading does not make memory grow.
package watch

import (
	"context"
	"errors"
	"sync"
)

// ErrSlow ends a subscription that has unread events of more keys than its queue can hold.
var ErrSlow = errors.New("watcher is too slow: list and watch again")

// ErrClosed ends a subscription when its hub or the subscription itself is closed.
var ErrClosed = errors.New("watch has ended")

// Hub distributes events of one type. The zero value is ready to use. It is safe for concurrent use.
type Hub[K comparable, V any] struct {
	mu     sync.Mutex
	subs   map[*Subscription[K, V]]struct{}
	closed bool
}

// Subscription is the queue of one reader.
type Subscription[K comparable, V any] struct {
	hub   *Hub[K, V]
	want  func(K) bool
	limit int

	mu      sync.Mutex
	order   []K
	pending map[K]V
	err     error
	signal  chan struct{} // capacity 1
	slow    chan struct{} // closed when the subscription ends with ErrSlow
}

// Subscribe returns a new queue for the keys that the function `want` accepts. If `want` is nil, the queue accepts all
// keys. The queue holds at most `limit` distinct keys.
func (h *Hub[K, V]) Subscribe(limit int, want func(K) bool) *Subscription[K, V] {
	s := &Subscription[K, V]{hub: h, want: want, limit: limit, pending: map[K]V{}, signal: make(chan struct{}, 1),
		slow: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.err = ErrClosed
		return s
	}
	if h.subs == nil {
		h.subs = map[*Subscription[K, V]]struct{}{}
	}
	h.subs[s] = struct{}{}
	return s
}

// Publish queues an event for every subscriber that wants its key. It does not block.
func (h *Hub[K, V]) Publish(key K, value V) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		if s.want == nil || s.want(key) {
			if !s.offer(key, value) {
				delete(h.subs, s)
			}
		}
	}
}

// Close ends every subscription with ErrClosed once its queued events are read. A later subscription ends immediately.
func (h *Hub[K, V]) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subs {
		s.end(ErrClosed)
	}
	clear(h.subs)
}

func (s *Subscription[K, V]) offer(key K, value V) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false
	}
	if _, queued := s.pending[key]; !queued {
		if len(s.order) >= s.limit {
			s.err = ErrSlow
			s.order, s.pending = nil, nil
			close(s.slow)
			s.wake()
			return false
		}
		s.order = append(s.order, key)
	}
	s.pending[key] = value
	s.wake()
	return true
}

func (s *Subscription[K, V]) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.wake()
}

func (s *Subscription[K, V]) wake() {
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// Slow returns a channel that is closed once the reader has fallen behind. A reader that waits for other events cannot
// call Next meanwhile, and uses this channel.
func (s *Subscription[K, V]) Slow() <-chan struct{} { return s.slow }

// Next returns the next event. It waits for one until ctx ends. Only one goroutine may call Next at a time.
func (s *Subscription[K, V]) Next(ctx context.Context) (V, error) {
	for {
		s.mu.Lock()
		if len(s.order) > 0 {
			key := s.order[0]
			s.order = s.order[1:]
			value := s.pending[key]
			delete(s.pending, key)
			s.mu.Unlock()
			return value, nil
		}
		err := s.err
		s.mu.Unlock()
		var none V
		if err != nil {
			return none, err
		}
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-s.signal:
		}
	}
}

// Close ends the subscription with ErrClosed once its queued events are read.
func (s *Subscription[K, V]) Close() {
	s.hub.mu.Lock()
	delete(s.hub.subs, s)
	s.hub.mu.Unlock()
	s.end(ErrClosed)
}
