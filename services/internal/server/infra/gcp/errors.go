package gcp

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// classes maps error codes of operations, and reasons of refused calls, to classes. It contains only codes and reasons
// whose class does not follow from the HTTP status.
//
// Sources: https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation,
// https://cloud.google.com/compute/docs/api/error-messages-api and https://cloud.google.com/compute/api-quota.
var classes = map[string]infra.Class{
	// There is no room for a VM of this type in this subnet now. Another type or subnet may succeed. The same type may
	// succeed later, when a quota is raised or usage drops.
	"ZONE_RESOURCE_POOL_EXHAUSTED":              infra.Capacity,
	"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": infra.Capacity,
	"RESOURCE_POOL_EXHAUSTED":                   infra.Capacity,
	"RESOURCE_AVAILABILITY_EXHAUSTED":           infra.Capacity,
	"STOCKOUT":                                  infra.Capacity,
	"QUOTA_EXCEEDED":                            infra.Capacity,
	"LIMIT_EXCEEDED":                            infra.Capacity,
	"IP_SPACE_EXHAUSTED":                        infra.Capacity,
	"VM_MIN_COUNT_NOT_REACHED":                  infra.Capacity,
	"IP_SPACE_EXHAUSTED_WITH_DETAILS":           infra.Capacity,
	"quotaExceeded":                             infra.Capacity,
	"limitExceeded":                             infra.Capacity,

	// The same call can succeed later.
	"RATE_LIMIT_EXCEEDED":              infra.Throttled,
	"RESOURCE_OPERATION_RATE_EXCEEDED": infra.Throttled,
	"rateLimitExceeded":                infra.Throttled,
	"userRateLimitExceeded":            infra.Throttled,
	"concurrentLimitExceeded":          infra.Throttled,
	"resourceOperationRateExceeded":    infra.Throttled,
	"operationRateExceeded":            infra.Throttled,

	"PERMISSIONS_ERROR": infra.Denied,
	"PERMISSION_DENIED": infra.Denied,
	"FORBIDDEN":         infra.Denied,
	"forbidden":         infra.Denied,

	"RESOURCE_ALREADY_EXISTS": infra.Conflict,
	"RESOURCE_NOT_FOUND":      infra.NotFound,
}

// keyError is the beginning of an error message about a Cloud KMS key: the key is disabled, or Compute Engine's service
// agent may not use it. The message contains the key's name. Only the message identifies the fault: the HTTP status is
// always 400, and the code varies.
const keyError = "Cloud KMS error"

// failure is the error of an operation that ended.
type failure struct {
	code, message string
	status        int
}

func (f *failure) Error() string { return f.code + ": " + f.message }

// failureOf returns the error of an operation that ended, or nil.
func failureOf(op *compute.Operation) error {
	if op.Error == nil || len(op.Error.Errors) == 0 {
		if op.HttpErrorStatusCode == 0 {
			return nil
		}
		return &failure{op.HttpErrorMessage, op.StatusMessage, int(op.HttpErrorStatusCode)}
	}
	first := op.Error.Errors[0]
	return &failure{first.Code, first.Message, int(op.HttpErrorStatusCode)}
}

// waitError means that it is unknown how an operation ended.
type waitError struct{ err error }

func (e *waitError) Error() string { return "wait for the operation: " + e.err.Error() }
func (e *waitError) Unwrap() error { return e.err }

// codeOf returns the code or reason of an error, or "".
func codeOf(err error) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	if answer, ok := errors.AsType[*googleapi.Error](err); ok && len(answer.Errors) > 0 {
		return answer.Errors[0].Reason
	}
	return ""
}

// classOf returns the class of an error. Neither a refused call nor a failed operation had an effect.
func classOf(err error) infra.Class {
	if _, unknown := errors.AsType[*waitError](err); unknown {
		return infra.Indeterminate
	}
	if strings.HasPrefix(messageOf(err), keyError) {
		return infra.Denied
	}
	if class, ok := classes[codeOf(err)]; ok {
		return class
	}
	if f, ok := errors.AsType[*failure](err); ok {
		if f.status >= http.StatusInternalServerError {
			// The zone could not make the VM. For an hour, Google answers every request with this requestId in the same
			// way. So the caller must try another instance ID.
			return infra.Capacity
		}
		return infra.Invalid
	}
	answer, ok := errors.AsType[*googleapi.Error](err)
	switch {
	case !ok:
		return infra.Indeterminate
	case answer.Code == http.StatusNotFound:
		return infra.NotFound
	case answer.Code == http.StatusConflict || answer.Code == http.StatusPreconditionFailed:
		return infra.Conflict
	case answer.Code == http.StatusTooManyRequests:
		return infra.Throttled
	case answer.Code == http.StatusUnauthorized || answer.Code == http.StatusForbidden:
		return infra.Denied
	case answer.Code >= 500 || answer.Code == http.StatusRequestTimeout:
		return infra.Indeterminate
	}
	return infra.Invalid
}

// classify adds a class to the error of a call. The parameter "what" describes the operation in words, and "call" is
// the name of the API call.
func (p *Provider) classify(what, call string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*infra.Error](err); ok {
		return e
	}
	class := classOf(err)
	if class == infra.Throttled && p.cfg.Throttled != nil {
		p.cfg.Throttled(call)
	}
	wrapped := infra.Wrap(class, what, &callError{call, err})
	if e, ok := errors.AsType[*infra.Error](wrapped); ok && class != infra.Indeterminate {
		if quota := quotaName.FindStringSubmatch(messageOf(err)); quota != nil {
			e.Quota = cmp.Or(quota[1], quota[2])
		}
	}
	return wrapped
}

// quotaName finds the quota in a message such as "Quota 'CPUS' exceeded." or "Quota exceeded for quota metric
// 'Queries'".
var quotaName = regexp.MustCompile(`Quota '([\w/. -]{1,100})' exceeded|quota (?:metric|group) '([\w/. -]{1,100})'`)

// callError is an error of the API in one line.
type callError struct {
	call string
	err  error
}

func (e *callError) Error() string {
	text := e.call
	if code := codeOf(e.err); code != "" {
		text += ": " + code
	}
	return text + ": " + infra.OneLine(messageOf(e.err), infra.MaxMessage)
}

func (e *callError) Unwrap() error { return e.err }

func messageOf(err error) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.message
	}
	if answer, ok := errors.AsType[*googleapi.Error](err); ok {
		return cmp.Or(answer.Message, fmt.Sprintf("HTTP status %d", answer.Code))
	}
	return err.Error()
}

// refused makes an error of class Invalid for a request that the provider itself refuses.
func refused(what, format string, args ...any) error {
	return infra.Errorf(infra.Invalid, what, format, args...)
}
