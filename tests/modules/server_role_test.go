package modules

import (
	"errors"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fakeec2 "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	fakes3 "github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
)

// testAccount is a fake AWS with a subnet and an image.
type testAccount struct {
	*fakeaws.Cloud
	t             *testing.T
	url           string
	subnet, image string
}

// newTestAccount makes an account. Its S3 stores objects in "backend". If backend is nil, the account has no S3.
func newTestAccount(t *testing.T, backend *fakes3.Backend) *testAccount {
	t.Helper()
	cloud, err := fakeaws.New(fakeaws.Config{Region: "us-west-2", S3: backend})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(cloud)
	t.Cleanup(func() {
		server.Close()
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	a := &testAccount{Cloud: cloud, t: t, url: server.URL, image: cloud.EC2().AddImage(fakeec2.AMI{Name: "agent"})}
	network := sdk.NewFromConfig(a.root())
	made, err := network.CreateVpc(t.Context(), &sdk.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := network.CreateSubnet(t.Context(), &sdk.CreateSubnetInput{VpcId: made.Vpc.VpcId,
		CidrBlock: aws.String("10.0.1.0/24"), AvailabilityZone: aws.String(shard)})
	if err != nil {
		t.Fatal(err)
	}
	a.subnet = *subnet.Subnet.SubnetId
	return a
}

func (a *testAccount) config(access, secret, token string) aws.Config {
	return aws.Config{Region: a.Region(), BaseEndpoint: &a.url,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, token)}
}

func (a *testAccount) root() aws.Config {
	access, secret := a.Credentials()
	return a.config(access, secret, "")
}

// server makes a role with the policy of the shard's servers, and returns a client for EC2 with the role's credentials.
func (a *testAccount) server(role string, c choices) *sdk.Client {
	a.t.Helper()
	return sdk.NewFromConfig(a.session(role, c))
}

// session makes a role with the policy of the shard's servers, and returns the role's credentials. Machines get such
// credentials from their metadata.
func (a *testAccount) session(role string, c choices) aws.Config {
	a.t.Helper()
	client := iam.NewFromConfig(a.root())
	if _, err := client.CreateRole(a.t.Context(), &iam.CreateRoleInput{RoleName: &role,
		AssumeRolePolicyDocument: aws.String(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow",` +
			`"Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`)}); err != nil {
		a.t.Fatal(err)
	}
	if _, err := client.PutRolePolicy(a.t.Context(), &iam.PutRolePolicyInput{RoleName: &role, PolicyName: &role,
		PolicyDocument: aws.String(c.text(a.t))}); err != nil {
		a.t.Fatal(err)
	}
	return a.config(a.RoleCredentials(role, "server"))
}

// launch returns a RunInstances request like those of the servers of the shard "of". "pairs" contains the keys and
// values of additional tags, alternately.
func (a *testAccount) launch(of string, pairs ...string) *sdk.RunInstancesInput {
	pairs = append([]string{"nstance:cluster", "example", "nstance:shard", of}, pairs...)
	var tags []types.Tag
	for i := 0; i < len(pairs); i += 2 {
		tags = append(tags, types.Tag{Key: &pairs[i], Value: &pairs[i+1]})
	}
	in := &sdk.RunInstancesInput{ImageId: &a.image, InstanceType: types.InstanceTypeT3Small, MinCount: aws.Int32(1),
		MaxCount: aws.Int32(1), SubnetId: &a.subnet,
		MetadataOptions: &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired}}
	for _, kind := range []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume,
		types.ResourceTypeNetworkInterface} {
		in.TagSpecifications = append(in.TagSpecifications, types.TagSpecification{ResourceType: kind, Tags: tags})
	}
	return in
}

