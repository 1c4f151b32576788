package gcp

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	"github.com/nstance-kit/nstance/tests/cloudtest/trial"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// TestCloudTest runs cloud-test on a fake of Google Cloud, as users do in their projects.
func TestCloudTest(t *testing.T) {
	t.Parallel() // with TestStacks: both mostly wait
	c := newCloud(t, "us-central1-a", "us-central1-b")
	f := &trial.Fake{Environment: c.environment, Inventory: c.everything,
		Flags: []string{"-cloud", "gcp", "-region", "us-central1", "-yes", "-terraform", cli(t, ""),
			"-server-image", images + "nstance-server-amd64-1", "-agent-image", images + "nstance-agent-amd64-1"},
		Refresh: func(t *testing.T, r trial.Run) {
			t.Helper()
			state := c.state(t, r.Name+"-"+r.Account+"-"+r.Region, r.Name, r.Zone, "nstance-"+r.Name+"-")
			lab.KeepRefreshing(t, lab.NewOperator(t, state, r.Name, c.balanced(r.Name, r.Region, r.Zone),
				func(ctx context.Context, network, address string) (net.Conn, error) {
					return c.machines.DialVPC(ctx, r.Name, network, address)
				}), nil)
		}}
	f.Build(t)
	before := f.Inventory(t)
	t.Run("refused", func(t *testing.T) {
		f.Refuses(t, 1, []string{"-region", "us-nowhere1"}, "there is no region us-nowhere1: the project has ")
		f.Refuses(t, 1, []string{"-account", "other"}, "belong to the account my-project")
		f.Refuses(t, 1, []string{"-arch", "arm64"}, "the images for gcp are built for amd64")
		f.With(map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent"}).Refuses(t, 1, nil,
			"gcloud auth application-default login")
		f.Taken(t, func(name string) {
			c.postSecret(t, "?secretId=nstance-"+name+"-key", `{"replication": {"automatic": {}}}`)
		})
		for _, refused := range []struct {
			service, method string
			with            rest.Error
		}{
			{"compute", "compute.networks.insert", rest.Error{Code: http.StatusForbidden, Reason: "quotaExceeded",
				Message: "Quota 'NETWORKS' exceeded.  Limit: 5.0 globally."}},
			{"compute", "compute.routers.insert", rest.Error{Code: http.StatusForbidden, Reason: "forbidden",
				Message: "Required 'compute.routers.create' permission for 'projects/my-project'."}},
		} {
			c.Service(refused.service).Refuse(refused.method, &refused.with)
			f.Refuses(t, 1, nil, "step apply (create the cluster with one VM) failed", refused.with.Message,
				"nothing is left of ct-refused")
		}
	})
	t.Run("runs", func(t *testing.T) {
		t.Run("whole", func(t *testing.T) { t.Parallel(); f.Whole(t) })
		t.Run("interrupted", func(t *testing.T) { t.Parallel(); f.Interrupted(t, "projects/") })
		for name, at := range map[string]trial.Point{
			"ct-early": {Step: "apply", Made: "projects/", Alone: true}, "ct-late": {Step: "apply", Made: "binding"},
			"ct-kill": {Step: "kill"}, "ct-change": {Step: "change"}, "ct-roll": {Step: "roll", Alone: true},
			"ct-failover": {Step: "failover"}, "ct-zero": {Step: "zero", Again: true}, "ct-destroy": {Step: "destroy"},
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); f.Killed(t, name, at) })
		}
	})
	if diff := cmp.Diff(before, f.Inventory(t)); diff != "" {
		t.Errorf("after all runs (-before +now):\n%s", diff)
	}
}

// everything returns the inventory of the project with the secrets, which a destroy keeps. The lines of instances have
// the names of their clusters.
func (c *cloud) everything(*testing.T) []string {
	found := slices.Concat(c.Inventory(), c.Secrets.Inventory())
	for _, instance := range c.Compute.Instances() {
		for i, path := range found {
			if path == instance.Path {
				found[i] += " " + instance.Label("nstance-cluster")
			}
		}
	}
	slices.Sort(found)
	return found
}

// balanced returns the address of a leader behind a load balancer.
func (c *cloud) balanced(cluster, region, zone string) (address string) {
	c.Compute.Do(func() {
		rule := c.Compute.Find("projects/" + fakegcp.Project + "/regions/" + region + "/forwardingRules/" +
			strings.Join([]string{cluster, zone, "leader"}, "-"))
		if rule != nil {
			address, _ = rule.Body["IPAddress"].(string)
		}
	})
	return address
}
