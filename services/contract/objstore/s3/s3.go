// Package s3 is the object store in an S3 bucket, at AWS or any endpoint that honours If-Match and If-None-Match on
// PutObject.
//
// Invariant: a conditional put is sent once. Neither the SDK nor net/http repeats it (a repetition would be refused
// because of its own success), and every answer that does not settle it is reported as indeterminate.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nstance-kit/nstance/services/contract/objstore"
)

// connections is how many requests run in parallel without opening a new connection for each.
const connections = 128

// Options say where the bucket is and how to get in.
type Options struct {
	Bucket string
	// Region by default is what the SDK finds (AWS_REGION, the profile), or us-east-1 if there is an endpoint: most S3
	// servers do not care.
	Region string
	// Endpoint is the URL of an S3 server other than AWS's.
	Endpoint string
	// PathStyle puts the bucket into the path of URLs, not in front of the host name.
	PathStyle bool
	// Credentials by default are the SDK's chain: environment, profile, web identity, the instance's role.
	Credentials aws.CredentialsProvider
}

// WithEnv fills what is not set from the environment: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, and
// AWS_S3_USE_PATH_STYLE (a boolean as strconv.ParseBool reads it; the SDK itself does not know that one). getenv is
// os.Getenv.
func (o Options) WithEnv(getenv func(string) string) (Options, error) {
	o.Endpoint = cmp.Or(o.Endpoint, getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL"))
	if text := getenv("AWS_S3_USE_PATH_STYLE"); text != "" && !o.PathStyle {
		style, err := strconv.ParseBool(text)
		if err != nil {
			return o, fmt.Errorf("AWS_S3_USE_PATH_STYLE is %q, want true or false", text)
		}
		o.PathStyle = style
	}
	return o, nil
}

// Store implements objstore.Store. Use New.
type Store struct {
	api    api
	bucket string
}

// api is what is used of the SDK.
type api interface {
	s3.ListObjectsV2APIClient
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	DeleteObject(context.Context, *s3.DeleteObjectInput, ...func(*s3.Options)) (*s3.DeleteObjectOutput, error)
}

// New prepares access to a bucket. It sends no request to it; the SDK may read profiles.
func New(ctx context.Context, o Options) (*Store, error) {
	if o.Bucket == "" {
		return nil, errors.New("open S3 bucket: no bucket is named")
	}
	client := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = connections
		t.MaxIdleConns = 2 * connections
	})
	load := []func(*config.LoadOptions) error{config.WithHTTPClient(client)}
	if o.Region != "" {
		load = append(load, config.WithRegion(o.Region))
	}
	if o.Credentials != nil {
		load = append(load, config.WithCredentialsProvider(o.Credentials))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("open S3 bucket %q: %w", o.Bucket, err)
	}
	if cfg.Region == "" && o.Endpoint != "" {
		cfg.Region = "us-east-1"
	}
	if cfg.Region == "" {
		return nil, fmt.Errorf("open S3 bucket %q: no region: set it in the storage configuration or in AWS_REGION",
			o.Bucket)
	}
	return &Store{bucket: o.Bucket, api: s3.NewFromConfig(cfg, func(s *s3.Options) {
		s.HTTPClient = noting{s.HTTPClient}
		s.UsePathStyle = o.PathStyle
		if o.Endpoint != "" {
			s.BaseEndpoint = aws.String(o.Endpoint)
		}
		// Newer checksums than Content-MD5 and the signature's are unknown to many S3 servers.
		s.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		s.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})}, nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (objstore.Object, error) {
	obj, err := s.get(ctx, key)
	if err != nil {
		return objstore.Object{}, s.wrap("get", key, err)
	}
	return obj, nil
}

func (s *Store) get(ctx context.Context, key string) (obj objstore.Object, err error) {
	if err := objstore.ValidateKey(key); err != nil {
		return obj, err
	}
	out, err := s.api.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	if codeOf(err) == "NoSuchKey" { // and not just 404, which a missing bucket and a wrong endpoint answer too
		return obj, fmt.Errorf("%w: %w", objstore.ErrNotFound, err)
	}
	if err != nil {
		return obj, err
	}
	defer func() { err = errors.Join(err, out.Body.Close()) }()
	body, err := io.ReadAll(out.Body)
	if err != nil {
		return obj, fmt.Errorf("read body: %w", err)
	}
	token, err := tokenOf(out.ETag)
	return objstore.Object{Key: key, Body: body, Token: token}, err
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	token, err := s.put(ctx, key, body, cond)
	if err != nil {
		return "", s.wrap("put", key, err)
	}
	return token, nil
}