// TestServersActOnlyOnTheirShard calls the fake EC2 with the role of a shard's servers, on resources of this shard and
// of another shard.
func TestServersActOnlyOnTheirShard(t *testing.T) {
	a := newTestAccount(t, nil)
	ctx, root, server := t.Context(), sdk.NewFromConfig(a.root()), a.server("servers", choices{})
	run := func(in *sdk.RunInstancesInput) string {
		t.Helper()
		out, err := root.RunInstances(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		return *out.Instances[0].InstanceId
	}
	dry := aws.Bool(true)
	for of, want := range map[string]string{shard: "DryRunOperation", neighbour: "UnauthorizedOperation"} {
		worker := run(a.launch(of, "nstance:managed", "true"))
		machine := run(a.launch(of, "nstance:server", of))
		made, err := root.CreateNetworkInterface(ctx, &sdk.CreateNetworkInterfaceInput{SubnetId: &a.subnet,
			TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface,
				Tags: []types.Tag{{Key: aws.String("nstance:cluster"), Value: aws.String("example")},
					{Key: aws.String("nstance:leader"), Value: &of}}}}})
		if err != nil {
			t.Fatal(err)
		}
		leader := made.NetworkInterface.NetworkInterfaceId
		check := func(what string, err error, want string) {
			t.Helper()
			var answer smithy.APIError
			if !errors.As(err, &answer) || answer.ErrorCode() != want {
				t.Errorf("shard %s: %s: %v, want %s", of, what, err, want)
			}
		}
		_, err = server.TerminateInstances(ctx, &sdk.TerminateInstancesInput{DryRun: dry,
			InstanceIds: []string{worker}})
		check("terminate a VM", err, want)
		_, err = server.TerminateInstances(ctx, &sdk.TerminateInstancesInput{DryRun: dry,
			InstanceIds: []string{machine}})
		check("terminate a server", err, "UnauthorizedOperation")
		_, err = server.StopInstances(ctx, &sdk.StopInstancesInput{DryRun: dry, InstanceIds: []string{worker}})
		check("stop a VM", err, want)
		_, err = server.StopInstances(ctx, &sdk.StopInstancesInput{DryRun: dry, InstanceIds: []string{machine}})
		check("stop a server", err, "UnauthorizedOperation")
		_, err = server.StartInstances(ctx, &sdk.StartInstancesInput{DryRun: dry, InstanceIds: []string{worker}})
		check("start a VM", err, want)
		attach := &sdk.AttachNetworkInterfaceInput{NetworkInterfaceId: leader, InstanceId: &machine,
			DeviceIndex: aws.Int32(1)}
		attached, err := server.AttachNetworkInterface(ctx, attach)
		if of == neighbour {
			check("attach the leader's interface", err, want)
			attached, err = root.AttachNetworkInterface(ctx, attach)
		}
		if err != nil {
			t.Fatalf("shard %s: attach the leader's interface: %v", of, err)
		}
		_, err = server.DetachNetworkInterface(ctx, &sdk.DetachNetworkInterfaceInput{
			AttachmentId: attached.AttachmentId})
		if of == neighbour {
			check("detach the leader's interface", err, want)
		} else if err != nil {
			t.Errorf("shard %s: detach the leader's interface: %v", of, err)
		}
		_, err = server.CreateTags(ctx, &sdk.CreateTagsInput{Resources: []string{worker},
			Tags: []types.Tag{{Key: aws.String("nstance:shard"), Value: aws.String(shard)}}})
		check("tag a VM", err, "UnauthorizedOperation")
		in := a.launch(of, "nstance:managed", "true")
		in.DryRun = dry
		_, err = server.RunInstances(ctx, in)
		check("start a VM", err, want)
		in = a.launch(of, "nstance:managed", "true", "nstance:server", of)
		in.DryRun = dry
		_, err = server.RunInstances(ctx, in)
		check("start a VM with a server's tag", err, "UnauthorizedOperation")
	}
}

