package s3

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Backend describes this kind of object store.
var Backend = objstore.Backend{
	Name: "s3",
	Environment: "AWS_REGION, AWS_ENDPOINT_URL, AWS_S3_USE_PATH_STYLE, the usual AWS credentials,\n" +
		"      NSTANCE_S3_ENCRYPT, NSTANCE_S3_KMS_KEY_ID",
	HasRoles: true,
	Open:     open,
	Endpoint: endpoint,
	Hint:     hint,
}

func open(ctx context.Context, at objstore.Location) (objstore.Store, error) {
	store, err := newStore(ctx, at)
	if err != nil {
		return nil, err
	}
	return store, nil
}

func newStore(ctx context.Context, at objstore.Location) (*Store, error) {
	options, err := Options{Bucket: at.Bucket, Region: at.Region, Endpoint: at.Endpoint,
		PathStyle: at.PathStyle, Profile: at.Profile, AssumeRole: at.AssumeRole, Encrypt: at.Encrypt,
		KMSKeyID: at.KMSKeyID}.WithEnv(os.Getenv)
	if err != nil {
		return nil, err
	}
	return New(ctx, options)
}

// endpoint implements [objstore.Backend.Endpoint]. The endpoint may be in the location, in the environment or in a
// profile of the SDK. Every endpoint of AWS leads to the same buckets.
func endpoint(ctx context.Context, at objstore.Location) (string, error) {
	store, err := newStore(ctx, at)
	if err != nil {
		return "", err
	}
	if store.endpoint == "" {
		return "", nil
	}
	url, err := url.Parse(store.endpoint)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", store.endpoint, err)
	}
	host := strings.ToLower(url.Hostname())
	for _, domain := range []string{".amazonaws.com", ".amazonaws.com.cn"} {
		if strings.HasSuffix(host, domain) {
			return "", nil
		}
	}
	port := cmp.Or(url.Port(), map[string]string{"http": "80", "https": "443"}[url.Scheme])
	return url.Scheme + "://" + net.JoinHostPort(host, port) + strings.TrimRight(url.Path, "/"), nil
}

// hint implements [objstore.Backend.Hint]: it returns advice for an error. It compares error texts, because err may no
// longer have a type of the SDK.
func hint(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "NoSuchBucket"):
		return "create the bucket, or check the name of the bucket, AWS_REGION and AWS_ENDPOINT_URL"
	case strings.Contains(text, "failed to get shared config profile"):
		return "no profile has this name in the AWS configuration files: correct the name, or add the profile"
	case strings.Contains(text, "STS: AssumeRole") && strings.Contains(text, "AccessDenied"):
		return "let these AWS credentials assume the role: with sts:AssumeRole, and in the role's trust policy"
	case strings.Contains(text, "AccessDenied") && strings.Contains(text, "perform: kms:"):
		return "give these AWS credentials the right to use the KMS key that encrypts the bucket"
	case strings.Contains(text, "AccessDenied"):
		return "give these AWS credentials the right to do this with the bucket"
	case strings.Contains(text, "InvalidAccessKeyId"), strings.Contains(text, "SignatureDoesNotMatch"):
		return "the store does not accept these AWS credentials: correct them"
	case strings.Contains(text, "ExpiredToken"):
		return "the AWS credentials have expired: log in again"
	case strings.Contains(text, "RequestTimeTooSkewed"):
		return "this machine's clock is wrong: set it"
	case strings.Contains(text, "PermanentRedirect"), strings.Contains(text, "AuthorizationHeaderMalformed"):
		return "the bucket is in another region: set AWS_REGION"
	case strings.Contains(text, "SlowDown"), strings.Contains(text, "ServiceUnavailable"):
		return "the store is overloaded: try again later"
	case strings.Contains(text, "credentials"):
		return "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
	}
	return ""
}
