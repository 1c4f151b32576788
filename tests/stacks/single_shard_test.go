package stacks

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/modules"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

const soon = scenario.Soon

// readyTimeout is how many seconds a new server may take to become ready. Usually it takes a few seconds.
const readyTimeout = 40

// shard is the module's output "shard".
type shard struct {
	ID        string `json:"id"`
	LeaderIP  string `json:"leader_ipv4"`
	Interface string `json:"leader_interface_id"`
	ASG       string `json:"autoscaling_group_name"`
}

// fleet is one shard of an applied stack.
type fleet struct {
	*lab.Lab
	cluster string
	shard   shard
	key     string
	// keySource is the ARN of the secret or the parameter that contains the encryption key.
	keySource string
	bucket    string
	state     *clusterstate.State
}

// open finds the shard's bucket and the cluster's encryption key.
func (f *fleet) open(t *testing.T, stack *lab.Stack) {
	t.Helper()
	var from struct{ Provider, Source string }
	stack.Output(t, "bucket", &f.bucket)
	stack.Output(t, "encryption_key", &from)
	f.key, f.keySource = f.Key(t, from.Provider, from.Source), from.Source
	f.state = f.State(t, f.bucket, f.cluster, f.shard.ID, f.key)
}

// refresh makes the leader look for a new configuration every second, until the test ends. Each time, refresh also asks
// the leader for the CPUs and the memory of an instance type, as nstance-operator does.
func (f *fleet) refresh(t *testing.T) {
	t.Helper()
	operator := f.operator(t)
	lab.KeepRefreshing(t, operator, func(ctx context.Context) {
		size, err := operator.GetInstanceType(ctx, &nstancev1.GetInstanceTypeRequest{InstanceType: "t3.small"})
		if err == nil && (size.GetCpus() != 2 || size.GetMemoryMib() != 2048) {
			t.Errorf("t3.small is %v", size)
		}
	})
}

// operator connects to the leader as a new operator.
func (f *fleet) operator(t *testing.T) nstancev1.OperatorServiceClient {
	t.Helper()
	return f.Operator(t, f.state, f.cluster, f.servers()[0].VPC, f.shard.LeaderIP)
}

