package aws

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/awscloud"
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
	"UnfulfillableCapacity":           infra.Capacity,
	"ReservationCapacityExceeded":     infra.Capacity,
	"ReservationCapacityUnavailable":  infra.Capacity,
	"HostLimitExceeded":               infra.Capacity,
	"InstanceLimitExceeded":           infra.Capacity,
	"MaxIOPSLimitExceeded":            infra.Capacity,
	"MaxSpotInstanceCountExceeded":    infra.Capacity,
	"NetworkInterfaceLimitExceeded":   infra.Capacity,
	"PrivateIpAddressLimitExceeded":   infra.Capacity,
	"SpotMaxPriceTooLow":              infra.Capacity,
	"VcpuLimitExceeded":               infra.Capacity,
	"VolumeLimitExceeded":             infra.Capacity,
	"VolumeTypeNotAvailableInZone":    infra.Capacity,
	"Unsupported":                     infra.Capacity, // from RunInstances: this type is not offered in this zone
	"TooManyTargets":                  infra.Capacity,
	"TooManyRegistrationsForTargetId": infra.Capacity,

	// This code means that there were too many calls, as do those in retry.DefaultThrottleErrorCodes. The same call can
	// succeed later.
	"ResourceLimitExceeded": infra.Throttled,

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

	// These codes mean that the client token was already used.
	"IdempotentInstanceTerminated": infra.Conflict,
	"IdempotentParameterMismatch":  infra.Conflict,

	// This code means that the instance cannot be stopped or started in its present state. It may be able to soon.
	"IncorrectInstanceState": infra.Conflict,

	// After these codes, it is unknown whether the call took effect. An answer without a code may come from a proxy.
	"":                        infra.Indeterminate,
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
	if _, ok := retry.DefaultThrottleErrorCodes[code]; ok {
		return infra.Throttled
	}
	family, _, _ := strings.Cut(code, ".")
	switch class, ok := classes[family]; {
	case strings.HasSuffix(code, "NotFound") || strings.HasSuffix(code, "NotFoundException"):
		return infra.NotFound
	case ok:
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

// plain shortens an SDK error to its call, code, message and request ID.
func plain(call string, err error) *awsError {
	e := &awsError{call: call, code: awscloud.CodeOf(err), message: err.Error(), err: err}
	if api, ok := errors.AsType[smithy.APIError](err); ok && e.code != "" {
		e.message, _, _ = strings.Cut(api.ErrorMessage(), encodedMessage)
		e.message = strings.TrimRight(e.message, " .:")
		if e.code == "UnauthorizedOperation" && !strings.Contains(e.message, "is not authorized to perform:") {
			e.message += permissions(call)
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
	in *I, options ...func(*F)) (*O, error) {
	ctx, tries := withAttempts(ctx)
	out, err := do(ctx, in, options...)
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
	cause := plain(call, err)
	class := classOf(cause.code, awscloud.StatusOf(err))
	sent, turned := tries.sent.Load(), tries.turned.Load()
	switch {
	case sent == turned && (errors.Is(err, errHeldBack) || sent > 0 && errors.Is(err, context.DeadlineExceeded)):
		// Every attempt that was sent was throttled, so the call had no effect. The deadline passed during the wait for
		// the next attempt. infra.Wrap would return Indeterminate because of the deadline, so make the error without
		// it.
		return &infra.Error{Class: infra.Throttled, Op: what, Err: cause}
	case cause.code == "" && sent == 0:
		class = infra.Denied // nothing was sent: no credentials, or no endpoint. If ctx ended, infra.Wrap replaces it.
	case tries.ambiguous.Load() && class != infra.Conflict:
		class = infra.Indeterminate
	}
	return infra.Wrap(class, what, cause)
}

// refused makes an Invalid error for a mistake that is found before the provider sends anything.
func refused(what, format string, args ...any) error {
	return infra.Errorf(infra.Invalid, what, format, args...)
}

// attempts counts the outcomes of the attempts at one call. The SDK repeats calls, but returns only the last error.
type attempts struct {
	sent      atomic.Int32
	turned    atomic.Int32 // attempts that were throttled
	ambiguous atomic.Bool  // an attempt failed but may have had an effect
}

type attemptsKey struct{}

// withAttempts returns a context for a call, and the attempts that the context records.
func withAttempts(ctx context.Context) (context.Context, *attempts) {
	a := &attempts{}
	return context.WithValue(ctx, attemptsKey{}, a), a
}

// attemptsOf returns the attempts that a context records. Without any, the result is not recorded.
func attemptsOf(ctx context.Context) *attempts {
	if a, ok := ctx.Value(attemptsKey{}).(*attempts); ok {
		return a
	}
	return &attempts{}
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
				before := tries.sent.Load()
				out, metadata, err := next.HandleFinalize(ctx, in)
				if err == nil {
					return out, metadata, nil
				}
				switch class := classOf(awscloud.CodeOf(err), awscloud.StatusOf(err)); {
				case class == infra.Throttled:
					tries.turned.Add(1)
					throttled(awsmiddleware.GetOperationName(ctx))
				case tries.sent.Load() > before && class == infra.Indeterminate:
					tries.ambiguous.Store(true)
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
				attemptsOf(ctx).sent.Add(1)
				return next.HandleDeserialize(ctx, in)
			}), middleware.After)
	}
}

