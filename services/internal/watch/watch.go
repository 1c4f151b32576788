// Package watch owns fan-out of events to watch streams: bounded queues, coalesced per key, that never make the
// publisher wait.
//
// Invariant: a subscriber sees, for every key, the newest event published since it subscribed, in order of the keys'
// first unread event, or is told that it was too slow and must list again. Nothing grows with a reader that does not
// read.
package watch

import (
	"context"
	"errors"
	"sync"
)

// ErrSlow ends a subscription whose reader fell behind by more keys than its queue holds.
var ErrSlow = errors.New("watcher is too slow: list again and watch anew")

// ErrClosed ends a subscription whose hub was closed.
var ErrClosed = errors.New("watch has ended")

// Hub fans out events of one sort. The zero value is ready to use. Safe for concurrent use.
type Hub[K comparable, V any] struct {
	mu     sync.Mutex
	subs   map[*Subscription[K, V]]struct{}
	closed bool
}

// Subscription is one reader's queue.
type Subscription[K comparable, V any] struct {
	hub   *Hub[K, V]
	want  func(K) bool
	limit int

	mu      sync.Mutex
	order   []K
	pending map[K]V
	err     error
	signal  chan struct{} // capacity 1
	slow    chan struct{} // closed with ErrSlow
}

// Subscribe starts a queue of at most limit distinct keys, of those keys that want accepts (nil: all).
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

// Publish hands an event to every subscriber that wants its key. It does not block.
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

// Close ends every subscription with ErrClosed after what it has queued; later ones end at once.
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

// Slow is closed once the reader has fallen behind: for a reader that is waiting for something else than Next.
func (s *Subscription[K, V]) Slow() <-chan struct{} { return s.slow }

// Next returns the next event, waiting for one until ctx ends. One reader at a time.
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

// Close ends the subscription.
func (s *Subscription[K, V]) Close() {
	s.hub.mu.Lock()
	delete(s.hub.subs, s)
	s.hub.mu.Unlock()
	s.end(ErrClosed)
}
