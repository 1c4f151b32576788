package endpoints

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// ValidateBucket refuses what people write instead of the name of a bucket in a cloud: a URL, or the name with a
// prefix. ARNs of access points are names too.
func ValidateBucket(bucket string) error {
	name, prefix, found := strings.Cut(bucket, "/")
	switch {
	case strings.Contains(bucket, "://"):
		return fmt.Errorf("bucket %q is a URL: give only the bucket's name", bucket)
	case strings.TrimSpace(bucket) != bucket:
		return fmt.Errorf("bucket %q has white space at its ends", bucket)
	case found && !strings.HasPrefix(bucket, "arn:"):
		return fmt.Errorf("bucket %q has a slash, and no bucket's name has one: the bucket is %q, and its prefix %q",
			bucket,
			name, prefix)
	}
	return nil
}

// ValidateStore refuses endpoints that are no URL of a server, and those that end in the bucket's name: the name would
// be there twice in each request.
func ValidateStore(endpoint, bucket string) error {
	if endpoint == "" {
		return nil
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return fmt.Errorf("endpoint %q is no URL of a server, such as https://storage.example.com", endpoint)
	}
	if at.RawQuery != "" || at.Fragment != "" {
		return fmt.Errorf("endpoint %q has a query or a fragment: give only scheme, host and port", endpoint)
	}
	if way := strings.TrimRight(at.Path, "/"); path.Base(way) == bucket {
		at.Path = strings.TrimSuffix(path.Dir(way), "/")
		return fmt.Errorf("endpoint %q ends in the name of the bucket: give %q", endpoint, at)
	}
	return nil
}
