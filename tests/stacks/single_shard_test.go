package stacks

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
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
	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// soon limits operations that a machine of the fake cloud completes within seconds. Detecting a silent death by
// keepalive takes up to 30 s.
const soon = 2 * time.Minute

// readyTimeout is how long a new server may take to become ready, in seconds. A server takes a few.
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
	// keySource is the ARN of the secret or parameter with the key.
	keySource string
	state     *clusterstate.State
}

// open finds the shard's bucket and the cluster's encryption key.
func (f *fleet) open(t *testing.T, stack *lab.Stack) {
	t.Helper()
	var bucket string
	var from struct{ Provider, Source string }
	stack.Output(t, "bucket", &bucket)
	stack.Output(t, "encryption_key", &from)
	f.key, f.keySource = f.Key(t, from.Provider, from.Source), from.Source
	f.state = f.State(t, bucket, f.cluster, f.shard.ID, f.key)
}

// refresh asks the leader every second to look for a new configuration, until the test ends. Without it, the leader
// looks within three minutes. It also asks for the size of a type, as nstance-operator does.
func (f *fleet) refresh(t *testing.T) {
	t.Helper()
	operator := f.Operator(t, f.state, f.cluster, f.servers()[0].VPC, f.shard.LeaderIP)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ticker := time.NewTicker(time.Second); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				_, _ = operator.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{}) // There may be no leader.
				size, err := operator.GetInstanceType(ctx, &nstancev1.GetInstanceTypeRequest{InstanceType: "t3.small"})
				if err == nil && (size.GetCpus() != 2 || size.GetMemoryMib() != 2048) {
					t.Errorf("t3.small is %v", size)
				}
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func singleShard(t *testing.T, calls *ledger) {
	l := lab.New(t)
	before := l.Inventory(t)
	vars := map[string]any{
		"cluster": "solo", "force_destroy": true, "worker_count": 2,
		"server_arch": "amd64", "server_instance_type": "t3.nano", "server_ami": lab.ServerAMI,
		"server_ready_timeout": readyTimeout,
		"worker_arch":          "amd64", "worker_instance_types": []string{"t3.small", "t3.medium"},
		"agent_ami": lab.AgentAMI,
		"settings": map[string]any{"health_check_interval": "2s", "default_drain_timeout": "1s",
			"garbage_collection": map[string]any{"interval": "5s"},
			// Terratest writes variables as HCL, without escaping line breaks.
			"attestation": map[string]any{"method": "aws-iid",
				"certificates": strings.ReplaceAll(l.Cloud.EC2().IdentityCertificate(), "\n", `\n`)}},
	}
	stack := l.Stack(t, cli(t, ""), "aws/single-shard", vars)
	made := stack.Apply(t)

	f := &fleet{Lab: l, cluster: "solo"}
	stack.Output(t, "shard", &f.shard)
	f.open(t, stack)
	f.installsOperator(t, stack)

	// apply has waited for the leader, which has its address by then.
	f.healthy(t)
	f.settled(t, 2, nil)
	f.reached(t)
	if code, output := stack.Plan(t); code != 0 {
		t.Fatalf("a plan right after apply finds changes (exit code %d):\n%s", code, output)
	}
	f.refresh(t)

	// A server that stops regularly detaches the leader interface before it releases the lock.
	detached := f.count("DetachNetworkInterface")
	if out, err := f.Machines.Exec(f.servers()[0].ID, "systemctl", "restart", "nstance-server"); err != nil {
		t.Fatalf("restart the server: %v\n%s", err, out)
	}
	f.healthy(t)
	if f.count("DetachNetworkInterface") == detached {
		t.Error("the server that was stopped kept the leader's interface")
	}

	f.rollBadImage(t, stack, vars)
	f.replaceUnhealthy(t)

	// A VM dies without notice.
	victim := f.workers()[0]
	f.Cloud.EC2().Kill(victim.ID)
	f.settled(t, 2, []string{victim.ID})

	// plan reports a mistake in the configuration.
	code, output := stack.With(map[string]any{"settings": map[string]any{"health_check_interval": "soon"}}).Plan(t)
	if code != 1 || !strings.Contains(output, "health_check_interval") {
		t.Errorf("a configuration with a wrong duration: exit code %d, want 1 and its name:\n%s", code, output)
	}

	// The group's arguments change. plan names the group that rolls, and apply rolls it.
	old := ids(f.workers())
	vars["worker_args"] = `{"Monitoring": {"Enabled": true}}`
	code, output = stack.Plan(t)
	if code != 2 || !strings.Contains(output, "default/workers") {
		t.Errorf("other arguments: exit code %d, want 2 and the name of the group that rolls:\n%s", code, output)
	}
	stack.Apply(t)
	f.settled(t, 2, old)

	// The cloud announces that it takes a VM away. The replacement starts while the VM still runs.
	vars["worker_args"] = `{"InstanceMarketOptions": {"MarketType": "spot"}}`
	old = ids(f.workers())
	stack.Apply(t)
	f.settled(t, 2, old)
	doomed := f.workers()[0]
	const notice = 20 * time.Second // AWS gives two minutes.
	if !f.Cloud.EC2().Interrupt(doomed.ID, time.Now().Add(notice)) {
		t.Errorf("%s could not be interrupted: %+v", doomed.ID, doomed)
	}
	f.joined(t, doomed.ID)
	f.settled(t, 2, []string{doomed.ID})

	// Another service for the encryption key is a rotation: the cluster's secrets are sealed under a new key before the
	// old one is destroyed. The server that starts below can open them only with the new key.
	calls.addPolicies(t, l, f.cluster)
	vars["key_provider"] = "aws-parameter-store"
	oldKey := f.key
	rotated := stack.Apply(t)
	if f.open(t, stack); f.key == oldKey {
		t.Error("the key in the other service is the old key")
	}
	f.healthy(t)

	// Scaled to zero, the Auto Scaling group has no server and the VMs continue to run. Scaled up again, the server
	// replaces the VMs that were lost in between.
	vars["server_count"] = 0
	stack.Apply(t)
	lab.Eventually(t, soon, "no server", func() string {
		if servers := f.servers(); len(servers) > 0 {
			return fmt.Sprintf("servers %v", ids(servers))
		}
		return ""
	})
	orphaned := f.workers()
	if len(orphaned) != 2 {
		t.Errorf("without a server there are the VMs %v, want two", ids(orphaned))
	}
	f.Cloud.EC2().Kill(orphaned[0].ID)
	vars["server_count"] = 1
	stack.Apply(t)
	f.settled(t, 2, []string{orphaned[0].ID})
	if !slices.Contains(ids(f.workers()), orphaned[1].ID) {
		t.Errorf("the VM %s, which outlived the server, was replaced", orphaned[1].ID)
	}

	noSecrets(t, f, stack, []string{oldKey, f.key}, made+rotated)
	calls.addPolicies(t, l, f.cluster)
	stack.Destroy(t)
	calls.addCalls(l, f.cluster)
	if diff := cmp.Diff(before, l.Inventory(t)); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}