// errHeldBack means that an attempt was not sent. After earlier throttling, the SDK's adaptive retry mode delayed the
// attempt, and the deadline passed during this delay.
var errHeldBack = errors.New("held back after throttling")

// limited is a retryer that returns errHeldBack if the deadline passes while it delays an attempt.
type limited struct{ sdk.RetryerV2 }

// GetAttemptToken implements aws.RetryerV2.
func (l limited) GetAttemptToken(ctx context.Context) (func(error) error, error) {
	release, err := l.RetryerV2.GetAttemptToken(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", errHeldBack, err)
	}
	return release, err
}

// quotaOf returns the quota that a refused create exceeded, by its name in Service Quotas for EC2 and VPC, or "".
// Sources: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html#throttling-increase and
// https://docs.aws.amazon.com/general/latest/gr/ec2-service.html#limits_ec2.
func quotaOf(code, instanceType string) string {
	switch code {
	case "RequestLimitExceeded":
		return "RunInstances request bucket refill rate"
	case "ResourceLimitExceeded":
		return "RunInstances resource bucket refill rate"
	case "VcpuLimitExceeded":
		return "Running On-Demand " + familyOf(instanceType) + " instances"
	case "MaxSpotInstanceCountExceeded":
		return "All " + familyOf(instanceType) + " Spot Instance Requests"
	case "NetworkInterfaceLimitExceeded":
		return "Network interfaces per Region"
	}
	return ""
}

// familyOf returns the name of the family of instance types that share one vCPU quota with the given type.
func familyOf(instanceType string) string {
	for _, family := range []struct{ prefix, name string }{
		{"hpc", "HPC"}, {"inf", "Inf"}, {"trn", "Trn"}, {"dl", "DL"}, {"vt", "G and VT"}, {"u-", "High Memory"},
		{"u7", "High Memory"}, {"f", "F"}, {"g", "G and VT"}, {"p", "P"}, {"x", "X"},
	} {
		if strings.HasPrefix(instanceType, family.prefix) {
			return family.name
		}
	}
	return "Standard (A, C, D, H, I, M, R, T, Z)"
}

// withQuota adds the name of the exceeded quota to the error of a refused create.
func withQuota(err error, instanceType string) error {
	if e, ok := errors.AsType[*infra.Error](err); ok {
		e.Quota = quotaOf(awscloud.CodeOf(err), instanceType)
	}
	return err
}

// permissions returns an addition to an error: which IAM actions a call needs.
func permissions(call string) string {
	i := slices.IndexFunc(Calls, func(c Call) bool { return c.Name == call })
	if i < 0 {
		return ""
	}
	return " (" + call + " needs " + strings.Join(Calls[i].Actions, ", ") + ")"
}

// volumeKeys returns the KMS keys that a request names for its volumes.
func volumeKeys(in *ec2.RunInstancesInput) (keys []string) {
	for _, device := range in.BlockDeviceMappings {
		if device.Ebs != nil && deref(device.Ebs.KmsKeyId) != "" {
			keys = append(keys, *device.Ebs.KmsKeyId)
		}
	}
	return keys
}

// rememberKeys remembers the KMS keys of a group's latest request, because EC2 does not name a key that it cannot use.
func (p *Provider) rememberKeys(tags *infra.Tags, keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil {
		p.keys = map[[2]string][]string{}
	}
	p.keys[[2]string{tags.Tenant, tags.Group}] = keys
}

// describe translates an instance to an infra.VM. If the instance ended because of a KMS key, EndReason names the key.
func (p *Provider) describe(instance types.Instance) infra.VM {
	vm := describe(instance)
	// EC2 gives this reason if the caller has no permission for the KMS key of a volume.
	// https://repost.aws/knowledge-center/kms-iam-ec2-permission
	denied := strings.HasPrefix(vm.EndReason, "Client.InternalError")
	if !denied && !strings.Contains(vm.EndReason, "KMS") {
		return vm
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := strings.Join(p.keys[[2]string{vm.Tags.Tenant, vm.Tags.Group}], ", ")
	switch {
	case denied && keys != "":
		vm.EndReason += " (the servers' role may not use KmsKeyId " + keys + ", or there is no such key)"
	case denied:
	case keys == "":
		vm.EndReason += " (args name no KmsKeyId: it is the key of the image's snapshot, or the default key for EBS)"
	default:
		vm.EndReason += " (KmsKeyId " + keys + ")"
	}
	return vm
}
