// Package gcp applies the examples for Google Cloud to the fake of Google Cloud, uses the resulting shards, and
// destroys them. It uses tofu or terraform, the real Google provider, this repository's provider, and real servers and
// agents. The machines boot the startup scripts that they receive.
package gcp

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/modules"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

var terraformFlag = flag.String("terraform", "", "path of terraform; without it tofu applies all stacks")

// TestMain skips the stacks in `go test -short`. They take minutes, and need root and tools that scripts/tool.sh
// builds.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("stacks are not tested with -short: make test-gcp")
		return
	}
	code := m.Run()
	if err := lab.Discard(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// cli returns the argument, or the path of tofu if the argument is empty.
func cli(t *testing.T, terraform string) string {
	t.Helper()
	if terraform != "" {
		return terraform
	}
	tofu, err := lab.Tofu(t.Context())
	must(t, err)
	return tofu
}

// server has settings that let the shards react within seconds.
var server = map[string]any{"health_check_interval": "2s", "default_drain_timeout": "1s",
	"garbage_collection": map[string]any{"interval": "5s"}}

// attested returns a configuration with the settings "server", which also requires each agent to prove on which VM it
// runs, and allows one call to create many VMs.
func attested() map[string]any {
	with := maps.Clone(server)
	with["attestation"] = map[string]any{"method": "gcp-identity-token", "batches": true}
	return hooked(with)
}

// hooked returns a configuration with the settings "server", in which the VMs have a drain hook.
func hooked(server map[string]any) map[string]any {
	config := scenario.Hooked()
	config["server"] = server
	return config
}

// TestStacks applies the examples with tofu. With the flag -terraform, it applies one of the examples with terraform
// instead. It compares the recorded calls of the servers with the permissions of their roles and with
// docs/reference/gcp.md.
func TestStacks(t *testing.T) {
	t.Parallel()
	var calls scenario.Ledger
	t.Run("apply", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *scenario.Ledger){"single-shard": singleShard,
			"multi-zone": multiZone, "environments": environments, "multi-cloud": multiCloud,
			"google-first": googleFirst} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, &calls)
			})
		}
	})
	t.Run("permissions", func(t *testing.T) { calls.Compare(t, "gcp.md") })
}

// stateKey is a key of Cloud KMS.
const stateKey = "projects/" + fakegcp.Project + "/locations/us-central1/keyRings/nstance/cryptoKeys/state"

// changes is an override file of the example. It encrypts the bucket with "stateKey", a key of Cloud KMS.
const changes = `module "cluster" {
  kms_key_name = "` + stateKey + `"
}
`

// giveAccount writes an override file that gives the VMs a service account or takes it away. The servers need the
// permission to use this account.
func giveAccount(t *testing.T, stack *lab.Stack, give bool) {
	t.Helper()
	stack.Write(t, "agent_override.tf", fmt.Sprintf("module \"account\" {\n  agent_service_account = %t\n}\n", give))
}