func singleShard(t *testing.T, calls *ledger) {
	l := lab.New(t)
	before := l.Inventory(t)
	config := scenario.Hooked()
	workers := config["groups"].(map[string]any)["default"].(map[string]any)["workers"].(map[string]any)
	workers["preserve"], workers["rollout"] = scenario.Preserving(), scenario.RollingBack()
	workers["spares"] = map[string]any{"count": 1, "state": "stopped"}
	timeouts := map[string]any{"interval": "5s"}
	config["server"] = map[string]any{
		"health_check_interval": "2s", "default_drain_timeout": "1s",
		"garbage_collection": timeouts,
		// Terratest writes variables as HCL without escaping line breaks. So the line breaks of the certificate are
		// escaped here.
		"attestation": map[string]any{"method": "aws-iid", "batches": true,
			"certificates": strings.ReplaceAll(l.Cloud.EC2().IdentityCertificate(), "\n", `\n`)}}
	vars := map[string]any{
		"cluster": "solo", "force_destroy": true, "worker_count": 2,
		"server_arch": "amd64", "server_instance_type": "t3.nano", "server_ami": lab.ServerAMI,
		"server_ready_timeout": readyTimeout,
		"worker_arch":          "amd64", "worker_instance_types": []string{"t3.small", "t3.medium"},
		"agent_ami": lab.AgentAMI,
		"config":    config,
	}
	stack := l.Stack(t, cli(t, ""), "aws/single-shard", vars)
	stack.Write(t, "beginning_override.tf", modules.Beginnings("aws"))
	noMachine(t, l, stack)
	made := stack.Apply(t)

	f := &fleet{Lab: l, cluster: "solo"}
	stack.Output(t, "shard", &f.shard)
	f.open(t, stack)
	f.installsOperator(t, stack)

	// apply returns only when a leader has the shard's fixed address, so the address can be used immediately.
	f.healthy(t)
	f.settled(t, 2, nil)
	f.reached(t)
	if servers := stack.Register(t, "aws.md", 3); servers != f.shard.ID+"="+f.shard.LeaderIP+":8993" {
		t.Errorf("the page's commands set the servers %q", servers)
	}
	f.refresh(t)
	f.wakesSpare(t, stack)
	f.createsBatch(t)
	delete(workers, "spares") // from the next apply on

	// When a server is asked to stop, it detaches the leader interface before it releases the lock.
	detached := f.count("DetachNetworkInterface")
	if out, err := f.Machines.Exec(f.servers()[0].ID, "systemctl", "restart", "nstance-server"); err != nil {
		t.Fatalf("restart the server: %v\n%s", err, out)
	}
	f.healthy(t)
	if f.count("DetachNetworkInterface") == detached {
		t.Error("the server that was stopped kept the leader's interface")
	}

	// The apply that sets the good image again also sets all flips. The next one takes them back, and moves the
	// encryption key to another service. This rotates the key: the cluster's secrets are encrypted with a new key
	// before the old key is destroyed. The next server that starts can decrypt them only with the new key.
	f.rollBadImage(t, stack, vars)
	calls.addPolicies(t, l, f.cluster)
	oldKey := f.key
	rotated := f.flip(t, stack, vars, map[string]any{"key_provider": "aws-parameter-store"})
	if f.open(t, stack); f.key == oldKey {
		t.Error("the key in the other service is the old key")
	}

	f.replaceUnhealthy(t, func() {
		// A plan needs no server. It must refuse what cannot change on a live shard, and report wrong values and names
		// in the configuration.
		refused, texts := modules.Refusals("aws")
		stack.Write(t, "flips_override.tf", refused)
		stack.PlanFails(t, texts...)
		stack.Write(t, "flips_override.tf", "")
		stack.With(map[string]any{"config": map[string]any{
			"server": map[string]any{"health_check_interval": "soon", "healthcheck_interval": "5s"},
			"groups": map[string]any{"default": map[string]any{"workers": map[string]any{"max_unhealth": "10%",
				"rollout": map[string]any{"canry": 1}, "disruption": map[string]any{"window": []string{}},
				"purchase": map[string]any{"spot_percnt": 50}}}},
		}}).PlanFails(t, "config.server.health_check_interval: ", "config.server.healthcheck_interval: ",
			"config.groups.default.workers.max_unhealth: ", "config.groups.default.workers.rollout.canry: ",
			"config.groups.default.workers.disruption.window: ", "config.groups.default.workers.purchase.spot_percnt: ")
	})

	// A VM dies without notice.
	f.scenario().ReplacesKilled(t, 2)

	// The VMs get an image without an agent. This must be undone.
	f.scenario().UndoesRollout(t, stack, func(bad bool) {
		vars["agent_ami"] = lab.AgentAMI
		delete(timeouts, "registration_timeout")
		if bad {
			vars["agent_ami"], timeouts["registration_timeout"] = lab.ServerAMI, "40s"
		}
	}, f.operator(t))

	// The group's arguments change. The plan must mention the group, and apply must replace the group's VMs.
	f.scenario().Rolls(t, stack, vars, `{"InstanceMarketOptions": {"MarketType": "spot"}}`)

	// The cloud announces that a VM will be interrupted. The replacement must start while the VM still runs.
	f.scenario().ReplacesInterrupted(t, 2)
	f.scenario().ReplacesMaintained(t, 2)

	// While the Auto Scaling group is scaled to zero, there is no server, and the VMs continue to run. After the group
	// is scaled up again, the new server replaces the VMs that were lost in between. The apply that removes the server
	// moves the key back.
	moved := f.key
	vars["key_provider"] = "aws-secrets-manager"
	f.scenario().OutlivesServers(t, stack, vars, 2)
	if f.open(t, stack); f.key == moved || f.key == oldKey {
		t.Error("the key in the former service is an old key")
	}

	noSecrets(t, f, stack, []string{oldKey, moved, f.key}, made+rotated)
	calls.addPolicies(t, l, f.cluster)
	stack.Destroy(t)
	calls.addCalls(l, f.cluster)
	if diff := cmp.Diff(before, l.Inventory(t)); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}

