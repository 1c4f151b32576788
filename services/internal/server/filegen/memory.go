package filegen

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// maxMemory is the limit of remembered content, in bytes.
	maxMemory = 64 << 20
	// maxStale is the maximum age of content that a caller accepts if it must not wait for a read.
	maxStale = time.Hour
)

// age limits the age of a remembered answer.
type age struct {
	// If `after` is set, only an answer that was read later than `after` may be used.
	after time.Time
	// stale accepts answers up to the age of maxStale, even if the time to live is shorter.
	stale bool
}

// allows reports whether an answer that was read at readAt may be used.
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

// memory shares reads among concurrent callers and remembers answers for a while. It does not remember errors. It is
// safe for concurrent use.
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
	at      time.Time // start of the read
}

// get returns the content of a key. It reads the content if it remembers none, or if the remembered content is too old
// for the caller. Callers share the result and must not change it.
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
		// Another caller has read the content and failed, because that caller's context ended. Read again with the
		// context of the present caller.
		if errors.Is(under.err, context.Canceled) || errors.Is(under.err, context.DeadlineExceeded) {
			continue
		}
		return under.content, under.err
	}
}

func (m *memory) read(ctx context.Context, key string, under *entry, read func(context.Context) ([]byte, error)) (
	[]byte, error) {
	under.err = errors.New("reading did not end") // returned to the other callers if read panics
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
