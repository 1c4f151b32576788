package s3

import (
	"context"
	"os"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/objstore"
)

// Backend describes this kind of object store.
var Backend = objstore.Backend{
	Name:        "s3",
	Environment: "AWS_REGION, AWS_ENDPOINT_URL, AWS_S3_USE_PATH_STYLE and the usual AWS credentials",
	Open:        open,
	Hint:        hint,
}

func open(ctx context.Context, at objstore.Location) (objstore.Store, error) {
	options, err := Options{Bucket: at.Bucket, Region: at.Region, Endpoint: at.Endpoint,
		PathStyle: at.PathStyle}.WithEnv(os.Getenv)
	if err != nil {
		return nil, err
	}
	return New(ctx, options)
}

// hint implements [objstore.Backend.Hint]: it returns advice for an error. It compares error texts, because err may no
// longer have a type of the SDK.
func hint(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "request send failed"):
		return "the object store cannot be reached: check AWS_ENDPOINT_URL and AWS_REGION, and whether it is running"
	case strings.Contains(text, "NoSuchBucket"):
		return "check the name of the bucket, AWS_REGION and AWS_ENDPOINT_URL"
	case strings.Contains(text, "AccessDenied"), strings.Contains(text, "credentials"):
		return "check the AWS credentials and what they may do with the bucket"
	}
	return ""
}
