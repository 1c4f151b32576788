package filegen

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// maxMemory bounds what is remembered, in bytes.
	maxMemory = 64 << 20
	// maxStale is how old something may be for those who rather have an old version than wait.
	maxStale = time.Hour
)

// age says how old a remembered answer may be.
type age struct {
	// after, unless zero, is the time after which it must have been read.
	after time.Time
	// stale accepts an answer for maxStale instead of the time to live.
	stale bool
}

// allows reports whether an answer that was read at the given time may be used.
func (a age) allows(readAt, now time.Time, ttl time.Duration) bool {
	if !a.after.IsZero() && !readAt.After(a.after) {
		return false
	}
	limit := ttl
	if a.stale && ttl > 0 {
		limit = max(ttl, maxStale)
	}
	return now.Sub(readAt) < limit
}

// memory shares reads between those who ask at the same time, and remembers their answers for a while. Errors are not
// remembered.
type memory struct {
	ttl time.Duration
	now func() time.Time

	mu      sync.Mutex
	entries map[string]*entry
	reading map[string]*entry
	size    int
}

type entry struct {
	done    chan struct{}
	content []byte
	err     error
	at      time.Time // when it was asked for
}

// get returns the content of a key, a remembered one if its age is allowed. The result is shared and must not be
// changed.
func (m *memory) get(ctx context.Context, key string, allowed age,
	read func(context.Context) ([]byte, error)) ([]byte, error) {
	for {
		now := m.now()
		m.mu.Lock()
		have := m.entries[key]
		if have != nil && allowed.allows(have.at, now, m.ttl) {
			m.mu.Unlock()
			return have.content, nil
		}
		under, wait := m.reading[key]
		if !wait {
			under = &entry{done: make(chan struct{}), at: now}
			if m.reading == nil {
				m.reading = map[string]*entry{}
			}
			m.reading[key] = under
		}
		m.mu.Unlock()
		if !wait {
			return m.read(ctx, key, under, read)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-under.done:
		}
		// The one who read may have given up; that is not our answer.
		if errors.Is(under.err, context.Canceled) || errors.Is(under.err, context.DeadlineExceeded) {
			continue
		}
		return under.content, under.err
	}
}

func (m *memory) read(ctx context.Context, key string, under *entry, read func(context.Context) ([]byte, error)) (
	[]byte, error) {
	under.err = errors.New("reading did not end") // what the others see if it panics
	defer close(under.done)
	defer m.keep(key, under)
	under.content, under.err = read(ctx)
	return under.content, under.err
}

func (m *memory) keep(key string, read *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.reading, key)
	if read.err != nil || m.ttl <= 0 {
		return
	}
	if old := m.entries[key]; old != nil {
		m.size -= len(old.content)
	}
	if m.size += len(read.content); m.size > maxMemory {
		clear(m.entries)
		m.size = len(read.content)
	}
	m.entries[key] = read
}
