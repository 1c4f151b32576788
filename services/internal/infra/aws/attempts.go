package aws

import (
	"context"
	"sync"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"

	"github.com/nstance-kit/nstance/services/internal/infra"
)

// attempts is what became of the attempts at one call: the SDK repeats calls by itself and returns the last error only.
type attempts struct {
	mu        sync.Mutex
	sent      int
	turned    int  // away, for too many calls
	ambiguous bool // one may have done something although it failed
}

type attemptsKey struct{}

// follow makes the attempts at a call known to who holds the result.
func follow(ctx context.Context) (context.Context, *attempts) {
	a := &attempts{}
	return context.WithValue(ctx, attemptsKey{}, a), a
}

func attemptsOf(ctx context.Context) *attempts {
	a, _ := ctx.Value(attemptsKey{}).(*attempts)
	return a
}

// result returns how many attempts were sent, how many of these were turned away for too many calls, and whether one
// may have done something although it failed.
func (a *attempts) result() (sent, turned int, ambiguous bool) {
	if a == nil {
		return 0, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent, a.turned, a.ambiguous
}

func (a *attempts) send() {
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sent++
	}
}

func (a *attempts) turnAway() {
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.turned++
	}
}

func (a *attempts) doubt() {
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ambiguous = true
	}
}

// watch adds to a client's stack what follows attempts: one look at each attempt's outcome, inside the SDK's
// repetition, and one where requests are sent. throttled hears of every attempt that was turned away for too many
// calls.
func watch(throttled func(call string)) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		outcome := middleware.FinalizeMiddlewareFunc("NstanceOutcome",
			func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (
				middleware.FinalizeOutput, middleware.Metadata, error,
			) {
				tries := attemptsOf(ctx)
				before, _, _ := tries.result()
				out, metadata, err := next.HandleFinalize(ctx, in)
				if err == nil {
					return out, metadata, nil
				}
				after, _, _ := tries.result()
				code := codeOf(err)
				switch class := classOf(code, statusOf(err)); {
				case class == infra.Throttled:
					tries.turnAway()
					throttled(awsmiddleware.GetOperationName(ctx))
				case after > before && (code == "" || class == infra.Indeterminate):
					tries.doubt()
				}
				return out, metadata, err
			})
		if err := stack.Finalize.Insert(outcome, "Retry", middleware.After); err != nil {
			return err
		}
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("NstanceSent",
			func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
				middleware.DeserializeOutput, middleware.Metadata, error,
			) {
				attemptsOf(ctx).send()
				return next.HandleDeserialize(ctx, in)
			}), middleware.After)
	}
}

// limitedError: the SDK's adaptive mode, slowed down by earlier throttling, did not let a call out in time. Nothing of
// this attempt was sent.
type limitedError struct{ err error }

func (e *limitedError) Error() string { return "held back after throttling: " + e.err.Error() }
func (e *limitedError) Unwrap() error { return e.err }

// limited marks the errors of a retryer that hold attempts back.
type limited struct{ sdk.RetryerV2 }

// GetAttemptToken implements aws.RetryerV2.
func (l limited) GetAttemptToken(ctx context.Context) (func(error) error, error) {
	release, err := l.RetryerV2.GetAttemptToken(ctx)
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		err = &limitedError{err}
	}
	return release, err
}
