package objstore

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

const (
	quickConflicts = 3 // are repeated without a pause, because another writer made progress
	mostConflicts  = 20
	conflictPause  = 50 * time.Millisecond
	longestPause   = 5 * time.Second
)

// Conflicts counts the conflicts of one conditional write, for a caller that reads the object and writes it again. Some
// stores answer with a conflict although nobody else writes, so the repetitions have pauses and a limit. The zero value
// is ready to use. It is not safe for concurrent use.
type Conflicts struct{ count int }

// Again reports whether the caller should read the object and write it again, because err is ErrConflict. It pauses
// before it returns true. It returns false after twenty conflicts, and when ctx has ended.
func (c *Conflicts) Again(ctx context.Context, err error) bool {
	if !errors.Is(err, ErrConflict) || ctx.Err() != nil {
		return false
	}
	c.count++
	switch {
	case c.count >= mostConflicts:
		return false
	case c.count <= quickConflicts:
		return true
	}
	timer := time.NewTimer(reconnect.Backoff(conflictPause, longestPause, c.count-quickConflicts))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
