package gcs

import (
	"context"
	"strings"

	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Backend describes this kind of object store.
var Backend = objstore.Backend{
	Name:        "gcs",
	Environment: googlecloud.Environment,
	Open: func(ctx context.Context, at objstore.Location) (objstore.Store, error) {
		access, err := googlecloud.Open(ctx)
		if err != nil {
			return nil, err
		}
		return New(ctx, at.Bucket, access.Options("storage")...)
	},
	Hint: hint,
}

// hint implements [objstore.Backend.Hint]: it returns advice for an error. It compares error texts, because err may no
// longer have a type of the SDK.
func hint(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "find Google credentials"):
		return "set GOOGLE_APPLICATION_CREDENTIALS, or run this on a VM with a service account"
	case strings.Contains(text, missingBucket):
		return "create the bucket, or correct its name"
	case strings.Contains(text, "storage.objects."):
		return "check which roles the Google credentials have on the bucket"
	}
	return ""
}
