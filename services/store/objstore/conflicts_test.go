package objstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestConflictsEnd checks that a caller does not repeat a write without pauses, nor for ever.
func TestConflictsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Conflicts
		began, writes := time.Now(), 1
		for c.Again(t.Context(), fmt.Errorf("put: %w", ErrConflict)) {
			writes++
		}
		if took := time.Since(began); writes != mostConflicts || took < 30*time.Second || took > 2*time.Minute {
			t.Errorf("%d writes in %v", writes, took)
		}
	})
}

func TestConflictsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Conflicts
		began := time.Now()
		if c.Again(t.Context(), nil) || c.Again(t.Context(), errors.New("503")) ||
			c.Again(t.Context(), ErrIndeterminate) {
			t.Error("a write is repeated that has not met a conflict")
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if c.Again(ended, ErrConflict) {
			t.Error("a write is repeated after its context has ended")
		}
		for range quickConflicts {
			if !c.Again(t.Context(), ErrConflict) {
				t.Error("a conflict is not repeated")
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the first conflicts pause for %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), conflictPause/2)
		defer cancel()
		if c.Again(ctx, ErrConflict) || time.Since(began) > conflictPause {
			t.Error("the pause does not end with the context")
		}
	})
}
