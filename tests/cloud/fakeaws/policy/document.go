package policy

// Document is a parsed policy.
type Document struct {
	Version    string
	ID         string
	Statements []Statement
}

// Statement is one of its rules. Of each pair (Actions, NotActions) at most one is set.
type Statement struct {
	SID                     string
	Deny                    bool
	Actions, NotActions     []string
	Resources, NotResources []string
	Principals              *Principals
	Conditions              []Condition
}

// Principals are those a resource's policy speaks of.
type Principals struct {
	Any      bool     // "*"
	AWS      []string // ARNs and account numbers
	Services []string // ec2.amazonaws.com
}

// Condition is one key under one operator: all of a statement's must hold.
type Condition struct {
	Operator string // StringEquals, without prefix and suffix
	Set      string // ForAllValues, ForAnyValue or ""
	IfExists bool
	Key      string
	Values   []string
}
