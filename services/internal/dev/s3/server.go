// Package s3 is dev-s3, an S3 server with one bucket for development on one machine. The objects of the bucket are
// files in a directory. Package objstore/file keeps the objects, and gofakes3 implements HTTP. An access key ID is the
// only authentication, and it is optional: dev-s3 does not check signatures, and listens on the loopback address by
// default.
//
// Invariants:
//
//   - An acknowledged object is complete in the directory, even if the process is killed.
//   - An ETag is the MD5 sum of the content. It survives a restart.
//   - If several puts require the same version of an object, only one of them succeeds.
package s3

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/internal/dev/httpserver"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/file"
)

// Options are the flags of dev-s3.
type Options struct {
	Addr   string // host:port to listen on; port 0 takes a free one
	Dir    string // holds the bucket's objects directly
	Bucket string
	// AccessKeyFile contains the only access key ID that is accepted. If AccessKeyFile is empty, every access key ID is
	// accepted.
	AccessKeyFile string
}

// shutdownTime is the time for running requests to finish when the server stops.
const shutdownTime = 3 * time.Second

const about = `dev-s3 is a small S3 server for developing Nstance on one machine. It serves one
bucket. Its objects are files of a directory: the object cluster/ca.crt is the file
cluster/ca.crt below --dir. You may read, edit and remove the files.

It honours conditional puts (If-Match, If-None-Match) atomically, also when several
processes use the directory, and keeps what it has acknowledged when it is killed.
Without --access-key-file dev-s3 accepts any access key, and everyone who can reach
--addr can read and write everything. It does not check signatures. It refuses the
requests of web pages. It is not for production.

Point any S3 client at it with:

  export AWS_ENDPOINT_URL=http://127.0.0.1:8989 AWS_S3_USE_PATH_STYLE=true
  export AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev

Virtual-host style works too, under http://{bucket}.localhost:8989.`

// Command returns the command line of dev-s3. The command runs until its context ends, and then returns nil.
func Command() *cobra.Command {
	var options Options
	cmd := &cobra.Command{
		Use:     "dev-s3",
		Short:   "An S3 server over a directory, for development",
		Long:    about,
		Example: "  dev-s3 --addr 127.0.0.1:8989 --dir temp/dev-s3 --bucket dev",
	}
	cmd.Flags().StringVar(&options.Addr, "addr", "127.0.0.1:8989", "address to listen on")
	cmd.Flags().StringVar(&options.Dir, "dir", "temp/dev-s3",
		"directory of the objects; created if absent")
	cmd.Flags().StringVar(&options.Bucket, "bucket", "dev", "name of the only bucket")
	cmd.Flags().StringVar(&options.AccessKeyFile, "access-key-file", "",
		"file with the only access key ID that is accepted; without it any is")
	return httpserver.Command(cmd, func(ctx context.Context, log *slog.Logger, out io.Writer) error {
		return Serve(ctx, options, log, out)
	})
}

// Serve opens the directory, listens, writes one line with the URL to out ("dev-s3: bucket dev in temp/dev-s3 at
// http://…"), and serves until ctx ends. Running requests finish first. Serve returns nil if it stops because ctx
// ended.
func Serve(ctx context.Context, o Options, log *slog.Logger, out io.Writer) (err error) {
	if err := gofakes3.ValidateBucketName(o.Bucket); err != nil {
		return fmt.Errorf("bucket %q is not a valid name of an S3 bucket: %w", o.Bucket, err)
	}
	key, err := o.accessKey()
	if err != nil {
		return err
	}
	store, err := file.Open(o.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, err := fmt.Fprintf(out, "dev-s3: bucket %s in %s at http://%s\n", o.Bucket, o.Dir,
		listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	s3 := handler(store, o.Bucket, listener.Addr(), log)
	if key != "" {
		s3 = requireAccessKey(key, s3)
	}
	return httpserver.Serve(ctx, listener, s3, log, shutdownTime, false)
}

// accessKey reads the access key ID. Without AccessKeyFile, the result is empty.
func (o Options) accessKey() (string, error) {
	if o.AccessKeyFile == "" {
		return "", nil
	}
	content, err := os.ReadFile(o.AccessKeyFile)
	if err != nil {
		return "", fmt.Errorf("access key: %w", err)
	}
	key := string(pasted.Clean(content))
	if key == "" {
		return "", fmt.Errorf("access key: %s is empty", o.AccessKeyFile)
	}
	return key, nil
}

// requireAccessKey refuses a request without the access key ID. The ID is in the Authorization header, or in the query
// of a presigned URL. The signature is not checked: the access key ID itself is the secret.
func requireAccessKey(key string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, credential, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		if credential == "" {
			credential = r.URL.Query().Get("X-Amz-Credential")
		}
		got, _, _ := strings.Cut(credential, "/")
		if subtle.ConstantTimeCompare([]byte(got), []byte(key)) == 1 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><Code>InvalidAccessKeyId</Code><Message>The access key ID is not the one of "+
			"this dev-s3. After make up: . temp/env</Message></Error>")
	})
}

func handler(store *file.Store, bucket string, at net.Addr, log *slog.Logger) http.Handler {
	hosts := []string{"localhost"}
	if tcp, ok := at.(*net.TCPAddr); ok {
		hosts = append(hosts, fmt.Sprintf("localhost:%d", tcp.Port))
	}
	return gofakes3.New(&backend{bucket: bucket, store: store, opened: time.Now()},
		gofakes3.WithHostBucketBase(hosts...), gofakes3.WithLogger(logger{log})).Server()
}

// logger implements gofakes3.Logger with slog. slog messages should be constant, so the text from gofakes3 is an
// attribute.
type logger struct{ log *slog.Logger }

func (l logger) Print(level gofakes3.LogLevel, args ...any) {
	to := slog.LevelDebug
	switch level {
	case gofakes3.LogErr:
		to = slog.LevelError
	case gofakes3.LogWarn:
		to = slog.LevelWarn
	}
	l.log.Log(context.Background(), to, "gofakes3", "detail", fmt.Sprint(args...))
}

// maxObject is the maximum size of an object in bytes. It limits the memory that an upload needs. Objects of Nstance
// are a thousand times smaller.
const maxObject = 256 << 20

// backend implements gofakes3.Backend for one bucket. The store is a directory. It checks the conditions of conditional
// requests and makes one write at a time. gofakes3 passes no context to the methods of backend, and calls those that
// change something only for a bucket that exists.
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

func (b *backend) ListBucket(_ string, prefix *gofakes3.Prefix, page gofakes3.ListBucketPage) (*gofakes3.ObjectList,
	error) {
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

func (b *backend) PutObject(_, key string, meta map[string]string, input io.Reader, size int64,
	conditions *gofakes3.PutConditions) (gofakes3.PutObjectResult, error) {
	var done gofakes3.PutObjectResult
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

func (b *backend) DeleteObject(_, key string) (gofakes3.ObjectDeleteResult, error) {
	return gofakes3.ObjectDeleteResult{}, translateError(key, b.store.Delete(context.Background(), key))
}

func (b *backend) DeleteMulti(bucket string, keys ...string) (gofakes3.MultiDeleteResult, error) {
	var result gofakes3.MultiDeleteResult
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
