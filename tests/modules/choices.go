package modules

import (
	"os"
	"path/filepath"

	"github.com/zclconf/go-cty/cty"
)

// Cluster and Shard are the names in the policy that [StrictServerPolicy] returns.
const (
	Cluster = "example"
	Shard   = "us-west-2a"
)

const (
	account   = "123456789012"
	ec2       = "arn:aws:ec2:us-west-2:" + account + ":"
	bucket    = "arn:aws:s3:::state"
	key       = "arn:aws:secretsmanager:us-west-2:" + account + ":secret:nstance/example/encryption-key-AbCdEf"
	parameter = "arn:aws:ssm:us-west-2:" + account + ":parameter/nstance/example/encryption-key"
	kms       = "arn:aws:kms:us-west-2:" + account + ":key/00000000-0000-0000-0000-000000000000"
	agentRole = "arn:aws:iam::" + account + ":role/example-nstance-agent"
	spotRole  = "arn:aws:iam::" + account + ":role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
	group     = "arn:aws:elasticloadbalancing:us-west-2:" + account + ":targetgroup/web/0123456789abcdef"
	scaling   = "arn:aws:autoscaling:us-west-2:" + account + ":autoScalingGroup:0:autoScalingGroupName/example-" +
		shard +
		"-server"
	vpc       = "vpc-0000000000000000a"
	shard     = Shard        // The shard of the role in most tests.
	neighbour = "us-west-2b" // Another shard of the same cluster.
)

// path returns the path of a file of a module for AWS. It finds the repository from the working directory, which is the
// directory of the package under test.
func path(parts ...string) string {
	root := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Join(root, "..")
	}
	return filepath.Join(append([]string{root, "modules", "aws"}, parts...)...)
}

// StrictServerPolicy returns the policy of the servers of [Shard], in JSON, with narrow values of the account module's
// variables. VMs may be only in the VPC, only with images, snapshots and security groups of the account or cluster, and
// only with the tags that servers set. They may use the hosts and reservation groups in startWith.
func StrictServerPolicy(vpc string, startWith ...string) (string, error) {
	locals, err := choices{vpc: vpc, restricted: true, tagKeys: []string{}, startWith: startWith}.evaluate()
	if err != nil {
		return "", err
	}
	return locals["server_policies"].AsValueMap()[Shard].AsString(), nil
}

// choices are the variables of the account module that affect its policies.
type choices struct {
	prefix, kms, vpc string
	parameter        bool
	secrets          string // Where secrets are stored; "": in the bucket.
	targetGroups     map[string]string
	health           bool     // The health of targets is read.
	restricted       bool     // Images, snapshots, security groups and key pairs are listed.
	shardSecrets     []string // Names of secrets that the shard's role covers; nil: all.
	passRoles        []string // Roles besides the agents' role.
	tagKeys          []string // Keys of tags besides the servers' own; nil: any.
	diskKeys         []string // KMS keys of VMs' disks.
	startWith        []string // Launch templates, hosts and licence configurations.
	ssm              bool     // Sessions on the servers' machines.
}

// evaluate evaluates the locals of the account module's policies.
func (c choices) evaluate() (map[string]cty.Value, error) {
	text := func(s string) cty.Value {
		if s == "" {
			return cty.NullVal(cty.String)
		}
		return cty.StringVal(s)
	}
	source, arn := "aws-secrets-manager", key
	if c.parameter {
		source, arn = "aws-parameter-store", parameter
	}
	encryptionKey := cty.ObjectVal(map[string]cty.Value{"provider": cty.StringVal(source), "arn": cty.StringVal(arn)})
	secrets := map[string]cty.Value{"provider": cty.StringVal("object-storage"), "prefix": cty.StringVal("")}
	if c.secrets != "" {
		encryptionKey = cty.NullVal(encryptionKey.Type())
		secrets = map[string]cty.Value{"provider": cty.StringVal(c.secrets),
			"prefix": cty.StringVal("nstance/example/")}
		if c.secrets == "aws-parameter-store" {
			secrets["prefix"] = cty.StringVal("/nstance/example/")
		}
	}
	groups := cty.MapValEmpty(cty.String)
	if len(c.targetGroups) > 0 {
		values := map[string]cty.Value{}
		for name, arn := range c.targetGroups {
			values[name] = cty.StringVal(arn)
		}
		groups = cty.MapVal(values)
	}
	names := func(all []string) cty.Value {
		if len(all) == 0 {
			return cty.ListValEmpty(cty.String)
		}
		var values []cty.Value
		for _, name := range all {
			values = append(values, cty.StringVal(name))
		}
		return cty.ListVal(values)
	}
	if c.shardSecrets == nil {
		c.shardSecrets = []string{"*"}
	}
	tagKeys := cty.NullVal(cty.List(cty.String))
	if c.tagKeys != nil {
		tagKeys = names(c.tagKeys)
	}
	list := func(values ...cty.Value) cty.Value {
		if !c.restricted {
			return cty.NullVal(cty.List(cty.String))
		}
		return cty.ListVal(values)
	}
	parsed, err := parseFile(path("account", "policy.tf"))
	if err != nil {
		return nil, err
	}
	return parsed.locals(map[string]cty.Value{
		"var": cty.ObjectVal(map[string]cty.Value{
			"cluster": cty.ObjectVal(map[string]cty.Value{
				"id": cty.StringVal(Cluster), "bucket_arn": cty.StringVal(bucket), "prefix": cty.StringVal(c.prefix),
				"kms_key_arn":    text(c.kms),
				"encryption_key": encryptionKey, "secrets": cty.ObjectVal(secrets),
			}),
			"shards": cty.MapVal(map[string]cty.Value{
				shard: cty.ObjectVal(map[string]cty.Value{"secrets": names(c.shardSecrets),
					"pass_role_arns": names(c.passRoles)}),
				neighbour: cty.ObjectVal(map[string]cty.Value{"secrets": names([]string{"*"}),
					"pass_role_arns": names(nil)}),
			}),
			"tag_keys": tagKeys, "ebs_kms_key_arns": names(c.diskKeys), "launch_resource_arns": names(c.startWith),
			"server_ssm": cty.BoolVal(c.ssm),
			"vpc_id":     text(c.vpc), "target_group_arns": groups,
			"load_balancer_health": cty.BoolVal(c.health),
			"image_owners":         list(cty.StringVal("amazon"), cty.StringVal(account)),
			"snapshot_owners":      list(cty.StringVal(account)),
			"security_group_ids":   list(cty.StringVal("sg-0a")), "key_pairs": list(cty.StringVal("admin")),
		}),
		"local": cty.ObjectVal(map[string]cty.Value{
			"partition": cty.StringVal("aws"), "region": cty.StringVal("us-west-2"),
			"account_id": cty.StringVal(account), "agent_role_arn": cty.StringVal(agentRole),
			"ec2_service": cty.StringVal("ec2.amazonaws.com"), "own_tag_keys": names([]string{"team"}),
		}),
	})
}