// rollBadImage rolls the servers to an image on which the server does not start. The apply must fail with the reason,
// and the old server must stay. Then a good image is applied.
func (f *fleet) rollBadImage(t *testing.T, stack *lab.Stack, vars map[string]any) {
	t.Helper()
	good := f.servers()[0].ID
	vars["server_ami"] = lab.BadServerAMI
	output := stack.ApplyFails(t)
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
	stack.Apply(t)
	f.rolled(t, good)
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

// replaceUnhealthy stops the server, as if it hung. Its machine must report that and be replaced.
func (f *fleet) replaceUnhealthy(t *testing.T) {
	t.Helper()
	old := f.servers()[0].ID
	if out, err := f.Machines.Exec(old, "systemctl", "stop", "nstance-server"); err != nil {
		t.Fatalf("stop the server: %v\n%s", err, out)
	}
	f.rolled(t, old)
}

// rolled waits until the shard has one server, which is not the old one and leads.
func (f *fleet) rolled(t *testing.T, old string) {
	t.Helper()
	lab.Eventually(t, 2*soon, "another server than "+old, func() string {
		if servers := ids(f.servers()); len(servers) != 1 || servers[0] == old {
			return fmt.Sprintf("servers %v", servers)
		}
		return ""
	})
	f.healthy(t)
}

// installsOperator renders the operator's chart with the output operator_values.
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

// servers returns the machines of the shard's Auto Scaling group.
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

// dialer connects from somewhere in the cloud.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// healthy waits until the leader answers at the shard's fixed address, as seen from the router of its network.
func (f *fleet) healthy(t *testing.T) {
	t.Helper()
	lab.Eventually(t, soon, "the leader answers at "+f.shard.LeaderIP, func() string {
		servers := f.servers()
		if len(servers) == 0 {
			return "there is no server"
		}
		return f.health(func(ctx context.Context, network, address string) (net.Conn, error) {
			return f.Machines.DialVPC(ctx, servers[0].VPC, network, address)
		})
	})
}

// health asks the leader for its health at the shard's fixed address. It returns "" if the leader is healthy.
func (f *fleet) health(dial dialer) string {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dial}}
	resp, err := client.Get("http://" + net.JoinHostPort(f.shard.LeaderIP, "8990") + "/health")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d %s %v", resp.StatusCode, body, err)
	}
	return ""
}

