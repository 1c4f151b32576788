package stacks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// environments applies the two environments of an example, staging and production, in one account. Destroying staging
// must not change production. While production is protected, its destruction must be refused. A destroyed environment
// can be applied again.
func environments(t *testing.T, calls *ledger) {
	l := lab.New(t)
	// Make the example's bucket for the Terraform state. It exists before and after the environments.
	if _, err := s3.NewFromConfig(l.Config(), func(o *s3.Options) { o.UsePathStyle = true }).CreateBucket(t.Context(),
		&s3.CreateBucketInput{Bucket: aws.String("example-terraform-state"),
			CreateBucketConfiguration: &types.CreateBucketConfiguration{
				LocationConstraint: types.BucketLocationConstraint(l.Cloud.Region())}}); err != nil {
		t.Fatal(err)
	}
	before := l.Inventory(t)
	production, productionFleet := environment(t, l, "production", 2, true, func(s *lab.Stack) { s.Apply(t) })
	alone := l.Inventory(t)
	workers := ids(productionFleet.workers())
	staging, stagingFleet := environment(t, l, "staging", 1, false, func(s *lab.Stack) {
		applyLocked(t, s, production)
	})
	if productionFleet.servers()[0].VPC == stagingFleet.servers()[0].VPC {
		t.Error("both environments are in one VPC")
	}
	for _, f := range []*fleet{productionFleet, stagingFleet} {
		calls.addPolicies(t, l, f.cluster)
	}

	staging.Destroy(t)
	if diff := cmp.Diff(alone, l.Inventory(t)); diff != "" {
		t.Errorf("after staging was destroyed (-before it was applied +now):\n%s", diff)
	}
	if code, output := production.Plan(t); code != 0 {
		t.Errorf("production changed while staging was applied and destroyed (exit code %d):\n%s", code, output)
	}
	productionFleet.healthy(t)
	if diff := cmp.Diff(workers, ids(productionFleet.workers())); diff != "" {
		t.Errorf("VMs of production (-before +now):\n%s", diff)
	}

	if err := production.DestroyError(t); err == nil || !strings.Contains(err.Error(), "deletion_protection") {
		t.Errorf("the destroy of production: %v, want a refusal that names deletion_protection", err)
	}
	if diff := cmp.Diff(workers, ids(productionFleet.workers())); diff != "" {
		t.Errorf("VMs of production after a refused destroy (-before +now):\n%s", diff)
	}
	var shards map[string]shard
	production.Override(t, override(2, false))
	production.Apply(t)
	production.Destroy(t)
	// Destroyed resources do not reserve their names, so the environment can be applied again.
	production.Apply(t)
	production.Output(t, "shards", &shards)
	again := &fleet{Lab: l, cluster: productionFleet.cluster, shard: shards["us-west-2a"]}
	again.open(t, production)
	again.healthy(t)
	again.settled(t, 2, nil)
	if again.key == productionFleet.key {
		t.Error("the cluster that was applied again has the encryption key of the destroyed one")
	}
	again.refresh(t)
	production.Destroy(t)
	for _, f := range []*fleet{productionFleet, stagingFleet} {
		calls.addCalls(l, f.cluster)
	}
	if diff := cmp.Diff(before, l.Inventory(t)); diff != "" {
		t.Errorf("after both were destroyed (-before apply +now):\n%s", diff)
	}
}

// environment applies one environment, with one zone and the given number of VMs. It calls "apply" to do so.
func environment(t *testing.T, l *lab.Lab, name string, workers int, protected bool,
	apply func(*lab.Stack)) (*lab.Stack, *fleet) {
	t.Helper()
	stack := l.StackWith(t, cli(t, ""), "aws/environments/"+name, nil, override(workers, protected))
	// The AWS provider waits a minute for the lifecycle rules, which multiAZ has.
	stack.Write(t, "../fleet/versioning_override.tf", "module \"cluster\" {\n  versioning = false\n}\n")
	apply(stack)
	var shards map[string]shard
	stack.Output(t, "shards", &shards)
	f := &fleet{Lab: l, cluster: "example-" + name, shard: shards["us-west-2a"]}
	f.open(t, stack)
	f.healthy(t)
	f.settled(t, workers, nil)
	f.refresh(t) // For destroy, which changes the configuration first.
	return stack, f
}

// applyLocked applies an environment. It checks that a second apply of the environment is refused while the first one
// runs. It also checks that the other environment has its own lock, and nothing to change.
func applyLocked(t *testing.T, applied, other *lab.Stack) {
	t.Helper()
	// The apply and the test wait for each other with named pipes: opening one end waits until the other end is opened.
	started, release := filepath.Join(t.TempDir(), "started"), filepath.Join(t.TempDir(), "release")
	for _, pipe := range []string{started, release} {
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	applied.Write(t, "hold.tf", fmt.Sprintf(`
resource "terraform_data" "hold" {
  provisioner "local-exec" {
    command = "timeout 300 sh -c 'echo started > %s && cat %s'"
  }
}
`, started, release))
	first := make(chan error, 1)
	go func() { first <- applied.ApplyError(t) }()
	holding := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(started)
		holding <- err
	}()
	select {
	case err := <-holding:
		if err != nil {
			t.Fatal(err)
		}
	case err := <-first:
		t.Fatalf("the apply that should hold the lock ended early: %v", err)
	}
	err := applied.ApplyError(t)
	if err == nil || !strings.Contains(err.Error(), "Error acquiring the state lock") ||
		!strings.Contains(err.Error(), "OperationTypeApply") {
		t.Errorf("a second apply of the same environment: %v, want a refusal that names the lock and its holder", err)
	}
	if code, output := other.Plan(t); code != 0 {
		t.Errorf("a plan of the other environment finds changes, or is refused (exit code %d):\n%s", code, output)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Errorf("the apply that held the lock: %v", err)
	}
}

// override adapts an environment to the fake cloud: its images, its processor architecture, and frequent reports of the
// agents.
func override(workers int, protected bool) string {
	return fmt.Sprintf(`
module "fleet" {
  zones                 = { us-west-2a = 0 }
  images                = { server = %q, agent = %q }
  arch                  = "amd64"
  server_instance_type  = "t3.nano"
  server_count          = 1
  workers_per_zone      = %d
  worker_instance_types = ["t3.small"]
  deletion_protection   = %t
  config = {
    server = {
      health_check_interval = "2s"
      default_drain_timeout = "1s"
      garbage_collection    = { interval = "5s" }
    }
  }
}
`, lab.ServerAMI, lab.AgentAMI, workers, protected)
}
