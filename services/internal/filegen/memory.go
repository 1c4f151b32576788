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

// get returns the content of a key. stale takes what is remembered for up to maxStale, fresh takes nothing that is
// remembered. The result is shared and must not be changed.
func (m *memory) get(ctx context.Context, key string, stale, fresh bool,
	read func(context.Context) ([]byte, error)) ([]byte, error) {
	for {
		now := m.now()
		m.mu.Lock()
		have := m.entries[key]
		if have != nil && !fresh && (now.Sub(have.at) < m.ttl || stale && m.ttl > 0 && now.Sub(have.at) < maxStale) {
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
