package aws

import (
	"context"
	"errors"
	"net/http"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// classes lists the error codes whose class cannot be derived from their name. classOf derives the class of every other
// code:
//
//   - Codes that end in NotFound or NotFoundException are NotFound.
//   - Codes with a family name, such as InvalidAMIID.Unavailable, have the family's class.
//   - For all other codes, the first match decides: a known prefix, such as Insufficient or Invalid, and then the HTTP
//     status.
//
// Sources: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html (common client errors, client
// errors for specific actions, server errors),
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonErrors.html, and the Errors sections of RegisterTargets
// and DeregisterTargets in the reference of Elastic Load Balancing, version 2015-12-01.
var classes = map[string]infra.Class{
	// These codes mean that there is no room for an instance of this type in this subnet now. Another type or subnet
	// may succeed. The same type may succeed later, when an account limit is raised or usage drops.
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
	"Unsupported":                           infra.Capacity, // from RunInstances: this type is not offered in this zone
	"TooManyTargets":                        infra.Capacity,
	"TooManyRegistrationsForTargetId":       infra.Capacity,

	// These codes mean that there were too many calls. The same call can succeed later.
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

	// These codes mean that the caller lacks credentials or permissions.
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
	"RequestExpired":              infra.Denied, // the clock of the client or of AWS is wrong
	"SignatureDoesNotMatch":       infra.Denied,
	"UnauthorizedOperation":       infra.Denied,
	"UnrecognizedClientException": infra.Denied,
	"ValidationError":             infra.Invalid,

	// These codes mean that the client token was already used, or that it is malformed.
	"IdempotentInstanceTerminated": infra.Conflict,
	"IdempotentParameterMismatch":  infra.Conflict,
	"InvalidClientToken":           infra.Invalid,

	// After these codes, it is unknown whether the call took effect.
	"InternalError":           infra.Indeterminate,
	"InternalFailure":         infra.Indeterminate,
	"InternalServerError":     infra.Indeterminate,
	"ServerInternal":          infra.Indeterminate,
	"ServiceUnavailable":      infra.Indeterminate,
	"Unavailable":             infra.Indeterminate,
	"RequestTimeout":          infra.Indeterminate,
	"RequestTimeoutException": infra.Indeterminate,
}

// classOf returns the class of an error code, given the HTTP status of the answer (0 if it is not known). AWS sends
// client errors with a 4xx status. They are refusals, and a refused call had no effect. This holds for unknown codes
// too.
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

// encodedMessage introduces the encoded authorization message of an UnauthorizedOperation. That message is kilobytes
// long, and only callers with sts:DecodeAuthorizationMessage can read it.
const encodedMessage = "Encoded authorization failure message"

// awsError is an SDK error in one line: the API's code and message, and the request ID that AWS support asks for.
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

// codeOf returns the API's error code, or "" if err is not an API error.
func codeOf(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

// statusOf returns the HTTP status of the answer, or 0 if there was no answer.
func statusOf(err error) int {
	if e, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return e.HTTPStatusCode()
	}
	return 0
}

// plain shortens an SDK error to its call, code, message and request ID.
func plain(call string, err error) *awsError {
	e := &awsError{call: call, message: err.Error(), err: err}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		e.code, e.message = api.ErrorCode(), api.ErrorMessage()
		e.message, _, _ = strings.Cut(e.message, encodedMessage)
		e.message = strings.TrimRight(e.message, " .:")
		if needs := permissions(call); e.code == "UnauthorizedOperation" && needs != "" &&
			!strings.Contains(e.message, "is not authorized to perform:") {
			e.message += " (" + needs + ")"
		}
	} else if op, ok := errors.AsType[*smithy.OperationError](err); ok {
		e.message = op.Err.Error()
	}
	if r, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		e.request = r.ServiceRequestID()
	}
	e.code, e.message, e.request = infra.OneLine(e.code, 100), infra.OneLine(e.message, infra.MaxMessage),
		infra.OneLine(e.request, 100)
	return e
}

// call makes one API call and classifies its error.
func call[I, O, F any](ctx context.Context, what, name string, do func(context.Context, *I, ...func(*F)) (*O, error),
	in *I) (*O, error) {
	ctx, tries := withAttempts(ctx)
	out, err := do(ctx, in)
	return out, classify(what, name, tries, err)
}

// readPages makes an API call that has pages, and classifies its error. It calls add with each page.
func readPages[O, F any](ctx context.Context, what, name string, pages interface {
	HasMorePages() bool
	NextPage(ctx context.Context, options ...func(*F)) (*O, error)
}, add func(*O)) error {
	ctx, tries := withAttempts(ctx)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return classify(what, name, tries, err)
		}
		add(page)
	}
	return nil
}

// classify gives the error of a call its class. The parameter "what" describes the operation in words.
//
// The SDK repeats calls. If an earlier attempt got no answer and the last attempt was refused, the earlier one may have
// had an effect. classify then returns Indeterminate, except after a Conflict.
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
		// Every attempt that was sent was throttled, so the call had no effect. The deadline passed during the wait for
		// the next attempt. infra.Wrap would return Indeterminate because of the deadline, so make the error without
		// it.
		return &infra.Error{Class: infra.Throttled, Op: what, Quota: quotaOf(call, cause.code, ""), Err: cause}
	case cause.code == "" && sent == 0:
		class = infra.Denied // nothing was sent: no credentials, or no endpoint. If ctx ended, infra.Wrap replaces it.
	case cause.code == "":
		class = infra.Indeterminate
	case ambiguous && class != infra.Conflict:
		class = infra.Indeterminate
	}
	return infra.Wrap(class, what, cause)
}

// refused makes an Invalid error for a mistake that is found before the provider sends anything.
func refused(what, format string, args ...any) error {
	return infra.Errorf(infra.Invalid, what, format, args...)
}
