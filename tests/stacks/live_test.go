package stacks

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// live changes the network of a running shard. Its bucket demands encryption with a KMS key, and its account's
// organization demands tags. Each step changes the configuration, reads the plan and applies it. It then checks that
// the VMs kept running.
func live(t *testing.T, calls *ledger) {
	l := lab.New(t)
	before := l.Inventory(t)
	vars := map[string]any{
		"cluster": "live", "force_destroy": true, "worker_count": 2,
		"server_arch": "amd64", "server_instance_type": "t3.nano", "server_ami": lab.ServerAMI,
		"worker_arch": "amd64", "worker_instance_types": []string{"t3.small", "t3.medium"}, "agent_ami": lab.AgentAMI,
		"config": map[string]any{
			"server": map[string]any{"health_check_interval": "2s", "default_drain_timeout": "1s",
				"garbage_collection": map[string]any{"interval": "5s"}},
			"groups": map[string]any{"default": map[string]any{"workers": map[string]any{
				"purchase": map[string]any{"spot_percent": 50, "on_recommendation": "replace"}}}}},
	}
	if err := l.Cloud.SetControlPolicy(demanding); err != nil {
		t.Fatal(err)
	}
	l.StateKey = stateKey
	stack := l.Stack(t, cli(t, ""), "aws/single-shard", vars)
	stack.Write(t, "../../../modules/aws/cluster/policy_override.tf", demandingBucket)
	stack.Write(t, "tags_override.tf", `
provider "aws" {
  default_tags {
    tags = { team = "platform" }
  }
}
`)
	// network replaces the subnets in the example. It also sets the shard's name, which otherwise depends on the zone.
	network := func(zone, public, servers string, workers ...string) {
		lists := make([]string, len(workers))
		for i, cidr := range workers {
			lists[i] = fmt.Sprintf("{ ipv4_cidr = %q }", cidr)
		}
		stack.Write(t, "network_override.tf", fmt.Sprintf(`
module "network" {
  subnets = {
    public  = { %[1]q = [{ ipv4_cidr = %[2]q, public = true, nat_gateway = true }] }
    servers = { %[1]q = [{ ipv4_cidr = %[3]q }] }
    workers = { %[1]q = [%[4]s] }
  }
}

module "account" {
  shards   = { main = {} }
  tag_keys = [] # The VMs have only the tags that servers set.
}

# The AWS provider waits a minute for the lifecycle rules, which the other stacks have.
module "cluster" {
  versioning  = false
  kms_key_arn = %[5]q
}

module "shard" {
  shard          = "main"
  zone           = %[1]q
  leader_network = { ipv4 = cidrhost(%[3]q, 100) }
  health_check   = { grace_period = 5 } # A roll of the servers waits for it.
}
`, zone, public, servers, strings.Join(lists, ", "), stateKey))
	}
	const zone, public, servers = "us-west-2a", "10.0.0.0/24", "10.0.1.0/24"
	const small, large = "10.0.16.0/28", "10.0.32.0/20"
	network(zone, public, servers, small)
	stack.Apply(t)
	f := &fleet{Lab: l, cluster: "live"}
	stack.Output(t, "shard", &f.shard)
	f.open(t, stack)
	f.settled(t, 2, nil)
	f.refresh(t)
	first := f.workers()[0].Subnet
	if bought := f.workers(); bought[0].Spot == bought[1].Spot {
		t.Errorf("of two VMs with spot_percent = 50, one must be a spot instance: %+v", bought)
	}

	// AWS recommends replacing the spot instance.
	for _, vm := range f.workers() {
		if vm.Spot {
			l.Cloud.EC2().Rebalance(vm.ID)
			f.scenario().ReplacesFirst(t, 2, vm.ID, "the cloud recommends replacing its VM")
		}
	}
	kept := f.refused(t, stack)

	// The test fills the first subnet, so that the third VM is in the second one.
	release := f.fill(t, first)
	network(zone, public, servers, small, large)
	vars["worker_count"] = 3
	stack.Apply(t)
	f.settled(t, 3, nil)
	f.kept(t, kept, nil)
	release()
	var moved []string
	for _, worker := range f.workers() {
		if worker.Subnet != first {
			moved = append(moved, worker.ID)
		}
	}
	if len(moved) != 1 {
		t.Fatalf("%d VMs in the second subnet, want 1: %v", len(moved), f.workers())
	}

	// The second subnet is removed from the pool. The VM in it must be replaced first, and no other VM may be replaced.
	unharmed := f.watchFleet(t, 3)
	network(zone, public, servers, small)
	if code, output := stack.Plan(t); code != 2 ||
		!strings.Contains(output, "Instances in subnets that leave their pool are replaced") ||
		!strings.Contains(output, "default/workers") {
		t.Errorf("a removed subnet: exit code %d, want 2 and the group that loses VMs:\n%s", code, output)
	}
	kept = f.workers()
	stack.ApplyPlan(t)
	f.settled(t, 3, moved)
	f.kept(t, kept, moved)
	unharmed()

	// The servers and the leader's address move to another subnet. The VMs learn the new address while they are still
	// connected to the present leader.
	unharmed = f.watchFleet(t, 3)
	kept = f.workers()
	const otherServers = "10.0.2.0/24"
	network(zone, public, otherServers, small)
	if code, output := stack.Plan(t); code != 2 || !strings.Contains(output, "The address of the leader of shard") ||
		!regexp.MustCompile(`rolling_groups\s+= \[`).MatchString(output) ||
		strings.Contains(output, "Instances will be replaced") {
		t.Errorf("another subnet of the servers: exit code %d, want 2 and a warning:\n%s", code, output)
	}
	stack.ApplyPlan(t)
	f.moved(t, stack, zone, "10.0.2.100")
	f.settled(t, 3, nil)
	f.kept(t, kept, nil)
	unharmed()

	// The shard moves to another zone: its servers, the leader's address, and all VMs, one after the other.
	unharmed = f.watchFleet(t, 3)
	old := ids(f.workers())
	const otherZone = "us-west-2b"
	network(otherZone, "10.0.3.0/24", "10.0.4.0/24", "10.0.48.0/28")
	if code, output := stack.Plan(t); code != 2 || !strings.Contains(output, "The address of the leader of shard") ||
		!strings.Contains(output, "Instances in subnets that leave their pool are replaced") {
		t.Errorf("another zone: exit code %d, want 2 and two warnings:\n%s", code, output)
	}
	stack.ApplyPlan(t)
	f.moved(t, stack, otherZone, "10.0.4.100")
	f.settled(t, 3, old)
	unharmed()
	if code, output := stack.Plan(t); code != 0 {
		t.Errorf("a plan after the change of the zone finds changes (exit code %d):\n%s", code, output)
	}

	// One plan must report all mistakes of a configuration. Only the mistakes in instance types are hidden by others.
	const nobody = "999999999999"
	stack.With(map[string]any{"server_instance_type": "t4g.nano", "worker_instance_types": []string{"t9.nano"}}).
		PlanFails(t, "t4g.nano, t9.nano do not exist, or are not of the architecture amd64",
			"does not offer the instance types t9.nano")
	network("us-west-2z", "10.0.3.0/24", "10.0.3.128/25", "172.31.0.0/24")
	stack.With(map[string]any{"server_ami": nil, "image_owners": []string{nobody}, "worker_count": "1.5"}).PlanFails(t,
		"No image for server_image: owners "+nobody+"; name = nstance-server-*; architecture = x86_64.",
		"worker_count is a whole number", "there is no zone us-west-2z",
		"(10.0.3.128/25) overlaps another one of subnets", "(172.31.0.0/24) is not inside the VPC")
	network(otherZone, "10.0.3.0/24", "10.0.4.0/24", "10.0.48.0/28")

	// The destroy fails, because it may not delete the bucket. It must keep the key that encrypts the secrets in the
	// bucket. Then another destroy must succeed.
	calls.addPolicies(t, l, "live")
	interrupted := fault.Match{Service: "s3", Action: "DeleteBucket"}
	l.Cloud.Faults().Fail(interrupted, fault.Forever, http.StatusForbidden, "AccessDenied", "Access Denied")
	if err := stack.DestroyError(t); err == nil {
		t.Error("destroy without the permission to delete the bucket succeeds")
	}
	if got := f.Key(t, "aws-secrets-manager", f.keySource); got != f.key {
		t.Error("an interrupted destroy destroyed the encryption key while the bucket exists")
	}
	l.Cloud.Faults().Clear()
	stack.Destroy(t)
	calls.addCalls(l, "live")
	if diff := cmp.Diff(before, l.Inventory(t)); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}

