package modules

import (
	"fmt"
	"strings"
)

// Effect is what a live shard does when a variable changes.
type Effect string

// The effects of flips.
const (
	// InPlace: no server and no VM is replaced.
	InPlace Effect = "in place"
	// RollsServers: a new server becomes ready before the old one ends, and no VM is replaced.
	RollsServers Effect = "rolls servers"
	// RollsVMs: the VMs of the groups are replaced one after the other, and the plan names the groups.
	RollsVMs Effect = "rolls VMs"
	// Refused: the plan refuses the change, or the shard's protection does.
	Refused Effect = "refused"
	// Tooling: the variable changes only what Terraform does, so nothing in the cloud changes.
	Tooling Effect = "tooling"
)

// Flip is a boolean or an enumeration of a module or example, and the effect of its change. To is another value than
// the one in the cloud's example single-shard, in the language of Terraform. The example's stack sets it and takes it
// back. If From is set, the stack begins with this value instead of that of the example. If the effect is Refused, the
// plan of the stack must instead contain the text Refusal. Without To, another test flips the variable, which By names,
// or By says why the variable is not flipped on a live stack.
type Flip struct {
	At, Variable string
	Effect       Effect
	From, To     string
	Refusal      string
	By           string
}

// Overrides returns the flips of a cloud that change what is applied: an override file for the modules in the cloud's
// example single-shard, and values of the example's variables.
func Overrides(cloud string) (override string, vars map[string]any) {
	vars = map[string]any{}
	for _, flip := range Flips {
		switch {
		case flip.To == "" || flip.Effect == Refused:
		case flip.At == "examples/"+cloud+"/single-shard":
			vars[flip.Variable] = flip.To
		default:
			override += flip.override(cloud, flip.To)
		}
	}
	return override, vars
}

// Beginnings returns the override file with which the stack of a cloud's example single-shard begins.
func Beginnings(cloud string) (override string) {
	for _, flip := range Flips {
		if flip.From != "" {
			override += flip.override(cloud, flip.From)
		}
	}
	return override
}

// Refusals returns an override file with the flips that the plan of a cloud's example single-shard refuses, and the
// texts that its errors must contain.
func Refusals(cloud string) (override string, texts []string) {
	for _, flip := range Flips {
		if set := flip.override(cloud, flip.To); set != "" && flip.Refusal != "" {
			override, texts = override+set, append(texts, flip.Refusal)
		}
	}
	return override, texts
}

// override returns a part of an override file that sets the variable of a module of the cloud. For other variables it
// returns "".
func (f Flip) override(cloud, value string) string {
	module, ok := strings.CutPrefix(f.At, "modules/"+cloud+"/")
	if !ok {
		return ""
	}
	return fmt.Sprintf("module %q {\n  %s = %s\n}\n", module, f.Variable, value)
}