// TestServersStartVMsWithKeysForDisks starts VMs with encrypted disks under the module's policy. If ebs_kms_key_arns
// lacks the key of the disk, EC2 accepts the request, but then terminates the VM.
func TestServersStartVMsWithKeysForDisks(t *testing.T) {
	a := newTestAccount(t, nil)
	a.EC2().AddKey(fakeec2.Key{ARN: kms})
	start := func(role string, c choices) types.Instance {
		t.Helper()
		server, in := a.server(role, c), a.launch(shard, "nstance:managed", "true")
		in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"),
			Ebs: &types.EbsBlockDevice{Encrypted: aws.Bool(true), KmsKeyId: aws.String(kms)}}}
		out, err := server.RunInstances(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		var got types.Instance
		for range 3 { // Each call ends one transitional state.
			described, err := server.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{
				InstanceIds: []string{*out.Instances[0].InstanceId}})
			if err != nil {
				t.Fatal(err)
			}
			got = described.Reservations[0].Instances[0]
		}
		return got
	}
	if got := start("with", choices{diskKeys: []string{kms}}); got.State.Name != types.InstanceStateNameRunning {
		t.Errorf("with the key in the policy: %s, want running", got.State.Name)
	}
	if got := start("without", choices{}); got.State.Name != types.InstanceStateNameTerminated ||
		aws.ToString(got.StateReason.Code) != "Client.InternalError" {
		t.Errorf("without the key in the policy: %s, %+v, want terminated with Client.InternalError", got.State.Name,
			got.StateReason)
	}
	// The call succeeded. Nevertheless the fake must have recorded that a permission was denied.
	calls := a.Calls()
	i := slices.IndexFunc(calls, func(c fakeaws.Call) bool {
		return c.Principal.Role == "without" && c.Action == "RunInstances"
	})
	if i < 0 || calls[i].Code != "" || !slices.ContainsFunc(calls[i].Checks, func(c fakeaws.Check) bool {
		return c.Action == "kms:CreateGrant" && !c.Allowed
	}) {
		t.Errorf("the record of the call without permission: %+v", calls[i])
	}
}

