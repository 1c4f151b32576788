// Package k8s implements dev-k8s, a subset of the Kubernetes API for the development of Nstance. Its objects are JSON
// files in a directory that users may read and edit: {resource}/{namespace}/{name}.json, or {resource}/{name}.json for
// cluster-scoped objects. It has no schemas, no authentication, and nothing runs pods.
//
// Invariants:
//
//   - An acknowledged write is complete in its file, even if the process is killed.
//   - If a user edits a file, the object changes. No request overwrites a file that the server has not read or cannot
//     read.
//   - Resource versions only grow, also across restarts. A watch delivers every change after the version that the
//     client names, or fails with 410.
//   - Names never lead out of the directory.
package k8s

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/internal/dev/httpserver"
)

// Options are the command line flags of dev-k8s.
type Options struct {
	Addr string // host:port to listen on; port 0 selects a free port
	Dir  string // contains one directory for each resource
}

// shutdownTime is how long requests in flight may still run after a stop was requested. Watches end immediately.
const shutdownTime = 3 * time.Second

const about = `dev-k8s is a small Kubernetes API for developing Nstance on one machine. Its objects
lie open in a directory: the node abc is the file nodes/abc.json below --dir, the
secret x in the namespace default is secrets/default/x.json. You may read, edit,
add and remove the files: that is what a client sees, and a watch tells of it. A
file that is no JSON object is reported and left alone until it is one.

It serves what services/internal/dev/k8s/handle_discovery.go lists, in JSON only
(clients set the content type application/json), without a schema, without
authentication and without any controller but the collection of objects whose owner
is gone. Whoever can reach --addr can read and write everything. It is not for
production.

Point kubectl at it with:

  kubectl --server http://127.0.0.1:6443 get nodes`

// Command returns the command of dev-k8s. It runs until its context ends, then returns nil.
func Command() *cobra.Command {
	var options Options
	cmd := &cobra.Command{
		Use:     "dev-k8s",
		Short:   "A Kubernetes API over a directory, for development",
		Long:    about,
		Example: "  dev-k8s --addr 127.0.0.1:6443 --dir temp/dev-k8s",
	}
	cmd.Flags().StringVar(&options.Addr, "addr", "127.0.0.1:6443", "address to listen on")
	cmd.Flags().StringVar(&options.Dir, "dir", "temp/dev-k8s", "directory that holds the objects; made if absent")
	return httpserver.Command(cmd, func(ctx context.Context, log *slog.Logger, out io.Writer) error {
		return Serve(ctx, options, log, out)
	})
}

// Serve opens the directory, listens, and writes one line with the URL to out. It serves until ctx ends, finishes the
// requests in flight, and returns nil.
func Serve(ctx context.Context, o Options, log *slog.Logger, out io.Writer) (err error) {
	s, err := openStore(o.Dir, time.Now, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.begin(); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, err := fmt.Fprintf(out, "dev-k8s: %s at http://%s\n", o.Dir, listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.follow(ctx); return nil })
	group.Go(func() error { s.collect(ctx); return nil })
	group.Go(func() error {
		return httpserver.Serve(ctx, listener, &handler{store: s, log: log, now: time.Now}, log, shutdownTime, true)
	})
	return group.Wait()
}