// singleShard applies the example single-shard with tofu and runs the checks of the package scenario. The leader's
// address is an alias IP address of the server's VM.
func singleShard(t *testing.T, calls *scenario.Ledger) {
	c := newCloud(t, "us-central1-a")
	c.makeKey(t)
	c.KMS.Add(stateKey)
	c.addNamed()
	before := c.Inventory()
	vars := map[string]any{"cluster": "solo", "encryption_key": "projects/" + fakegcp.Project + "/secrets/key",
		"force_destroy": true, "worker_count": 2, "agent_image": images + "nstance-agent-amd64-1",
		"config": attested(), "server_ready_timeout": 40}
	stack := lab.NewStack(t, cli(t, ""), "gcp/single-shard", vars, changes, c.environment)
	giveAccount(t, stack, true)
	stack.Apply(t)

	var out struct {
		LeaderIP string `json:"leader_ipv4"`
	}
	var bucket string
	stack.Output(t, "shard", &out)
	stack.Output(t, "bucket", &bucket)
	zone := shard{c, "us-central1-a"}
	s := &scenario.Shard{Cloud: zone, Fake: zone, LeaderIP: out.LeaderIP,
		State: c.state(t, bucket, "solo", "us-central1-a", "")}

	// apply returns only when a leader has the shard's fixed address, so the test can use it immediately.
	s.Healthy(t)
	s.Settled(t, 2, nil)
	operator := lab.NewOperator(t, s.State, "solo", s.LeaderIP, s.Dial)
	lab.KeepRefreshing(t, operator, func(ctx context.Context) {
		size, err := operator.GetInstanceType(ctx, &nstancev1.GetInstanceTypeRequest{InstanceType: "e2-small"})
		if err == nil && (size.GetCpus() != 2 || size.GetMemoryMib() != 2048) {
			t.Errorf("e2-small is %v", size)
		}
	})

	wakesSpares(t, s, zone, stack, vars, operator)

	// A plan must report all mistakes, and name the fields or variables with the mistakes. It must also refuse what
	// cannot change on a live shard. The arguments of VMs are checked only if the variables are valid.
	long := strings.Repeat("x", 64)
	stack.With(map[string]any{"worker_args": `{"scheduling": {"preemptable": true}, "labels": {"team": "` + long +
		`"}}`}).PlanFails(t, "scheduling.preemptable", "labels.team")
	refused, texts := modules.Refusals("gcp")
	stack.Write(t, "flips_override.tf", refused)
	stack.With(map[string]any{"labels": map[string]any{"team": long}, "zone": "europe-west1-b",
		"cluster": strings.Repeat("x", 31)}).PlanFails(t, append(texts, "Keys and values of labels",
		"zone is one of the region's", "cluster_id has lower-case")...)
	stack.Write(t, "flips_override.tf", "")

	// There is no capacity for the first machine type, so a VM of the next type must replace the lost VM. Google gives
	// the server no answer to an insert call, but the server must not make two VMs.
	c.Compute.Fail(compute.Fault{Type: "insert", Collection: "instances", Failure: compute.Stockout(),
		Matches: func(r *compute.Resource) bool {
			return strings.HasSuffix(fmt.Sprint(r.Body["machineType"]), "/e2-small")
		}})
	c.Service("compute").LoseAnswer("compute.instances.insert")
	s.ReplacesKilled(t, 2)
	if types := zone.types(); !slices.Equal(types, []string{"e2-medium", "e2-small"}) {
		t.Errorf("the VMs have the types %v, want one of each", types)
	}
	c.Compute.Repair()
	deleted := s.Workers()[0]
	zone.vanish(deleted)
	s.Settled(t, 2, []string{deleted})

	// The apply that rolls the VMs takes their service account away, without which they cannot prove who they are. It
	// also sets all flips, which must keep the server.
	old := s.Servers()
	unflipped := maps.Clone(vars)
	override, example := modules.Overrides("gcp")
	stack.Write(t, "flips_override.tf", override)
	maps.Copy(vars, example)
	giveAccount(t, stack, false)
	vars["config"] = hooked(server)
	s.Rolls(t, stack, vars, everyPermission)
	if now := s.Servers(); !slices.Equal(now, old) {
		t.Errorf("after the flips the servers are %v, want %v, as before", now, old)
	}
	scenario.Converged(t, stack)
	s.ReplacesInterrupted(t, 2)
	s.ReplacesMaintained(t, 2)

	// The server's VM disappears without a delete operation. The instance group must notice this by itself, and make a
	// new VM with the same name.
	old = s.Servers()
	zone.vanish(old[0])
	lab.Eventually(t, scenario.Soon, "another server", func() string {
		if now := s.Servers(); len(now) != 1 || now[0] == old[0] {
			return fmt.Sprint(now)
		}
		return ""
	})
	s.Healthy(t)

	// When the machine type changes, the instance group replaces the server's VM. At first there is no capacity for it:
	// the apply must fail with Google's reason, and the old server must stay. The VMs get their service account back,
	// for which they are replaced.
	vars["server_instance_type"], vars["config"], vars["wait_for_leader"] = "e2-small", attested(), true
	giveAccount(t, stack, true)
	old = s.Servers()
	withoutAccount := s.Workers()
	c.Compute.Fail(compute.Fault{Type: "insert", Collection: "instances", Failure: compute.Stockout(),
		Matches: func(r *compute.Resource) bool { return strings.Contains(r.Path, "-server-") }})
	began := time.Now()
	output := stack.ApplyFails(t)
	for _, want := range []string{"The cloud starts no new server",
		"managed instance group solo-us-central1-a-server in ", compute.Stockout().Error()} {
		if !strings.Contains(output, want) {
			t.Errorf("the error of a roll without capacity does not contain %q:\n%s", want, output)
		}
	}
	t.Logf("a roll without capacity failed after %s", time.Since(began).Round(time.Second))
	if now := s.Servers(); !slices.Contains(now, old[0]) {
		t.Errorf("after a roll without capacity the servers are %v, want %v too", now, old)
	}
	s.Healthy(t)
	c.Compute.Repair()
	stack.Apply(t)
	if now := s.Servers(); len(now) != 1 || now[0] == old[0] {
		t.Errorf("the apply returned with the servers %v, and did not wait for another than %v", now, old)
	}
	s.Healthy(t)
	s.Settled(t, 2, withoutAccount)
	// Here the VMs have everyPermission, of which the call for many VMs needs as many permissions.
	createsBatch(t, s, zone, lab.NewOperator(t, s.State, "solo", s.LeaderIP, s.Dial))

	// A hot standby joins and leaves again. With two servers, the leader's address is that of a load balancer. With one
	// server, it is an alias IP address. The first of these applies takes the flips back, which must keep the VMs.
	stack.Write(t, "flips_override.tf", "")
	for name := range example {
		if vars[name] = unflipped[name]; vars[name] == nil {
			delete(vars, name)
		}
	}
	s.SizeHasOneOwner(t, stack, vars, lab.NewOperator(t, s.State, "solo", s.LeaderIP, s.Dial))
	for _, count := range []int{2, 1} {
		vars["server_count"] = count
		changesAddress(t, s, zone, stack, count)
	}
	scenario.Converged(t, stack)

	calls.Allow(c.IAM.Granted()...)
	stack.Destroy(t)
	c.addCalls(calls)
	if diff := cmp.Diff(before, c.Inventory()); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}