// noMachine applies while EC2 has no room for the server's machine. The apply must fail with EC2's reason instead of at
// the time limit of a server.
func noMachine(t *testing.T, l *lab.Lab, stack *lab.Stack) {
	t.Helper()
	const code = "InsufficientInstanceCapacity"
	l.Cloud.Faults().NoCapacity("t3.nano", "", "", code)
	if output := stack.ApplyFails(t); !strings.Contains(output, "scaling activity") || !strings.Contains(output,
		"Launching EC2 instance failed") {
		t.Errorf("the error of an apply without room for the server's machine:\n%s", output)
	}
	l.Cloud.Faults().Clear()
}

// rollBadImage applies an image on which nstance-server cannot start. At first EC2 has no room for a machine with this
// image. Each apply must fail with the reason, and the old server must stay. The next apply must set the good image
// again.
func (f *fleet) rollBadImage(t *testing.T, stack *lab.Stack, vars map[string]any) {
	t.Helper()
	good := f.servers()[0].ID
	vars["server_ami"] = lab.BadServerAMI
	f.Cloud.Faults().NoCapacity("t3.nano", "", "", "InsufficientInstanceCapacity")
	began := time.Now()
	output := stack.ApplyFails(t)
	for _, want := range []string{"The cloud starts no new server", "Auto Scaling group " + f.shard.ASG + " in ",
		"Launching EC2 instance failed"} {
		if !strings.Contains(output, want) {
			t.Errorf("the error of a roll without room for the machine does not contain %q:\n%s", want, output)
		}
	}
	t.Logf("a roll without room failed after %s", time.Since(began).Round(time.Second))
	f.Cloud.Faults().Clear()
	output = stack.ApplyFails(t)
	for _, want := range []string{"did not become ready", "connection refused", "--unknown-flag"} {
		if !strings.Contains(output, want) {
			t.Errorf("the error of apply does not contain %q:\n%s", want, output)
		}
	}
	if !slices.Contains(ids(f.servers()), good) {
		t.Fatalf("the good server %s is gone", good)
	}
	if console := f.consoles(t); !strings.Contains(console, "--unknown-flag") {
		t.Errorf("no console shows the server's last error:\n%s", console)
	}
	f.healthy(t)
	vars["server_ami"] = lab.ServerAMI
}

// flip sets the booleans and enumerations with a value in modules.Flips to that value, all with one apply, and back
// with another, which also sets the variables "next". Some of them roll the servers: then each apply must end with new
// servers, and without the old ones. All VMs must be kept. flip returns the output of the last apply.
func (f *fleet) flip(t *testing.T, stack *lab.Stack, vars, next map[string]any) (output string) {
	t.Helper()
	override, example := modules.Overrides("aws")
	before := maps.Clone(vars)
	unharmed, kept := f.watchFleet(t, 2), f.workers()
	for _, set := range []bool{true, false} {
		old, servers := ids(f.servers()), 2
		if set {
			stack.Write(t, "flips_override.tf", override)
			maps.Copy(vars, example)
		} else {
			servers = 1
			stack.Write(t, "flips_override.tf", "")
			clear(vars)
			maps.Copy(vars, before)
			maps.Copy(vars, next)
		}
		output = stack.Apply(t)
		f.rolled(t, servers, old...)
		for _, server := range f.servers() {
			if public := f.isPublic(t, server.ID); public != set {
				t.Errorf("the new server has a public address: %v, want %v", public, set)
			}
		}
		f.settled(t, 2, nil)
		f.kept(t, kept, nil)
		scenario.Converged(t, stack)
	}
	unharmed()
	return output
}

