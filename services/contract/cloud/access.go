package cloud

// Access selects the account and the region in which a program calls the services of a cloud. The zero Access selects
// those that the cloud's SDK finds.
type Access struct {
	Region string
	// Profile is a profile in the shared configuration files of the cloud's tools.
	Profile string
	// AssumeRole is a role that the credentials assume. Optional.
	AssumeRole Role
}

// Role is a role of an account in a cloud.
type Role struct{ ARN, ExternalID, SessionName string }
