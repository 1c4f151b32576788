package secretstore

import (
	"context"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Backend describes a kind of secrets store. Each sub-package has one, and the package secretstore/open lists all of
// them.
type Backend struct {
	// Name is the value of cluster.secrets.provider in the configuration, and of nstance-admin's flag
	// --secrets-provider.
	Name string
	// Open opens a store. It does not connect to the store. Services of clouds use only options.Access.
	Open func(ctx context.Context, settings config.Secrets, options Options) (Store, error)
}

// ObjectStorage describes the back end that seals secrets into the cluster's bucket.
var ObjectStorage = Backend{Name: config.ObjectStorage,
	Open: func(_ context.Context, _ config.Secrets, options Options) (Store, error) {
		return NewObjects(options), nil
	}}
