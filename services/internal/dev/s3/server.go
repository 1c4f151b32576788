// Package s3 is dev-s3: an S3 server for one machine with one bucket. The objects of the bucket are files of a
// directory. Package objstore/file keeps the objects, gofakes3 implements HTTP. There is no authentication, so dev-s3
// listens on the loopback address by default.
//
// Invariants:
//
//   - An acknowledged object is complete in the directory, even if the process is killed.
//   - An ETag is the MD5 sum of the content. It survives a restart.
//   - Of several conditional puts on one version, one succeeds.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/objstore/file"
	"github.com/nstance-kit/nstance/services/internal/dev/httpserver"
)

// Options are the flags of dev-s3.
type Options struct {
	Addr   string // host:port to listen on; port 0 takes a free one
	Dir    string // holds the bucket's objects directly
	Bucket string
}

// shutdownTime is the time for running requests to finish when the server stops.
const shutdownTime = 3 * time.Second

const about = `dev-s3 is a small S3 server for developing Nstance on one machine. It serves one
bucket. Its objects are files of a directory: the object cluster/ca.crt is the file
cluster/ca.crt below --dir. You may read, edit and remove the files.

It honours conditional puts (If-Match, If-None-Match) atomically, also when several
processes use the directory, and keeps what it has acknowledged when it is killed.
There is no authentication: dev-s3 accepts any access key, and everyone who can reach
--addr can read and write everything. It is not for production.

Point any S3 client at it with:

  export AWS_ENDPOINT_URL=http://127.0.0.1:8989 AWS_S3_USE_PATH_STYLE=true
  export AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev

Virtual-host style works too, under http://{bucket}.localhost:8989.`

// Command returns the command line of dev-s3. The command runs until its context ends, and then returns nil.
func Command() *cobra.Command {
	var options Options
	var verbose bool
	cmd := &cobra.Command{
		Use:           "dev-s3",
		Short:         "An S3 server over a directory, for development",
		Long:          about,
		Example:       "  dev-s3 --addr 127.0.0.1:8989 --dir temp/dev-s3 --bucket dev",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: false,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			return Serve(cmd.Context(), options, log, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&options.Addr, "addr", "127.0.0.1:8989", "address to listen on")
	cmd.Flags().StringVar(&options.Dir, "dir", "temp/dev-s3",
		"directory of the objects; created if absent")
	cmd.Flags().StringVar(&options.Bucket, "bucket", "dev", "name of the only bucket")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "log every request to standard error")
	return cmd
}

// Serve opens the directory, listens, writes one line with the URL to out ("dev-s3: bucket dev in temp/dev-s3 at
// http://…"), and serves until ctx ends. Running requests finish first. Serve returns nil if it stops because ctx
// ended.
func Serve(ctx context.Context, o Options, log *slog.Logger, out io.Writer) (err error) {
	if err := gofakes3.ValidateBucketName(o.Bucket); err != nil {
		return fmt.Errorf("bucket %q is not a valid name of an S3 bucket: %w", o.Bucket, err)
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
	return httpserver.Serve(ctx, listener, handler(store, o.Bucket, listener.Addr(), log), log, shutdownTime, false)
}

func handler(store *file.Store, bucket string, at net.Addr, log *slog.Logger) http.Handler {
	hosts := []string{"localhost"}
	if tcp, ok := at.(*net.TCPAddr); ok {
		hosts = append(hosts, fmt.Sprintf("localhost:%d", tcp.Port))
	}
	return gofakes3.New(&backend{bucket: bucket, store: store, opened: time.Now()},
		gofakes3.WithHostBucketBase(hosts...), gofakes3.WithLogger(logger{log})).Server()
}

// logger adapts slog. The messages of gofakes3 are not constant, so they are an attribute.
type logger struct{ log *slog.Logger }

func (l logger) Print(level gofakes3.LogLevel, words ...any) {
	to := slog.LevelDebug
	switch level {
	case gofakes3.LogErr:
		to = slog.LevelError
	case gofakes3.LogWarn:
		to = slog.LevelWarn
	}
	l.log.Log(context.Background(), to, "gofakes3", "detail", fmt.Sprint(words...))
}
