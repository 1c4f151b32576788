package policy

import (
	"slices"
	"strings"
)

// Evaluate decides a request within one account:
//
// - An explicit Deny in any policy wins.
// - A resource policy that names the session allows the request by itself.
// - A resource policy that names the role, or all principals, also allows it. This fake has no permissions boundaries.
// - If the resource policy names the account, or there is none, the identity's policies decide.
// - The account itself may do everything that no resource policy denies.
//
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-basics.html
func Evaluate(p Policies, r Request) Decision {
	r.Context = lowered(r.Context)
	for _, doc := range p.Identity {
		if doc.any(r, true) {
			return denied(r, true, "with an explicit deny in an identity-based policy")
		}
	}
	grant := none
	if p.Resource != nil {
		if p.Resource.grants(r, true) != none {
			return denied(r, true, "with an explicit deny in a resource-based policy")
		}
		grant = p.Resource.grants(r, false)
	}
	identity := slices.ContainsFunc(p.Identity, func(d *Document) bool { return d.any(r, false) })
	switch {
	case r.Caller.ARN == "arn:aws:iam::"+r.Caller.Account+":root":
		return Decision{Allowed: true, Reason: "the account itself"}
	case grant == toSession:
		return Decision{Allowed: true, Reason: "a resource-based policy allows the session"}
	case grant == toRole:
		return Decision{Allowed: true, Reason: "a resource-based policy allows the role"}
	case identity:
		return Decision{Allowed: true, Reason: "an identity-based policy allows it"}
	}
	return denied(r, false, "because no identity-based policy allows the "+r.Action+" action")
}

// EvaluateTrust decides whether the caller may assume a role. The role's trust policy must allow it. If the trust
// policy names the account as a whole, the caller's own policies must allow it too. Services and issuers of identity
// tokens need only the trust policy.
func EvaluateTrust(p Policies, r Request) Decision {
	r.Context = lowered(r.Context)
	if p.Resource == nil || p.Resource.grants(r, false) == none {
		return denied(r, false, "because no resource-based policy allows the "+r.Action+" action")
	}
	if r.Caller.Service != "" || r.Caller.Federated != "" {
		if p.Resource.grants(r, true) != none {
			return denied(r, true, "with an explicit deny in a resource-based policy")
		}
		return Decision{Allowed: true, Reason: "the trust policy allows the service or the issuer"}
	}
	return Evaluate(p, r)
}

// denied builds a denial in the wording of AWS's errors.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_access-denied.html
func denied(r Request, explicit bool, why string) Decision {
	return Decision{Explicit: explicit, Reason: "User: " + r.Caller.ARN + " is not authorized to perform: " + r.Action +
		" on resource: " + r.Resource + " " + why}
}

func lowered(ctx Context) Context {
	out := make(Context, len(ctx))
	for k, v := range ctx {
		out[strings.ToLower(k)] = v
	}
	return out
}

// any reports whether a statement matches the request. It does not compare the statement's principals with the caller.
// If deny is true, it looks only at Deny statements, else only at Allow statements.
func (d *Document) any(r Request, deny bool) bool {
	return slices.ContainsFunc(d.Statements, func(s Statement) bool { return s.Deny == deny && s.matches(d.vars(), r) })
}

// grant says how directly a statement names the caller.
type grant int

const (
	none      grant = iota
	toAccount       // delegates to the account's own policies
	toRole
	toSession
)

// grants returns the most direct grant among the matching statements. If deny is true, it returns the most direct
// denial.
func (d *Document) grants(r Request, deny bool) grant {
	best := none
	for _, s := range d.Statements {
		if s.Deny == deny && s.matches(d.vars(), r) {
			best = max(best, s.Principals.names(r.Caller))
		}
	}
	return best
}

func (p *Principals) names(c Caller) grant {
	switch {
	case p == nil:
		return none
	case c.Service != "":
		if p.Any || slices.Contains(p.Services, c.Service) {
			return toSession
		}
		return none
	case c.Federated != "":
		if slices.Contains(p.Federated, c.Federated) {
			return toSession
		}
		return none
	case slices.Contains(p.AWS, c.ARN) && c.RoleARN != "":
		return toSession
	case p.Any, c.RoleARN != "" && slices.Contains(p.AWS, c.RoleARN):
		return toRole
	case slices.Contains(p.AWS, c.Account), slices.Contains(p.AWS, "arn:aws:iam::"+c.Account+":root"):
		return toAccount
	}
	return none
}

// vars reports whether the document supports policy variables. The older version of the policy language has none.
func (d *Document) vars() bool { return d.Version == "2012-10-17" }

func (s *Statement) matches(vars bool, r Request) bool {
	action := func(a string) bool {
		p, _ := compile(strings.ToLower(a), true, false, nil)
		return p.match(strings.ToLower(r.Action))
	}
	if s.Actions != nil && !slices.ContainsFunc(s.Actions, action) || s.NotActions != nil &&
		slices.ContainsFunc(s.NotActions, action) {
		return false
	}
	resolved := true
	resource := func(a string) bool {
		p, ok := compile(a, true, vars, r.Context)
		resolved = resolved && ok
		return ok && p.matchARN(r.Resource)
	}
	if s.Resources != nil && !slices.ContainsFunc(s.Resources, resource) || s.NotResources != nil &&
		slices.ContainsFunc(s.NotResources, resource) || !resolved {
		return false
	}
	for _, c := range s.Conditions {
		if ok, resolved := c.holds(r.Context, vars); !ok || !resolved {
			return false
		}
	}
	return true
}
