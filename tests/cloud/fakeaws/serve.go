package fakeaws

import (
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/auth"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/sts"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Call is the record of one call.
type Call struct {
	Time      time.Time
	RequestID string
	Principal wire.Principal
	Service   string // signing name
	Action    string
	Checks    []Check // in the order of evaluation
	Code      string  // error code of the answer, "" for success
	Lost      bool    // the answer was not sent
}

// ServeHTTP answers a request to any of the services. The credential scope of the signature names the service. A
// request without a signature is for S3.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call, err := c.admit(w, r)
	if err != nil {
		c.refuse(w, call, err)
		return
	}
	var effect fault.Effect
	if !call.Principal.Observer {
		effect = c.faults.Take(call.Service, call.Action, call.Principal.Role)
	}
	if effect.Delay > 0 {
		select {
		case <-time.After(effect.Delay):
		case <-r.Context().Done():
			return
		}
	}
	if effect.Err != nil {
		c.refuse(w, call, effect.Err)
		return
	}
	if err := c.cfg.Limits.Take(call); err != nil {
		c.refuse(w, call, err)
		return
	}
	if stream, ok := c.streams[call.Service]; ok {
		c.stream(w, r, stream, call, effect.Lost)
		return
	}
	body, err := c.do(call, r, effect.Lost)
	switch {
	case effect.Lost:
		panic(http.ErrAbortHandler) // closes the connection
	case err != nil:
		wire.WriteError(w, call.Service, call.RequestID, err)
	default:
		wire.Write(w, call, body)
	}
}

// admit identifies the caller and the operation of a request. With an error, it also returns a call, because the call's
// service determines the form of the error.
func (c *Cloud) admit(w http.ResponseWriter, r *http.Request) (*wire.Call, error) {
	call := &wire.Call{Context: r.Context(), Service: "s3", RequestID: uuid.NewString(), Request: r,
		Region: c.cfg.Region, Now: c.cfg.Now()}
	signature, err := auth.Read(r)
	if err != nil {
		return call, err
	}
	if signature == nil {
		return c.anonymous(w, call, r)
	}
	call.Service = signature.Service
	var body []byte
	if _, ok := c.streams[signature.Service]; !ok {
		if body, err = wire.ReadBody(w, r); err != nil {
			return call, err
		}
	}
	principal, err := c.authenticate(signature, r, body, call.Now)
	if err != nil {
		return call, err
	}
	parsed, err := wire.Parse(signature.Service, r, body)
	parsed.Principal, parsed.Region, parsed.Now = principal, signature.Region, call.Now
	if err != nil {
		return parsed, err
	}
	if stream, ok := c.streams[signature.Service]; ok {
		parsed.Action = stream.Action(r)
	}
	if signature.Region != c.cfg.Region && signature.Service != "iam" && signature.Service != "sts" {
		return parsed, wire.Errorf(http.StatusForbidden, "SignatureDoesNotMatch",
			"Credential should be scoped to a valid region. This cloud is %s", c.cfg.Region)
	}
	return parsed, nil
}

// anonymous admits a request without a signature. Only S3 serves such requests, and STS if the request contains an
// identity token.
func (c *Cloud) anonymous(w http.ResponseWriter, call *wire.Call, r *http.Request) (*wire.Call, error) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		body, err := wire.ReadBody(w, r)
		if err != nil {
			return call, err
		}
		parsed, err := wire.Parse("sts", r, body)
		parsed.Principal = wire.Principal{ARN: "*", Account: "anonymous"}
		parsed.Region, parsed.Now = call.Region, call.Now
		if err == nil && parsed.Action != sts.WithWebIdentity {
			err = missingToken
		}
		return parsed, err
	}
	stream, ok := c.streams["s3"]
	if !ok {
		call.Service = ""
		return call, missingToken
	}
	call.Principal = wire.Principal{ARN: "*", Account: "anonymous"}
	call.Action = stream.Action(r)
	return call, nil
}

