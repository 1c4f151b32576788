package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/internal/admin/snapshot"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

func (a *app) snapshotCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Short: "Copy the objects of the bucket into one archive", Args: cobra.NoArgs,
		Long: `Copies all objects that a restore of the cluster needs from the bucket into one .tar.gz
file. Servers may run at the same time.

The archive of a snapshot shows all documents as they were at one moment. If a document
changes while "cluster snapshot" reads the bucket, the command reads again, up to five
times. If a document changes during the last try too, the command prints a warning. It
reads locks, journals and logs only once, because they change all the time.

The archive of a snapshot contains the object with the key KEY as the file objects/KEY.
manifest.json lists the SHA-256, ETag and time of each object. "cluster snapshot" writes
the archive under a temporary name, then renames it. It never replaces an existing file.

Only your user can read the archive of a snapshot. It contains the cluster's keys, sealed
with the encryption key, and the configurations with all secrets in them. It contains
neither the encryption key, which you must keep elsewhere, nor secrets that are stored
outside the bucket, such as in a secrets manager.

"cluster snapshot" changes nothing in the bucket, and needs no encryption key. Check the
archive with "nstance-admin cluster restore-check". docs/how-to/back-up-and-restore.md
tells how to restore it.`,
		Example: `  nstance-admin cluster snapshot --storage-bucket my-bucket
  nstance-admin cluster snapshot --storage-bucket my-bucket --output /backup/nstance.tar.gz --storage-timeout 10m`,
	}
	var output string
	cmd.Flags().StringVar(&output, "output", "",
		"file to write, which must not exist (default nstance-snapshot-CLUSTER-TIME.tar.gz)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := refuseExisting(output); err != nil {
			return err
		}
		return a.withCluster(cmd.Context(), s, need{}, func(ctx context.Context, c *cluster) error {
			name := fmt.Sprintf("nstance-snapshot-%s-%s.tar.gz", c.id, a.Now().UTC().Format("20060102T150405Z"))
			return a.snapshot(ctx, c, cmp.Or(output, name))
		})
	}
	return cmd
}

// namedLeftOut is the maximum number of objects that "cluster snapshot" lists as left out. A snapshot leaves out the
// objects of other programs, and a bucket may contain many of them.
const namedLeftOut = 10

// snapshot writes the archive to path. First it copies the objects into a directory beside path, not into the temporary
// directory of the system, because the copies may need much space.
func (a *app) snapshot(ctx context.Context, c *cluster, path string) (err error) {
	dir, remove, err := tempRoot(filepath.Dir(path), ".nstance-snapshot-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	env, _ := tasks.Real() // ForEach waits for its own tasks
	m, err := snapshot.Copy(ctx, c.bucket, snapshot.Options{Dir: dir, Now: a.Now, ForEach: env.ForEach})
	if err != nil {
		return err
	}
	m.Cluster, m.Program = c.id, a.version
	size, err := writeNewFile(path, func(w io.Writer) error { return snapshot.Write(w, m, dir) })
	if err != nil {
		return err
	}
	for _, key := range m.LeftOut[:min(len(m.LeftOut), namedLeftOut)] {
		a.note("Left out: %s is no object that a restore needs.", printable(key))
	}
	if more := len(m.LeftOut) - namedLeftOut; more > 0 {
		a.note("Left out: %d more objects, which left_out in manifest.json names.", more)
	}
	if !m.Consistent {
		a.note("Warning: documents changed all the time, so the archive may have them as of different moments; " +
			"manifest.json marks them as changed. Make another one when less happens.")
	}
	return a.line("%s: %s of cluster %s, %d bytes", path, count(len(m.Objects), "object"), c.id, size)
}

// tempRoot makes a directory that only this user can read. The returned function deletes the directory.
func tempRoot(parent, pattern string) (root *os.Root, remove func() error, err error) {
	dir, err := os.MkdirTemp(parent, pattern) // mode 0700
	if err != nil {
		return nil, nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	root, err = os.OpenRoot(dir)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the temporary directory: %w", err), os.RemoveAll(dir))
	}
	return root, func() error { return errors.Join(root.Close(), os.RemoveAll(dir)) }, nil
}
