package aws

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nstance-kit/nstance/services/internal/infra"
)

// classes are the error codes whose class does not follow from their name. Codes that say "not found" anywhere are
// NotFound, those with a family name (InvalidAMIID.Unavailable) have the family's class, and what is left is told apart
// by HTTP status: see classOf.
//
// Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html (common client errors, client
// errors for specific actions, server errors),
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonErrors.html, and the Errors sections of RegisterTargets
// and DeregisterTargets in the reference of Elastic Load Balancing, version 2015-12-01.
var classes = map[string]infra.Class{
	// No room here, now. Another type, or another subnet, may do; a limit of the account may be lifted, or free itself.
	"InsufficientAddressCapacity":           infra.Capacity,
	"InsufficientCapacity":                  infra.Capacity,
	"InsufficientCapacityOnHost":            infra.Capacity,
	"InsufficientCapacityOnOutpost":         infra.Capacity,
	"InsufficientFreeAddressesInSubnet":     infra.Capacity,
	"InsufficientHostCapacity":              infra.Capacity,
	"InsufficientInstanceCapacity":          infra.Capacity,
	"InsufficientReservedInstanceCapacity":  infra.Capacity,
	"InsufficientReservedInstancesCapacity": infra.Capacity,
	"InsufficientVolumeCapacity":            infra.Capacity,
	"UnfulfillableCapacity":                 infra.Capacity,
	"ReservationCapacityExceeded":           infra.Capacity,
	"ReservationCapacityUnavailable":        infra.Capacity,
	"HostLimitExceeded":                     infra.Capacity,
	"InstanceLimitExceeded":                 infra.Capacity,
	"MaxIOPSLimitExceeded":                  infra.Capacity,
	"MaxSpotInstanceCountExceeded":          infra.Capacity,
	"NetworkInterfaceLimitExceeded":         infra.Capacity,
	"PrivateIpAddressLimitExceeded":         infra.Capacity,
	"SpotMaxPriceTooLow":                    infra.Capacity,
	"VcpuLimitExceeded":                     infra.Capacity,
	"VolumeLimitExceeded":                   infra.Capacity,
	"VolumeTypeNotAvailableInZone":          infra.Capacity,
	"Unsupported":                           infra.Capacity, // of RunInstances: this type is not offered in this zone
	"TooManyTargets":                        infra.Capacity,
	"TooManyRegistrationsForTargetId":       infra.Capacity,

	// The same call will do later.
	"EC2ThrottledException":    infra.Throttled,
	"PriorRequestNotComplete":  infra.Throttled,
	"RequestLimitExceeded":     infra.Throttled,
	"RequestThrottled":         infra.Throttled,
	"ResourceLimitExceeded":    infra.Throttled,
	"SlowDown":                 infra.Throttled,
	"Throttling":               infra.Throttled,
	"ThrottlingException":      infra.Throttled,
	"ThrottledException":       infra.Throttled,
	"TooManyRequestsException": infra.Throttled,
	"BandwidthLimitExceeded":   infra.Throttled,

	// Who asks may not.
	"AccessDenied":                infra.Denied,
	"AccessDeniedException":       infra.Denied,
	"AuthFailure":                 infra.Denied,
	"Blocked":                     infra.Denied,
	"ExpiredToken":                infra.Denied,
	"ExpiredTokenException":       infra.Denied,
	"IncompleteSignature":         infra.Denied,
	"InvalidClientTokenId":        infra.Denied,
	"InvalidToken":                infra.Denied,
	"MissingAuthenticationToken":  infra.Denied,
	"NotAuthorized":               infra.Denied,
	"OperationNotPermitted":       infra.Denied,
	"OptInRequired":               infra.Denied,
	"PendingVerification":         infra.Denied,
	"RequestExpired":              infra.Denied, // the clock of one of the two is wrong
	"SignatureDoesNotMatch":       infra.Denied,
	"UnauthorizedOperation":       infra.Denied,
	"UnrecognizedClientException": infra.Denied,
	"ValidationError":             infra.Invalid,

	// This client token had its use.
	"IdempotentInstanceTerminated": infra.Conflict,
	"IdempotentParameterMismatch":  infra.Conflict,
	"InvalidClientToken":           infra.Invalid,

	// Nobody knows whether it happened.
	"InternalError":           infra.Indeterminate,
	"InternalFailure":         infra.Indeterminate,
	"InternalServerError":     infra.Indeterminate,
	"ServerInternal":          infra.Indeterminate,
	"ServiceUnavailable":      infra.Indeterminate,
	"Unavailable":             infra.Indeterminate,
	"RequestTimeout":          infra.Indeterminate,
	"RequestTimeoutException": infra.Indeterminate,
}