var missingToken = wire.Errorf(http.StatusForbidden, "MissingAuthenticationToken",
	"Request is missing Authentication Token")

func (c *Cloud) authenticate(signature *auth.Signature, r *http.Request, body []byte, now time.Time) (wire.Principal,
	error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lookup := func(access string) (auth.Key, bool) {
		key, ok := c.keys.keys[access]
		return key.Key, ok
	}
	if err := signature.Verify(r, body, lookup, now); err != nil {
		return wire.Principal{}, err
	}
	p := c.keys.keys[signature.Access].principal
	if p.Role != "" {
		role, ok := c.iam.Role(p.Role)
		if !ok {
			return p, signature.Unknown()
		}
		p.UserID, p.Tags = role.ID+":"+p.Session, role.Tags
	}
	return p, nil
}

// do runs a handler, then renders and records the answer. It holds the lock throughout.
func (c *Cloud) do(call *wire.Call, r *http.Request, lost bool) (body []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var checks, forwarded []Check
	call.Authorize = func(action, resource string, conditions policy.Context) error {
		check := c.authorize(call, r, action, resource, conditions)
		checks = append(checks, check)
		if !check.Allowed {
			return denial(call, check)
		}
		return nil
	}
	call.Forward = func(action, resource string, conditions policy.Context) bool {
		check := c.authorize(call, r, action, resource, conditions)
		forwarded = append(forwarded, check)
		return check.Allowed
	}
	defer func() { c.record(call, append(checks, forwarded...), err, lost) }()
	handler, ok := c.handlers[call.Service][call.Action]
	if !ok {
		return nil, wire.Unknown(call)
	}
	answer, err := handler(call)
	if err == nil {
		err = forgotten(call, checks)
	}
	if err != nil {
		return nil, err
	}
	return wire.Encode(call, answer)
}

// stream serves S3. It takes the lock only to authorize and to record.
func (c *Cloud) stream(w http.ResponseWriter, r *http.Request, stream wire.Streamer, call *wire.Call, lost bool) {
	var checks []Check
	call.Authorize = func(action, resource string, conditions policy.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		check := c.authorize(call, r, action, resource, conditions)
		checks = append(checks, check)
		if !check.Allowed {
			return denial(call, check)
		}
		return nil
	}
	out := w
	if lost {
		out = &void{header: http.Header{}}
	}
	err := stream.Serve(out, call)
	c.mu.Lock()
	c.record(call, checks, err, lost)
	c.mu.Unlock()
	switch {
	case lost:
		panic(http.ErrAbortHandler)
	case err != nil:
		wire.WriteError(w, call.Service, call.RequestID, err)
	}
}

// refuse answers a call that did not reach its handler.
func (c *Cloud) refuse(w http.ResponseWriter, call *wire.Call, err error) {
	c.mu.Lock()
	c.record(call, nil, err, false)
	c.mu.Unlock()
	wire.WriteError(w, call.Service, call.RequestID, err)
}

// record records a call. The caller holds the lock.
func (c *Cloud) record(call *wire.Call, checks []Check, err error, lost bool) {
	entry := Call{
		Time: call.Now, RequestID: call.RequestID, Principal: call.Principal, Service: call.Service,
		Action: call.Action, Checks: checks, Lost: lost,
	}
	if err != nil {
		e := wire.AsError(err)
		entry.Code = e.Code
		c.cfg.Log.Warn("AWS call failed", "service", call.Service, "action", call.Action, "role", call.Principal.Role,
			"code", e.Code, "message", e.Message)
	} else {
		c.cfg.Log.Debug("AWS call", "service", call.Service, "action", call.Action, "role", call.Principal.Role, "lost",
			lost)
	}
	c.calls = append(c.calls, entry)
}

// void is a response writer that discards the answer.
type void struct{ header http.Header }

func (v *void) Header() http.Header         { return v.header }
func (v *void) Write(p []byte) (int, error) { return len(p), nil }
func (v *void) WriteHeader(int)             {}