// TestStolenCredentialsReachOnlyTheirShardsObjects uses the credentials of a shard's servers, as a thief would, on the
// objects of this shard and of another shard. The requests are signed, and the fake S3 evaluates the module's policy.
func TestStolenCredentialsReachOnlyTheirShardsObjects(t *testing.T) {
	if testing.Short() {
		t.Log("the real S3 server is left out of a short run")
		return
	}
	gateway, err := exec.CommandContext(t.Context(), "../../scripts/tool.sh", "versitygw").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend, stop, err := fakes3.Start(t.Context(), t.TempDir(), strings.TrimSpace(string(gateway)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop() })
	id, err := ident.ParseID("acc06bgm7733st2576nx5jht4ecjw")
	if err != nil {
		t.Fatal(err)
	}
	a, ctx := newTestAccount(t, &backend), t.Context()
	pathStyle := func(o *s3.Options) { o.UsePathStyle = true }
	root, name := s3.NewFromConfig(a.root(), pathStyle), strings.TrimPrefix(bucket, "arn:aws:s3:::")
	thief := s3.NewFromConfig(a.session("servers", choices{shardSecrets: []string{"own"}}), pathStyle)
	if _, err := root.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &name,
		CreateBucketConfiguration: &s3types.CreateBucketConfiguration{
			LocationConstraint: s3types.BucketLocationConstraintUsWest2}}); err != nil {
		t.Fatal(err)
	}
	write := func(client *s3.Client, key string) error {
		_, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: &name, Key: &key, Body: strings.NewReader("{}")})
		return err
	}
	check := func(what string, allowed bool, err error) {
		t.Helper()
		var answer smithy.APIError
		if allowed && err != nil || !allowed && (!errors.As(err, &answer) || answer.ErrorCode() != "AccessDenied") {
			t.Errorf("%s: %v, want allowed = %t", what, err, allowed)
		}
	}
	type object struct {
		key                    string
		reads, writes, deletes bool
	}
	objects := []object{
		{"cluster/ca.crt", true, true, false}, {"cluster/secret/own", true, false, false},
		{"cluster/secret/another", false, false, false}, {"other/file", false, false, false},
	}
	for of, own := range map[string]bool{shard: true, neighbour: false} {
		objects = append(objects, object{keys.Config(of), own, false, false}, object{keys.Groups(of), own, own, false},
			object{keys.Leader(of), own, own, false}, object{keys.Applied(of), own, own, false},
			object{keys.Instance(of, "default", id.Storage()), own, own, own},
			object{keys.Probe(of, "x"), own, own, own})
	}
	for _, o := range objects {
		if err := write(root, o.key); err != nil {
			t.Fatal(err)
		}
		_, err := thief.GetObject(ctx, &s3.GetObjectInput{Bucket: &name, Key: &o.key})
		check("read "+o.key, o.reads, err)
		check("write "+o.key, o.writes, write(thief, o.key))
		all, err := thief.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &name, Delete: &s3types.Delete{
			Objects: []s3types.ObjectIdentifier{{Key: &o.key}}}})
		if err == nil && len(all.Errors) > 0 {
			err = &smithy.GenericAPIError{Code: aws.ToString(all.Errors[0].Code)}
		}
		check("delete "+o.key+" in a list", o.deletes, err)
		if err := write(root, o.key); err != nil {
			t.Fatal(err)
		}
		_, err = thief.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &name, Key: &o.key})
		check("delete "+o.key, o.deletes, err)
	}
	for of, own := range map[string]bool{shard: true, neighbour: false} {
		prefix := keys.InstancePrefix(of)
		_, err := thief.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &name, Prefix: &prefix})
		check("list "+prefix, own, err)
	}
	// S3 reports that an object is missing only to callers that may list the whole bucket. So the policy must permit a
	// list without a prefix.
	_, err = thief.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &name})
	check("list all names", true, err)
	_, err = thief.ListObjectVersions(ctx, &s3.ListObjectVersionsInput{Bucket: &name})
	check("list versions", false, err)
	_, err = thief.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: &name, Policy: aws.String("{}")})
	check("change the bucket's policy", false, err)
}

// TestServersStartOnDedicatedHosts checks on which hosts a server may start VMs. If launch_resource_arns contains one
// host, servers may use every dedicated host, because EC2 checks only the tenancy. But a group of hosts must be listed
// itself.
func TestServersStartOnDedicatedHosts(t *testing.T) {
	a := newTestAccount(t, nil)
	host, hosts := a.EC2().AddHost(), "arn:aws:resource-groups:us-west-2:"+account+":group/hosts"
	placements := map[string]types.Placement{"a host": {HostId: &host, Tenancy: types.TenancyHost},
		"any host": {Tenancy: types.TenancyHost}, "a group of hosts": {HostResourceGroupArn: &hosts}}
	for _, test := range []struct {
		role    string
		listed  []string
		allowed []string
	}{
		{"nothing", nil, nil},
		{"template", []string{ec2 + "launch-template/lt-0a"}, nil},
		{"host", []string{ec2 + "dedicated-host/" + host}, []string{"a host", "any host"}},
		{"group", []string{hosts}, []string{"a host", "any host", "a group of hosts"}},
	} {
		server := a.server(test.role, choices{startWith: test.listed})
		for what, placement := range placements {
			in := a.launch(shard, "nstance:managed", "true")
			in.DryRun, in.Placement = aws.Bool(true), &placement
			want := "UnauthorizedOperation"
			if slices.Contains(test.allowed, what) {
				want = "DryRunOperation"
			}
			_, err := server.RunInstances(t.Context(), in)
			var answer smithy.APIError
			if !errors.As(err, &answer) || answer.ErrorCode() != want {
				t.Errorf("listed %v: start on %s: %v, want %s", test.listed, what, err, want)
			}
		}
	}
}
