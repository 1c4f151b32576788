package aws

import (
	"context"
	"sync"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// attempts counts the outcomes of the attempts at one call. The SDK repeats calls, but returns only the last error.
type attempts struct {
	mu        sync.Mutex
	sent      int
	turned    int  // attempts that were throttled
	ambiguous bool // an attempt failed but may have had an effect
}

type attemptsKey struct{}

// withAttempts returns a context for a call, and the attempts that the context records.
func withAttempts(ctx context.Context) (context.Context, *attempts) {
	a := &attempts{}
	return context.WithValue(ctx, attemptsKey{}, a), a
}

func attemptsOf(ctx context.Context) *attempts {
	a, _ := ctx.Value(attemptsKey{}).(*attempts)
	return a
}

// result returns how many attempts were sent, how many of those were throttled, and whether a failed attempt may have
// had an effect.
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

// watch adds two middleware functions to a client's stack. The first runs inside the SDK's retry loop and records the
// outcome of each attempt. The second records each request that is sent. watch calls throttled for every throttled
// attempt.
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

// limitedError means that an attempt was not sent. After earlier throttling, the SDK's adaptive retry mode delayed the
// attempt, and the deadline passed during this delay.
type limitedError struct{ err error }

func (e *limitedError) Error() string { return "held back after throttling: " + e.err.Error() }
func (e *limitedError) Unwrap() error { return e.err }

// limited is a retryer that returns limitedError if the deadline passes while it delays an attempt.
type limited struct{ sdk.RetryerV2 }

// GetAttemptToken implements aws.RetryerV2.
func (l limited) GetAttemptToken(ctx context.Context) (func(error) error, error) {
	release, err := l.RetryerV2.GetAttemptToken(ctx)
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		err = &limitedError{err}
	}
	return release, err
}
