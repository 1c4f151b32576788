// Package wire owns the AWS protocols as a server sees them: what a request asks for, strict reading of its parameters,
// and the shape of answers and errors (EC2 query, query, JSON 1.1; S3 errors).
//
// Invariant: a parameter that the handler does not read is an error, so that nothing a caller asked for is silently
// ignored. It knows how each service talks, and nothing of what any of them does.
package wire

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

// Principal is who signed a call.
type Principal struct {
	ARN     string            // arn:aws:iam::123456789012:root, or arn:aws:sts::123456789012:assumed-role/ROLE/SESSION
	Account string            // twelve digits
	Role    string            // name of the role; "" for the account itself, which may do anything
	Session string            // name of the session: the instance's ID for an instance profile
	UserID  string            // aws:userid: the account, or ROLE_ID:SESSION
	Tags    map[string]string // of the role: aws:PrincipalTag/KEY
	// SourceInstance is the ARN of the instance whose profile gave the credentials, "" for others:
	// ec2:SourceInstanceARN, aws:Ec2InstanceSourceVpc…
	SourceInstance string
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

	// Authorize evaluates the caller's policies for one IAM action ("ec2:RunInstances") on one resource ("*" where AWS
	// has no resource level), with the condition keys that are not global (ec2:…, aws:RequestTag/…, aws:ResourceTag/…).
	// Nil is allowed; the error is the service's own denial, worded like AWS's. Every handler calls it at least once
	// before it changes or tells anything: a call of a role that was answered without is failed loudly.
	Authorize func(action, resource string, conditions policy.Context) error
	// ResourcePolicy is the resource's own policy, where it has one: a handler sets it before it calls Authorize.
	ResourcePolicy *policy.Document
}

// Decode fills a struct from the call's parameters, in the call's protocol.
func (c *Call) Decode(into any) error {
	if protocols[c.Service].kind == kindJSON {
		return decodeJSON(c.Body, into)
	}
	return Decode(c.Form, into)
}

// Handler does one operation. It runs with the cloud locked, so handlers are plain code over plain maps. The answer is
// a value for encoding/xml (query protocols: the elements inside {Action}Result, or inside {Action}Response for EC2) or
// encoding/json; nil is an empty answer.
type Handler func(c *Call) (any, error)

// Service is one AWS API.
type Service interface {
	Name() string // signing name
	Operations() map[string]Handler
}

// Streamer is a service whose bodies are not values: S3. Serve is called without the cloud's lock. It writes the whole
// answer, or nothing and returns an error, which is written in the service's shape.
type Streamer interface {
	Name() string
	Action(r *http.Request) string // PutObject, for the record and for faults
	Serve(w http.ResponseWriter, c *Call) error
}

// Error is an answer of AWS that says no.
type Error struct {
	Code    string
	Message string
	Status  int    // HTTP; 0 is 400
	Fault   string // Sender or Receiver; "" follows the status
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Errorf makes an Error.
func Errorf(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}
