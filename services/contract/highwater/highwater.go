// Package highwater remembers the highest version of each object of a bucket that a process has seen, so that an object
// that was rolled back to an earlier version is detected.
package highwater

import (
	"errors"
	"fmt"
	"sync"
)

// ErrRolledBack means that an object has a lower version than this process has seen before. An earlier version was
// written back over a newer one.
var ErrRolledBack = errors.New("an earlier version was written back")

// Marks holds the highest version seen of each object, by its key. The zero Marks is ready for use. It is safe for
// concurrent use.
type Marks struct {
	mu      sync.Mutex
	highest map[string]uint64
}

// Observe records the version in which an object was read. before is the mark from before the read began, so that a
// write during the read does not count. Observe returns [ErrRolledBack] if version is below before. Unsigned objects
// have version 0.
func (m *Marks) Observe(key string, before, version uint64) error {
	if version < before {
		return fmt.Errorf("%s has version %d, and version %d was there before: %w", key, version, before, ErrRolledBack)
	}
	m.Raise(key, version)
	return nil
}

// Raise raises the mark of an object to at least version.
func (m *Marks) Raise(key string, version uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.highest == nil {
		m.highest = map[string]uint64{}
	}
	m.highest[key] = max(m.highest[key], version)
}

// Highest returns the highest version seen of an object, 0 if there is none.
func (m *Marks) Highest(key string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.highest[key]
}
