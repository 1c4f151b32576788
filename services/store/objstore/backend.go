package objstore

import (
	"cmp"
	"context"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
)

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
	// Profile is a profile in the shared configuration files of the cloud's tools. Only some back ends have it and the
	// fields below: see [Backend.HasRoles].
	Profile string
	// AssumeRole is a role that the credentials assume. Optional.
	AssumeRole cloud.Role
	// Encrypt asks the store to encrypt each object with its own keys. KMSKeyID asks it to encrypt each object with a
	// key of the cloud's service for keys. Without both, the bucket's default applies, but the bucket's policy may
	// demand the request.
	Encrypt  bool
	KMSKeyID string
}

// HasRoles reports whether a field is set that only back ends with [Backend.HasRoles] have.
func (l Location) HasRoles() bool {
	return l.Profile != "" || l.AssumeRole != (cloud.Role{}) || l.Encrypt || l.KMSKeyID != ""
}

// Validate refuses prefixes that no key may have, and names of buckets and endpoints that no store in a cloud has.
func (l Location) Validate() error {
	if err := ValidatePrefix(l.Prefix); err != nil {
		return err
	}
	if l.Provider == "file" {
		return nil
	}
	return cmp.Or(endpoints.ValidateBucket(l.Bucket), endpoints.ValidateStore(l.Endpoint, l.Bucket))
}

// Backend describes a kind of object store. Each sub-package has one, and the package objstore/open lists all of them.
type Backend struct {
	// Name is the value of cluster.storage.provider and of the programs' flags.
	Name string
	// Environment lists the environment variables and credentials that the back end reads, for help texts. Optional.
	Environment string
	// HasRoles is true if the back end knows Profile, AssumeRole, Encrypt and KMSKeyID of a [Location].
	HasRoles bool
	// Open opens a bucket without its prefix. It does not connect to the store.
	Open func(ctx context.Context, at Location) (Store, error)
	// Endpoint returns the URL of the store that Open connects to, in one spelling. It is empty if the names of buckets
	// are unique in all stores that Open connects to. A back end without this function has no endpoint. Optional.
	Endpoint func(ctx context.Context, at Location) (string, error)
	// Hint returns what a person should do about an error of the store, or "" if that is unknown. Optional.
	Hint func(err error) string
}
