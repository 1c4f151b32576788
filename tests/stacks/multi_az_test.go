package stacks

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

func multiAZ(t *testing.T, calls *ledger) {
	l := lab.New(t)
	empty := l.Inventory(t)
	vars := map[string]any{
		"cluster": "trio", "force_destroy": true, "key_provider": "aws-parameter-store",
		"server_arch": "amd64", "server_instance_type": "t3.nano", "server_ami": lab.ServerAMI,
		"web_arch": "amd64", "web_instance_types": []string{"t3.small"}, "agent_ami": lab.AgentAMI,
		"web_commands": scenario.WebCommands,
		"config": map[string]any{"server": map[string]any{
			"health_check_interval": "2s", "default_drain_timeout": "1m",
			"garbage_collection": map[string]any{"interval": "5s"}},
			"groups": map[string]any{"default": map[string]any{"web": map[string]any{
				"preserve": scenario.Preserving()}}}},
	}
	stack := l.Stack(t, cli(t, *terraformFlag), "aws/multi-az", vars)
	stack.Apply(t)
	var shards map[string]shard
	stack.Output(t, "shards", &shards)
	if len(shards) != 3 {
		t.Errorf("%d shards, want 3", len(shards))
	}
	for _, s := range shards {
		f := &fleet{Lab: l, cluster: "trio", shard: s}
		f.open(t, stack)
		f.healthy(t)
		f.settled(t, 1, nil)
		f.refresh(t) // For destroy, which changes the configuration first.
	}
	balanced(t, l, 3)
	f := &fleet{Lab: l, cluster: "trio", shard: shards["us-west-2c"]}
	f.open(t, stack)
	f.scenario().PreservesUnhealthyInBalancer(t, 1, f.operator(t), scenario.Balancer{
		Asked: func() int { return f.called("DescribeTargetHealth") },
		Left:  func() int { return f.called("DeregisterTargets") }, Exec: l.Machines.Exec})
	balanced(t, l, 3)
	calls.addPolicies(t, l, "trio")

	// The second of three zones is removed. The others still have the numbers 0 and 2, so none of their resources and
	// VMs may be replaced, except the load balancer that all zones share.
	var kept []*fleet
	var before [][]ec2.InstanceView
	for name, s := range shards {
		if name != "us-west-2b" {
			f := &fleet{Lab: l, cluster: "trio", shard: s}
			f.open(t, stack)
			kept, before = append(kept, f), append(before, slices.Concat(f.workers(), f.servers()))
		}
	}
	vars["zones"] = map[string]any{"us-west-2a": 0, "us-west-2c": 2}
	if code, output := stack.Plan(t); code != 2 || slices.ContainsFunc([]string{"us-west-2a", "us-west-2c"},
		func(zone string) bool {
			return strings.Contains(output, `# module.shard["`+zone+`"].aws_network_interface`)
		}) {
		t.Errorf("without the middle zone: exit code %d, want 2 and no change of other leaders:\n%s", code, output)
	}
	stack.ApplyPlan(t)
	for i, f := range kept {
		f.healthy(t)
		f.settled(t, 1, nil)
		if now := slices.Concat(f.workers(), f.servers()); !slices.Equal(ids(now), ids(before[i])) {
			t.Errorf("%s has the VMs %v, had %v", f.shard.ID, ids(now), ids(before[i]))
		}
	}
	if all := l.Instances(""); len(all) != 4 {
		t.Errorf("%d VMs and servers in two zones, want 4: %v", len(all), ids(all))
	}
	balanced(t, l, 2)
	if code, output := stack.Plan(t); code != 0 {
		t.Errorf("a plan after the removal of a zone finds changes (exit code %d):\n%s", code, output)
	}
	calls.addPolicies(t, l, "trio")
	stack.Destroy(t)
	calls.addCalls(l, "trio")
	if diff := cmp.Diff(empty, l.Inventory(t)); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}

// called returns how often the shard's servers have called an action.
func (f *fleet) called(action string) (n int) {
	for _, call := range f.Cloud.Calls() {
		if call.Action == action && call.Principal.Role == f.cluster+"-nstance-server-"+f.shard.ID {
			n++
		}
	}
	return n
}

// balanced waits until the load balancers have the given number of targets, and all targets pass their health checks.
func balanced(t *testing.T, l *lab.Lab, size int) {
	t.Helper()
	lab.Eventually(t, soon, fmt.Sprintf("%d healthy targets", size), func() string {
		targets := l.Targets(t)
		if len(targets) != size || slices.ContainsFunc(targets, func(state string) bool { return state != "healthy" }) {
			return fmt.Sprint(targets)
		}
		return ""
	})
}
