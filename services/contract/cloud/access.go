package cloud

// Access selects the account and the region in which a program calls the services of a cloud. The zero Access selects
// those that the cloud's SDK finds.
type Access struct {
	Region string
	// Profile is a profile in the shared configuration files of the cloud's tools.
	Profile string
	// AssumeRole is a role that the credentials assume. Optional.
	AssumeRole Role
	// Federation is a way from a role of another cloud to a service account. Optional.
	Federation Federation
}

// Role is a role of an account in a cloud.
type Role struct {
	ARN, ExternalID, SessionName string
	// WithToken means that the role is assumed with the identity token of the VM on which the program runs, which is in
	// another cloud. The token's audience is the ARN of the role.
	WithToken bool
}

// Federation names the provider of a workload identity pool that trusts an account of another cloud, and the service
// account that a role of that account may impersonate.
type Federation struct{ PoolProvider, ServiceAccount string }
