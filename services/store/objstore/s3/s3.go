// Package s3 is the object store in an S3 bucket, at AWS or any endpoint that honors If-Match and If-None-Match on
// PutObject.
//
// Invariant: a conditional put is sent once. Neither the SDK nor net/http repeats it. If the first put succeeded
// unnoticed, its repetition would fail. If an answer does not show whether the put succeeded, the error is
// indeterminate.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/store/awscloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// connections is the number of idle connections to keep. Up to this number, parallel requests need no new connections.
const connections = 128

// WithEnv fills in unset fields of a location from the environment: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL,
// AWS_S3_USE_PATH_STYLE, NSTANCE_S3_ENCRYPT and NSTANCE_S3_KMS_KEY_ID. AWS_S3_USE_PATH_STYLE and NSTANCE_S3_ENCRYPT are
// booleans as in strconv.ParseBool. The SDK does not know these variables, except for the endpoints. getenv is
// os.Getenv, except in tests.
func WithEnv(o objstore.Location, getenv func(string) string) (objstore.Location, error) {
	o.Endpoint = cmp.Or(o.Endpoint, getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL"))
	o.KMSKeyID = cmp.Or(o.KMSKeyID, getenv("NSTANCE_S3_KMS_KEY_ID"))
	for name, field := range map[string]*bool{"AWS_S3_USE_PATH_STYLE": &o.PathStyle, "NSTANCE_S3_ENCRYPT": &o.Encrypt} {
		text := getenv(name)
		if text == "" || *field {
			continue
		}
		var err error
		if *field, err = strconv.ParseBool(text); err != nil {
			return o, fmt.Errorf("%s is %q, want true or false", name, text)
		}
	}
	return o, nil
}

// Store implements objstore.Store. Make it with New.
type Store struct {
	api        *s3.Client
	bucket     string
	encryption types.ServerSideEncryption // "": the bucket's default
	kmsKeyID   *string
}

// New prepares access to a bucket. It sends no request to the bucket, but the SDK may read profiles.
//
// The region defaults to the one that the SDK finds (AWS_REGION, the profile). If the SDK finds none and the location
// has an endpoint, the region is us-east-1, because most S3 servers ignore it. The keys may be nil: then they come from
// the SDK's chain, which is the environment, the profile, a web identity, and the instance's role.
func New(ctx context.Context, o objstore.Location, keys aws.CredentialsProvider) (*Store, error) {
	if o.Bucket == "" {
		return nil, errors.New("open S3 bucket: no bucket is named")
	}
	if err := cmp.Or(endpoints.ValidateBucket(o.Bucket), endpoints.ValidateStore(o.Endpoint, o.Bucket)); err != nil {
		return nil, fmt.Errorf("open S3 bucket: %w", err)
	}
	client := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = connections
		t.MaxIdleConns = 2 * connections
	})
	cfg, err := awscloud.Load(ctx, cloud.Access{Region: o.Region, Profile: o.Profile, AssumeRole: o.AssumeRole},
		config.WithHTTPClient(client), config.WithCredentialsProvider(keys))
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
	store := &Store{bucket: o.Bucket}
	if o.Encrypt {
		store.encryption = types.ServerSideEncryptionAes256
	}
	if o.KMSKeyID != "" {
		store.encryption, store.kmsKeyID = types.ServerSideEncryptionAwsKms, &o.KMSKeyID
	}
	store.api = s3.NewFromConfig(cfg, func(s *s3.Options) {
		s.HTTPClient = noting{s.HTTPClient}
		s.UsePathStyle = o.PathStyle
		if o.Endpoint != "" {
			s.BaseEndpoint = aws.String(o.Endpoint)
		}
		// Many S3 servers support only Content-MD5 and the SHA-256 in the signature, but no newer checksums.
		s.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		s.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	return store, nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (obj objstore.Object, err error) {
	defer s.explain(&err, "get", key)
	if err := objstore.ValidateKey(key); err != nil {
		return obj, err
	}
	out, err := s.api.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	// A missing bucket and a wrong endpoint answer 404 too, with another code.
	if awscloud.CodeOf(err) == "NoSuchKey" {
		return obj, fmt.Errorf("%w: %w", objstore.ErrNotFound, err)
	}
	if err != nil {
		return obj, err
	}
	body, err := io.ReadAll(out.Body)
	if err = errors.Join(err, out.Body.Close()); err != nil {
		return obj, fmt.Errorf("read body: %w", err)
	}
	token, err := tokenOf(out.ETag)
	if err != nil {
		return obj, err
	}
	return objstore.Object{Key: key, Body: body, Token: token}, nil
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (token objstore.Token,
	err error) {
	defer s.explain(&err, "put", key)
	if err := objstore.ValidatePut(key, cond); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	in := &s3.PutObjectInput{Bucket: &s.bucket, Key: &key, Body: bytes.NewReader(body),
		ServerSideEncryption: s.encryption, SSEKMSKeyId: s.kmsKeyID}
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
		// https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
		status := awscloud.StatusOf(err)
		switch code := awscloud.CodeOf(err); {
		case cond.Conditional() && code == "NoSuchKey": // there is no object with the token
			status = http.StatusPreconditionFailed
		case code == "RequestTimeout":
			status = http.StatusRequestTimeout
		}
		return "", objstore.PutError(err, cond, sent.Load(), status)
	}
	if token, err = tokenOf(out.ETag); err != nil { // the object was written, but its token is unknown
		return "", fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
	}
	return token, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) (err error) {
	defer s.explain(&err, "delete", key)
	if err := objstore.ValidateKey(key); err != nil {
		return err
	}
	_, err = s.api.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: &key})
	if awscloud.CodeOf(err) == "NoSuchKey" {
		return nil
	}
	return err
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix string) (entries []objstore.Entry, err error) {
	defer s.explain(&err, "list", prefix)
	pages := s3.NewListObjectsV2Paginator(s.api, &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		if aws.ToBool(page.IsTruncated) && aws.ToString(page.NextContinuationToken) == "" {
			return nil, errors.New("the store sent a page that is not the last, and no way to the next")
		}
		for _, o := range page.Contents {
			key := aws.ToString(o.Key)
			if objstore.ValidateKey(key) != nil {
				continue // a foreign object: "directory" objects of consoles end in a slash
			}
			token, err := tokenOf(o.ETag)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", key, err)
			}
			entries = append(entries, objstore.Entry{Key: key, Token: token, Size: aws.ToInt64(o.Size),
				Modified: aws.ToTime(o.LastModified)})
		}
	}
	// Directory buckets and some servers do not sort their lists.
	slices.SortFunc(entries, func(a, b objstore.Entry) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}

