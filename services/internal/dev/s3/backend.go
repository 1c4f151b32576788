package s3

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/johannesboyne/gofakes3"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/file"
)

// maxObject is the maximum size of an object in bytes. It limits the memory that an upload needs. Objects of Nstance
// are a thousand times smaller.
const maxObject = 256 << 20

// backend implements gofakes3.Backend for one bucket. The store is a directory. It checks the conditions of conditional
// requests and makes one write at a time. gofakes3 passes no context to the methods of backend.
type backend struct {
	bucket string
	store  *file.Store
	opened time.Time
}

var _ gofakes3.Backend = (*backend)(nil)

func (b *backend) ListBuckets() ([]gofakes3.BucketInfo, error) {
	return []gofakes3.BucketInfo{{Name: b.bucket, CreationDate: gofakes3.NewContentTime(b.opened)}}, nil
}

func (b *backend) BucketExists(name string) (bool, error) { return name == b.bucket, nil }

func (b *backend) CreateBucket(name string) error {
	if name == b.bucket {
		return gofakes3.ResourceError(gofakes3.ErrBucketAlreadyExists, name)
	}
	return gofakes3.ErrorMessage(gofakes3.ErrNotImplemented, "this server has one bucket, "+b.bucket)
}

func (b *backend) DeleteBucket(name string) error {
	if name != b.bucket {
		return gofakes3.BucketNotFound(name)
	}
	return gofakes3.ErrorMessage(gofakes3.ErrNotImplemented, "the bucket is a directory: remove that")
}

func (b *backend) ForceDeleteBucket(name string) error { return b.DeleteBucket(name) }

func (b *backend) ListBucket(name string, prefix *gofakes3.Prefix, page gofakes3.ListBucketPage) (*gofakes3.ObjectList,
	error) {
	if name != b.bucket {
		return nil, gofakes3.BucketNotFound(name)
	}
	if prefix == nil {
		prefix = &gofakes3.Prefix{}
	}
	entries, err := b.store.List(context.Background(), prefix.Prefix)
	if err != nil {
		return nil, translateError(prefix.Prefix, err)
	}
	list := gofakes3.NewObjectList()
	var count int64
	last := "" // the last listed key or common prefix
	for _, e := range entries {
		var match gofakes3.PrefixMatch
		if !prefix.Match(e.Key, &match) {
			continue
		}
		shown := e.Key
		if match.CommonPrefix {
			shown = match.MatchedPart
		}
		if shown <= page.Marker || shown == last {
			continue
		}
		if page.MaxKeys > 0 && count == page.MaxKeys {
			list.IsTruncated, list.NextMarker = true, last
			break
		}
		count, last = count+1, shown
		if match.CommonPrefix {
			list.AddPrefix(shown)
			continue
		}
		list.Add(&gofakes3.Content{
			Key: e.Key, LastModified: gofakes3.NewContentTime(e.Modified), ETag: `"` + string(e.Token) + `"`,
			Size:         e.Size,
			StorageClass: gofakes3.StorageStandard,
		})
	}
	return list, nil
}

func (b *backend) HeadObject(bucket, key string) (*gofakes3.Object, error) {
	obj, err := b.GetObject(bucket, key, nil)
	if err != nil {
		return nil, err
	}
	obj.Contents = http.NoBody
	return obj, nil
}

func (b *backend) GetObject(bucket, key string, wanted *gofakes3.ObjectRangeRequest) (*gofakes3.Object, error) {
	if bucket != b.bucket {
		return nil, gofakes3.BucketNotFound(bucket)
	}
	obj, modified, err := b.store.GetModified(context.Background(), key)
	if err != nil {
		return nil, translateError(key, err)
	}
	hash, err := hex.DecodeString(string(obj.Token))
	if err != nil {
		return nil, fmt.Errorf("token of %q is no hash: %w", key, err)
	}
	size, body := int64(len(obj.Body)), obj.Body
	part, err := wanted.Range(size)
	if err != nil {
		return nil, err
	}
	if part != nil {
		body = body[part.Start : part.Start+part.Length]
	}
	return &gofakes3.Object{
		Name:     key,
		Metadata: map[string]string{"Last-Modified": modified.UTC().Format(http.TimeFormat)},
		Size:     size,
		Contents: io.NopCloser(bytes.NewReader(body)),
		Hash:     hash,
		Range:    part,
	}, nil
}

