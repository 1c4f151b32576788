// Package endpoints parses a list of the addresses at which operators reach each shard.
//
// Invariant: an accepted address has a host and a port, so it can be dialled.
package endpoints

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// hostPattern matches a host name (RFC 1123, section 2.1). It also permits underscores, which names in private DNS
// zones may have.
var hostPattern = regexp.MustCompile(
	`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

// Shard holds the addresses of one shard, at least one, in the given order and without duplicates.
type Shard struct {
	Name  string
	Addrs []string
}

// Parse reads `shard=host:port,…`. It returns each shard once, in the order of their first mention, with all its
// addresses. An empty text gives no shards.
func Parse(text string) ([]Shard, error) {
	var out []Shard
	for part := range parts(text) {
		name, addr, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want shard=host:port", part)
		}
		if err := ident.ValidateName(name); err != nil {
			return nil, fmt.Errorf("%q: shard: %w", part, err)
		}
		if err := check(addr); err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		at := slices.IndexFunc(out, func(s Shard) bool { return s.Name == name })
		if at < 0 {
			at, out = len(out), append(out, Shard{Name: name})
		}
		if !slices.Contains(out[at].Addrs, addr) {
			out[at].Addrs = append(out[at].Addrs, addr)
		}
	}
	return out, nil
}

// ParseAddrs reads the addresses of one shard, `host:port,…`. A text without an address is an error.
func ParseAddrs(text string) ([]string, error) {
	var out []string
	for part := range parts(text) {
		if err := check(part); err != nil {
			return nil, err
		}
		if !slices.Contains(out, part) {
			out = append(out, part)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no address: want host:port")
	}
	return out, nil
}

// parts returns the parts of text between commas, without white space around them.
func parts(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" && !yield(part) {
				return
			}
		}
	}
}

// check accepts an address that can be dialled: a host and a port from 1 to 65535.
func check(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if scheme, _, url := strings.Cut(addr, "://"); url {
		return fmt.Errorf("%q is a URL: leave out %s://, want host:port", addr, scheme)
	}
	if err != nil && !strings.ContainsAny(addr, ":[]/ ") && addr != "" {
		return fmt.Errorf("%q has no port: want host:port", addr)
	}
	if err != nil {
		return fmt.Errorf("%q is not an address: want host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("%q has no port from 1 to 65535: want host:port", addr)
	}
	if _, err := netip.ParseAddr(host); err != nil && (len(host) > 253 || !hostPattern.MatchString(host)) {
		return fmt.Errorf("%q has a host that is neither an IP address nor a name: want host:port", addr)
	}
	return nil
}

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