// tokenOf returns an ETag without its quotes, which some servers omit.
func tokenOf(etag *string) (objstore.Token, error) {
	token := strings.Trim(aws.ToString(etag), `"`)
	if token == "" {
		return "", errors.New("the store sent no ETag")
	}
	return objstore.Token(token), nil
}

// explain adds the operation, the key and the bucket to the error that a method returns. The method defers it.
func (s *Store) explain(err *error, op, key string) {
	switch {
	case *err == nil:
	case awscloud.CodeOf(*err) == "NoSuchBucket":
		*err = fmt.Errorf("s3: %s %q: there is no bucket %q: %w", op, key, s.bucket, *err)
	default:
		*err = fmt.Errorf("s3: %s %q in bucket %q: %w", op, key, s.bucket, *err)
	}
}

// noting is an HTTP client. For a put, it records in the request's context that the request was sent to the network.
type noting struct{ client s3.HTTPClient }

type sentKey struct{}

func (n noting) Do(r *http.Request) (*http.Response, error) {
	if sent, ok := r.Context().Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
	return n.client.Do(r)
}

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
	at, err := WithEnv(at, os.Getenv)
	if err != nil {
		return nil, err
	}
	return New(ctx, at, nil)
}

// endpoint implements [objstore.Backend.Endpoint]. The endpoint may be in the location, in the environment or in a
// profile of the SDK. Every endpoint of AWS leads to the same buckets.
func endpoint(ctx context.Context, at objstore.Location) (string, error) {
	store, err := newStore(ctx, at)
	if err != nil {
		return "", err
	}
	base := aws.ToString(store.api.Options().BaseEndpoint)
	if base == "" { // the SDK chooses one by region
		return "", nil
	}
	url, err := url.Parse(base)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", base, err)
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
	case strings.Contains(text, "oauth2/google"): // AWS credentials gave no access to another back end
		return ""
	case strings.Contains(text, "STS: AssumeRoleWithWebIdentity") && strings.Contains(text, "AccessDenied"):
		return "let the service account of this VM assume the role: the role's trust policy must name the account's " +
			"unique ID in accounts.google.com:sub and :aud, and the role's own ARN in accounts.google.com:oaud"
	case strings.Contains(text, "Google's metadata server"):
		return "give this VM a service account; role_arn in cluster.storage.identity needs it"
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
