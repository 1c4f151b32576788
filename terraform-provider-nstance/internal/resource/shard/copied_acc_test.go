package shard_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
)

// copied copies all objects of a bucket to another prefix of it, after a leader has made the bucket the shard's home.
func copied(t *testing.T, b acctest.Bucket) acctest.Bucket {
	t.Helper()
	at, err := open.Canonical(t.Context(), b.Location)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.State(t).ClaimHome(t.Context(), clusterstate.BucketAt(at)); err != nil {
		t.Fatal(err)
	}
	c := b.Prefixed(t, "copy")
	for _, key := range b.Keys(t) {
		object, err := b.Get(t.Context(), key)
		if err == nil {
			_, err = c.Put(t.Context(), key, object.Body, objstore.Always())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestAccCopiedBucket applies to a copy of a bucket, in which no server leads. Each plan and apply must warn, and name
// both buckets and the command that makes the copy the home. Nothing may wait for the leader of the original, and a
// destroy must not ask anybody to terminate the original's VMs.
func TestAccCopiedBucket(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.S3(t)
	wait := "wait_for_leader = true\n  timeouts = { create = \"20s\", update = \"20s\", delete = \"20s\" }"
	leader := acctest.Lead(t, b, true)
	cli := acctest.NewCLI(t, typed(b, options{size: 1, extra: wait}))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	const warning = "The bucket is not the home of shard dev-1"
	if out := cli.Run(t, "plan", "-no-color"); strings.Contains(out, warning) {
		t.Errorf("a plan with the home warns:\n%s", out)
	}
	leader.Kill()
	c := copied(t, b)
	named := func(what, out string) {
		t.Helper()
		for _, want := range []string{warning, "s3 bucket test-bucket with prefix some/where",
			"s3 bucket test-bucket with prefix copy",
			"nstance-admin cluster restore --storage-bucket test-bucket --storage-prefix copy"} {
			if !strings.Contains(squeeze(out), want) {
				t.Errorf("%s: no %q in:\n%s", what, want, out)
			}
		}
	}
	within := func(what string, err error, began time.Time) {
		t.Helper()
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s took %s (%v)", what, took, err)
		}
	}
	cli.Write(t, "main.tf", typed(c, options{size: 1, extra: wait}))
	named("plan without changes", cli.Run(t, "plan", "-no-color"))

	cli.Write(t, "main.tf", typed(c, options{size: 2}))
	named("apply", cli.Run(t, "apply", "-auto-approve", "-no-color"))
	if shard, _ := mustRead(t, c); *shard.Groups["default"]["workers"].Size != 2 {
		t.Error("the apply to the copy changed nothing")
	}

	cli.Write(t, "main.tf", typed(c, options{size: 3, extra: wait}))
	began := time.Now()
	out, err := cli.Try("apply", "-auto-approve", "-no-color")
	if within("apply with wait_for_leader", err, began); err == nil {
		t.Errorf("apply with wait_for_leader succeeds:\n%s", out)
	}
	named("apply with wait_for_leader", out)

	began = time.Now()
	out, err = cli.Try("destroy", "-auto-approve", "-no-color")
	if within("destroy", err, began); err == nil {
		t.Errorf("destroy succeeds:\n%s", out)
	}
	named("destroy", out)
	if shard, _ := mustRead(t, c); shard.Terminating {
		t.Error("the destroy that was refused marked the shard as terminating")
	}
	cli.Write(t, "main.tf", typed(c, options{size: 3, extra: "force_destroy = true"}))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	out = cli.Run(t, "destroy", "-auto-approve", "-no-color")
	if strings.Contains(squeeze(out), "Terminate them") {
		t.Errorf("the destroy of a copy asks to terminate VMs:\n%s", out)
	}
	if state, err := b.State(t).ListInstances(t.Context()); err != nil || len(state) != 1 {
		t.Errorf("the original has %d instances, %v", len(state), err)
	}
}

// TestAccRestoredBucket plans with a copy that `cluster restore` made the home.
func TestAccRestoredBucket(t *testing.T) {
	acctest.Acceptance(t)
	b := acctest.S3(t)
	cli := acctest.NewCLI(t, typed(b, options{}))
	cli.Run(t, "apply", "-auto-approve", "-no-color")
	c := copied(t, b)
	if err := c.State(t).RestoreHome(t.Context()); err != nil {
		t.Fatal(err)
	}
	cli.Write(t, "main.tf", typed(c, options{}))
	if out := cli.Run(t, "plan", "-no-color"); strings.Contains(out, "not the home") {
		t.Errorf("a plan after cluster restore warns:\n%s", out)
	}

	// Another endpoint of the same bucket may be another name of the home, so it is no reason for a warning.
	endpoint := record.Bucket{Provider: "s3", Endpoint: "http://other:9000", Name: c.Location.Bucket, Prefix: "copy"}
	if _, err := c.State(t).ClaimHome(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
	if out := cli.Run(t, "plan", "-no-color"); strings.Contains(out, "not the home") {
		t.Errorf("a plan with another endpoint warns:\n%s", out)
	}
}
