// Package s3 fakes Amazon S3 with a front for a real S3 server, versitygw. The server keeps objects and their versions.
// The front keeps the buckets' configurations and authorizes requests.
//
// Invariant: only the server keeps objects. A request reaches the server only after two conditions hold: every
// permission that AWS documents for the operation was granted, and the whole body has arrived and matches the
// signature. A request for something that neither the front nor the server supports is refused (NotImplemented), never
// ignored.
//
// Operations, errors and defaults follow the "Amazon S3 API Reference". Actions, resources and condition keys follow
// "Actions, resources, and condition keys for Amazon S3" in the Service Authorization Reference.
package s3

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go/encoding/httpbinding"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Config configures the service. Backend is the real S3 server behind the fake.
type Config struct {
	Region, Account string
	Backend         Backend
	// Host is a domain whose subdomains are buckets (BUCKET.HOST), in addition to AWS's own domains. "" means
	// localhost.
	Host string
}

// Service is the fake S3. It is safe for concurrent use. Its callers do not hold the cloud's lock.
type Service struct {
	cfg    Config
	client *http.Client
	base   *url.URL

	locks   stripes
	mu      sync.Mutex // held while maps are accessed, but not while the server works
	buckets map[string]*bucket
}

// New returns a front without buckets. The server behind it must not have buckets either.
func New(cfg Config) (*Service, error) {
	base, err := url.Parse(cfg.Backend.URL)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute}
	switch base.Scheme {
	case "http", "https":
	case "unix":
		socket := base.Path
		base = &url.URL{Scheme: "http", Host: "versitygw"}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	default:
		return nil, errors.New("s3: the server's URL is neither http nor unix")
	}
	if cfg.Host == "" {
		cfg.Host = "localhost"
	}
	return &Service{cfg: cfg, base: base, buckets: map[string]*bucket{}, client: &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}, nil
}

// Close ends idle connections to the server.
func (s *Service) Close() { s.client.CloseIdleConnections() }

// Name returns the service's signing name.
func (s *Service) Name() string { return "s3" }

// Action returns the name of the operation that a request asks for, "" if S3 has no such operation.
func (s *Service) Action(r *http.Request) string {
	q, err := s.parse(r)
	if err != nil {
		return ""
	}
	return q.op.name
}

// request is one parsed request.
type request struct {
	*wire.Call
	s           *Service
	w           http.ResponseWriter
	op          operation
	bucket, key string
	path        string // the escaped key
	query       url.Values
	config      *bucket // nil for operations without a bucket
}

// parse finds the bucket, the key and the operation of a request.
func (s *Service) parse(r *http.Request) (*request, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "InvalidURI", "Couldn't parse the specified URI")
	}
	q := &request{s: s, query: query, key: strings.TrimPrefix(r.URL.Path, "/")}
	if q.bucket = s.hostBucket(r.Host); q.bucket == "" {
		q.bucket, q.key, _ = strings.Cut(q.key, "/")
	}
	q.path = escape(q.key)
	for name := range query { // parameters of a presigned URL
		if strings.HasPrefix(name, "X-Amz-") || name == "x-id" {
			query.Del(name)
		}
	}
	q.op, err = find(r, q)
	return q, err
}

// escape encodes a key as the path of a URL, in the form that signatures need.
func escape(key string) string { return httpbinding.EscapePath(key, false) }

// hostBucket returns the bucket in front of the service's host name, "" for requests in path style.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html
func (s *Service) hostBucket(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	for _, base := range []string{s.cfg.Host, "s3." + s.cfg.Region + ".amazonaws.com", "s3.dualstack." + s.cfg.Region +
		".amazonaws.com", "s3.amazonaws.com"} {
		if bucket, ok := strings.CutSuffix(host, "."+base); ok {
			return bucket
		}
	}
	return ""
}

// Serve implements wire.Streamer.
func (s *Service) Serve(w http.ResponseWriter, c *wire.Call) error {
	if c.Principal.Account != s.cfg.Account {
		// Only principals of the account have access. In this fake, a bucket stays private even if its policy grants
		// access to everybody.
		return denied()
	}
	w.Header().Set("X-Amz-Request-Id", c.RequestID)
	w.Header().Set("X-Amz-Id-2", c.RequestID)
	q, err := s.parse(c.Request)
	if err != nil {
		return err
	}
	q.Call, q.w = c, w
	c.Action = q.op.name
	if err := q.locate(); err != nil {
		return err
	}
	if owner := c.Request.Header.Get("X-Amz-Expected-Bucket-Owner"); owner != "" && owner != s.cfg.Account {
		return denied()
	}
	for name := range q.query {
		if !knows(q.op, name) {
			return wire.Errorf(http.StatusNotImplemented, "NotImplemented", "fakeaws: %s with the parameter %s",
				q.op.name, name)
		}
	}
	for _, action := range q.op.actions(q) {
		if err := q.allow(action, q.resource()); err != nil {
			return err
		}
	}
	if q.bucket != "" && q.op.name != "CreateBucket" && q.config == nil {
		return wire.Errorf(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")
	}
	return q.op.serve(q)
}

// locate finds the bucket. It refuses requests that were signed for another region than the bucket's.
func (q *request) locate() error {
	if q.bucket == "" {
		return nil
	}
	q.s.mu.Lock()
	q.config = q.s.buckets[q.bucket]
	if q.config != nil {
		q.ResourcePolicy = q.config.policy.document
	}
	q.s.mu.Unlock()
	if q.config != nil && q.Region != "" && q.Region != q.s.cfg.Region {
		q.w.Header().Set("X-Amz-Bucket-Region", q.s.cfg.Region)
		return wire.Errorf(http.StatusBadRequest, "AuthorizationHeaderMalformed",
			"The authorization header is malformed; the region '%s' is wrong; expecting '%s'",
			q.Region, q.s.cfg.Region)
	}
	return nil
}

func denied() error { return wire.Errorf(http.StatusForbidden, "AccessDenied", "Access Denied") }

// credentials returns the server's root credentials.
func (s *Service) credentials() aws.Credentials {
	return aws.Credentials{AccessKeyID: s.cfg.Backend.Access, SecretAccessKey: s.cfg.Backend.Secret}
}
