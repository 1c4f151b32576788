// Package policy owns the evaluation of IAM policies: a pure function of documents and a request.
//
// Invariant: what a document says that is not understood is an error when it is parsed, never ignored; what no
// statement allows is denied. Source:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
package policy

// Context holds the values of condition keys ("aws:RequestTag/Name"). Keys are compared without regard to case; a key
// with no values is absent.
type Context map[string][]string

// Caller is who asks.
type Caller struct {
	ARN     string // arn:aws:sts::123456789012:assumed-role/ROLE/SESSION, or arn:aws:iam::123456789012:root
	RoleARN string // arn:aws:iam::123456789012:role/PATH/ROLE, "" when the caller has no role
	Account string
	Service string // ec2.amazonaws.com when a service asks (trust policies)
}

// Request is one question: may the caller do this action on this resource.
type Request struct {
	Action   string // ec2:RunInstances
	Resource string // an ARN, or "*" for actions that have no resource level
	Caller   Caller
	Context  Context
}

// Policies are all that speak to a request.
type Policies struct {
	Identity []*Document // of the role: inline and attached
	Resource *Document   // of the resource: a bucket policy, a role's trust policy
}

// Decision is the answer.
type Decision struct {
	Allowed  bool
	Explicit bool   // denied by a statement that says Deny
	Reason   string // in words, after AWS's: "no identity-based policy allows the ec2:RunInstances action"
}
