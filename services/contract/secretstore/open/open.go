// Package open opens a secrets store by the name of its back end, and knows every source of encryption keys. It is
// separate from secretstore and keyring because it links every SDK.
package open

import (
	"context"
	"fmt"
	"io"
	"maps"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keyring"
	"github.com/nstance-kit/nstance/services/contract/keyring/aws"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore/parameterstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore/secretsmanager"
)

// ObjectStorage is the back end that seals secrets into the cluster's bucket.
const ObjectStorage = "object-storage"

// KeySources returns all sources of encryption keys.
func KeySources() map[string]keyring.Source {
	sources := keyring.Sources()
	maps.Copy(sources, aws.Sources())
	return sources
}

// Options selects the store to open.
type Options struct {
	Secrets config.Secrets
	// Bucket, Cluster, Ring and Rand are for [ObjectStorage].
	Bucket  objstore.Store
	Cluster string
	Ring    keyring.Ring
	Rand    io.Reader
}

// Open opens the store. It does not connect to the store.
func Open(ctx context.Context, o Options) (secretstore.Store, error) {
	switch o.Secrets.Provider {
	case ObjectStorage:
		return secretstore.NewObjects(secretstore.Options{Bucket: o.Bucket, Cluster: o.Cluster, Ring: o.Ring,
			Rand: o.Rand}), nil
	case "aws-secrets-manager":
		return secretsmanager.Open(ctx, o.Secrets.Prefix)
	case "aws-parameter-store":
		return parameterstore.Open(ctx, o.Secrets.Prefix)
	}
	return nil,
		fmt.Errorf(
			"there is no secrets store %q; there are object-storage, aws-secrets-manager and aws-parameter-store",
			o.Secrets.Provider)
}