// stateKey is a KMS key for the bucket.
const stateKey = "arn:aws:kms:us-west-2:" + fakeaws.Account + ":key/00000000-0000-0000-0000-000000000001"

// demandingBucket replaces the bucket's policy. Each request to store an object must ask for encryption with stateKey.
const demandingBucket = `
resource "aws_s3_bucket_policy" "this" {
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = "${aws_s3_bucket.this.arn}/*"
        Condition = { Null = { "s3:x-amz-server-side-encryption" = "true" } }
      },
      {
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = "${aws_s3_bucket.this.arn}/*"
        Condition = { StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = "` + stateKey + `" } }
      },
    ]
  })
}
`

// demanding is a service control policy. Machines and disks must have a tag.
const demanding = `{"Version": "2012-10-17", "Statement": [
	{"Effect": "Allow", "Action": "*", "Resource": "*"},
	{"Effect": "Deny", "Action": "ec2:RunInstances",
		"Resource": ["arn:aws:ec2:*:*:instance/*", "arn:aws:ec2:*:*:volume/*"],
		"Condition": {"StringNotEquals": {"aws:RequestTag/team": "platform"}}}
]}`

// missingSecret is a secret that the leader's role may not read. The leader must refuse a configuration that uses it.
const missingSecret = "no-such-secret"

