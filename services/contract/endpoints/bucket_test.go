package endpoints_test

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
)

func TestValidateBucket(t *testing.T) {
	for bucket, want := range map[string]string{
		"dev": "", "my.bucket-1": "", "arn:aws:s3:us-west-2:123456789012:accesspoint/nstance": "",
		"dev/prefix":           `the bucket is "dev", and its prefix "prefix"`,
		"dev/":                 "has a slash",
		"s3://dev":             "is a URL",
		"https://host/dev":     "is a URL",
		"dev\n":                "white space",
		"gs://dev/some/prefix": "is a URL",
	} {
		wantProblem(t, bucket, endpoints.ValidateBucket(bucket), want)
	}
}

func TestValidateStore(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "", "http://127.0.0.1:9000": "", "https://s3.example.com/": "", "https://example.com/storage/v1/s3": "",
		"http://127.0.0.1:9000/dev":        `give "http://127.0.0.1:9000"`,
		"http://127.0.0.1:9000/dev/":       `give "http://127.0.0.1:9000"`,
		"https://example.com/storage/dev":  `give "https://example.com/storage"`,
		"127.0.0.1:9000":                   "no URL of a server",
		"localhost:9000":                   "no URL of a server",
		"s3.example.com":                   "no URL of a server",
		"s3://dev":                         "no URL of a server",
		"https:///storage":                 "no URL of a server",
		"https://s3.example.com?region=eu": "a query",
		"https://s3.example.com#eu":        "a fragment",
	} {
		wantProblem(t, endpoint, endpoints.ValidateStore(endpoint, "dev"), want)
	}
}

func wantProblem(t *testing.T, input string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%q: %v, want %q", input, err, want)
	}
}
