package policy

// Document is a parsed policy.
type Document struct {
	Version    string
	ID         string
	Statements []Statement
}

// Statement is one statement of a policy. In each pair (such as Actions and NotActions) at most one field is set.
type Statement struct {
	SID                     string
	Deny                    bool
	Actions, NotActions     []string
	Resources, NotResources []string
	Principals              *Principals
	Conditions              []Condition
}

// Principals lists the principals of a statement in a resource's policy.
type Principals struct {
	Any      bool     // "*"
	AWS      []string // ARNs and account numbers
	Services []string // ec2.amazonaws.com
	// Federated are the issuers of identity tokens, such as accounts.google.com.
	Federated []string
}

// Condition compares a request's values of one key with the policy's values, by one operator. A statement matches only
// if all its conditions hold.
type Condition struct {
	Operator string // StringEquals, without prefix and suffix
	Set      string // ForAllValues, ForAnyValue or ""
	IfExists bool
	Key      string
	Values   []string
}