// createsBatch adds 20 VMs to a group of two. Few calls create them, and each agent registers as the instance that its
// VM is.
func createsBatch(t *testing.T, s *scenario.Shard, zone shard, operator nstancev1.OperatorServiceClient) {
	t.Helper()
	size := func(patch string, want int) {
		t.Helper()
		if _, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "workers",
			Patch: `{"size": ` + patch + `}`, MustExist: true}); err != nil {
			t.Fatal(err)
		}
		s.Settled(t, want, nil)
	}
	called := func() (bulk, single int) {
		return zone.called(zone.zone, "compute.instances.bulkInsert"),
			zone.called(zone.zone, "compute.instances.insert")
	}
	_, before := called()
	size("22", 22)
	if bulk, single := called(); bulk == 0 || bulk+single-before > 10 {
		t.Errorf("%d calls of bulkInsert and %d of insert for 20 VMs", bulk, single-before)
	}
	size("null", 2)
}

// wakesSpares keeps a spare of a group of two that is stopped, and then one that is suspended, and ends a VM. The spare
// must wake and take the VM's place, and another spare must fall asleep. None of this is a change for Terraform. The
// variables have the configuration.
func wakesSpares(t *testing.T, s *scenario.Shard, zone shard, stack *lab.Stack, vars map[string]any,
	operator nstancev1.OperatorServiceClient) {
	t.Helper()
	groups := vars["config"].(map[string]any)["groups"].(map[string]any)
	group := groups["default"].(map[string]any)["workers"].(map[string]any)
	// The leader uses a spare only after Google has told it that the VM sleeps.
	sleeps := func(what, status, but string) (spare string) {
		t.Helper()
		lab.Eventually(t, scenario.Soon, what, func() string {
			asleep := zone.asleep()
			if len(asleep) != 1 || asleep[0] == but || zone.instance(asleep[0]).Body["status"] != status {
				return fmt.Sprintf("VMs %v, asleep %v", s.Workers(), asleep)
			}
			spare = asleep[0]
			all, err := operator.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{})
			if err != nil {
				return err.Error()
			}
			if !slices.ContainsFunc(all.GetInstances(), func(i *nstancev1.InstanceStatus) bool {
				return i.GetProviderId() == spare && i.GetHealth() == "asleep" && i.GetProviderState() == "stopped"
			}) {
				return fmt.Sprint(all.GetInstances())
			}
			return ""
		})
		s.Settled(t, 2, nil)
		return spare
	}
	for _, of := range []struct{ state, status string }{{"stopped", "TERMINATED"}, {"suspended", "SUSPENDED"}} {
		group["spares"] = map[string]any{"count": 1, "state": of.state}
		stack.Apply(t)
		spare := sleeps("a spare sleeps", of.status, "")
		victim := s.Workers()[0]
		s.Kill(victim)
		sleeps("another spare sleeps", of.status, spare)
		if now := s.Workers(); !slices.Contains(now, spare) || slices.Contains(now, victim) {
			t.Errorf("after %s was lost, the VMs are %v, want the spare %s among them", victim, now, spare)
		}
		lab.Eventually(t, scenario.Soon, "the agent of the spare knows that it is a member", func() string {
			role, err := zone.machines.Exec(spare, "cat", "/opt/nstance-agent/recv/role")
			if strings.TrimSpace(role) != "member" {
				return fmt.Sprintf("role %q, %v", role, err)
			}
			return ""
		})
		scenario.Converged(t, stack)
	}
	delete(group, "spares")
	stack.Apply(t)
	lab.Eventually(t, scenario.Soon, "no spare is left", func() string {
		if asleep := zone.asleep(); len(asleep) > 0 {
			return fmt.Sprint(asleep)
		}
		return ""
	})
	s.Settled(t, 2, nil)
}

