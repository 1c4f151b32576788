package fakeaws

import (
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Check is one permission check of a call. Calls with the account's own key are checked and recorded, too.
type Check struct {
	Action   string // ec2:RunInstances
	Resource string // ARN, or *
	Allowed  bool
	Reason   string // reason of a denial, in AWS's words
}

// unasked holds the operations that need no permission.
var unasked = map[string]bool{"sts:GetCallerIdentity": true}

// authorize evaluates one check. The caller holds the lock.
func (c *Cloud) authorize(call *wire.Call, r *http.Request, action, resource string, conditions policy.Context) Check {
	p := call.Principal
	caller := policy.Caller{ARN: p.ARN, Account: p.Account}
	policies := policy.Policies{Resource: call.ResourcePolicy}
	var role iam.Role
	if p.Role != "" {
		role, _ = c.iam.Role(p.Role) // a deleted role has no policies
		caller.RoleARN = role.ARN
		policies.Identity = role.Identity
	}
	ctx := c.globals(call, r, role)
	maps.Copy(ctx, conditions)
	request := policy.Request{Action: action, Resource: resource, Caller: caller, Context: ctx}
	d := policy.Evaluate(policies, request)
	if c.control != nil && d.Allowed {
		request.Caller.ARN = "" // the policy also binds the account's own key
		if d = policy.Evaluate(policy.Policies{Identity: []*policy.Document{c.control}}, request); !d.Allowed {
			d.Reason = "User: " + p.ARN + " is not authorized to perform: " + action + " on resource: " + resource +
				" with an explicit deny in a service control policy"
		}
	}
	check := Check{Action: action, Resource: resource, Allowed: d.Allowed}
	if !d.Allowed {
		check.Reason = d.Reason
	}
	return check
}

// SetControlPolicy sets the service control policy of the account's organization. It limits all callers, also the
// account's own key.
func (c *Cloud) SetControlPolicy(text string) error {
	document, err := policy.Parse(policy.Identity, text)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control = document
	return nil
}

// globals returns the condition keys that every request has. aws:SecureTransport is true even for a call over plain
// HTTP, because the same call to AWS would use HTTPS.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
func (c *Cloud) globals(call *wire.Call, r *http.Request, role iam.Role) policy.Context {
	ctx := policy.Context{
		"aws:CurrentTime":      {call.Now.UTC().Format("2006-01-02T15:04:05Z")},
		"aws:EpochTime":        {strconv.FormatInt(call.Now.Unix(), 10)},
		"aws:RequestedRegion":  {call.Region},
		"aws:SecureTransport":  {"true"},
		"aws:PrincipalAccount": {call.Principal.Account},
		"aws:PrincipalArn":     {call.Principal.ARN},
		"aws:PrincipalType":    {"Account"},
		"aws:userid":           {call.Principal.UserID},
		"aws:ViaAWSService":    {"false"},
		"aws:UserAgent":        {r.UserAgent()},
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		ctx["aws:SourceIp"] = []string{host}
	}
	if call.Principal.Role != "" {
		ctx["aws:PrincipalType"] = []string{"AssumedRole"}
		ctx["aws:PrincipalArn"] = []string{role.ARN}
		for k, v := range role.Tags {
			ctx["aws:PrincipalTag/"+k] = []string{v}
		}
	}
	if arn := call.Principal.SourceInstance; arn != "" {
		ctx["ec2:SourceInstanceArn"] = []string{arn}
	}
	return ctx
}

// denial returns the error for a denied check, with the code that the called service uses for a denial.
func denial(call *wire.Call, check Check) error {
	switch call.Service {
	case "ec2":
		return wire.Errorf(http.StatusForbidden, "UnauthorizedOperation",
			"You are not authorized to perform this operation. %s", check.Reason)
	case "ssm", "secretsmanager":
		return wire.Errorf(http.StatusBadRequest, "AccessDeniedException", "%s", check.Reason)
	}
	return wire.Errorf(http.StatusForbidden, "AccessDenied", "%s", check.Reason)
}

// forgotten returns an error if a handler answered a role's call without a permission check, or after a denial. That is
// a fault of fakeaws, so the error must not look like an answer of AWS.
func forgotten(call *wire.Call, checks []Check) error {
	switch {
	case call.Principal.Role == "" || unasked[call.Service+":"+call.Action]:
		return nil
	case len(checks) == 0:
		return wire.Errorf(http.StatusInternalServerError, "InternalFailure",
			"fakeaws: %s %s did not ask for permission", call.Service, call.Action)
	case slices.ContainsFunc(checks, func(k Check) bool { return !k.Allowed }):
		return wire.Errorf(http.StatusInternalServerError, "InternalFailure", "fakeaws: %s %s did what was denied",
			call.Service, call.Action)
	}
	return nil
}