// isPublic reports whether an instance has a public address.
func (f *fleet) isPublic(t *testing.T, id string) bool {
	t.Helper()
	out, err := sdk.NewFromConfig(f.Config()).DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{
		InstanceIds: []string{id}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Reservations[0].Instances[0].PublicIpAddress != nil
}

// consoles returns the console output of the cluster's machines so far, servers and VMs.
func (f *fleet) consoles(t *testing.T) string {
	t.Helper()
	client := sdk.NewFromConfig(f.Config())
	out, err := client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{Filters: []types.Filter{
		{Name: aws.String("tag:nstance:cluster"), Values: []string{f.cluster}}}})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, reservation := range out.Reservations {
		for _, instance := range reservation.Instances {
			console, err := client.GetConsoleOutput(t.Context(), &sdk.GetConsoleOutputInput{
				InstanceId: instance.InstanceId, Latest: aws.Bool(true)})
			if err != nil {
				t.Fatal(err)
			}
			text, err := base64.StdEncoding.DecodeString(aws.ToString(console.Output))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&all, "%s:\n%s", aws.ToString(instance.InstanceId), text)
		}
	}
	return all.String()
}

// replaceUnhealthy stops nstance-server on its machine. The machine must report that the server is unhealthy, and must
// then be replaced. Before the replacement, replaceUnhealthy calls the given function, which needs no server.
func (f *fleet) replaceUnhealthy(t *testing.T, meanwhile func()) {
	t.Helper()
	old := f.servers()[0].ID
	if out, err := f.Machines.Exec(old, "systemctl", "stop", "nstance-server"); err != nil {
		t.Fatalf("stop the server: %v\n%s", err, out)
	}
	meanwhile()
	f.rolled(t, 1, old)
}

// rolled waits until the shard has the given number of servers, one of which leads, and none of them is in "old".
func (f *fleet) rolled(t *testing.T, size int, old ...string) {
	t.Helper()
	lab.Eventually(t, 2*soon, fmt.Sprintf("%d servers other than %v", size, old), func() string {
		if now := ids(f.servers()); len(now) != size || slices.ContainsFunc(now, func(id string) bool {
			return slices.Contains(old, id)
		}) {
			return fmt.Sprintf("servers %v", now)
		}
		return ""
	})
	f.healthy(t)
}

// installsOperator checks that the operator's chart can be rendered with the values in the output operator_values.
func (f *fleet) installsOperator(t *testing.T, stack *lab.Stack) {
	t.Helper()
	var values struct {
		Helm string `json:"helm_values"`
	}
	stack.Output(t, "operator_values", &values)
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values.Helm), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `"$(scripts/tool.sh helm)" template nstance-operator `+
		`services/operator/chart --namespace nstance-system --kube-version 1.36.0 --values "$0"`, file)
	cmd.Dir = lab.Root()
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm template: %v", err)
	}
	if address := f.shard.LeaderIP + ":8993"; !bytes.Contains(out, []byte(address)) {
		t.Errorf("the operator's configuration lacks the leader's address %s:\n%s", address, out)
	}
}

// workers returns the shard's VMs that are pending or running.
func (f *fleet) workers() []ec2.InstanceView {
	all := f.Instances(f.cluster)
	f.Cloud.Locked(func() {
		all = slices.DeleteFunc(all, func(i ec2.InstanceView) bool {
			return i.State != "running" && i.State != "pending" ||
				f.Cloud.EC2().Tags(i.ID)["nstance:shard"] != f.shard.ID
		})
	})
	return all
}

// servers returns the instances of the shard's Auto Scaling group, which are its servers.
func (f *fleet) servers() (servers []ec2.InstanceView) {
	f.Cloud.Locked(func() {
		s := f.Cloud.EC2()
		for _, instance := range s.Instances() {
			if instance.State != "terminated" && s.Tags(instance.ID)["aws:autoscaling:groupName"] == f.shard.ASG {
				servers = append(servers, instance)
			}
		}
	})
	return servers
}