// Flips lists all booleans and enumerations of the modules and examples for clouds.
var Flips = []Flip{
	{At: "modules/aws/account", Variable: "load_balancer_health", Effect: InPlace, To: "true"},
	{At: "modules/aws/account", Variable: "server_ssm", Effect: InPlace, To: "true"},
	{At: "modules/aws/account", Variable: "cluster", Effect: InPlace, By: "singleShard moves the key there and back"},
	// The stack begins without versions, because the AWS provider waits a minute for the lifecycle rules.
	{At: "modules/aws/cluster", Variable: "versioning", Effect: InPlace, From: "false", To: "true"},
	{At: "modules/aws/cluster", Variable: "encryption_key", Effect: InPlace,
		By: "singleShard moves the key there and back"},
	{At: "modules/aws/cluster", Variable: "secrets", Effect: Refused, By: "the CA stays while shards are configured"},
	{At: "modules/aws/cluster", Variable: "deletion_protection", Effect: Tooling, To: "true"},
	{At: "modules/aws/cluster", Variable: "force_destroy", Effect: Tooling, To: "false"},
	{At: "modules/aws/network", Variable: "ip_family", Effect: RollsServers,
		By: "the fake AWS cannot add IPv6 to a VPC; network.tftest.hcl plans the values"},
	{At: "modules/aws/network", Variable: "nat_mode", Effect: RollsServers, By: "nat of the example"},
	// multiAZ removes a zone, which replaces the load balancer.
	{At: "modules/aws/network", Variable: "load_balancers", Effect: InPlace,
		To: `{ health = { listeners = { web = { port = 80 } } } }`},
	{At: "modules/aws/shard", Variable: "agent_ingress", Effect: InPlace,
		To: `{ web = { protocol = "tcp", from_port = 80, ipv4_cidrs = ["10.0.0.0/16"] } }`},
	{At: "modules/aws/shard", Variable: "server_count", Effect: InPlace, To: "2"},
	{At: "modules/aws/shard", Variable: "server_arch", Effect: Refused, To: `"arm64"`,
		Refusal: "are not of the architecture arm64"},
	{At: "modules/aws/shard", Variable: "health_check", Effect: InPlace,
		To: `{
    type              = "ELB"
    load_balancer_arn = module.network.network.load_balancers["health"].arn
    grace_period      = 10
  }`},
	{At: "modules/aws/shard", Variable: "wait_for_leader", Effect: Tooling, By: "wait_for_leader of the example"},
	{At: "modules/aws/shard", Variable: "deletion_protection", Effect: Tooling, To: "true"},
	{At: "modules/aws/shard", Variable: "force_destroy", Effect: Tooling, To: "true"},
	{At: "modules/gcp/account", Variable: "agent_service_account", Effect: RollsVMs,
		By: "singleShard takes the VMs' account away and gives it back"},
	{At: "modules/gcp/account", Variable: "load_balancers", Effect: InPlace, To: "true"},
	{At: "modules/gcp/cluster", Variable: "versioning", Effect: InPlace, To: "false"},
	{At: "modules/gcp/cluster", Variable: "secrets", Effect: Refused, To: `{ provider = "google-secret-manager" }`,
		Refusal: "It is for secrets in this bucket only"},
	{At: "modules/gcp/cluster", Variable: "deletion_protection", Effect: Tooling, To: "true"},
	{At: "modules/gcp/cluster", Variable: "force_destroy", Effect: Tooling, To: "false"},
	{At: "modules/gcp/network", Variable: "ip_family", Effect: RollsVMs,
		By: "the fake Google Cloud has no IPv6; network.tftest.hcl plans the values"},
	{At: "modules/gcp/network", Variable: "nat_mode", Effect: InPlace, By: "nat of the example"},
	{At: "modules/gcp/network", Variable: "iap_ssh", Effect: InPlace, To: "true"},
	{At: "modules/gcp/network", Variable: "load_balancers", Effect: InPlace,
		To: `{ web = { zones = ["us-central1-a"], listeners = { http = { port = 80 } } } }`},
	{At: "modules/gcp/shard", Variable: "agent_ingress", Effect: InPlace,
		To: `{ web = { protocol = "tcp", from_port = 80, ipv4_cidrs = ["10.0.0.0/16"] } }`},
	{At: "modules/gcp/shard", Variable: "server_count", Effect: InPlace, By: "singleShard sets 2, 1, 0 and 1"},
	{At: "modules/gcp/shard", Variable: "leader_network", Effect: RollsServers, By: "singleShard sets 2 and 1 servers"},
	{At: "modules/gcp/shard", Variable: "wait_for_leader", Effect: Tooling, By: "wait_for_leader of the example"},
	{At: "modules/gcp/shard", Variable: "deletion_protection", Effect: Tooling, To: "true"},
	{At: "modules/gcp/shard", Variable: "force_destroy", Effect: Tooling, To: "true"},
	{At: "examples/aws/multi-az", Variable: "nat", Effect: RollsServers, By: "nat of single-shard"},
	{At: "examples/aws/multi-az", Variable: "wait_for_leader", Effect: Tooling, By: "wait_for_leader of single-shard"},
	{At: "examples/aws/multi-az", Variable: "force_destroy", Effect: Tooling, By: "force_destroy of single-shard"},
	{At: "examples/aws/multi-az", Variable: "zones", Effect: InPlace, By: "multiAZ removes a zone"},
	{At: "examples/aws/single-shard", Variable: "nat", Effect: RollsServers, To: "false"},
	{At: "examples/aws/single-shard", Variable: "wait_for_leader", Effect: Tooling, To: "false"},
	{At: "examples/aws/single-shard", Variable: "force_destroy", Effect: Tooling, To: "false"},
	{At: "examples/aws/environments/fleet", Variable: "deletion_protection", Effect: Tooling,
		By: "environments ends the protection of production"},
	{At: "examples/gcp/multi-zone", Variable: "wait_for_leader", Effect: Tooling,
		By: "wait_for_leader of single-shard"},
	{At: "examples/gcp/multi-zone", Variable: "force_destroy", Effect: Tooling, By: "force_destroy of single-shard"},
	{At: "examples/gcp/multi-zone", Variable: "load_balancer_health", Effect: InPlace,
		By: "the stack multi-zone sets it"},
	{At: "examples/gcp/single-shard", Variable: "nat", Effect: InPlace, To: "false"},
	{At: "examples/gcp/single-shard", Variable: "wait_for_leader", Effect: Tooling, To: "false"},
	{At: "examples/gcp/single-shard", Variable: "force_destroy", Effect: Tooling, To: "false"},
	{At: "examples/gcp/environments/fleet", Variable: "deletion_protection", Effect: Tooling,
		By: "environments ends the protection of production"},
	{At: "examples/local", Variable: "wait_for_leader", Effect: Tooling, By: "TestExample"},
}