// refused applies two mistakes, one after the other, that the plan cannot find. The provider connects to the leader, so
// that each apply reports the leader's error. The first mistake is a secret that does not exist, so the leader refuses
// the configuration. The second is an image that does not exist, so the leader cannot create VMs. No VM may be
// replaced. The next apply must end the second mistake, and keep the VMs that refused returns.
func (f *fleet) refused(t *testing.T, stack *lab.Stack) (kept []ec2.InstanceView) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "identity")
	if _, err := local.Identity(t.Context(), f.state, dir); err != nil {
		t.Fatal(err)
	}
	stack.Write(t, "operator_override.tf", fmt.Sprintf(`
provider "nstance" {
  operator = { identity_dir = %q, servers = { main = %q } }
}
`, dir, net.JoinHostPort(f.shard.LeaderIP, "8993")))
	direct := stack.WithEnvironment("HTTPS_PROXY", lab.Proxy(t, shardCloud{f}.Dial))
	unharmed := f.watchFleet(t, 2)
	kept = f.workers()

	stack.Write(t, "key_override.tf", `
module "shard" {
  cluster = merge(module.cluster.cluster, {
    encryption_key = merge(module.cluster.cluster.encryption_key, { source = "`+missingSecret+`" })
  })
}
`)
	if output := direct.ApplyFails(t); !strings.Contains(output, "its leader refuses it") ||
		!strings.Contains(output, missingSecret) {
		t.Errorf("the errors of an apply that the leader refuses:\n%s", output)
	}
	stack.Write(t, "key_override.tf", "")

	const image = "ami-0123456789abcdef0"
	if output := direct.With(map[string]any{"agent_ami": image}).Apply(t); !strings.Contains(output,
		"cannot create all instances") || !strings.Contains(output, image) {
		t.Errorf("the output of an apply with an image that does not exist:\n%s", output)
	}
	f.settled(t, 2, nil)
	f.kept(t, kept, nil)
	unharmed()
	stack.Write(t, "operator_override.tf", "")
	return kept
}

// moved waits until all servers are in the zone and the leader answers at the address. It also waits until the VMs know
// only this address.
func (f *fleet) moved(t *testing.T, stack *lab.Stack, zone, address string) {
	t.Helper()
	if stack.Output(t, "shard", &f.shard); f.shard.LeaderIP != address {
		t.Errorf("the leader's address is %s, want %s", f.shard.LeaderIP, address)
	}
	f.healthy(t)
	f.refresh(t)
	lab.Eventually(t, soon, "VMs with the new address only, servers in "+zone, func() string {
		for _, server := range f.servers() {
			if server.Zone != zone {
				return server.ID + " is in " + server.Zone
			}
		}
		for _, worker := range f.workers() {
			out, err := f.Machines.Exec(worker.ID, "cat", "/opt/nstance-agent/identity/servers")
			if got := strings.TrimSpace(out); err != nil || got != address+":8994" {
				return fmt.Sprintf("%s has %q, %v", worker.ID, got, err)
			}
		}
		return ""
	})
}

// kept checks that the VMs in "before" still run, except those in "gone".
func (f *fleet) kept(t *testing.T, before []ec2.InstanceView, replaced []string) {
	t.Helper()
	now := ids(f.workers())
	for _, worker := range before {
		if !slices.Contains(replaced, worker.ID) && !slices.Contains(now, worker.ID) {
			t.Errorf("the VM %s was replaced without a reason; now there are %v", worker.ID, now)
		}
	}
}

// fill creates network interfaces in a subnet until it has no free address. The returned function deletes them.
func (f *fleet) fill(t *testing.T, subnet string) (release func()) {
	t.Helper()
	client := awsec2.NewFromConfig(f.Config())
	var made []string
	for {
		out, err := client.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: &subnet})
		if err != nil {
			if !strings.Contains(err.Error(), "InsufficientFreeAddressesInSubnet") {
				t.Fatal(err)
			}
			break
		}
		made = append(made, awssdk.ToString(out.NetworkInterface.NetworkInterfaceId))
	}
	return func() {
		t.Helper()
		for _, id := range made {
			if _, err := client.DeleteNetworkInterface(t.Context(),
				&awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &id}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// watchFleet checks from now on that at least size VMs run. The returned function ends the check, and fails the test if
// there were fewer.
func (f *fleet) watchFleet(t *testing.T, size int) (stop func()) {
	t.Helper()
	done, fewest := make(chan struct{}), size
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				fewest = min(fewest, len(f.workers()))
			}
		}
	})
	return func() {
		t.Helper()
		close(done)
		watching.Wait()
		if fewest < size {
			t.Errorf("at times only %d VMs ran, want %d", fewest, size)
		}
	}
}