func (s *Store) put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	if err := objstore.ValidatePut(key, cond); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	in := &s3.PutObjectInput{Bucket: &s.bucket, Key: &key, Body: bytes.NewReader(body)}
	if cond.Absent() {
		in.IfNoneMatch = aws.String("*")
	}
	if token, ok := cond.Token(); ok {
		in.IfMatch = aws.String(`"` + string(token) + `"`)
	}
	var sent atomic.Bool
	out, err := s.api.PutObject(context.WithValue(ctx, sentKey{}, &sent), in, func(o *s3.Options) {
		if cond.Conditional() {
			o.Retryer = aws.NopRetryer{}
		}
	})
	if err != nil {
		return "", classify(err, cond, sent.Load())
	}
	token, err := tokenOf(out.ETag)
	if err != nil { // written, but as what?
		return "", fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
	}
	return token, nil
}

// classify says what an error of a put means. Which status a failed condition has:
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
func classify(err error, cond objstore.Condition, sent bool) error {
	code, status := codeOf(err), statusOf(err)
	switch {
	case !sent: // no credentials, no endpoint, an ended context
		return err
	case cond.Conditional() && (status == http.StatusPreconditionFailed || status == http.StatusConflict ||
		code == "NoSuchKey"):
		return fmt.Errorf("%w: %w", objstore.ErrConflict, err)
	case code == "RequestTimeout" || status == http.StatusRequestTimeout || status == http.StatusTooManyRequests:
		// Nothing happened, but the store is in trouble: worth another attempt, which is what this error leads to.
		return fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
	case 300 <= status && status < 500:
		return err
	}
	return fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	err := objstore.ValidateKey(key)
	if err == nil {
		_, err = s.api.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: &key})
	}
	if err != nil && codeOf(err) != "NoSuchKey" {
		return s.wrap("delete", key, err)
	}
	return nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	var entries []objstore.Entry
	pages := s3.NewListObjectsV2Paginator(s.api, &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, s.wrap("list", prefix, err)
		}
		if aws.ToBool(page.IsTruncated) && aws.ToString(page.NextContinuationToken) == "" {
			return nil,
				s.wrap("list", prefix, errors.New("the store sent a page that is not the last, and no way to the next"))
		}
		for _, o := range page.Contents {
			key := aws.ToString(o.Key)
			if objstore.ValidateKey(key) != nil {
				continue // not ours, and nobody could get it: "directory" objects of consoles end in a slash
			}
			token, err := tokenOf(o.ETag)
			if err != nil {
				return nil, s.wrap("list", prefix, fmt.Errorf("%q: %w", key, err))
			}
			entries = append(entries, objstore.Entry{Key: key, Token: token, Size: aws.ToInt64(o.Size),
				Modified: aws.ToTime(o.LastModified)})
		}
	}
	// Directory buckets and some servers do not sort.
	slices.SortFunc(entries, func(a, b objstore.Entry) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}

// tokenOf drops the quotes, which some servers leave out in some places.
func tokenOf(etag *string) (objstore.Token, error) {
	token := strings.Trim(aws.ToString(etag), `"`)
	if token == "" {
		return "", errors.New("the store sent no ETag")
	}
	return objstore.Token(token), nil
}

func (s *Store) wrap(op, key string, err error) error {
	if codeOf(err) == "NoSuchBucket" {
		return fmt.Errorf("s3: %s %q: there is no bucket %q: create it, or correct its name or the endpoint: %w", op,
			key, s.bucket, err)
	}
	return fmt.Errorf("s3: %s %q in bucket %q: %w", op, key, s.bucket, err)
}

// codeOf is the error code that the store sent, "" if none.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// statusOf is the HTTP status that the store sent, 0 if none.
func statusOf(err error) int {
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) {
		return response.HTTPStatusCode()
	}
	return 0
}

// noting notes in the context of a put that the request went to the network.
type noting struct{ client s3.HTTPClient }

type sentKey struct{}

func (n noting) Do(r *http.Request) (*http.Response, error) {
	if sent, ok := r.Context().Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
	return n.client.Do(r)
}
