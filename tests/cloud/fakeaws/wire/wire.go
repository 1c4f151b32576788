// Package wire implements the server side of the AWS protocols: parsing requests, strict decoding of parameters, and
// the form of answers and errors. The protocols are EC2 query, query and JSON 1.1. For S3, the package implements only
// the form of errors.
//
// Invariant: a parameter that the handler does not read is an error, so nothing in a request is silently ignored. The
// package knows each service's protocol, and nothing about what the services do.
package wire

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

// Principal is the identity that signed a call.
type Principal struct {
	ARN     string            // arn:aws:iam::123456789012:root, or arn:aws:sts::123456789012:assumed-role/ROLE/SESSION
	Account string            // twelve digits
	Role    string            // name of the role; "" for the account, which may do everything
	Session string            // name of the session; the instance ID for an instance profile
	UserID  string            // aws:userid: the account, or ROLE_ID:SESSION
	Tags    map[string]string // tags of the role: aws:PrincipalTag/KEY
	// SourceInstance is set if the caller's credentials come from an instance profile. It is the ARN of the instance
	// with that profile, else "". Condition keys such as ec2:SourceInstanceARN and aws:Ec2InstanceSourceVpc are derived
	// from it.
	SourceInstance string
	// Observer is set for a test that looks at the account. Its calls have no limits and meet no faults.
	Observer bool
}

// Call is one request, parsed and authenticated.
type Call struct {
	Context   context.Context
	Service   string // signing name: ec2, autoscaling, elasticloadbalancing, iam, sts, ssm, secretsmanager, s3
	Action    string // RunInstances
	Region    string // from the credential scope
	RequestID string
	Principal Principal
	Form      url.Values    // query protocols, without Action and Version
	Body      []byte        // JSON protocols
	Request   *http.Request // S3 only
	Now       time.Time

	// Authorize evaluates the caller's policies for one IAM action ("ec2:RunInstances") on one resource, or on "*" if
	// the action cannot be limited to a resource. conditions holds the keys that are not global (ec2:…,
	// aws:RequestTag/…, aws:ResourceTag/…). Authorize returns nil if the call is allowed, and otherwise the service's
	// own denial in AWS's wording. Every handler must call Authorize before it changes or returns anything. If a
	// handler never calls Authorize, a call by a role fails.
	Authorize func(action, resource string, conditions policy.Context) error
	// Forward evaluates the caller's policies for an action that an AWS service performs later on the caller's behalf.
	// The cloud records the result, but a denial does not change the answer. If Forward is nil, Authorize decides.
	Forward func(action, resource string, conditions policy.Context) bool
	// ResourcePolicy is the policy of the resource that the call concerns, or nil. A handler sets ResourcePolicy before
	// it calls Authorize.
	ResourcePolicy *policy.Document
}

// Permits reports whether the caller may perform an action that an AWS service performs later on the caller's behalf.
func (c *Call) Permits(action, resource string, conditions policy.Context) bool {
	if c.Forward != nil {
		return c.Forward(action, resource, conditions)
	}
	return c.Authorize(action, resource, conditions) == nil
}

// Decode fills a struct from the call's parameters, in the call's protocol.
func (c *Call) Decode(into any) error {
	if protocols[c.Service].kind == kindJSON {
		return decodeJSON(c.Body, into)
	}
	return Decode(c.Form, into)
}

// Handler performs one operation. It runs with the cloud locked, so handlers use plain maps without further locking.
// The answer is a value for encoding/xml or encoding/json. In the query protocols, the answer is the content of the
// element {Action}Result, or of {Action}Response for EC2. A nil answer is empty.
type Handler func(c *Call) (any, error)

// Service is one AWS API.
type Service interface {
	Name() string // signing name
	Operations() map[string]Handler
}

// Streamer is a service that streams its bodies: S3. Serve is called without the cloud's lock. It either writes the
// whole answer, or writes nothing and returns an error, which the cloud writes in the service's shape.
type Streamer interface {
	Name() string
	Action(r *http.Request) string // such as PutObject, for the record of calls and for faults
	Serve(w http.ResponseWriter, c *Call) error
}

// Error is an error answer of AWS.
type Error struct {
	Code    string
	Message string
	Status  int    // HTTP status; 0 means 400
	Fault   string // Sender or Receiver; "" derives it from the status
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Errorf makes an Error.
func Errorf(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}