// count returns how often the servers have called an action.
func (f *fleet) count(action string) (n int) {
	for _, call := range f.Cloud.Calls() {
		if call.Action == action && strings.HasPrefix(call.Principal.Role, f.cluster+"-nstance-server-") {
			n++
		}
	}
	return n
}

func ids(instances []ec2.InstanceView) []string {
	out := make([]string, len(instances))
	for i, instance := range instances {
		out[i] = instance.ID
	}
	slices.Sort(out)
	return out
}

// shardCloud implements [scenario.Cloud] and [scenario.Fake] for a fleet's shard.
type shardCloud struct{ *fleet }

// scenario returns the shard as the package scenario needs it. The checks in that package are the same on every cloud.
func (f *fleet) scenario() *scenario.Shard {
	return &scenario.Shard{Cloud: shardCloud{f}, Fake: shardCloud{f}, LeaderIP: f.shard.LeaderIP, State: f.state}
}

// Workers implements [scenario.Cloud].
func (c shardCloud) Workers() []string { return ids(c.workers()) }

// Servers implements [scenario.Cloud].
func (c shardCloud) Servers() []string { return ids(c.servers()) }

// Kill implements [scenario.Cloud].
func (c shardCloud) Kill(id string) { c.Cloud.EC2().Kill(id) }

// Interrupt implements [scenario.Cloud].
func (c shardCloud) Interrupt(id string, after time.Duration) error {
	if !c.Cloud.EC2().Interrupt(id, time.Now().Add(after)) {
		return fmt.Errorf("%s could not be interrupted", id)
	}
	return nil
}

// Maintain implements [scenario.Cloud].
func (c shardCloud) Maintain(id string, begins time.Time) {
	c.Cloud.EC2().Schedule(id, "instance-retirement", begins)
}

// Dial implements [scenario.Cloud].
func (c shardCloud) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	servers := c.servers()
	if len(servers) == 0 {
		return nil, errors.New("there is no server, so its network is not known")
	}
	return c.Machines.DialVPC(ctx, servers[0].VPC, network, address)
}

// wakesSpare ends a VM without notice. The group's spare, whose VM EC2 has stopped, must wake and take its place. Then
// another spare must fall asleep.
func (f *fleet) wakesSpare(t *testing.T, stack *lab.Stack) {
	t.Helper()
	spare, victim := f.sleeper(t, ""), f.workers()[0].ID
	began := time.Now()
	f.Cloud.EC2().Kill(victim)
	f.settled(t, 2, []string{victim})
	lab.Eventually(t, soon, spare+" is a member", func() string {
		role, err := f.Machines.Exec(spare, "cat", "/opt/nstance-agent/recv/role")
		if err != nil {
			return err.Error()
		}
		if strings.TrimSpace(role) != "member" {
			return "its role is " + role
		}
		return ""
	})
	t.Logf("a VM is ended → a spare that slept is a member: %s", time.Since(began).Round(100*time.Millisecond))
	f.sleeper(t, spare)
	f.settled(t, 2, []string{victim})
	if n := f.count("StartInstances"); n != 1 {
		t.Errorf("%d calls of StartInstances", n)
	}
	if code, output := stack.Plan(t); code != 0 {
		t.Errorf("after a spare has woken: exit code %d, want an empty plan:\n%s", code, output)
	}
}

// sleeper waits until EC2 has stopped the VM of the only spare, which is another one than before, and returns its ID.
func (f *fleet) sleeper(t *testing.T, before string) (id string) {
	t.Helper()
	lab.Eventually(t, soon, "a spare sleeps", func() string {
		var stopped, states []string
		for _, i := range f.Instances(f.cluster) {
			if states = append(states, i.ID+" "+i.State); i.State == "stopped" {
				stopped = append(stopped, i.ID)
			}
		}
		if len(stopped) != 1 || stopped[0] == before {
			return fmt.Sprintf("VMs %v", states)
		}
		id = stopped[0]
		return ""
	})
	return id
}

