package modules

import (
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fakeec2 "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
)

// TestServersStartVMsWithKeysForDisks starts VMs with encrypted disks in the fake AWS, with the module's policy. Without
// the key in ebs_kms_key_arns, EC2 accepts the request and terminates the VM.
func TestServersStartVMsWithKeysForDisks(t *testing.T) {
	cloud, err := fakeaws.New(fakeaws.Config{Region: "us-west-2"})
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
	config := func(access, secret, token string) aws.Config {
		return aws.Config{Region: cloud.Region(), BaseEndpoint: &server.URL,
			Credentials: credentials.NewStaticCredentialsProvider(access, secret, token)}
	}
	access, secret := cloud.Credentials()
	root := config(access, secret, "")
	ctx, network := t.Context(), sdk.NewFromConfig(root)
	made, err := network.CreateVpc(ctx, &sdk.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := network.CreateSubnet(ctx, &sdk.CreateSubnetInput{VpcId: made.Vpc.VpcId,
		CidrBlock: aws.String("10.0.1.0/24"), AvailabilityZone: aws.String(shard)})
	if err != nil {
		t.Fatal(err)
	}
	image := cloud.EC2().AddImage(fakeec2.AMI{Name: "agent"})
	cloud.EC2().AddKey(fakeec2.Key{ARN: kms})

	start := func(role string, c choices) types.Instance {
		t.Helper()
		client := iam.NewFromConfig(root)
		if _, err := client.CreateRole(ctx, &iam.CreateRoleInput{RoleName: &role, AssumeRolePolicyDocument: aws.String(
			`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},` +
				`"Action":"sts:AssumeRole"}]}`)}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.PutRolePolicy(ctx, &iam.PutRolePolicyInput{RoleName: &role, PolicyName: &role,
			PolicyDocument: aws.String(c.text(t))}); err != nil {
			t.Fatal(err)
		}
		compute := sdk.NewFromConfig(config(cloud.RoleCredentials(role, "server")))
		tags := []types.Tag{{Key: aws.String("nstance:cluster"), Value: aws.String("example")},
			{Key: aws.String("nstance:shard"), Value: aws.String(shard)},
			{Key: aws.String("nstance:managed"), Value: aws.String("true")}}
		in := &sdk.RunInstancesInput{ImageId: &image, InstanceType: types.InstanceTypeT3Small, MinCount: aws.Int32(1),
			MaxCount: aws.Int32(1), SubnetId: subnet.Subnet.SubnetId,
			MetadataOptions: &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired},
			BlockDeviceMappings: []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"),
				Ebs: &types.EbsBlockDevice{Encrypted: aws.Bool(true), KmsKeyId: aws.String(kms)}}}}
		for _, kind := range []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume,
			types.ResourceTypeNetworkInterface} {
			in.TagSpecifications = append(in.TagSpecifications, types.TagSpecification{ResourceType: kind, Tags: tags})
		}
		out, err := compute.RunInstances(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		var got types.Instance
		for range 3 { // Each call ends one transitional state.
			described, err := compute.DescribeInstances(ctx, &sdk.DescribeInstancesInput{
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
	// The denial is in the record of the call, although the call succeeded.
	calls := cloud.Calls()
	i := slices.IndexFunc(calls, func(c fakeaws.Call) bool {
		return c.Principal.Role == "without" && c.Action == "RunInstances"
	})
	if i < 0 || calls[i].Code != "" || !slices.ContainsFunc(calls[i].Checks, func(c fakeaws.Check) bool {
		return c.Action == "kms:CreateGrant" && !c.Allowed
	}) {
		t.Errorf("the record of the call without permission: %+v", calls[i])
	}
}
