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
	"context"
	"crypto/subtle"
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
