package modules

import (
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

const (
	// googleAccount is the unique ID of the service account of the shard's servers on Google Cloud.
	googleAccount = "112233445566778899000"
	federatedRole = "arn:aws:iam::" + account + ":role/example-nstance-google-" + shard
)

// federation evaluates the locals of modules/aws/federation. The cluster's objects have the prefix "p".
func federation(t *testing.T) map[string]cty.Value {
	t.Helper()
	out, err := module(t, "federation", "policy.tf").locals(map[string]cty.Value{
		"var": cty.ObjectVal(map[string]cty.Value{
			"cluster": cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal(Cluster),
				"bucket_arn": cty.StringVal(bucket), "prefix": cty.StringVal("p"),
				"kms_key_arn": cty.NullVal(cty.String), "encryption_key": cty.ObjectVal(map[string]cty.Value{
					"provider": cty.StringVal("aws-secrets-manager"), "arn": cty.StringVal(key)})}),
			"shards": cty.MapVal(map[string]cty.Value{shard: cty.ObjectVal(map[string]cty.Value{
				"service_account_id": cty.StringVal(googleAccount),
				"secrets":            cty.ListVal([]cty.Value{cty.StringVal("web-*")})})}),
		}),
		"local": cty.ObjectVal(map[string]cty.Value{
			"arns": cty.MapVal(map[string]cty.Value{shard: cty.StringVal(federatedRole)})}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFederatedServersReachOnlyTheCluster checks what servers on Google Cloud may do on AWS.
func TestFederatedServersReachOnlyTheCluster(t *testing.T) {
	doc, err := policy.Parse(policy.Identity, federation(t)["server_policies"].GetAttr(shard).AsString())
	if err != nil {
		t.Fatal(err)
	}
	of := func(prefix string) policy.Context { return policy.Context{"s3:prefix": {prefix}} }
	ask(t, doc, []question{
		{"the CA", "s3:GetObject", bucket + "/p/cluster/ca.crt", nil, true},
		{"the CA's key", "s3:GetObject", bucket + "/p/cluster/secret/ca.key", nil, true},
		{"its secret", "s3:GetObject", bucket + "/p/cluster/secret/web-1", nil, true},
		{"an operator", "s3:PutObject", bucket + "/p/cluster/operator/default.x.json", nil, true},
		{"the key of an agent", "s3:PutObject", bucket + "/p/cluster/key/ab.json", nil, true},
		{"its probe", "s3:DeleteObject", bucket + "/p/shard/" + shard + "/probe/x", nil, true},
		{"operators", "s3:ListBucket", bucket, of("p/cluster/operator/default."), true},
		{"the encryption key", "secretsmanager:GetSecretValue", key, nil, true},

		{"another secret", "s3:GetObject", bucket + "/p/cluster/secret/other", nil, false},
		{"its secret to write", "s3:PutObject", bucket + "/p/cluster/secret/web-1", nil, false},
		{"another prefix", "s3:GetObject", bucket + "/cluster/ca.crt", nil, false},
		{"an operator to delete", "s3:DeleteObject", bucket + "/p/cluster/operator/default.x.json", nil, false},
		{"the lock of a shard", "s3:GetObject", bucket + "/p/shard/" + neighbour + "/leader.json", nil, false},
		{"a lock to write", "s3:PutObject", bucket + "/p/shard/" + shard + "/leader.json", nil, false},
		{"a configuration", "s3:GetObject", bucket + "/p/config/" + shard + ".jsonc", nil, false},
		{"a file", "s3:GetObject", bucket + "/p/files/x", nil, false},
		{"shards", "s3:ListBucket", bucket, of("p/shard/"), false},
		{"the whole bucket", "s3:ListBucket", bucket, of(""), false},
		{"another secret of the account", "secretsmanager:GetSecretValue", key + "x", nil, false},
		{"VMs", "ec2:DescribeInstances", "*", nil, false},
		{"a VM", "ec2:RunInstances", "*", nil, false},
	})
}

// TestWhoMayAssumeTheFederatedRole checks that only the shard's service account may assume the role, and only with a
// token for this role.
func TestWhoMayAssumeTheFederatedRole(t *testing.T) {
	trust, err := functions["jsonencode"].Call([]cty.Value{federation(t)["trust_policies"].GetAttr(shard)})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := policy.Parse(policy.Trust, trust.AsString())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		issuer, subject, party, audience string
		allowed                          bool
	}{
		{"accounts.google.com", googleAccount, googleAccount, federatedRole, true},
		{"example.com", googleAccount, googleAccount, federatedRole, false},
		{"accounts.google.com", "999", googleAccount, federatedRole, false},
		{"accounts.google.com", googleAccount, "999", federatedRole, false},
		{"accounts.google.com", googleAccount, googleAccount, federatedRole + "2", false},
	} {
		got := policy.EvaluateTrust(policy.Policies{Resource: doc}, policy.Request{
			Action: "sts:AssumeRoleWithWebIdentity", Resource: federatedRole,
			Caller: policy.Caller{Federated: c.issuer},
			Context: policy.Context{"accounts.google.com:sub": {c.subject}, "accounts.google.com:aud": {c.party},
				"accounts.google.com:oaud": {c.audience}}})
		if got.Allowed != c.allowed {
			t.Errorf("%+v: %v", c, got)
		}
	}
	service := policy.Caller{Service: "ec2.amazonaws.com"}
	if got := policy.EvaluateTrust(policy.Policies{Resource: doc}, policy.Request{Action: "sts:AssumeRole",
		Resource: federatedRole, Caller: service}); got.Allowed {
		t.Errorf("EC2: %v", got)
	}
}
