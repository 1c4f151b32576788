package s3_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
	store "github.com/nstance-kit/nstance/services/store/objstore/s3"
)

// hermetic isolates the test from the machine's AWS profiles and variables.
func hermetic(t *testing.T) {
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none"))
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY", "AWS_CA_BUNDLE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// TestConformance runs the conformance suite of object stores, in a bucket with versions and in one without. The
// suite's client has a role with exactly the permissions that an object store needs.
func TestConformance(t *testing.T) {
	hermetic(t)
	w := newTestFront(t)
	w.bucket("plain")
	w.bucket("versioned")
	must(w.PutBucketVersioning(t.Context(), &sdk.PutBucketVersioningInput{
		Bucket: ptr("versioned"), VersioningConfiguration: &types.VersioningConfiguration{
			Status: types.BucketVersioningStatusEnabled},
	}))(t)
	w.may(
		allow("arn:aws:s3:::plain", "s3:ListBucket"), allow("arn:aws:s3:::plain/*", "s3:GetObject", "s3:PutObject",
			"s3:DeleteObject"),
		allow("arn:aws:s3:::versioned", "s3:ListBucket"), allow("arn:aws:s3:::versioned/*", "s3:GetObject",
			"s3:PutObject", "s3:DeleteObject"),
	)
	for _, bucket := range []string{"plain", "versioned"} {
		t.Run(bucket, func(t *testing.T) {
			var n atomic.Int64
			objstoretest.Run(t, func(t *testing.T) objstore.Store {
				s, err := store.New(t.Context(), objstore.Location{Bucket: bucket, Region: region, Endpoint: w.url},
					credentials.NewStaticCredentialsProvider("role", "secret-of-the-test", ""))
				if err != nil {
					t.Fatal(err)
				}
				return objstore.WithPrefix(s, fmt.Sprintf("test-%d", n.Add(1)))
			})
		})
	}
}

func ptr[T any](v T) *T { return &v }
