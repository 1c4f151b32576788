package modules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

// module parses a file of a module for AWS.
func module(t *testing.T, parts ...string) file {
	t.Helper()
	f, err := parseFile(path(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// locals evaluates the locals of the account module's policies.
func (c choices) locals(t *testing.T) map[string]cty.Value {
	t.Helper()
	out, err := c.evaluate()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// text returns the policy document of the shard's servers as JSON text.
func (c choices) text(t *testing.T) string {
	t.Helper()
	return c.locals(t)["server_policies"].GetAttr(shard).AsString()
}

// server parses the policy of the shard's servers.
func (c choices) server(t *testing.T) *policy.Document {
	t.Helper()
	doc, err := policy.Parse(policy.Identity, c.text(t))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// full uses every optional feature.
var full = choices{kms: kms, vpc: vpc, targetGroups: map[string]string{"web/http": group}}

// question is one row of a table: an action on a resource, and whether the policy must allow it. "why" describes the
// row at the beginning of an error text.
type question struct {
	why      string
	action   string
	resource string
	context  policy.Context
	allowed  bool
}

func ask(t *testing.T, doc *policy.Document, questions []question) {
	t.Helper()
	caller := policy.Caller{ARN: "arn:aws:sts::" + account + ":assumed-role/example-nstance-server-" + shard + "/i-0a",
		RoleARN: "arn:aws:iam::" + account + ":role/example-nstance-server-" + shard, Account: account}
	for _, q := range questions {
		got := policy.Evaluate(policy.Policies{Identity: []*policy.Document{doc}},
			policy.Request{Action: q.action, Resource: q.resource, Caller: caller, Context: q.context})
		if got.Allowed != q.allowed {
			t.Errorf("%s: %s on %s with %v: allowed = %v, want %v", q.why, q.action, q.resource, q.context, got.Allowed,
				q.allowed)
		}
	}
}

// launched returns the condition keys of a RunInstances call for an instance. "changes" contains a key, its value, the
// next key, and so on. These values replace the usual ones in the result. The value "" removes a key.
func launched(changes ...string) policy.Context {
	out := policy.Context{
		"aws:RequestTag/nstance:cluster": {"example"}, "aws:RequestTag/nstance:managed": {"true"},
		"aws:RequestTag/nstance:shard": {"us-west-2a"},
		"ec2:MetadataHttpTokens":       {"required"}, "ec2:InstanceType": {"t4g.small"},
	}
	for i := 0; i < len(changes); i += 2 {
		if out[changes[i]] = []string{changes[i+1]}; changes[i+1] == "" {
			delete(out, changes[i])
		}
	}
	return out
}

// started returns the condition keys of the CreateTags permission that RunInstances needs to tag an instance of the
// shard. "changes" works as in launched, with one exception: a value for aws:TagKeys does not replace the usual tag
// keys, but is added to them.
func started(changes ...string) policy.Context {
	out := policy.Context{"ec2:CreateAction": {"RunInstances"}, "aws:RequestTag/nstance:cluster": {"example"},
		"aws:RequestTag/nstance:shard": {shard}, "aws:TagKeys": {"nstance:cluster", "nstance:shard", "Name"}}
	for i := 0; i < len(changes); i += 2 {
		switch {
		case changes[i] == "aws:TagKeys":
			out[changes[i]] = append(out[changes[i]], changes[i+1])
		case changes[i+1] == "":
			delete(out, changes[i])
		default:
			out[changes[i]] = []string{changes[i+1]}
		}
	}
	return out
}

// tagged returns the condition keys of a call on a resource that has tags. "pairs" contains a key without its prefix
// "nstance:", the key's value, the next key, and so on.
func tagged(pairs ...string) policy.Context {
	out := policy.Context{}
	for i := 0; i < len(pairs); i += 2 {
		out["aws:ResourceTag/nstance:"+pairs[i]] = []string{pairs[i+1]}
	}
	return out
}

func TestServerStartsOnlyItsOwn(t *testing.T) {
	ask(t, full.server(t), []question{
		{"an instance of the cluster", "ec2:RunInstances", ec2 + "instance/*", launched(), true},
		{"without a cluster", "ec2:RunInstances", ec2 + "instance/*", launched("aws:RequestTag/nstance:cluster", ""),
			false},
		{"of another cluster", "ec2:RunInstances", ec2 + "instance/*",
			launched("aws:RequestTag/nstance:cluster", "other"), false},
		{"without nstance:managed", "ec2:RunInstances", ec2 + "instance/*",
			launched("aws:RequestTag/nstance:managed", ""), false},
		{"without any tags", "ec2:RunInstances", ec2 + "instance/*", policy.Context{
			"ec2:MetadataHttpTokens": {"required"}}, false},
		{"with IMDSv1", "ec2:RunInstances", ec2 + "instance/*", launched("ec2:MetadataHttpTokens", "optional"), false},
		{"with what the account has for IMDS", "ec2:RunInstances", ec2 + "instance/*",
			launched("ec2:MetadataHttpTokens", ""), false},
		{"in another region", "ec2:RunInstances", "arn:aws:ec2:eu-west-1:" + account + ":instance/*", launched(),
			false},
		{"in a subnet of the VPC", "ec2:RunInstances", ec2 + "subnet/subnet-0a",
			policy.Context{"ec2:Vpc": {ec2 + "vpc/" + vpc}}, true},
		{"in a subnet of another VPC", "ec2:RunInstances", ec2 + "subnet/subnet-0b",
			policy.Context{"ec2:Vpc": {ec2 + "vpc/vpc-0000000000000000b"}}, false},
		{"from any image", "ec2:RunInstances", "arn:aws:ec2:us-west-2::image/ami-0a", nil, true},
		{"from an image's snapshot", "ec2:RunInstances", "arn:aws:ec2:us-west-2::snapshot/snap-0a", nil, true},
		{"with a disk", "ec2:RunInstances", ec2 + "volume/*", nil, true},
		{"with a new interface", "ec2:RunInstances", ec2 + "network-interface/*", started(), true},
		{"with an interface that exists", "ec2:RunInstances", ec2 + "network-interface/eni-0a", nil, false},
		{"with a security group", "ec2:RunInstances", ec2 + "security-group/sg-0a", nil, true},
		{"as spot", "ec2:RunInstances", ec2 + "spot-instances-request/*", nil, true},
		{"with a launch template, which could say anything", "ec2:RunInstances", ec2 + "launch-template/lt-0a", nil,
			false},

		{"tags with the instance", "ec2:CreateTags", ec2 + "instance/i-0a",
			started(), true},
		{"tags with its disk", "ec2:CreateTags", ec2 + "volume/vol-0a",
			started(), true},
		{"tags with its interface", "ec2:CreateTags", ec2 + "network-interface/eni-0a",
			started(), true},
		{"tags with a spot request", "ec2:CreateTags", ec2 + "spot-instances-request/sir-0a",
			started(), true},
		{"tags on what exists: it would make anything the cluster's own", "ec2:CreateTags", ec2 + "instance/i-0a", nil,
			false},
		{"tags with a VPC", "ec2:CreateTags", ec2 + "instance/i-0a", started("ec2:CreateAction", "CreateVpc"),
			false},
		{"tags of a server", "ec2:CreateTags", ec2 + "instance/i-0a", started("aws:TagKeys", "nstance:server"), false},
		{"tags of a server, in capitals", "ec2:CreateTags", ec2 + "instance/i-0a",
			started("aws:TagKeys", "Nstance:Server"), false},
		{"tags of a leader interface", "ec2:CreateTags", ec2 + "network-interface/eni-0a",
			started("aws:TagKeys", "nstance:leader"), false},
		{"other tags of the template", "ec2:CreateTags", ec2 + "instance/i-0a", started("aws:TagKeys", "team"), true},
		{"tags without a cluster", "ec2:CreateTags", ec2 + "instance/i-0a",
			started("aws:RequestTag/nstance:cluster", ""), false},
		{"no tags back", "ec2:DeleteTags", ec2 + "instance/i-0a", tagged("cluster", "example", "managed", "true"),
			false},

		{"the role of spot instances", "iam:CreateServiceLinkedRole", spotRole,
			policy.Context{"iam:AWSServiceName": {"spot.amazonaws.com"}}, true},
		{"the role of another service", "iam:CreateServiceLinkedRole", strings.ReplaceAll(spotRole, "spot", "ecs"),
			policy.Context{"iam:AWSServiceName": {"ecs.amazonaws.com"}}, false},
		{"the agents' role", "iam:PassRole", agentRole, policy.Context{"iam:PassedToService": {"ec2.amazonaws.com"}},
			true},
		{"the agents' role to something else", "iam:PassRole", agentRole,
			policy.Context{"iam:PassedToService": {"lambda.amazonaws.com"}}, false},
		{"its own role", "iam:PassRole", "arn:aws:iam::" + account + ":role/example-nstance-server-" + shard,
			policy.Context{"iam:PassedToService": {"ec2.amazonaws.com"}}, false},
		{"an administrator's role", "iam:PassRole", "arn:aws:iam::" + account + ":role/admin",
			policy.Context{"iam:PassedToService": {"ec2.amazonaws.com"}}, false},
	})
	ask(t, choices{}.server(t), []question{
		{"any VPC, where none is named", "ec2:RunInstances", ec2 + "subnet/subnet-0b",
			policy.Context{"ec2:Vpc": {ec2 + "vpc/vpc-0000000000000000b"}}, true},
	})
}

// TestServerStartsOnlyFromWhatIsListed checks that servers may start VMs only with the images, snapshots, security
// groups and key pairs that the module's variables list. Without lists, all are allowed.
func TestServerStartsOnlyFromWhatIsListed(t *testing.T) {
	const foreign = "210987654321"
	image, snapshot := "arn:aws:ec2:us-west-2::image/ami-0a", "arn:aws:ec2:us-west-2::snapshot/snap-0a"
	owner := func(account string) policy.Context { return policy.Context{"ec2:Owner": {account}} }
	ask(t, choices{restricted: true}.server(t), []question{
		{"an image of the account", "ec2:RunInstances", image, owner(account), true},
		{"an image of Amazon", "ec2:RunInstances", image, owner("amazon"), true},
		{"a foreign image", "ec2:RunInstances", image, owner(foreign), false},
		{"an image without a known owner", "ec2:RunInstances", image, nil, false},
		{"a snapshot of the account", "ec2:RunInstances", snapshot, owner(account), true},
		{"a foreign snapshot", "ec2:RunInstances", snapshot, owner(foreign), false},
		{"a listed security group", "ec2:RunInstances", ec2 + "security-group/sg-0a", nil, true},
		{"a security group of the cluster", "ec2:RunInstances", ec2 + "security-group/sg-0b",
			tagged("cluster", "example"), true},
		{"a security group of another cluster", "ec2:RunInstances", ec2 + "security-group/sg-0b",
			tagged("cluster", "other"), false},
		{"a foreign security group", "ec2:RunInstances", ec2 + "security-group/sg-0b", nil, false},
		{"a listed key pair", "ec2:RunInstances", ec2 + "key-pair/admin", nil, true},
		{"another key pair", "ec2:RunInstances", ec2 + "key-pair/other", nil, false},
		{"an instance of the cluster", "ec2:RunInstances", ec2 + "instance/*", launched(), true},
		{"with a disk", "ec2:RunInstances", ec2 + "volume/*", nil, true},
	})
	ask(t, full.server(t), []question{
		{"any image", "ec2:RunInstances", image, owner(foreign), true},
		{"any key pair", "ec2:RunInstances", ec2 + "key-pair/other", nil, true},
	})
}

func TestServerTouchesOnlyItsOwn(t *testing.T) {
	attach, detach, terminate := "ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface", "ec2:TerminateInstances"
	ask(t, full.server(t), []question{
		{"an instance of a group", terminate, ec2 + "instance/i-0a", tagged("cluster", "example", "managed", "true",
			"shard", "us-west-2a"), true},
		{"another cluster's", terminate, ec2 + "instance/i-0a", tagged("cluster", "other", "managed", "true"), false},
		{"a server of its own cluster", terminate, ec2 + "instance/i-0a",
			tagged("cluster", "example", "server", "us-west-2a"), false},
		{"another owner's", terminate, ec2 + "instance/i-0a", nil, false},
		{"stop", "ec2:StopInstances", ec2 + "instance/i-0a", tagged("cluster", "example", "managed", "true",
			"shard", "us-west-2a"), true},
		{"stop another shard's", "ec2:StopInstances", ec2 + "instance/i-0a",
			tagged("cluster", "example", "managed", "true"), false},
		{"start a server", "ec2:StartInstances", ec2 + "instance/i-0a",
			tagged("cluster", "example", "server", "us-west-2a"), false},
		{"change", "ec2:ModifyInstanceAttribute", ec2 + "instance/i-0a",
			tagged("cluster", "example", "managed", "true"), false},

		{"the leader's interface", attach, ec2 + "network-interface/eni-0a",
			tagged("cluster", "example", "leader", "us-west-2a"), true},
		{"to a server", attach, ec2 + "instance/i-0a", tagged("cluster", "example", "server", "us-west-2a"), true},
		{"away from", detach, ec2 + "network-interface/eni-0a", tagged("cluster", "example", "leader", "us-west-2a"),
			true},
		{"a server", detach, ec2 + "instance/i-0a", tagged("cluster", "example", "server", "us-west-2a"), true},
		{"another interface", attach, ec2 + "network-interface/eni-0a", tagged("cluster", "example"), false},
		{"another cluster's leader's", detach, ec2 + "network-interface/eni-0a",
			tagged("cluster", "other", "leader", "us-west-2a"), false},
		{"to an instance of a group", attach, ec2 + "instance/i-0a", tagged("cluster", "example", "managed", "true"),
			false},
		{"to another cluster's server", attach, ec2 + "instance/i-0a",
			tagged("cluster", "other", "server", "us-west-2a"), false},

		{"the cluster's target group", "elasticloadbalancing:RegisterTargets", group, nil, true},
		{"and back", "elasticloadbalancing:DeregisterTargets", group, nil, true},
		{"its delay", "elasticloadbalancing:DescribeTargetGroupAttributes", "*", nil, true},
		{"another target group", "elasticloadbalancing:RegisterTargets", strings.Replace(group, "/web/", "/other/", 1),
			nil, false},

		{"is ready", "autoscaling:CompleteLifecycleAction", scaling, tagged("cluster", "example"), true},
		{"is unhealthy", "autoscaling:SetInstanceHealth", scaling, tagged("cluster", "example"), true},
		{"another cluster's group", "autoscaling:CompleteLifecycleAction", scaling, tagged("cluster", "other"), false},
		{"another group", "autoscaling:SetInstanceHealth", scaling, nil, false},
		{"another shard's group", "autoscaling:SetInstanceHealth", strings.Replace(scaling, shard, neighbour, 1),
			tagged("cluster", "example"), false},
		{"size", "autoscaling:SetDesiredCapacity", scaling, tagged("cluster", "example"), false},

		{"looks", "ec2:DescribeInstances", "*", nil, true},
		{"looks", "ec2:DescribeImages", "*", nil, true},
		{"looks", "ec2:DescribeInstanceTypes", "*", nil, true},
		{"looks", "ec2:DescribeSubnets", "*", nil, true},
		{"looks", "ec2:DescribeNetworkInterfaces", "*", nil, true},
		{"looks elsewhere", "ec2:DescribeVpcs", "*", nil, false},
		{"userdata of others", "ec2:DescribeInstanceAttribute", ec2 + "instance/i-0a", nil, false},
		{"its own rights", "iam:PutRolePolicy", "arn:aws:iam::" + account + ":role/example-nstance-server-" + shard,
			nil, false},
		{"its own number", "autoscaling:SetDesiredCapacity", "*", nil, false},
	})
	ask(t, choices{}.server(t), []question{
		{"no target groups", "elasticloadbalancing:RegisterTargets", group, nil, false},
		{"no delays", "elasticloadbalancing:DescribeTargetGroupAttributes", "*", nil, false},
		{"no health", "elasticloadbalancing:DescribeTargetHealth", "*", nil, false},
	})
	ask(t, choices{health: true}.server(t), []question{
		{"health", "elasticloadbalancing:DescribeTargetHealth", "*", nil, true},
	})
}

// TestServerTouchesOnlyItsShard checks all actions that servers may take on the resources of their own shard. The same
// actions on another shard of the cluster must be denied.
func TestServerTouchesOnlyItsShard(t *testing.T) {
	id, err := ident.ParseID("acc06bgm7733st2576nx5jht4ecjw")
	if err != nil {
		t.Fatal(err)
	}
	run, create, terminate := "ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances"
	attach, detach := "ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface"
	for name, c := range map[string]choices{"secrets in the bucket": full, "Secrets Manager": {
		secrets: "aws-secrets-manager"}, "Parameter Store": {secrets: "aws-parameter-store"}} {
		doc := c.server(t)
		for of, own := range map[string]bool{shard: true, neighbour: false} {
			why := name + ": shard " + of
			vm := tagged("cluster", "example", "managed", "true", "shard", of)
			server, leader := tagged("cluster", "example", "server", of), tagged("cluster", "example", "leader", of)
			ask(t, doc, []question{
				{why, run, ec2 + "instance/*", launched("aws:RequestTag/nstance:shard", of), own},
				{why, run, ec2 + "network-interface/*", started("aws:RequestTag/nstance:shard", of), own},
				{why, run, ec2 + "network-interface/eni-0a", leader, false},
				{why, create, ec2 + "instance/*", started("aws:RequestTag/nstance:shard", of), own},
				{why, create, ec2 + "volume/*", started("aws:RequestTag/nstance:shard", of), own},
				{why, create, ec2 + "instance/i-0a", vm, false},
				{why, "ec2:DeleteTags", ec2 + "instance/i-0a", vm, false},
				{why, terminate, ec2 + "instance/i-0a", vm, own},
				{why, terminate, ec2 + "instance/i-0a", server, false},
				{why, "ec2:StopInstances", ec2 + "instance/i-0a", vm, own},
				{why, "ec2:StartInstances", ec2 + "instance/i-0a", vm, own},
				{why, "ec2:StartInstances", ec2 + "instance/i-0a", server, false},
				{why, "ec2:GetConsoleOutput", ec2 + "instance/i-0a", vm, own},
				{why, "ec2:GetConsoleOutput", ec2 + "instance/i-0a", server, false},
				{why, attach, ec2 + "network-interface/eni-0a", leader, own},
				{why, detach, ec2 + "network-interface/eni-0a", leader, own},
				{why, attach, ec2 + "instance/i-0a", server, own},
				{why, detach, ec2 + "instance/i-0a", server, own},
			})
			for _, key := range []string{
				keys.Groups(of), keys.Leader(of), keys.Applied(of), keys.Instance(of, "default", id.Storage()),
				keys.CertLog(of, "default", id.Time(), id.Storage()), keys.Probe(of, "x"),
			} {
				ask(t, doc, []question{
					{why, "s3:GetObject", bucket + "/" + key, nil, own},
					{why, "s3:PutObject", bucket + "/" + key, nil, own},
				})
			}
			ask(t, doc, []question{
				{why, "s3:GetObject", bucket + "/" + keys.Config(of), nil, own},
				{why, "s3:PutObject", bucket + "/" + keys.Config(of), nil, false},
				{why, "s3:DeleteObject", bucket + "/" + keys.Instance(of, "default", id.Storage()), nil, own},
				{why, "s3:DeleteObject", bucket + "/" + keys.Probe(of, "x"), nil, own},
				{why, "s3:DeleteObject", bucket + "/" + keys.Leader(of), nil, false},
				{why, "s3:ListBucket", bucket, policy.Context{"s3:prefix": {keys.InstancePrefix(of)}}, own},
				{why, "s3:ListBucket", bucket, policy.Context{"s3:prefix": {keys.Config(of)}}, own},
			})
		}
	}
}

// TestServerReadsOnlyItsShardsSecrets checks that the servers of a shard can read only the secrets that the module's
// variables list for the shard. They can also read the well-known secrets, because every leader needs them.
func TestServerReadsOnlyItsShardsSecrets(t *testing.T) {
	manager := "arn:aws:secretsmanager:us-west-2:" + account + ":secret:nstance/example/"
	parameter := "arn:aws:ssm:us-west-2:" + account + ":parameter/nstance/example/"
	for _, store := range []struct{ name, read, prefix, suffix string }{
		{"", "s3:GetObject", bucket + "/cluster/secret/", ""},
		{"aws-secrets-manager", "secretsmanager:GetSecretValue", manager, "-AbCdEf"},
		{"aws-parameter-store", "ssm:GetParameter", parameter, ""},
	} {
		doc := choices{secrets: store.name, shardSecrets: []string{"api-token", "web-*"}}.server(t)
		for name, allowed := range map[string]bool{"ca.key": true, "registration-nonce.key": true,
			"workload-ca.key": true, "api-token": true,
			"web-": true, "web-certificate": true, "api-token2": false, "db-password": false, "x-web-1": false} {
			ask(t, doc, []question{{"of " + store.name, store.read, store.prefix + name + store.suffix, nil, allowed}})
		}
		ask(t, doc, []question{{"another cluster's secret", store.read, strings.Replace(store.prefix, "example",
			"other", 1) + "api-token" + store.suffix, nil, store.name == ""}})
	}
}

// TestServerPassesOnlyListedRoles checks pass_role_arns.
func TestServerPassesOnlyListedRoles(t *testing.T) {
	web, toEC2 := "arn:aws:iam::"+account+":role/web", policy.Context{"iam:PassedToService": {"ec2.amazonaws.com"}}
	ask(t, choices{passRoles: []string{web}}.server(t), []question{
		{"the agents' role", "iam:PassRole", agentRole, toEC2, true},
		{"a listed role", "iam:PassRole", web, toEC2, true},
		{"a listed role to another service", "iam:PassRole", web,
			policy.Context{"iam:PassedToService": {"lambda.amazonaws.com"}}, false},
		{"a role with a longer name", "iam:PassRole", web + "2", toEC2, false},
	})
	ask(t, full.server(t), []question{{"a role that is not listed", "iam:PassRole", web, toEC2, false}})
}

// TestServerUsesOnlyListedKeysForDisks checks the permissions for the keys in ebs_kms_key_arns. Servers may use these
// keys only through EC2. They may create a grant for a key only on behalf of an AWS service.
func TestServerUsesOnlyListedKeysForDisks(t *testing.T) {
	disk := strings.Replace(kms, "key/0", "key/d", 1)
	via := func(service string) policy.Context { return policy.Context{"kms:ViaService": {service}} }
	grant := func(forAWS string) policy.Context {
		return policy.Context{"kms:ViaService": {"ec2.us-west-2.amazonaws.com"}, "kms:GrantIsForAWSResource": {forAWS}}
	}
	doc := choices{kms: kms, diskKeys: []string{disk}}.server(t)
	for _, action := range []string{"kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext",
		"kms:ReEncryptFrom", "kms:ReEncryptTo"} {
		ask(t, doc, []question{
			{"through EC2", action, disk, via("ec2.us-west-2.amazonaws.com"), true},
			{"through EC2 of another region", action, disk, via("ec2.eu-west-1.amazonaws.com"), false},
			{"directly", action, disk, nil, false},
			{"with another key", action, strings.Replace(disk, "key/d", "key/e", 1),
				via("ec2.us-west-2.amazonaws.com"), false},
		})
	}
	ask(t, doc, []question{
		{"a grant for AWS", "kms:CreateGrant", disk, grant("true"), true},
		{"a grant for anybody else", "kms:CreateGrant", disk, grant("false"), false},
		{"a grant of the bucket's key", "kms:CreateGrant", kms, grant("true"), false},
		{"plain data keys", "kms:GenerateDataKey", disk, via("ec2.us-west-2.amazonaws.com"), false},
	})
	ask(t, full.server(t), []question{{"no keys", "kms:CreateGrant", disk, grant("true"), false}})
}

// TestServerStartsOnlyWithListedResources checks that a server can launch instances only with the resources in
// launch_resource_arns. EC2 checks no permission for the dedicated host that a call names. So the policy can restrict
// only the tenancy: it permits the tenancy "host" if the list contains a host or a group of hosts.
func TestServerStartsOnlyWithListedResources(t *testing.T) {
	host, template := ec2+"dedicated-host/h-0a", ec2+"launch-template/lt-0a"
	hosts := "arn:aws:resource-groups:us-west-2:" + account + ":group/hosts"
	license := "arn:aws:license-manager:us-west-2:" + account + ":license-configuration:lic-0a"
	doc := choices{startWith: []string{template, host, hosts, license}}.server(t)
	for _, arn := range []string{template, hosts, license} {
		ask(t, doc, []question{
			{"listed", "ec2:RunInstances", arn, nil, true},
			{"not listed", "ec2:RunInstances", arn + "b", nil, false},
			{"another action", "ec2:CreateTags", arn, nil, false},
		})
		ask(t, full.server(t), []question{{"without a list", "ec2:RunInstances", arn, nil, false}})
	}
	for listed, onHosts := range map[string]bool{"": false, template: false, license: false, host: true, hosts: true} {
		c := choices{}
		if listed != "" {
			c.startWith = []string{listed}
		}
		for tenancy, allowed := range map[string]bool{"default": true, "dedicated": true, "host": onHosts} {
			ask(t, c.server(t), []question{{"tenancy " + tenancy + ", with " + listed, "ec2:RunInstances",
				ec2 + "instance/*", launched("ec2:Tenancy", tenancy), allowed}})
		}
	}
}

// TestServerOpensSessions checks that server_ssm permits sessions of AWS Systems Manager on the machines. The machines
// may never read parameters of Systems Manager.
func TestServerOpensSessions(t *testing.T) {
	for on, doc := range map[bool]*policy.Document{true: choices{ssm: true}.server(t), false: choices{}.server(t)} {
		ask(t, doc, []question{
			{"registers", "ssm:UpdateInstanceInformation", "*", nil, on},
			{"opens a session", "ssmmessages:OpenDataChannel", "*", nil, on},
			{"a parameter", "ssm:GetParameter", parameter, nil, false},
		})
	}
}

// TestServerSetsOnlyListedTags checks that servers may set only their own tags and those with a key in tag_keys.
func TestServerSetsOnlyListedTags(t *testing.T) {
	doc := choices{tagKeys: []string{"team", "cost-*"}}.server(t)
	for key, allowed := range map[string]bool{"team": true, "cost-center": true, "nstance:managed": true,
		"nstance:created-at": true, "nstance:spot": true, "nstance:leader": false, "Team": false, "other": false,
		"nstance:server": false} {
		ask(t, doc, []question{{"key " + key, "ec2:CreateTags", ec2 + "instance/*", started("aws:TagKeys", key),
			allowed}})
	}
}

func TestServerReadsOnlyItsKey(t *testing.T) {
	ask(t, full.server(t), []question{
		{"the encryption key", "secretsmanager:GetSecretValue", key, nil, true},
		{"another cluster's", "secretsmanager:GetSecretValue", strings.Replace(key, "example", "other", 1), nil, false},
		{"writing it", "secretsmanager:PutSecretValue", key, nil, false},
		{"deleting it", "secretsmanager:DeleteSecret", key, nil, false},
		{"a parameter", "ssm:GetParameter", parameter, nil, false},
		{"its KMS key", "kms:Decrypt", kms, nil, true},
		{"for what it writes", "kms:GenerateDataKey", kms, nil, true},
		{"another KMS key", "kms:Decrypt", strings.Replace(kms, "key/0", "key/1", 1), nil, false},
		{"the KMS key's end", "kms:ScheduleKeyDeletion", kms, nil, false},
	})
	ask(t, choices{parameter: true}.server(t), []question{
		{"the encryption key", "ssm:GetParameter", parameter, nil, true},
		{"another parameter", "ssm:GetParameter", parameter + "-2", nil, false},
		{"a secret", "secretsmanager:GetSecretValue", key, nil, false},
		{"a KMS key, where there is none", "kms:Decrypt", kms, nil, false},
	})
}

// TestServerReadsOnlyItsSecrets checks the permissions for secrets in a secrets service. Servers may read all secrets
// of the cluster. They may create only the secrets for the keys that servers generate.
func TestServerReadsOnlyItsSecrets(t *testing.T) {
	for store, names := range map[string]struct{ read, make, write, prefix string }{
		"aws-secrets-manager": {"secretsmanager:GetSecretValue", "secretsmanager:CreateSecret",
			"secretsmanager:PutSecretValue", "arn:aws:secretsmanager:us-west-2:" + account + ":secret:"},
		"aws-parameter-store": {"ssm:GetParameter", "ssm:PutParameter", "ssm:DeleteParameter",
			"arn:aws:ssm:us-west-2:" + account + ":parameter/"},
	} {
		suffix := ""
		if store == "aws-secrets-manager" {
			suffix = "-AbCdEf"
		}
		ask(t, choices{secrets: store}.server(t), []question{
			{"the CA's key", names.read, names.prefix + "nstance/example/ca.key" + suffix, nil, true},
			{"one that is not there", names.read, names.prefix + "nstance/example/ca.key", nil, true},
			{"one of the user's", names.read, names.prefix + "nstance/example/api-token" + suffix, nil, true},
			{"another cluster's", names.read, names.prefix + "nstance/example-2/ca.key" + suffix, nil, false},
			{"making the CA's key", names.make, names.prefix + "nstance/example/ca.key", nil, true},
			{"making the nonce key", names.make, names.prefix + "nstance/example/registration-nonce.key", nil, true},
			{"making the workload CA's key", names.make, names.prefix + "nstance/example/workload-ca.key", nil, true},
			{"making one of the user's", names.make, names.prefix + "nstance/example/api-token", nil, false},
			{"making another cluster's", names.make, names.prefix + "nstance/other/ca.key", nil, false},
			{"changing or deleting it", names.write, names.prefix + "nstance/example/ca.key" + suffix, nil, false},
			{"the bucket all the same", "s3:GetObject", bucket + "/" + keys.Config("us-west-2a"), nil, true},
		})
	}
}

// TestServerWritesWhatTheLayoutSays checks that servers may write every kind of object in the bucket's layout except
// configurations and files.
func TestServerWritesWhatTheLayoutSays(t *testing.T) {
	id, err := ident.ParseID("acc06bgm7733st2576nx5jht4ecjw")
	if err != nil {
		t.Fatal(err)
	}
	layout := []string{
		keys.ClusterCA(), keys.ClusterSecret("ca.key"), keys.ClusterOperator("default",
			strings.TrimSuffix(id.Storage(), "acc")+"opr"), keys.Config("us-west-2a"), keys.Groups("us-west-2a"),
		keys.File("motd"), keys.Leader("us-west-2a"), keys.Applied("us-west-2a"),
		keys.ServerReport("us-west-2a"), keys.AgentKey(make([]byte, 32)),
		keys.Instance("us-west-2a", "default", id.Storage()),
		keys.CertLog("us-west-2a", "default", id.Time(), id.Storage()), keys.Probe("us-west-2a", "x"),
		keys.Journal("us-west-2a", id.Time(), 7, 1), keys.Rollout("us-west-2a", "default", "web"),
	}
	for _, prefix := range []string{"", "clusters/example"} {
		objects := bucket + "/"
		if prefix != "" {
			objects += prefix + "/"
		}
		doc := choices{prefix: prefix}.server(t)
		for _, path := range layout {
			parsed, err := keys.Parse(path)
			if err != nil {
				t.Fatal(err)
			}
			// The Terraform provider and nstance-admin write configurations and files.
			writes := parsed.Kind != keys.KindConfig && parsed.Kind != keys.KindFile
			deletes := parsed.Kind == keys.KindInstance || parsed.Kind == keys.KindProbe ||
				parsed.Kind == keys.KindJournal || parsed.Kind == keys.KindRollout
			ask(t, doc, []question{
				{"read", "s3:GetObject", objects + path, nil, true},
				{"write", "s3:PutObject", objects + path, nil, writes},
				{"delete", "s3:DeleteObject", objects + path, nil, deletes},
				{"delete for good", "s3:DeleteObjectVersion", objects + path, nil, false},
				{"another bucket", "s3:GetObject", strings.Replace(objects, "state", "other", 1) + path, nil, false},
				{"another bucket", "s3:PutObject", strings.Replace(objects, "state", "other", 1) + path, nil, false},
			})
		}
		at := func(p string) policy.Context {
			return policy.Context{"s3:prefix": {strings.TrimPrefix(objects, bucket+"/") + p}}
		}
		ask(t, doc, []question{
			{"records", "s3:ListBucket", bucket, at(keys.InstancePrefix("us-west-2a")), true},
			{"operators, before a CA is made", "s3:ListBucket", bucket, at(keys.OperatorPrefix()), true},
			{"whether any shard has instances, before a CA is made", "s3:ListBucket", bucket,
				at(keys.ShardsPrefix()), true},
			{"instances of another shard", "s3:ListBucket", bucket, at(keys.InstancePrefix(neighbour)), false},
			{"secrets", "s3:ListBucket", bucket, at(keys.SecretPrefix()), false},
			{"what else is in the bucket", "s3:ListBucket", bucket, policy.Context{"s3:prefix": {"other/"}}, false},
			{"all of the bucket, by prefix", "s3:ListBucket", bucket, policy.Context{"s3:prefix": {""}}, false},
			{"that something is not there", "s3:ListBucket", bucket, nil, true},
			{"another bucket", "s3:ListBucket", "arn:aws:s3:::other", at("shard/"), false},
			{"one of the user's secrets", "s3:PutObject", objects + keys.ClusterSecret("api-token"), nil, false},
			{"an object outside the layout", "s3:PutObject", objects + "other/x", nil, false},
			{"a key that looks like the CA's", "s3:PutObject", objects + "cluster/ca.crt2", nil, false},
			{"the bucket's policy", "s3:PutBucketPolicy", bucket, nil, false},
		})
	}
	ask(t, choices{prefix: "clusters/example"}.server(t), []question{
		{"beside its prefix", "s3:GetObject", bucket + "/" + keys.Config("us-west-2a"), nil, false},
		{"another cluster's", "s3:PutObject", bucket + "/clusters/other/" + keys.Leader("us-west-2a"), nil, false},
	})
}

// TestServerHasNoOtherActions checks that the policies contain only actions that the servers use. The documentation and
// the provider's list of calls must name the same actions.
func TestServerHasNoOtherActions(t *testing.T) {
	var actions []string
	for _, doc := range []*policy.Document{
		full.server(t), choices{parameter: true}.server(t), choices{secrets: "aws-secrets-manager"}.server(t),
		choices{secrets: "aws-parameter-store"}.server(t), choices{diskKeys: []string{kms}}.server(t),
		choices{health: true}.server(t),
	} {
		for _, s := range doc.Statements {
			if s.Deny || len(s.NotActions) > 0 || len(s.NotResources) > 0 {
				t.Errorf("statement %s takes away instead of giving: these tests do not see all of it", s.SID)
			}
			actions = append(actions, s.Actions...)
			if slices.Contains(s.Resources, "*") && s.SID != "Describe" {
				t.Errorf("statement %s speaks of everything", s.SID)
			}
		}
	}
	slices.Sort(actions)
	want := []string{
		"autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceHealth",
		"ec2:AttachNetworkInterface", "ec2:CreateTags", "ec2:DescribeImages", "ec2:DescribeInstanceTypes",
		"ec2:DescribeInstances",
		"ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets",
		"ec2:DetachNetworkInterface", "ec2:GetConsoleOutput", "ec2:RunInstances", "ec2:StartInstances",
		"ec2:StopInstances", "ec2:TerminateInstances",
		"elasticloadbalancing:DeregisterTargets", "elasticloadbalancing:DescribeTargetGroupAttributes",
		"elasticloadbalancing:DescribeTargetHealth", "elasticloadbalancing:RegisterTargets",
		"iam:CreateServiceLinkedRole", "iam:PassRole", "kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey",
		"kms:GenerateDataKey",
		"kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo", "s3:DeleteObject",
		"s3:GetObject", "s3:ListBucket",
		"s3:PutObject", "secretsmanager:CreateSecret",
		"secretsmanager:GetSecretValue", "ssm:GetParameter", "ssm:PutParameter",
	}
	if diff := cmp.Diff(want, slices.Compact(actions)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

// TestServerPolicyFits checks the size of the policy. IAM permits 10,240 characters for all inline policies of a role
// together, and does not count white space. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
func TestServerPolicyFits(t *testing.T) {
	longest := full
	longest.prefix, longest.targetGroups = strings.Repeat("p", 60), map[string]string{}
	for i := range 10 {
		longest.targetGroups[string(rune('a'+i))] = group + string(rune('a'+i))
	}
	if n := len(longest.text(t)); n > 10240 {
		t.Errorf("the policy has %d characters", n)
	}
}

// TestWhoMayAssumeTheRoles checks that only EC2 may assume the roles.
func TestWhoMayAssumeTheRoles(t *testing.T) {
	trust, err := functions["jsonencode"].Call([]cty.Value{full.locals(t)["trust_policy"]})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := policy.Parse(policy.Trust, trust.AsString())
	if err != nil {
		t.Fatal(err)
	}
	for service, allowed := range map[string]bool{"ec2.amazonaws.com": true, "lambda.amazonaws.com": false} {
		request := policy.Request{Action: "sts:AssumeRole", Resource: agentRole,
			Caller: policy.Caller{Service: service}}
		if got := policy.EvaluateTrust(policy.Policies{Resource: doc}, request); got.Allowed != allowed {
			t.Errorf("%s: %v", service, got)
		}
	}
	stranger := policy.Caller{ARN: "arn:aws:iam::" + account + ":user/eve", Account: account}
	if got := policy.EvaluateTrust(policy.Policies{Resource: doc}, policy.Request{Action: "sts:AssumeRole",
		Resource: agentRole, Caller: stranger}); got.Allowed {
		t.Errorf("anybody: %v", got)
	}
}

// TestAgentRoleHasNoPolicy checks that no resource of the module attaches a policy to the agents' role.
func TestAgentRoleHasNoPolicy(t *testing.T) {
	var owners []string
	for _, block := range module(t, "account", "main.tf").body.Blocks {
		if block.Type != "resource" || !strings.Contains(block.Labels[0], "policy") {
			continue
		}
		for _, traversal := range block.Body.Attributes["role"].Expr.Variables() {
			if traversal.RootName() != "each" {
				owners = append(owners, fmt.Sprint(traversal.RootName(), ".", traversal[1].(hcl.TraverseAttr).Name))
			}
		}
	}
	if diff := cmp.Diff([]string{"aws_iam_role.server"}, owners); diff != "" {
		t.Errorf("roles with policies (-want +got):\n%s", diff)
	}
}

// TestBucketWantsTLS checks that the bucket policy denies all requests over plain HTTP.
func TestBucketWantsTLS(t *testing.T) {
	value, err := module(t, "cluster", "bucket.tf").attribute("aws_s3_bucket_policy", "this", "policy",
		map[string]cty.Value{
			"aws_s3_bucket": cty.ObjectVal(map[string]cty.Value{"this": cty.ObjectVal(
				map[string]cty.Value{"arn": cty.StringVal(bucket)})}),
		})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := policy.Parse(policy.Resource, value.AsString())
	if err != nil {
		t.Fatal(err)
	}
	root := policy.Caller{ARN: "arn:aws:iam::" + account + ":root", Account: account}
	for secure, allowed := range map[string]bool{"true": true, "false": false} {
		for action, resource := range map[string]string{"s3:GetObject": bucket + "/x", "s3:PutObject": bucket + "/x",
			"s3:ListBucket": bucket} {
			request := policy.Request{Action: action, Resource: resource, Caller: root,
				Context: policy.Context{"aws:SecureTransport": {secure}}}
			if got := policy.Evaluate(policy.Policies{Resource: doc}, request); got.Allowed != allowed {
				t.Errorf("%s, TLS %s: %v", action, secure, got)
			}
		}
	}
}
