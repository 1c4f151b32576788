// Package policy evaluates IAM policies. A decision depends only on the documents and the request.
//
// Invariant: an element that the package does not understand is a parse error, never ignored. A request that no
// statement allows is denied.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
package policy

// Context holds the values of condition keys ("aws:RequestTag/Name"). Keys are compared without regard to case. A key
// without values is absent.
type Context map[string][]string

// Caller is the identity that makes a request.
type Caller struct {
	ARN     string // arn:aws:sts::123456789012:assumed-role/ROLE/SESSION, or arn:aws:iam::123456789012:root
	RoleARN string // arn:aws:iam::123456789012:role/PATH/ROLE, "" when the caller has no role
	Account string
	Service string // such as ec2.amazonaws.com when a service asks (trust policies)
	// Federated is the issuer of the identity token that the caller has, such as accounts.google.com (trust policies).
	Federated string
}

// Request asks whether the caller may perform the action on the resource.
type Request struct {
	Action   string // ec2:RunInstances
	Resource string // an ARN, or "*" for actions without a resource level
	Caller   Caller
	Context  Context
}

// Policies holds all policies that apply to a request.
type Policies struct {
	Identity []*Document // of the caller's role
	Resource *Document   // of the resource: a bucket policy, a role's trust policy
}

// Decision is the result of an evaluation.
type Decision struct {
	Allowed  bool
	Explicit bool   // denied by a Deny statement
	Reason   string // AWS's wording: "no identity-based policy allows the ec2:RunInstances action"
}
