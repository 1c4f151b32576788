package admin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// lead writes what a server of shard dev-1 that leads in this bucket writes: the home and a lock.
func (b *bucket) lead(t *testing.T, revision uint64, released bool) {
	t.Helper()
	at, err := open.Canonical(t.Context(), b.location)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.state(t, encryptionKey).ClaimHome(t.Context(), clusterstate.BucketAt(at)); err != nil {
		t.Fatal(err)
	}
	lock, err := record.EncodeLock(record.Lock{LeaderID: "a", Incarnation: "f00d", Term: 1, Revision: revision,
		LeaseMS: 400, RenewMS: 100, RenewedAt: fleettest.Now, Released: released})
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.Leader("dev-1"), lock)
}

// mayLead reports whether a server that uses this bucket may lead.
func (b *bucket) mayLead(t *testing.T) bool {
	t.Helper()
	at, err := open.Canonical(t.Context(), b.location)
	if err != nil {
		t.Fatal(err)
	}
	return b.state(t, encryptionKey).CheckHome(t.Context(), clusterstate.BucketAt(at)) == nil
}

// copied returns a copy of the bucket, which is a directory.
func (b *bucket) copied(t *testing.T) *bucket {
	t.Helper()
	other := *b
	other.location.Bucket = filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(other.location.Bucket, os.DirFS(b.location.Bucket)); err != nil {
		t.Fatal(err)
	}
	other.flags = []string{"--storage-provider", "file", "--storage-bucket", other.location.Bucket, "--storage-prefix",
		other.location.Prefix}
	other.reopen(t)
	return &other
}

// TestClusterRestore makes a copy of a bucket the home of the cluster's shards.
func TestClusterRestore(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	b.lead(t, 2, true)
	if !b.mayLead(t) {
		t.Fatal("no server may lead in the original")
	}
	c := b.copied(t)
	if c.mayLead(t) {
		t.Fatal("a server may lead in a copy")
	}
	_, stdout := c.finds(t)
	stdout = strings.Join(strings.Fields(stdout), " ") // lines are wrapped
	if !strings.Contains(stdout, "servers do not lead here") ||
		!strings.Contains(stdout, "nstance-admin cluster restore") {
		t.Errorf("doctor says about a copy:\n%s", stdout)
	}
	c.fails(t, exitUsage, "add --yes", c.args("cluster", "restore")...)
	c.must(t, c.args("cluster", "restore", "--dry-run")...)
	if c.mayLead(t) {
		t.Fatal("a dry run changed something")
	}
	c.rand = 9 // so that its entry in the journal has another key
	out := c.must(t, c.args("cluster", "restore", "--yes")...)
	if !strings.Contains(out, b.location.Bucket) || !strings.Contains(out, "released by a") ||
		!strings.Contains(out, "dev-1") {
		t.Errorf("restore prints\n%s", out)
	}
	home, _, err := c.state(t, encryptionKey).ReadHome(t.Context())
	if err != nil || !c.mayLead(t) || !home.OrphansWait {
		t.Errorf("home %+v, %v", home, err)
	}
	if out := c.must(t, c.args("cluster", "restore")...); !strings.Contains(out, "was restored before") {
		t.Errorf("the second run prints\n%s", out)
	}
	if journal := c.must(t, c.args("cluster", "journal")...); !strings.Contains(journal, "bucket restored") {
		t.Errorf("the journal has\n%s", journal)
	}
	if !b.mayLead(t) {
		t.Error("the original has changed")
	}
}

// finds runs the command doctor without a server.
func (b *bucket) finds(t *testing.T) (code int, stdout string) {
	t.Helper()
	stdout, _, code = b.run(t, b.args("doctor", "--shard", "dev-1")...)
	return code, stdout
}

// TestClusterRestoreRefusesALedBucket renews the lock while the command watches.
func TestClusterRestoreRefusesALedBucket(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	b.lead(t, 2, false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for revision := uint64(3); ctx.Err() == nil; revision++ {
			b.lead(t, revision, false)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	b.fails(t, exitFailure, "a has renewed the lock of shard dev-1 meanwhile", b.args("cluster", "restore", "--yes")...)
	cancel()
	<-done
	if home, _, err := b.state(t, encryptionKey).ReadHome(t.Context()); err != nil || home.OrphansWait {
		t.Errorf("home %+v, %v", home, err)
	}
	if out := b.must(t, b.args("cluster", "restore", "--yes")...); !strings.Contains(out, "restored") {
		t.Errorf("without a leader, restore prints\n%s", out)
	}
}

// TestRestoredSnapshotNeedsRestore puts the objects of an archive back into the bucket of which the snapshot was made.
func TestRestoredSnapshotNeedsRestore(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	b.lead(t, 2, true)
	dir, archive := t.TempDir(), b.take(t)
	b.must(t, "cluster", "restore-check", archive)
	if out, err := exec.Command("tar", "-xzf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	body, err := os.ReadFile(filepath.Join(dir, "objects", keys.Home("dev-1")))
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.Home("dev-1"), body)
	if b.mayLead(t) {
		t.Error("a server may lead in a restored bucket")
	}
	b.must(t, b.args("cluster", "restore", "--yes")...)
	if !b.mayLead(t) {
		t.Error("no server may lead after cluster restore")
	}
}

// TestHomeOfAnotherEndpoint lets doctor look at a bucket that servers reach at another endpoint.
func TestHomeOfAnotherEndpoint(t *testing.T) {
	b := newBucket(t, "s3")
	b.populate(t)
	b.lead(t, 2, true)
	app := newApp("1.2.3", Environment{Now: fleettest.Clock, Getenv: func(string) string { return "" }})
	check := func(led bool) finding {
		t.Helper()
		return app.checkHome(t.Context(), b.state(t, encryptionKey), b.location, led)
	}
	if f := check(false); f.Status != ok || f.Result != "is this bucket" {
		t.Errorf("%+v", f)
	}
	t.Setenv("AWS_ENDPOINT_URL", "http://another.example:9000")
	if f := check(true); f.Status != ok || !strings.Contains(f.Result, "which servers reach as") {
		t.Errorf("with a leader: %+v", f)
	}
	if f := check(false); f.Status == ok || !strings.Contains(f.Next, "cluster restore") {
		t.Errorf("without a leader: %+v", f)
	}
}
