package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLost is why the context of a leader's code was cancelled, and what Confirm returns, once the leadership is over.
var ErrLost = errors.New("leadership lost")

// Authority is the right to act in one term. All methods may be called concurrently, and after it has ended.
//
// The context that the leader's code got with it is cancelled when it ends, but a cancelled context stops only what
// looks at it. What must not happen without authority asks Remaining right before, and Confirm before what cannot be
// undone.
type Authority struct {
	term   uint64
	clock  Clock
	until  atomic.Int64 // an Instant
	cancel context.CancelCauseFunc
	once   sync.Once
	over   chan struct{}   // closed when it has ended
	ask    chan<- question // to the runner; nil: there is none, nothing is to be confirmed
}

// question is what the leader's code wants of the runner.
type question struct {
	about *Authority
	in    Input         // Applied or TermMet; nil: Confirm
	done  chan struct{} // closed when confirmed
}

// newAuthority derives the leader's context from ctx.
func newAuthority(ctx context.Context, term uint64, clock Clock, ask chan<- question) (context.Context, *Authority) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &Authority{term: term, clock: clock, cancel: cancel, over: make(chan struct{}), ask: ask}
}

// Unlimited is the authority of a leader without an election: it ends with ctx, by the returned cancel function, or by
// Refuse.
func Unlimited(ctx context.Context, term uint64) (context.Context, *Authority, context.CancelFunc) {
	ctx, a := newAuthority(ctx, term, stopped{}, nil)
	a.until.Store(int64(Never))
	return ctx, a, func() { a.end(context.Canceled) }
}

// stopped is the clock of those who have all the time in the world.
type stopped struct{}

func (stopped) Now() Instant { return 0 }

// Term is written into every record and onto every VM.
func (a *Authority) Term() uint64 { return a.term }

// Remaining is for how long the leader may still act, read from the clock now; 0 when it may not. A call to a provider
// or to the bucket is begun only if it can be expected to end within it.
func (a *Authority) Remaining() time.Duration {
	return max(0, Instant(a.until.Load()).Sub(a.clock.Now()))
}

// Confirm returns nil when it has been proved, by a request to the store that began after the call, that the lock is
// still this leadership's. Concurrent calls share requests. It returns ErrLost when the leadership is over, or the
// context's error.
func (a *Authority) Confirm(ctx context.Context) error {
	done := make(chan struct{})
	if a.ask == nil {
		close(done)
	} else if err := a.tell(ctx, question{about: a, done: done}); err != nil {
		return err
	}
	select {
	case <-done:
	case <-a.over:
		return ErrLost
	case <-ctx.Done():
		return fmt.Errorf("confirm leadership: %w", ctx.Err())
	}
	if a.Remaining() == 0 {
		return ErrLost
	}
	return nil
}

// SetAppliedETag has the next renewal carry the token of the configuration that is now in force.
func (a *Authority) SetAppliedETag(etag string) {
	if a.ask != nil {
		// once lost, there is no next renewal
		_ = a.tell(context.Background(), question{about: a, in: Applied{ETag: etag}})
	}
}

// Refuse says that something written in this term was found. If it is a higher one than ours, authority ends before
// Refuse returns, and later leaderships have a higher term still.
func (a *Authority) Refuse(term uint64) {
	if term <= a.term {
		return
	}
	if a.ask != nil {
		// once lost, the next term is read from the lock
		_ = a.tell(context.Background(), question{about: a, in: TermMet{Term: term}})
		<-a.over
		return
	}
	a.end(fmt.Errorf("%w: %w", ErrLost, &termMet{term}))
}

// termMet carries the term out of an unlimited leadership.
type termMet struct{ term uint64 }

func (e *termMet) Error() string { return fmt.Sprintf("%s: %d", ReasonTerm, e.term) }

// tell hands a question to the runner, unless the leadership is over.
func (a *Authority) tell(ctx context.Context, q question) error {
	select {
	case a.ask <- q:
		return nil
	case <-a.over:
		return ErrLost
	case <-ctx.Done():
		return fmt.Errorf("confirm leadership: %w", ctx.Err())
	}
}

// end takes the authority away: nothing is left of it, then the context is cancelled.
func (a *Authority) end(why error) {
	a.once.Do(func() {
		a.until.Store(0)
		a.cancel(why)
		close(a.over)
	})
}