// everyPermission is the args of a Spot VM that need all permissions which Google checks for the fields that args may
// have.
const everyPermission = `{
	"scheduling": {"provisioningModel": "SPOT"},
	"networkInterfaces": [{"accessConfigs": [{}]}],
	"resourcePolicies": ["regions/us-central1/resourcePolicies/compact"],
	"disks": [
		{"boot": true, "initializeParams": {"sourceImage": "` + images + `nstance-agent-amd64-1",
			"resourcePolicies": ["regions/us-central1/resourcePolicies/daily"],
			"storagePool": "zones/us-central1-a/storagePools/pool"}},
		{"initializeParams": {"sourceSnapshot": "global/snapshots/data"}},
		{"source": "zones/us-central1-a/disks/shared", "mode": "READ_ONLY"}
	]
}`

// addNamed adds the resources that everyPermission names.
func (c *cloud) addNamed() {
	c.Compute.Do(func() {
		for _, path := range []string{"global/snapshots/data", "zones/us-central1-a/disks/shared",
			"zones/us-central1-a/storagePools/pool", "regions/us-central1/resourcePolicies/daily",
			"regions/us-central1/resourcePolicies/compact"} {
			c.Compute.Put("projects/"+fakegcp.Project+"/"+path, map[string]any{})
		}
	})
}

// changesAddress changes the number of servers, which gives the leader another address. The connected VMs must learn
// the new address, and none of them may be replaced.
func changesAddress(t *testing.T, s *scenario.Shard, zone shard, stack *lab.Stack, servers int) {
	t.Helper()
	kept := s.Workers()
	if code, output := stack.Plan(t); code != 2 || !strings.Contains(output, "The address of the leader of shard") {
		t.Errorf("%d servers: exit code %d, want 2 and a warning about the address:\n%s", servers, code, output)
	}
	stack.ApplyPlan(t)
	var out struct {
		LeaderIP string `json:"leader_ipv4"`
	}
	if stack.Output(t, "shard", &out); out.LeaderIP == s.LeaderIP {
		t.Errorf("the leader's address is %s, as before", out.LeaderIP)
	}
	s.LeaderIP = out.LeaderIP
	s.Healthy(t)
	lab.KeepRefreshing(t, lab.NewOperator(t, s.State, "solo", s.LeaderIP, s.Dial), nil)
	lab.Eventually(t, scenario.Soon, "VMs with the new address only", func() string {
		for _, worker := range s.Workers() {
			text, err := zone.machines.Exec(worker, "cat", "/opt/nstance-agent/identity/servers")
			if got := strings.TrimSpace(text); err != nil || got != s.LeaderIP+":8994" {
				return fmt.Sprintf("%s has %q, %v", worker, got, err)
			}
		}
		if now := s.Servers(); len(now) != servers {
			return fmt.Sprintf("servers %v", now)
		}
		return ""
	})
	s.Settled(t, len(kept), nil)
	if now := s.Workers(); !slices.Equal(now, kept) {
		t.Errorf("the VMs are %v, want %v, as before", now, kept)
	}
}

