package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

// TestAccRenamedBucket plans with another bucket than the one that has the cluster: one that does not exist, one that is
// empty, and one with copies of all objects. The plan must name the bucket that has the cluster, and it must not offer
// to make a second cluster.
func TestAccRenamedBucket(t *testing.T) {
	acctest.Acceptance(t)
	plan := func(t *testing.T, cli *acctest.CLI, b acctest.Bucket, want ...string) {
		t.Helper()
		cli.Write(t, "main.tf", cluster(b, ""))
		out, err := cli.Try("plan", "-no-color")
		text := strings.Join(strings.Fields(strings.ReplaceAll(out, "│", "")), " ")
		if (err == nil) != (len(want) == 0) {
			t.Errorf("%v\n%s", err, out)
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in:\n%s", part, out)
			}
		}
	}
	t.Run("missing", func(t *testing.T) {
		b := acctest.S3(t)
		cli := acctest.NewCLI(t, cluster(b, ""))
		cli.Run(t, "apply", "-auto-approve", "-no-color")
		b.Location.Bucket = "renamed"
		plan(t, cli, b, `The resource is in another bucket`, `s3 bucket "test-bucket", prefix some/where`,
			`storage is now the s3 bucket "renamed"`)
		b.Location.Bucket = "test-bucket"
		plan(t, cli, b)
	})
	t.Run("empty", func(t *testing.T) {
		b := acctest.File(t)
		cli := acctest.NewCLI(t, cluster(b, ""))
		cli.Run(t, "apply", "-auto-approve", "-no-color")
		old := b.Location.Bucket
		b.Location.Bucket = filepath.Join(t.TempDir(), "renamed")
		plan(t, cli, b, "The resource is in another bucket", "directory "+old[:8], "which does not have it")
	})
	t.Run("copied", func(t *testing.T) {
		b := acctest.S3(t)
		cli := acctest.NewCLI(t, cluster(b, ""))
		cli.Run(t, "apply", "-auto-approve", "-no-color")
		moved := b.Prefixed(t, "else/where")
		for _, key := range b.Keys(t) {
			object, err := b.Get(t.Context(), key)
			if err == nil {
				_, err = moved.Put(t.Context(), key, object.Body, objstore.Always())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		plan(t, cli, moved)

		// A server led a shard in the original.
		home := record.Home{Schema: record.HomeSchema, Buckets: []record.Bucket{{Provider: "s3", Name: "test-bucket"}}}
		body, err := home.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for key, body := range map[string][]byte{keys.Home("dev-1"): body, keys.Config("dev-1"): []byte("{}")} {
			if _, err := moved.Put(t.Context(), key, body, objstore.IfAbsent()); err != nil {
				t.Fatal(err)
			}
		}
		if out := cli.Run(t, "plan", "-no-color"); !strings.Contains(out, "not the home of shard dev-1") ||
			!strings.Contains(out, "cluster restore") {
			t.Errorf("the plan with a copy does not warn:\n%s", out)
		}
	})
}
