// Package open opens an object store by the name of its back end. It is separate from objstore because it links every
// SDK.
package open

import (
	"context"
	"fmt"
	"os"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/file"
	"github.com/nstance-kit/nstance/services/contract/objstore/s3"
)

// Location is the location of a bucket: the "storage" of a configuration, or the flags of a program.
type Location struct {
	Provider string // "s3" or "file"
	Bucket   string // for file, the directory
	Prefix   string // of all keys; may be empty
	// Region, Endpoint and PathStyle are for s3. Unset values come from the environment: AWS_REGION, AWS_ENDPOINT_URL,
	// AWS_S3_USE_PATH_STYLE.
	Region    string
	Endpoint  string
	PathStyle bool
}

// Open opens the store at the location. It does not connect to the store.
func Open(ctx context.Context, at Location) (objstore.Store, error) {
	store, err := backend(ctx, at)
	if err != nil {
		return nil, err
	}
	return objstore.WithPrefix(store, at.Prefix), nil
}

func backend(ctx context.Context, at Location) (objstore.Store, error) {
	switch at.Provider {
	case "s3":
		options := s3.Options{Bucket: at.Bucket, Region: at.Region, Endpoint: at.Endpoint, PathStyle: at.PathStyle}
		options, err := options.WithEnv(os.Getenv)
		if err != nil {
			return nil, err
		}
		return s3.New(ctx, options)
	case "file":
		return file.Open(at.Bucket)
	}
	return nil, fmt.Errorf("storage provider %q is none of s3, file", at.Provider)
}
