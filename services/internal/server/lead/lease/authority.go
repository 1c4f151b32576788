package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// ErrLost means that the leadership was lost. It is the cause with which the context of the leader's code is cancelled.
// Confirm returns ErrLost once the leadership is over.
var ErrLost = errors.New("leadership lost")

// Authority is the right to act in one term. All methods may be called concurrently, also after it has ended.
//
// The context that the leader's code gets with its Authority is cancelled when the authority ends. A cancelled context
// stops only code that checks it. Code that must not run without authority checks Remaining immediately before each
// step. Before a step that cannot be undone, it also calls Confirm.
type Authority struct {
	term   uint64
	clock  Clock
	until  atomic.Int64 // an election.Instant
	cancel context.CancelCauseFunc
	once   sync.Once
	ended  chan struct{}
	runner chan<- request // nil: there is no election, and nothing to confirm
}

// request is a request from the leader's code to the goroutine of Run.
type request struct {
	from *Authority
	in   election.Input // ConfigApplied or TermSeen; nil: Confirm
	done chan struct{}  // closed when confirmed
}

// newAuthority derives the context of the leader's code from ctx.
func newAuthority(ctx context.Context, term uint64, clock Clock, runner chan<- request) (context.Context, *Authority) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &Authority{term: term, clock: clock, cancel: cancel, ended: make(chan struct{}), runner: runner}
}

// Unlimited returns the authority of a leader without an election. Its context ends when ctx ends, when the returned
// function is called, or when Refuse is called with a higher term.
func Unlimited(ctx context.Context, term uint64) (context.Context, *Authority, context.CancelFunc) {
	ctx, a := newAuthority(ctx, term, stoppedClock{}, nil)
	a.until.Store(int64(election.Never))
	return ctx, a, func() { a.end(context.Canceled) }
}

// stoppedClock is the clock of an unlimited authority.
type stoppedClock struct{}

func (stoppedClock) Now() election.Instant { return 0 }

// Term returns the term, which is written into every record and onto every VM.
func (a *Authority) Term() uint64 { return a.term }

// Remaining reads the clock and returns for how long the leader may still act, or 0. A call to a provider or to the
// store begins only if it can be expected to end within that time.
func (a *Authority) Remaining() time.Duration {
	return max(0, election.Instant(a.until.Load()).Sub(a.clock.Now()))
}

// Confirm returns nil after proof that this leader still holds the lock. The proof is an answer to something that was
// sent after the call of Confirm: a request to the store, or a heartbeat to the heir. Concurrent calls share requests.
// Confirm returns ErrLost when the leadership is over, and the error of ctx when ctx ends first.
func (a *Authority) Confirm(ctx context.Context) error {
	done := make(chan struct{})
	if a.runner == nil {
		close(done)
	} else if err := a.send(ctx, request{from: a, done: done}); err != nil {
		return err
	}
	select {
	case <-done:
	case <-a.ended:
		return ErrLost
	case <-ctx.Done():
		return fmt.Errorf("confirm leadership: %w", ctx.Err())
	}
	if a.Remaining() == 0 {
		return ErrLost
	}
	return nil
}

// SetAppliedETag sets the token of the applied configuration. The next renewal writes the token into the lock.
func (a *Authority) SetAppliedETag(etag string) {
	if a.runner != nil {
		// Ignore the error: send fails only if the leadership is over. Then no renewal writes the ETag any more.
		_ = a.send(context.Background(), request{from: a, in: election.ConfigApplied{ETag: etag}})
	}
}

// Refuse reports that a record of the given term was found. If that term is higher than the leader's, the leader's
// authority ends before Refuse returns. Later leaderships of this process then have an even higher term.
func (a *Authority) Refuse(term uint64) {
	if term <= a.term {
		return
	}
	if a.runner != nil {
		// Ignore the error: send fails only if the leadership is over. Then nobody needs the given term, because this
		// process reads the term of its next leadership from the lock.
		_ = a.send(context.Background(), request{from: a, in: election.TermSeen{Term: term}})
		<-a.ended
		return
	}
	a.end(fmt.Errorf("%w: %w", ErrLost, &higherTermError{term}))
}

// higherTermError means that a leadership without an election ended because a record of a higher term was found. Run
// reads the higher term from the error.
type higherTermError struct{ term uint64 }

func (e *higherTermError) Error() string { return fmt.Sprintf("%s: %d", election.ReasonTerm, e.term) }

// send hands a request to the goroutine of Run, unless the leadership is over.
func (a *Authority) send(ctx context.Context, r request) error {
	select {
	case a.runner <- r:
		return nil
	case <-a.ended:
		return ErrLost
	case <-ctx.Done():
		return fmt.Errorf("confirm leadership: %w", ctx.Err())
	}
}

// end ends the authority before it cancels the context.
func (a *Authority) end(cause error) {
	a.once.Do(func() {
		a.until.Store(0)
		a.cancel(cause)
		close(a.ended)
	})
}
