package stacks

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

func multiAZ(t *testing.T, calls *ledger) {
	l := lab.New(t)
	empty := l.Inventory(t)
	vars := map[string]any{
		"cluster": "trio", "force_destroy": true, "key_provider": "aws-parameter-store",
		"server_arch": "amd64", "server_instance_type": "t3.nano", "server_ami": lab.ServerAMI,
		"web_arch": "amd64", "web_instance_types": []string{"t3.small"}, "agent_ami": lab.AgentAMI,
		"web_commands": []string{"nohup python3 -m http.server 8080 --directory /usr/share/doc >/dev/null 2>&1 &"},
		"settings": map[string]any{"health_check_interval": "2s", "default_drain_timeout": "1s",
			"garbage_collection": map[string]any{"interval": "5s"}},
	}
	stack := l.Stack(t, cli(t, *terraformFlag), "aws/multi-az", vars)
	stack.Apply(t)
	if code, output := stack.Plan(t); code != 0 {
		t.Errorf("a plan right after apply finds changes (exit code %d):\n%s", code, output)
	}
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
	// Every VM is registered with the load balancer's target group and passes its health check.
	lab.Eventually(t, soon, "three healthy targets", func() string {
		targets := l.Targets(t)
		if healthy := slices.DeleteFunc(targets, func(s string) bool { return s != "healthy" }); len(healthy) < 3 {
			return fmt.Sprint(l.Targets(t))
		}
		return ""
	})
	calls.addPolicies(t, l, "trio")

	// A plan without the zone in the middle renumbers nothing of the others.
	vars["zones"] = map[string]any{"us-west-2a": 0, "us-west-2c": 2}
	if code, output := stack.Plan(t); code != 2 || slices.ContainsFunc([]string{"us-west-2a", "us-west-2c"},
		func(zone string) bool {
			return strings.Contains(output, `# module.shard["`+zone+`"].aws_network_interface`)
		}) {
		t.Errorf("without the middle zone: exit code %d, want 2 and no change of other leaders:\n%s", code, output)
	}
	delete(vars, "zones")
	stack.Destroy(t)
	calls.addCalls(l, "trio")
	if diff := cmp.Diff(empty, l.Inventory(t)); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}