// multiZone applies the example multi-zone, with terraform if -terraform is set. Each of two zones has a shard with a
// hot standby behind a load balancer. The test kills the leader of one shard. The secrets are in Secret Manager. At
// first the CA's secret exists without a key, as if an earlier leader had failed. The servers look for the newest image
// of the VMs.
func multiZone(t *testing.T, calls *scenario.Ledger) {
	c := newCloud(t, "us-central1-a", "us-central1-b")
	c.abandonKey(t, "nstance-duo-")
	before := c.Inventory()
	balanced := maps.Clone(server)
	balanced["default_drain_timeout"] = "1m" // the drain ends after the deregistration delay
	preserving := map[string]any{"default": map[string]any{"workers": map[string]any{
		"preserve": scenario.Preserving()}}}
	vars := map[string]any{"cluster": "duo", "force_destroy": true, "worker_count": 1,
		"zones":  map[string]any{"us-central1-a": 0, "us-central1-b": 1},
		"config": map[string]any{"server": balanced, "groups": preserving}, "server_ready_timeout": 40,
		"worker_commands": scenario.WebCommands, "load_balancer_health": true}
	stack := lab.NewStack(t, cli(t, *terraformFlag), "gcp/multi-zone", vars, "", c.environment)
	stack.Apply(t)
	var out map[string]struct {
		LeaderIP string `json:"leader_ipv4"`
	}
	var bucket string
	stack.Output(t, "shards", &out)
	stack.Output(t, "bucket", &bucket)
	if len(out) != 2 {
		t.Fatalf("%d shards, want 2", len(out))
	}
	for name, one := range out {
		s := &scenario.Shard{Cloud: shard{c, name}, Fake: shard{c, name}, LeaderIP: one.LeaderIP,
			State: c.state(t, bucket, "duo", name, "nstance-duo-")}
		s.Healthy(t)
		s.Settled(t, 1, nil)
		if servers := s.Servers(); len(servers) != 2 {
			t.Errorf("%s has the servers %v, want a leader and a standby", name, servers)
		}
		lab.KeepRefreshing(t, lab.NewOperator(t, s.State, "duo", s.LeaderIP, s.Dial), nil)
	}
	scenario.Converged(t, stack)

	zone := shard{c, "us-central1-a"}
	s := &scenario.Shard{Cloud: zone, Fake: zone, LeaderIP: out["us-central1-a"].LeaderIP,
		State: c.state(t, bucket, "duo", "us-central1-a", "nstance-duo-")}
	if servers := stack.Register(t, "gcp.md", 4, "my-project", fakegcp.Project, "nstance-example-",
		"nstance-duo-"); !strings.Contains(servers, "us-central1-a="+s.LeaderIP+":8993") {
		t.Errorf("the page's commands set the servers %q", servers)
	}
	s.PreservesUnhealthyInBalancer(t, 1, lab.NewOperator(t, s.State, "duo", s.LeaderIP, s.Dial), scenario.Balancer{
		Asked: func() int { return c.called("us-central1-a", "compute.regionBackendServices.getHealth") },
		Left:  func() int { return c.called("us-central1-a", "compute.instanceGroups.removeInstances") },
		Exec:  c.machines.Exec})
	leader := zone.leader()
	zone.Kill(leader)
	lab.Eventually(t, scenario.Soon, "the standby leads behind the address of the load balancer", func() string {
		if now := zone.leader(); now == leader || now == "" {
			return "leader " + now
		}
		return s.Health(s.Dial)
	})

	calls.Allow(c.IAM.Granted()...)
	stack.Destroy(t)
	c.addCalls(calls)
	if diff := cmp.Diff(before, c.Inventory()); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}