// reached checks that a VM in another subnet reaches the leader at its address. The servers have two interfaces in one
// subnet, and the network drops a reply that leaves by the interface without the address.
func (f *fleet) reached(t *testing.T) {
	t.Helper()
	server, worker := f.servers()[0], f.workers()[0]
	if server.Subnet == worker.Subnet {
		t.Errorf("the VM %s is in the servers' subnet %s, want another", worker.ID, server.Subnet)
	}
	if problem := f.health(func(ctx context.Context, network, address string) (net.Conn, error) {
		return f.Machines.Dial(ctx, worker.ID, network, address)
	}); problem != "" {
		t.Errorf("%s does not reach the leader at %s: %s", worker.ID, f.shard.LeaderIP, problem)
	}
	out, err := f.Machines.Exec(server.ID, "ip", "-o", "route", "get", "192.0.2.1", "from", f.shard.LeaderIP)
	if err != nil || !strings.Contains(out, " dev eth1 ") {
		t.Errorf("replies from %s take the route %q, %v", f.shard.LeaderIP, out, err)
	}
}

// settled waits until the shard has the given number of VMs, each with a registered agent. None of them may be in gone.
func (f *fleet) settled(t *testing.T, size int, gone []string) {
	t.Helper()
	lab.Eventually(t, soon, fmt.Sprintf("%d registered VMs without %v", size, gone), func() string {
		workers := f.workers()
		if len(workers) != size {
			return fmt.Sprintf("VMs %v", ids(workers))
		}
		registered := map[string]bool{}
		if err := f.state.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
			registered[instance.ProviderID] = instance.State == record.Registered
		}); err != nil {
			return err.Error()
		}
		for _, worker := range workers {
			if slices.Contains(gone, worker.ID) {
				return worker.ID + " is still there"
			}
			if !registered[worker.ID] {
				return worker.ID + " has not registered"
			}
		}
		return ""
	})
	if err := f.state.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
		if instance.State == record.Registered {
			t.Logf("%s: %.1f s from the create call to the registration", instance.ProviderID,
				instance.RegisteredAt.Sub(instance.CreatedAt).Seconds())
		}
	}); err != nil {
		t.Error(err)
	}
}

// joined waits until a third VM runs beside the doomed one.
func (f *fleet) joined(t *testing.T, doomed string) {
	t.Helper()
	lab.Eventually(t, soon, "a replacement beside "+doomed, func() string {
		if workers := ids(f.workers()); len(workers) != 3 || !slices.Contains(workers, doomed) {
			return fmt.Sprintf("VMs %v", workers)
		}
		return ""
	})
}

// noSecrets searches for private keys and the cluster's encryption keys in the state and the other files of the CLI, in
// its output, in a plan, and in the logs and on the consoles of all machines so far.
func noSecrets(t *testing.T, f *fleet, stack *lab.Stack, keys []string, output string) {
	t.Helper()
	texts := stack.Files(t)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(texts)), func(path string) bool {
		return strings.HasSuffix(path, "terraform.tfstate")
	}) {
		t.Errorf("there is no state among %d files", len(texts))
	}
	logs := f.Logs(t)
	maps.Copy(texts, logs)
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
	for i, key := range append(keys, "PRIVATE KEY") {
		quoted, err := json.Marshal(key)
		if err != nil || i < len(keys) && len(key) < 32 {
			t.Fatalf("the encryption key has %d characters: %v", len(key), err)
		}
		for where, content := range texts {
			if bytes.Contains(content, []byte(key)) || bytes.Contains(content, bytes.Trim(quoted, `"`)) {
				t.Errorf("%s contains secret %d: an encryption key, or (last) a private key", where, i)
			}
		}
	}
}