func (b *backend) PutObject(bucket, key string, meta map[string]string, input io.Reader, size int64,
	conditions *gofakes3.PutConditions) (gofakes3.PutObjectResult, error) {
	var done gofakes3.PutObjectResult
	if bucket != b.bucket {
		return done, gofakes3.BucketNotFound(bucket)
	}
	// gofakes3 decodes only one form of chunked upload. In all other forms, it would store the chunk headers as part of
	// the object.
	if form := meta["X-Amz-Content-Sha256"]; strings.HasPrefix(form, "STREAMING-") &&
		form != "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" {
		return done, gofakes3.ErrorMessage(gofakes3.ErrNotImplemented, "uploads of the form "+form+
			" are not supported: set AWS_REQUEST_CHECKSUM_CALCULATION=when_required")
	}
	if size > maxObject {
		return done, gofakes3.ErrorMessagef(gofakes3.ErrInvalidArgument, "an object may have at most %d bytes",
			maxObject)
	}
	cond, err := conditionOf(conditions)
	if err != nil {
		return done, err
	}
	body, err := gofakes3.ReadAll(input, size)
	if err != nil {
		return done, err
	}
	_, err = b.store.Put(context.Background(), key, body, cond)
	return done, translateError(key, err)
}

func conditionOf(c *gofakes3.PutConditions) (objstore.Condition, error) {
	switch {
	case c == nil || c.IfMatch == nil && c.IfNoneMatch == nil:
		return objstore.Always(), nil
	case c.IfMatch == nil && *c.IfNoneMatch == "*":
		return objstore.IfAbsent(), nil
	case c.IfNoneMatch == nil && strings.Trim(*c.IfMatch, `"`) != "" && *c.IfMatch != "*":
		return objstore.IfToken(objstore.Token(strings.Trim(*c.IfMatch, `"`))), nil
	}
	// https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
	return objstore.Condition{}, gofakes3.ErrorMessage(gofakes3.ErrNotImplemented,
		"a put takes either If-None-Match: * or If-Match with one ETag")
}

func (b *backend) DeleteObject(bucket, key string) (gofakes3.ObjectDeleteResult, error) {
	var done gofakes3.ObjectDeleteResult
	if bucket != b.bucket {
		return done, gofakes3.BucketNotFound(bucket)
	}
	return done, translateError(key, b.store.Delete(context.Background(), key))
}

func (b *backend) DeleteMulti(bucket string, keys ...string) (gofakes3.MultiDeleteResult, error) {
	var result gofakes3.MultiDeleteResult
	if bucket != b.bucket {
		return result, gofakes3.BucketNotFound(bucket)
	}
	for _, key := range keys {
		if _, err := b.DeleteObject(bucket, key); err != nil {
			result.Error = append(result.Error, gofakes3.ErrorResultFromError(err))
			continue
		}
		result.Deleted = append(result.Deleted, gofakes3.ObjectID{Key: key})
	}
	return result, nil
}

func (b *backend) CopyObject(srcBucket, srcKey, dstBucket, dstKey string,
	_ map[string]string) (gofakes3.CopyObjectResult, error) {
	return gofakes3.CopyObject(b, srcBucket, srcKey, dstBucket, dstKey, nil)
}

// translateError translates an error of the store to an S3 error code, if there is one for it. It returns any other
// error unchanged, and gofakes3 then answers with status 500.
func translateError(key string, err error) error {
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return gofakes3.KeyNotFound(key)
	case errors.Is(err, objstore.ErrConflict):
		return gofakes3.ErrorMessage(gofakes3.ErrPreconditionFailed, "at least one of the preconditions did not hold")
	case errors.Is(err, objstore.ErrInvalid):
		return gofakes3.ErrorMessage(gofakes3.ErrInvalidArgument, err.Error())
	}
	return err
}
