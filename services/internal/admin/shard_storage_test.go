package admin

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// twoBuckets returns the bucket of a cluster with the shard dev-1, and the bucket of its shard dev-2. Commands get both
// from the environment, as from a context.
func twoBuckets(t *testing.T) (b *bucket, own objstore.Store) {
	t.Helper()
	b = newBucket(t, "s3")
	b.init(t)
	dir := filepath.Join(t.TempDir(), "own")
	own, err := open.Open(t.Context(), objstore.Location{Provider: "file", Bucket: dir})
	if err != nil {
		t.Fatal(err)
	}
	b.env = map[string]string{"NSTANCE_ADMIN_STORAGE_PROVIDER": b.location.Provider,
		"NSTANCE_ADMIN_STORAGE_BUCKET": b.location.Bucket, "NSTANCE_ADMIN_STORAGE_PREFIX": b.location.Prefix,
		"NSTANCE_ADMIN_SERVERS":       "dev-1=127.0.0.1:1,dev-2=127.0.0.1:2",
		"NSTANCE_ADMIN_SHARD_STORAGE": "dev-2=file://" + dir}
	for _, shard := range []string{"dev-1", "dev-2"} {
		b.rand++
		b.must(t, "config", "push", exampleConfig(t, `"dev-1"`, `"`+shard+`"`))
	}
	return b, own
}

// apply writes what the leader of a shard writes when it has learned of the CAs.
func (b *bucket) apply(t *testing.T, shard string, store objstore.Store) {
	t.Helper()
	options := clusterstate.Options{Cluster: b.store, Shard: store, ClusterID: "example", ShardID: shard,
		Secrets: b.secrets(t, encryptionKey), Now: fleettest.Clock, Rand: fleettest.Rand(6)}
	state := clusterstate.New(options)
	_, err := state.CABundle(t.Context())
	if err == nil {
		err = state.WriteApplied(t.Context(), []byte("{}\n"), "etag", 1)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRotateCAOfTwoBuckets checks that a rotation waits for the leader of a shard whose documents are in another
// bucket, and that nothing changes if such a shard cannot be found.
func TestRotateCAOfTwoBuckets(t *testing.T) {
	b, own := twoBuckets(t)
	place := b.env["NSTANCE_ADMIN_SHARD_STORAGE"]
	foreign := t.TempDir()
	b.must(t, "config", "push", "--storage-provider", "file", "--storage-bucket", foreign, "--yes",
		exampleConfig(t, `"dev-1"`, `"dev-2"`, `"example-cluster"`, `"other"`))
	before := b.contents(t)
	for setting, want := range map[string]string{
		"":                            "shard dev-2 has no configuration in the s3 bucket dev",
		place + ",dev-3=file:///none": "bucket of shard dev-3: open bucket: ",
		"dev-2=gs://my-bucket":        `"gs" is none of`,
		"dev-2=file://" + foreign:     "is of cluster other, not of example",
	} {
		b.env["NSTANCE_ADMIN_SHARD_STORAGE"] = setting
		for _, args := range [][]string{{"--no-wait", "--yes"}, {"--status"}} {
			_, stderr, code := b.run(t, append([]string{"cluster", "rotate-ca"}, args...)...)
			if code == exitOK || !strings.Contains(stderr, want) || !strings.Contains(stderr, "Next: ") {
				t.Errorf("%s %v: exit code %d: %s", setting, args, code, stderr)
			}
		}
	}
	if b.contents(t) != before {
		t.Error("a refused rotation has changed the bucket")
	}

	b.env["NSTANCE_ADMIN_SHARD_STORAGE"] = place
	b.apply(t, "dev-1", b.store)
	b.apply(t, "dev-2", own)
	rotate := func() caRotation {
		return parse[caRotation](t, b.must(t, "cluster", "rotate-ca", "--no-wait", "--yes", "-o", "json"))
	}
	for _, step := range []string{"announced", "issued"} {
		rotate()
		b.apply(t, "dev-1", b.store)
		got := rotate()
		if got.Step != step || len(got.Waiting.Shards) != 2 || !got.Waiting.Shards[0].Leader ||
			got.Waiting.Shards[1].Shard != "dev-2" || got.Waiting.Shards[1].Leader {
			t.Errorf("only the leader of dev-1 has followed: %+v", got)
		}
		b.apply(t, "dev-2", own)
	}
	if got := rotate(); !got.Finished {
		t.Errorf("both leaders have followed: %+v", got)
	}
}

// TestShardStorage checks that commands use the bucket of a shard that has its own, and that the documents of the
// cluster stay in the cluster's bucket.
func TestShardStorage(t *testing.T) {
	b, own := twoBuckets(t)
	for key, store := range map[string]objstore.Store{keys.Config("dev-1"): b.store, keys.Config("dev-2"): own} {
		mustGet(t, store, key)
	}
	entries, err := own.List(t.Context(), "")
	if err != nil || len(entries) != 1 {
		t.Errorf("the bucket of dev-2 has %v, %v", entries, err)
	}
	if out := b.must(t, "cluster", "journal"); !strings.Contains(out, "dev-2") {
		t.Errorf("the journal lacks the push: %s", out)
	}
	if out := b.must(t, "config", "diff", exampleConfig(t, `"dev-1"`, `"dev-2"`)); out != "" {
		t.Errorf("the pushed configuration differs: %s", out)
	}
	b.apply(t, "dev-2", own)
	stdout, _, _ := b.run(t, "doctor", "--shard", "dev-2", "-o", "json")
	for _, f := range parse[diagnosis](t, stdout).Findings {
		if slices.Contains([]string{"configuration", "encryption key", "CA certificate"}, f.Check) && f.Status != ok {
			t.Errorf("doctor: %+v", f)
		}
	}
	if out := b.must(t, "cluster", "verify"); !strings.Contains(out, "0 problems") {
		t.Errorf("verify: %s", out)
	}
	if _, err := own.Put(t.Context(), keys.Leader("dev-2"), []byte("{"), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if out, _, code := b.run(t, "cluster", "verify"); code != exitFailure ||
		!strings.Contains(out, keys.Leader("dev-2")+" in the bucket of shard dev-2") {
		t.Errorf("verify with a damaged lock: exit code %d: %s", code, out)
	}
	// A bucket on the command line may be that of another cluster.
	if out, stderr, code := b.run(t, b.args("cluster", "rotate-ca", "--status")...); code != exitOK {
		t.Errorf("a bucket on the command line: exit code %d: %s%s", code, out, stderr)
	}
}