// createsBatch adds 20 VMs to a group of two by hand. Few calls create them, and each agent registers as the instance
// that its VM is.
func (f *fleet) createsBatch(t *testing.T) {
	t.Helper()
	operator := f.operator(t)
	size := func(patch string, want int) {
		t.Helper()
		if _, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "workers",
			Patch: `{"size": ` + patch + `}`, MustExist: true}); err != nil {
			t.Fatal(err)
		}
		f.settled(t, want, nil)
	}
	before := f.count("RunInstances")
	size("22", 22)
	if n := f.count("RunInstances") - before; n > 10 {
		t.Errorf("%d calls for 20 VMs", n)
	}
	size("null", 2)
}

func (f *fleet) healthy(t *testing.T) {
	t.Helper()
	f.scenario().Healthy(t)
}

func (f *fleet) settled(t *testing.T, size int, replaced []string) {
	t.Helper()
	f.scenario().Settled(t, size, replaced)
}

// reached checks that a VM in another subnet can connect to the leader's address. A server has two interfaces in one
// subnet. The network drops a reply unless it leaves by the interface that has the leader's address.
func (f *fleet) reached(t *testing.T) {
	t.Helper()
	server, worker := f.servers()[0], f.workers()[0]
	if server.Subnet == worker.Subnet {
		t.Errorf("the VM %s is in the servers' subnet %s, want another", worker.ID, server.Subnet)
	}
	if problem := f.scenario().Health(func(ctx context.Context, network, address string) (net.Conn, error) {
		return f.Machines.Dial(ctx, worker.ID, network, address)
	}); problem != "" {
		t.Errorf("%s does not reach the leader at %s: %s", worker.ID, f.shard.LeaderIP, problem)
	}
	out, err := f.Machines.Exec(server.ID, "ip", "-o", "route", "get", "192.0.2.1", "from", f.shard.LeaderIP)
	if err != nil || !strings.Contains(out, " dev eth1 ") {
		t.Errorf("replies from %s take the route %q, %v", f.shard.LeaderIP, out, err)
	}
}

// noSecrets fails the test if it finds a private key or an encryption key of the cluster. It searches the CLI's output
// and the files that the CLI wrote, such as the state. It also searches the bucket's objects, which include the shard's
// journal, and the logs and consoles of all machines so far.
func noSecrets(t *testing.T, f *fleet, stack *lab.Stack, secrets []string, output string) {
	t.Helper()
	texts := stack.Files(t)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(texts)), func(path string) bool {
		return strings.HasSuffix(path, "terraform.tfstate")
	}) {
		t.Errorf("there is no state among %d files", len(texts))
	}
	logs, objects := f.Logs(t), f.Objects(t, f.bucket)
	maps.Copy(texts, logs)
	maps.Copy(texts, objects)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(objects)), func(key string) bool {
		return strings.HasPrefix(key, keys.JournalPrefix(f.shard.ID))
	}) {
		t.Errorf("there is no journal among %d objects of the bucket", len(objects))
	}
	texts["output"], texts["plan"], texts["consoles"] = []byte(output), []byte(stack.ShowPlan(t)), []byte(f.consoles(t))
	for what, evidence := range map[string]string{"output": "Apply complete!", "plan": `"prior_state"`,
		"consoles": "nstance-server"} {
		if !bytes.Contains(texts[what], []byte(evidence)) {
			t.Errorf("the %s do not contain %q, and so were not searched:\n%s", what, evidence, texts[what])
		}
	}
	if len(logs) < 4 {
		t.Errorf("there are %d logs of machines, want those of two servers and two VMs at least", len(logs))
	}
	for i, key := range append(secrets, "PRIVATE KEY") {
		quoted, err := json.Marshal(key)
		if err != nil || i < len(secrets) && len(key) < 32 {
			t.Fatalf("the encryption key has %d characters: %v", len(key), err)
		}
		for where, content := range texts {
			if bytes.Contains(content, []byte(key)) || bytes.Contains(content, bytes.Trim(quoted, `"`)) {
				t.Errorf("%s contains secret %d: an encryption key, or (last) a private key", where, i)
			}
		}
	}
}
