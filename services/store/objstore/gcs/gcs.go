// Package gcs is the object store in a bucket of Google Cloud Storage. The token of an object is its generation.
//
// Invariant: a conditional put is sent once. Neither the SDK nor net/http repeats it. If the first put succeeded
// unnoticed, its repetition would fail. Every answer that does not settle the put is returned as indeterminate.
package gcs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Only these texts in an answer with status 404 tell whether the object or the bucket is missing.
const (
	missingObject = "No such object"
	missingBucket = "bucket does not exist"
)

// generationHeader holds the generation of a downloaded object.
const generationHeader = "X-Goog-Generation"

// Store implements objstore.Store. Make it with New.
type Store struct {
	objects *storage.ObjectsService
	bucket  string
}

// New prepares access to a bucket. It sends no request. The client in the options must record its requests with
// [googlecloud.Record].
func New(ctx context.Context, bucket string, options ...option.ClientOption) (*Store, error) {
	if bucket == "" {
		return nil, errors.New("open GCS bucket: no bucket is named")
	}
	if err := endpoints.ValidateBucket(bucket); err != nil {
		return nil, fmt.Errorf("open GCS bucket: %w", err)
	}
	service, err := storage.NewService(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("open GCS bucket %q: %w", bucket, err)
	}
	return &Store{service.Objects, bucket}, nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (obj objstore.Object, err error) {
	defer s.explain(&err, "get", key)
	if err := objstore.ValidateKey(key); err != nil {
		return obj, err
	}
	obj, err = googlecloud.Repeat(ctx, func() (objstore.Object, error) { return s.download(ctx, key) })
	if isMissing(err) {
		err = fmt.Errorf("%w: %w", objstore.ErrNotFound, err)
	}
	return obj, err
}

func (s *Store) download(ctx context.Context, key string) (obj objstore.Object, err error) {
	resp, err := s.objects.Get(s.bucket, key).Context(ctx).Download()
	if err != nil {
		return obj, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return obj, fmt.Errorf("read body: %w", err)
	}
	generation, err := strconv.ParseInt(resp.Header.Get(generationHeader), 10, 64)
	if err != nil || generation == 0 {
		return obj, errors.New("the store sent no generation")
	}
	return objstore.Object{Key: key, Body: body, Token: tokenOf(generation)}, nil
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
	generation := int64(0) // the condition of an object that does not exist
	if token, ok := cond.Token(); ok {
		if generation, err = strconv.ParseInt(string(token), 10, 64); err != nil {
			return "", fmt.Errorf("%w: token %q is not a generation", objstore.ErrConflict, string(token))
		}
	}
	ctx, sent := googlecloud.WithSent(ctx)
	upload := func() (*storage.Object, error) {
		// With a chunk size of 0, the SDK sends the object in one request. The SDK repeats no request by default.
		call := s.objects.Insert(s.bucket, &storage.Object{Name: key}).Context(ctx).
			Media(bytes.NewReader(body), googleapi.ContentType("application/octet-stream"), googleapi.ChunkSize(0))
		if cond.Conditional() {
			call.IfGenerationMatch(generation)
		}
		return call.Do()
	}
	var out *storage.Object
	if cond.Conditional() {
		out, err = upload()
	} else {
		out, err = googlecloud.Repeat(ctx, upload)
	}
	if err != nil {
		// https://cloud.google.com/storage/docs/json_api/v1/status-codes. Status 429 may mean that the same object was
		// written less than a second ago.
		return "", objstore.PutError(err, cond, sent.Load(), googlecloud.StatusOf(err))
	}
	if out.Generation == 0 { // the object was written, but its token is unknown
		return "", fmt.Errorf("%w: the store sent no generation", objstore.ErrIndeterminate)
	}
	return tokenOf(out.Generation), nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) (err error) {
	defer s.explain(&err, "delete", key)
	if err := objstore.ValidateKey(key); err != nil {
		return err
	}
	_, err = googlecloud.Repeat(ctx, func() (struct{}, error) {
		return struct{}{}, s.objects.Delete(s.bucket, key).Context(ctx).Do()
	})
	if isMissing(err) {
		return nil
	}
	return err
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix string) (entries []objstore.Entry, err error) {
	defer s.explain(&err, "list", prefix)
	for page := ""; ; {
		out, err := googlecloud.Repeat(ctx, func() (*storage.Objects, error) {
			return s.objects.List(s.bucket).Context(ctx).Prefix(prefix).PageToken(page).
				Fields("nextPageToken", "items(name,generation,size,updated)").Do()
		})
		if err != nil {
			return nil, err
		}
		for _, o := range out.Items {
			if objstore.ValidateKey(o.Name) != nil {
				continue // a foreign object: "folders" of the console end in a slash
			}
			modified, err := time.Parse(time.RFC3339, o.Updated)
			if err != nil || o.Generation == 0 {
				return nil, fmt.Errorf("%q has no generation or no time", o.Name)
			}
			entries = append(entries, objstore.Entry{Key: o.Name, Token: tokenOf(o.Generation), Size: int64(o.Size),
				Modified: modified})
		}
		if page = out.NextPageToken; page == "" {
			break
		}
	}
	slices.SortFunc(entries, func(a, b objstore.Entry) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}

func tokenOf(generation int64) objstore.Token {
	return objstore.Token(strconv.FormatInt(generation, 10))
}

// explain adds the operation, the key and the bucket to the error that a method returns. The method defers it.
func (s *Store) explain(err *error, op, key string) {
	switch {
	case *err == nil:
	case googlecloud.StatusOf(*err) == http.StatusNotFound && strings.Contains((*err).Error(), missingBucket):
		*err = fmt.Errorf("gcs: %s %q: there is no bucket %q: %w", op, key, s.bucket, *err)
	default:
		*err = fmt.Errorf("gcs: %s %q in bucket %q: %w", op, key, s.bucket, *err)
	}
}

// isMissing reports whether the answer says that the object does not exist. Other answers with status 404 say nothing
// about the object: the bucket is missing, or the endpoint is wrong.
func isMissing(err error) bool {
	answer, ok := errors.AsType[*googleapi.Error](err)
	return ok && answer.Code == http.StatusNotFound && strings.Contains(answer.Body, missingObject)
}

// Backend describes this kind of object store.
var Backend = objstore.Backend{
	Name:        "gcs",
	Environment: googlecloud.Environment,
	Open: func(ctx context.Context, at objstore.Location) (objstore.Store, error) {
		access, err := googlecloud.Open(ctx, at.Federation)
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
	case strings.Contains(text, googlecloud.Exchange):
		return "check cluster.storage.identity, the pool provider's AWS account and attribute condition, and who may " +
			"impersonate the service account"
	case strings.Contains(text, "find Google credentials"):
		return "set GOOGLE_APPLICATION_CREDENTIALS, or run this on a VM with a service account"
	case strings.Contains(text, missingBucket):
		return "create the bucket, or correct its name"
	case strings.Contains(text, "storage.objects."):
		return "check which roles the Google credentials have on the bucket"
	}
	return ""
}
