// Package open lists the back ends of object storage and opens a bucket by the name of its back end. It is separate
// from objstore because it links every SDK. To add a back end, add it to [Backends], or to clouds.go if a trial cluster
// on one machine does not need it.
package open

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/file"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
)

// Backends returns all back ends. The first one is the default of the programs.
func Backends() []objstore.Backend {
	return slices.Concat([]objstore.Backend{s3.Backend}, clouds, []objstore.Backend{file.Backend})
}

// Names returns the names of all back ends.
func Names() []string {
	var names []string
	for _, backend := range Backends() {
		names = append(names, backend.Name)
	}
	return names
}

// Validate checks a location without opening it: the names of the back end, the bucket and the endpoint, and that the
// back end has all settings.
func Validate(at objstore.Location) error {
	backend, err := find(at)
	if err == nil && at.HasRoles() && !backend.HasRoles {
		err = fmt.Errorf("the storage provider %s has no profile, assume_role, encrypt and kms_key_id", at.Provider)
	}
	return cmp.Or(err, at.Validate())
}

// Access returns how to call other services of the bucket's cloud: with the same profile and role, and in the same
// region. The result has no region if the bucket has an endpoint, because another provider's names of regions are not
// those of the cloud. If the back end has no profiles and roles, only the federation of the result can be set.
func Access(at objstore.Location) cloud.Access {
	if backend, err := find(at); err != nil || !backend.HasRoles {
		return cloud.Access{Federation: at.Federation}
	}
	access := cloud.Access{Region: at.Region, Profile: at.Profile, AssumeRole: at.AssumeRole}
	if at.Endpoint != "" {
		access.Region = ""
	}
	return access
}

func find(at objstore.Location) (objstore.Backend, error) {
	backends := Backends()
	i := slices.IndexFunc(backends, func(b objstore.Backend) bool { return b.Name == at.Provider })
	if i < 0 {
		return objstore.Backend{}, fmt.Errorf("storage provider %q is none of %s", at.Provider,
			strings.Join(Names(), ", "))
	}
	return backends[i], nil
}

// Open opens the bucket at the location. It does not connect to the store.
func Open(ctx context.Context, at objstore.Location) (objstore.Store, error) {
	backend, err := find(at)
	if err != nil {
		return nil, err
	}
	if err := objstore.ValidatePrefix(at.Prefix); err != nil {
		return nil, err
	}
	store, err := backend.Open(ctx, at)
	if err != nil {
		return nil, err
	}
	return objstore.WithPrefix(store, at.Prefix), nil
}

// Canonical returns the location in one spelling, without what does not distinguish buckets. Two locations of the same
// bucket may still differ, because a store may have several endpoints. Canonical does not connect to the store.
func Canonical(ctx context.Context, at objstore.Location) (objstore.Location, error) {
	one := objstore.Location{Provider: at.Provider, Bucket: at.Bucket, Prefix: strings.Trim(at.Prefix, "/")}
	if at.Provider == file.Backend.Name {
		dir, err := filepath.Abs(at.Bucket)
		if err != nil {
			return one, fmt.Errorf("find the directory %q: %w", at.Bucket, err)
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil { // it may not exist yet
			dir = real
		}
		one.Bucket = dir
	}
	for _, backend := range Backends() {
		if backend.Name != at.Provider || backend.Endpoint == nil {
			continue
		}
		var err error
		if one.Endpoint, err = backend.Endpoint(ctx, at); err != nil {
			return one, err
		}
	}
	return one, nil
}

// Hint returns what a person should do about an error of any store, or "" if that is unknown or if the person gave up.
func Hint(err error) string {
	if objstore.Interrupted(err) {
		return ""
	}
	hint := objstore.NetworkHint(err)
	for _, backend := range Backends() {
		if backend.Hint != nil {
			hint = cmp.Or(hint, backend.Hint(err))
		}
	}
	return hint
}

// Environment returns one line of help for each back end that reads environment variables. format is the fmt format of
// one line. It receives the names of the variables and then the name of the back end.
func Environment(format string) string {
	var text strings.Builder
	for _, backend := range Backends() {
		if backend.Environment != "" {
			fmt.Fprintf(&text, format, backend.Environment, backend.Name)
		}
	}
	return text.String()
}
