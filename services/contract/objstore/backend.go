package objstore

import "context"

// Location is the location of a bucket: the "storage" of a configuration, or the flags of a program.
type Location struct {
	// Provider is the name of the back end.
	Provider string
	// Bucket is the name of the bucket. For the back end "file" it is a directory.
	Bucket string
	// Prefix starts all keys. It may be empty.
	Prefix string
	// Region, Endpoint and PathStyle are for back ends in a cloud. Unset values come from the environment.
	Region    string
	Endpoint  string
	PathStyle bool
}

// Backend describes a kind of object store. Each sub-package has one, and the package objstore/open lists all of them.
type Backend struct {
	// Name is the value of cluster.storage.provider and of the programs' flags.
	Name string
	// Environment lists the environment variables and credentials that the back end reads, for help texts. Optional.
	Environment string
	// Open opens a bucket without its prefix. It does not connect to the store.
	Open func(ctx context.Context, at Location) (Store, error)
	// Hint returns what a person should do about an error of the store, or "" if that is unknown. Optional.
	Hint func(err error) string
}