// classOf says what an error code means, given with the HTTP status that it came with (0 if that is not known). AWS
// sends client errors with a status of the 400s: they are refusals, and a refused call has done nothing. Of a code that
// is not known that much is certain too.
func classOf(code string, status int) infra.Class {
	if class, ok := classes[code]; ok {
		return class
	}
	family, _, split := strings.Cut(code, ".")
	switch class, ok := classes[family]; {
	case strings.HasSuffix(code, "NotFound") || strings.HasSuffix(code, "NotFoundException"):
		return infra.NotFound
	case split && ok:
		return class
	case strings.HasPrefix(code, "Insufficient"):
		return infra.Capacity
	case strings.HasPrefix(code, "Invalid"), strings.HasPrefix(code, "Missing"), strings.HasPrefix(code, "Malformed"),
		strings.HasPrefix(code, "Unknown"):
		return infra.Invalid
	case status == http.StatusTooManyRequests:
		return infra.Throttled
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return infra.Denied
	case status >= 400 && status < 500 && status != http.StatusRequestTimeout:
		return infra.Invalid
	default:
		return infra.Indeterminate
	}
}

// encodedMessage is what comes before the encoded authorization message of an UnauthorizedOperation: kilobytes that
// only who may call sts:DecodeAuthorizationMessage can read.
const encodedMessage = "Encoded authorization failure message"

// awsError is an error of the SDK in one line: the API's own code and message, and the request ID that AWS's support
// asks for.
type awsError struct {
	call    string
	code    string
	message string
	request string
	err     error
}

func (e *awsError) Error() string {
	text := e.call + ": "
	if e.code != "" {
		text += e.code + ": "
	}
	text += e.message
	if e.request != "" {
		text += " (request " + e.request + ")"
	}
	return text
}

func (e *awsError) Unwrap() error { return e.err }

// codeOf returns the API's error code, "" for an error that is none of the API's.
func codeOf(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

// statusOf returns the HTTP status of the answer, 0 if there was none.
func statusOf(err error) int {
	if e, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return e.HTTPStatusCode()
	}
	return 0
}

// plain makes an SDK error short.
func plain(call string, err error) *awsError {
	e := &awsError{call: call, message: err.Error(), err: err}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		e.code, e.message = api.ErrorCode(), api.ErrorMessage()
		e.message, _, _ = strings.Cut(e.message, encodedMessage)
		e.message = strings.TrimRight(e.message, " .:")
	} else if op, ok := errors.AsType[*smithy.OperationError](err); ok {
		e.message = op.Err.Error()
	}
	if r, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		e.request = r.ServiceRequestID()
	}
	e.code, e.message, e.request = oneLine(e.code, 100), oneLine(e.message, maxMessage), oneLine(e.request, 100)
	return e
}

// maxMessage bounds an error's message in bytes: it comes from outside, and goes into logs and standing errors.
const maxMessage = 1000

// oneLine makes a text of the API's fit for a line of a log: without control characters, and of at most so many bytes.
func oneLine(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// classify gives an error of a call its class. what says what was tried, in words.
//
// The SDK repeats calls by itself. A refusal that follows an attempt without answer tells nothing of that attempt, so
// the call as a whole is Indeterminate then.
func classify(what, call string, tries *attempts, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*infra.Error](err); ok {
		return e
	}
	cause := plain(call, err)
	class := classOf(cause.code, statusOf(err))
	sent, turned, ambiguous := tries.result()
	held, heldBack := errors.AsType[*limitedError](err)
	if heldBack {
		cause.message = held.Error()
	}
	switch {
	case sent == turned && (heldBack || sent > 0 && errors.Is(err, context.DeadlineExceeded)):
		// Whatever was sent was turned away, and the time was spent on waiting for the next attempt. Not by Wrap: that
		// would see the deadline.
		return &infra.Error{Class: infra.Throttled, Op: what, Err: cause}
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		class = infra.Indeterminate
	case cause.code == "" && sent == 0:
		class = infra.Denied // nothing was sent: no credentials, or no endpoint
	case cause.code == "":
		class = infra.Indeterminate
	case ambiguous && class != infra.Conflict:
		class = infra.Indeterminate
	}
	return infra.Wrap(class, what, cause)
}

// refused makes an error of what is found wrong before anything is sent.
func refused(what, format string, args ...any) error {
	return infra.Errorf(infra.Invalid, what, "%w", fmt.Errorf(format, args...))
}
