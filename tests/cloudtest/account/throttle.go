package account

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/api/googleapi"
)

// The limits of patient: about two minutes, as for AWS.
const (
	gcpAttempts   = 10
	firstPause    = 500 * time.Millisecond
	longestPause  = 20 * time.Second
	longestAnswer = 1 << 20
)

// patient is a transport that repeats requests that Google Cloud throttles, because other programs use the project too:
// a clean-up must not give up. A throttled request was not executed.
type patient struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		answer, err := p.base.RoundTrip(r)
		if err != nil || attempt == gcpAttempts || r.Body != nil && r.GetBody == nil || !throttled(answer) {
			return answer, err
		}
		_ = answer.Body.Close()
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
		r = r.Clone(r.Context())
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// throttled reports whether an answer refuses a request because there are too many. It may still be read then.
func throttled(answer *http.Response) bool {
	if answer.StatusCode == http.StatusTooManyRequests {
		return true
	}
	if answer.StatusCode != http.StatusForbidden {
		return false
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, longestAnswer))
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return false
	}
	copied := *answer
	copied.Body = io.NopCloser(bytes.NewReader(body))
	return rateLimited(googleapi.CheckResponse(&copied))
}

// rateLimited reports whether an error says that there are too many requests.
// https://cloud.google.com/compute/docs/api/rate-limits
func rateLimited(err error) bool {
	answer, ok := err.(*googleapi.Error) //nolint:errorlint // it is the error of the SDK itself
	return ok && (answer.Code == http.StatusTooManyRequests || answer.Code == http.StatusForbidden &&
		(strings.Contains(answer.Message, "Quota exceeded for quota metric") ||
			slices.ContainsFunc(answer.Errors, func(e googleapi.ErrorItem) bool {
				return e.Reason == "rateLimitExceeded" || e.Reason == "userRateLimitExceeded"
			})))
}
