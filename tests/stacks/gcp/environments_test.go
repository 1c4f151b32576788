package gcp

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

// environments applies the example with two environments side by side in one project. Destroying staging must not
// change production, and production must refuse to be destroyed while it is protected.
func environments(t *testing.T, calls *scenario.Ledger) {
	c := newCloud(t, "us-central1-a", "us-central1-b")
	before := c.Inventory()
	production, kept := c.applyEnvironment(t, "production", "us-central1-b", true)
	alone, workers := c.Inventory(), kept.Workers()
	staging, _ := c.applyEnvironment(t, "staging", "us-central1-a", false)
	calls.Allow(c.IAM.Granted()...)

	staging.Destroy(t)
	if diff := cmp.Diff(alone, c.Inventory()); diff != "" {
		t.Errorf("after staging was destroyed (-before it was applied +now):\n%s", diff)
	}
	scenario.Converged(t, production)
	kept.Healthy(t)
	if err := production.DestroyError(t); err == nil || !strings.Contains(err.Error(), "deletion_protection") {
		t.Errorf("the destroy of production: %v, want a refusal that names deletion_protection", err)
	}
	if now := kept.Workers(); !slices.Equal(now, workers) {
		t.Errorf("the VMs of production are %v, want %v, as before", now, workers)
	}
	production.Override(t, environmentIn("us-central1-b", false))
	production.Apply(t)
	production.Destroy(t)
	c.addCalls(calls)
	if diff := cmp.Diff(before, c.Inventory()); diff != "" {
		t.Errorf("after both were destroyed (-before apply +now):\n%s", diff)
	}
}

// applyEnvironment applies one environment in one zone, with one server and one VM.
func (c *cloud) applyEnvironment(t *testing.T, name, zone string, protected bool) (*lab.Stack, *scenario.Shard) {
	t.Helper()
	stack := lab.NewStack(t, cli(t, ""), "gcp/environments/"+name, nil, environmentIn(zone, protected), c.environment)
	stack.Apply(t)
	var shards map[string]struct {
		LeaderIP string `json:"leader_ipv4"`
	}
	var bucket string
	stack.Output(t, "shards", &shards)
	stack.Output(t, "bucket", &bucket)
	cluster := "example-" + name
	s := &scenario.Shard{Cloud: shard{c, zone}, Fake: shard{c, zone}, LeaderIP: shards[zone].LeaderIP,
		State: c.state(t, bucket, cluster, zone, "nstance-"+cluster+"-")}
	s.Healthy(t)
	s.Settled(t, 1, nil)
	lab.KeepRefreshing(t, lab.NewOperator(t, s.State, cluster, s.LeaderIP, s.Dial), nil) // for changes and destroy
	return stack, s
}

// environmentIn returns the override file of an environment. With it, the CLI keeps the state in a local file.
func environmentIn(zone string, protected bool) string {
	return fmt.Sprintf(`
terraform {
  backend "local" {}
}

provider "google" {
  project = %[3]q
}

module "fleet" {
  zones               = { %[1]s = 0 }
  server_count        = 1
  workers_per_zone    = 1
  deletion_protection = %[2]t
  images              = { server = "%[4]snstance-server-amd64-1", agent = "%[4]snstance-agent-amd64-1" }
  config = {
    server = {
      health_check_interval = "2s"
      default_drain_timeout = "1s"
      garbage_collection    = { interval = "5s" }
    }
  }
}
`, zone, protected, fakegcp.Project, images)
}
