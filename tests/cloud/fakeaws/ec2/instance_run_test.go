package ec2

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func TestRunInstances(t *testing.T) {
	w := newTestRegion(t, nil)
	got := w.run(func(in *sdk.RunInstancesInput) {
		in.ClientToken = aws.String("token-1")
		in.UserData = encode("#!/bin/sh\n")
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String("agent")}
		in.MetadataOptions = &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired,
			HttpPutResponseHopLimit: aws.Int32(2)}
		in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"),
			Ebs: &types.EbsBlockDevice{VolumeSize: aws.Int32(20), Encrypted: aws.Bool(true)}}}
		in.TagSpecifications = []types.TagSpecification{
			{ResourceType: types.ResourceTypeInstance, Tags: []types.Tag{{Key: aws.String("Name"),
				Value: aws.String("a")}}},
			{ResourceType: types.ResourceTypeVolume, Tags: []types.Tag{{Key: aws.String("of"),
				Value: aws.String("a")}}},
			{ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{{Key: aws.String("nic"),
				Value: aws.String("a")}}},
		}
	})
	if got.State.Name != types.InstanceStateNamePending {
		t.Errorf("a new instance is %s", got.State.Name)
	}
	got = w.describe(*got.InstanceId)
	want := map[string]string{
		"state": "running", "token": "token-1", "tokens": "required", "zone": "us-west-2a", "subnet": w.subnetA,
		"vpc": w.vpc, "name": "ip-10-0-1-4.us-west-2.compute.internal",
		"address": "10.0.1.4", "profile": "arn:aws:iam::123456789012:instance-profile/agent", "image": w.amd,
		"type": "t3.micro", "lifecycle": "",
	}
	have := map[string]string{
		"state": string(got.State.Name), "token": *got.ClientToken, "tokens": string(got.MetadataOptions.HttpTokens),
		"zone":   *got.Placement.AvailabilityZone,
		"subnet": *got.SubnetId, "vpc": *got.VpcId, "name": *got.PrivateDnsName, "address": *got.PrivateIpAddress,
		"profile": *got.IamInstanceProfile.Arn,
		"image":   *got.ImageId, "type": string(got.InstanceType), "lifecycle": string(got.InstanceLifecycle),
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("the instance (-want +got):\n%s", diff)
	}
	if len(got.NetworkInterfaces) != 1 || *got.NetworkInterfaces[0].Attachment.DeviceIndex != 0 ||
		!*got.NetworkInterfaces[0].Attachment.DeleteOnTermination {
		t.Errorf("interfaces: %+v", got.NetworkInterfaces)
	}
	w.service.mu.Lock()
	made := w.service.instances[*got.InstanceId]
	disk := w.service.volumes[made.volumes[0]]
	if len(made.volumes) != 1 || disk.size != 20 || !disk.encrypted || w.service.Tags(disk.id)["of"] != "a" {
		t.Errorf("volumes: %v, %+v", made.volumes, disk)
	}
	if string(made.userdata) != "#!/bin/sh\n" {
		t.Errorf("user data: %s", made.userdata)
	}
	w.service.mu.Unlock()
	interfaces := must(w.client.DescribeNetworkInterfaces(t.Context(), &sdk.DescribeNetworkInterfacesInput{}))(t)
	if len(interfaces.NetworkInterfaces) != 1 || *interfaces.NetworkInterfaces[0].TagSet[0].Key != "nic" {
		t.Errorf("network interfaces: %+v", interfaces.NetworkInterfaces)
	}
}

func TestRunInstancesRefusals(t *testing.T) {
	w := newTestRegion(t, nil)
	small := w.addSubnet("10.0.3.0/28", "us-west-2a")
	elsewhere := must(w.client.CreateVpc(t.Context(), &sdk.CreateVpcInput{CidrBlock: aws.String("10.9.0.0/16")}))(t)
	foreign := must(w.client.CreateSecurityGroup(t.Context(), &sdk.CreateSecurityGroupInput{GroupName: aws.String("x"),
		Description: aws.String("x"), VpcId: elsewhere.Vpc.VpcId}))(t)
	w.service.WithoutType("m7g.large", "us-west-2a")
	cases := map[string]struct {
		change func(in *sdk.RunInstancesInput)
		want   string
	}{
		"no such image": {func(in *sdk.RunInstancesInput) {
			in.ImageId = aws.String("ami-00000000000000000")
		}, "InvalidAMIID.NotFound"},
		"no image ID": {func(in *sdk.RunInstancesInput) {
			in.ImageId = aws.String("debian-12")
		}, "InvalidAMIID.Malformed"},
		"no such subnet": {func(in *sdk.RunInstancesInput) {
			in.SubnetId = aws.String("subnet-00000000000000000")
		}, "InvalidSubnetID.NotFound"},
		"no such group": {func(in *sdk.RunInstancesInput) {
			in.SecurityGroupIds = []string{"sg-00000000000000000"}
		}, "InvalidGroup.NotFound"},
		"a foreign group": {func(in *sdk.RunInstancesInput) {
			in.SecurityGroupIds = []string{*foreign.GroupId}
		}, "InvalidParameter"},
		"no such type": {func(in *sdk.RunInstancesInput) {
			in.InstanceType = "t9.huge"
		}, "InvalidParameterValue"},
		"another architecture": {func(in *sdk.RunInstancesInput) {
			in.InstanceType = types.InstanceTypeM7gLarge
		}, "InvalidParameterValue"},
		"a type that the zone lacks": {func(in *sdk.RunInstancesInput) {
			in.InstanceType, in.ImageId = types.InstanceTypeM7gLarge, &w.arm
		}, "Unsupported"},
		"no such key": {func(in *sdk.RunInstancesInput) {
			in.KeyName = aws.String("mine")
		}, "InvalidKeyPair.NotFound"},
		"too much user data": {func(in *sdk.RunInstancesInput) {
			in.UserData = encode(strings.Repeat("x", 16<<10+1))
		}, "InvalidParameterValue"},
		"user data as it is": {func(in *sdk.RunInstancesInput) {
			in.UserData = aws.String("#!/bin/sh")
		}, "InvalidUserData.Malformed"},
		"a full subnet": {func(in *sdk.RunInstancesInput) {
			in.SubnetId, in.MinCount, in.MaxCount = &small, aws.Int32(12), aws.Int32(12)
		}, "InsufficientFreeAddressesInSubnet"},
		"more than the most": {func(in *sdk.RunInstancesInput) { in.MinCount = aws.Int32(2) }, "InvalidParameterValue"},
		"a long token": {func(in *sdk.RunInstancesInput) {
			in.ClientToken = aws.String(strings.Repeat("t", 65))
		}, "InvalidClientToken"},
		"an unknown device": {func(in *sdk.RunInstancesInput) {
			in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/sdb"),
				Ebs: &types.EbsBlockDevice{VolumeType: types.VolumeTypeGp3}}}
		}, "MissingParameter"},
		"a root that shrinks": {func(in *sdk.RunInstancesInput) {
			in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"),
				Ebs: &types.EbsBlockDevice{VolumeSize: aws.Int32(4)}}}
		}, "InvalidBlockDeviceMapping"},
		"groups in two places": {func(in *sdk.RunInstancesInput) {
			in.SubnetId = nil
			in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{{DeviceIndex: aws.Int32(0),
				SubnetId: &w.subnetA}}
		}, "InvalidParameterCombination"},
		"a tag of AWS's": {func(in *sdk.RunInstancesInput) {
			in.TagSpecifications = []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
				Tags: []types.Tag{{Key: aws.String("aws:x"), Value: aws.String("y")}}}}
		}, "InvalidParameterValue"},
		"a tag of a spot request that is not made": {func(in *sdk.RunInstancesInput) {
			in.TagSpecifications = []types.TagSpecification{{ResourceType: types.ResourceTypeSpotInstancesRequest,
				Tags: []types.Tag{{Key: aws.String("x"), Value: aws.String("y")}}}}
		}, "InvalidParameterValue"},
		"spot that stops but is asked for once": {func(in *sdk.RunInstancesInput) {
			in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot,
				SpotOptions: &types.SpotMarketOptions{
					InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorStop}}
		}, "InvalidParameterCombination"},
		"credits of a type without": {func(in *sdk.RunInstancesInput) {
			in.InstanceType, in.CreditSpecification = types.InstanceTypeM6iLarge,
				&types.CreditSpecificationRequest{CpuCredits: aws.String("standard")}
		}, "InvalidParameterCombination"},
		"another zone than the subnet's": {func(in *sdk.RunInstancesInput) {
			in.Placement = &types.Placement{AvailabilityZone: aws.String("us-west-2b")}
		}, "InvalidParameterCombination"},
		"no subnet":   {func(in *sdk.RunInstancesInput) { in.SubnetId = nil }, "VPCIdNotSpecified"},
		"a rehearsal": {func(in *sdk.RunInstancesInput) { in.DryRun = aws.Bool(true) }, "DryRunOperation"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := w.input()
			tc.change(in)
			_, err := w.client.RunInstances(t.Context(), in)
			if got := code(t, err); got != tc.want {
				t.Errorf("got %q (%v), want %q", got, err, tc.want)
			}
		})
	}
	if left := must(w.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{}))(t); len(
		left.Reservations) != 0 {
		t.Errorf("refused launches left %d reservations", len(left.Reservations))
	}
	if left := must(w.client.DescribeNetworkInterfaces(t.Context(), &sdk.DescribeNetworkInterfacesInput{}))(t); len(
		left.NetworkInterfaces) != 0 {
		t.Errorf("refused launches left %d network interfaces", len(left.NetworkInterfaces))
	}
}

func TestClientTokens(t *testing.T) {
	w := newTestRegion(t, nil)
	with := func(change func(in *sdk.RunInstancesInput)) (*sdk.RunInstancesOutput, error) {
		in := w.input()
		in.ClientToken = aws.String("token")
		if change != nil {
			change(in)
		}
		return w.client.RunInstances(t.Context(), in)
	}
	first := must(with(nil))(t)
	again := must(with(nil))(t)
	if *again.ReservationId != *first.ReservationId ||
		*again.Instances[0].InstanceId != *first.Instances[0].InstanceId {
		t.Errorf("the same request made %s and %s", *first.Instances[0].InstanceId, *again.Instances[0].InstanceId)
	}
	if again.Instances[0].State.Name != types.InstanceStateNameRunning {
		t.Errorf("the repeated answer tells the state %s, not the present one", again.Instances[0].State.Name)
	}
	changes := map[string]func(in *sdk.RunInstancesInput){
		"type":      func(in *sdk.RunInstancesInput) { in.InstanceType = types.InstanceTypeT3Small },
		"user data": func(in *sdk.RunInstancesInput) { in.UserData = encode("x") },
		"tags": func(in *sdk.RunInstancesInput) {
			in.TagSpecifications = []types.TagSpecification{{ResourceType: types.ResourceTypeInstance,
				Tags: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}}
		},
		"count": func(in *sdk.RunInstancesInput) { in.MaxCount = aws.Int32(2) },
	}
	for name, change := range changes {
		if _, err := with(change); code(t, err) != "IdempotentParameterMismatch" {
			t.Errorf("another %s: %v", name, err)
		}
	}
	// Tokens are zonal: the same token in another zone launches another instance.
	other := must(with(func(in *sdk.RunInstancesInput) { in.SubnetId = &w.subnetB }))(t)
	if *other.Instances[0].InstanceId == *first.Instances[0].InstanceId {
		t.Error("the token held in another zone")
	}
	must(w.client.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{
		InstanceIds: []string{*first.Instances[0].InstanceId}}))(t)
	if _, err := with(nil); code(t, err) != "IdempotentInstanceTerminated" {
		t.Errorf("the token of a terminated instance: %v", err)
	}
	w.sleep(2 * time.Hour)
	if _, err := with(nil); code(t, err) != "IdempotentInstanceTerminated" {
		t.Errorf("the token of a forgotten instance: %v", err)
	}
	w.sleep(23 * time.Hour)
	anew := must(with(nil))(t)
	if *anew.Instances[0].InstanceId == *first.Instances[0].InstanceId {
		t.Error("a day later the token still stands for the old instance")
	}
}

func TestCapacity(t *testing.T) {
	w := newTestRegion(t, nil)
	w.faults.NoCapacity("t3.micro", "us-west-2a", "", "InsufficientInstanceCapacity")
	if _, err := w.client.RunInstances(t.Context(), w.input()); code(t, err) != "InsufficientInstanceCapacity" {
		t.Errorf("without capacity: %v", err)
	}
	w.run(func(in *sdk.RunInstancesInput) { in.SubnetId = &w.subnetB })
	w.run(func(in *sdk.RunInstancesInput) { in.InstanceType = types.InstanceTypeT3Small })
	w.faults.Clear()
	w.service.SetLimits(6, 1)
	first := w.run(nil)
	if _, err := w.client.RunInstances(t.Context(), w.input()); code(t, err) != "VcpuLimitExceeded" {
		t.Errorf("beyond the vCPU limit: %v", err)
	}
	spot := func(in *sdk.RunInstancesInput) {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot}
	}
	w.run(spot)
	in := w.input()
	spot(in)
	if _, err := w.client.RunInstances(t.Context(), in); code(t, err) != "MaxSpotInstanceCountExceeded" {
		t.Errorf("beyond the spot limit: %v", err)
	}
	must(w.client.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{
		InstanceIds: []string{*first.InstanceId}}))(t)
	w.run(nil)
}

func TestRunSeveral(t *testing.T) {
	w := newTestRegion(t, nil)
	small := w.addSubnet("10.0.3.0/28", "us-west-2a")
	in := w.input()
	in.SubnetId, in.MinCount, in.MaxCount = &small, aws.Int32(3), aws.Int32(20)
	out := must(w.client.RunInstances(t.Context(), in))(t)
	if len(out.Instances) != 11 { // a /28 has 16 addresses, and AWS reserves 5
		t.Errorf("%d instances", len(out.Instances))
	}
	for n, i := range out.Instances {
		if int(*i.AmiLaunchIndex) != n {
			t.Errorf("the index of number %d is %d", n, *i.AmiLaunchIndex)
		}
	}
	ids := slices.Sorted(func(yield func(string) bool) {
		for _, i := range out.Instances {
			if !yield(*i.InstanceId) {
				return
			}
		}
	})
	// Read pages of five instances with the SDK's own paginator.
	var found []string
	pages := sdk.NewDescribeInstancesPaginator(w.client, &sdk.DescribeInstancesInput{MaxResults: aws.Int32(5)})
	count := 0
	for pages.HasMorePages() {
		page := must(pages.NextPage(t.Context()))(t)
		count++
		for _, r := range page.Reservations {
			for _, i := range r.Instances {
				found = append(found, *i.InstanceId)
			}
		}
	}
	slices.Sort(found)
	if diff := cmp.Diff(ids, found); diff != "" || count != 3 {
		t.Errorf("%d pages (-want +got):\n%s", count, diff)
	}
}

func TestNetworkInterfaces(t *testing.T) {
	w := newTestRegion(t, nil)
	eni := must(w.client.CreateNetworkInterface(t.Context(), &sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA,
		PrivateIpAddress: aws.String("10.0.1.200")}))(t)
	got := w.run(func(in *sdk.RunInstancesInput) {
		in.SubnetId, in.SecurityGroupIds = nil, nil
		in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{
			{DeviceIndex: aws.Int32(1), NetworkInterfaceId: eni.NetworkInterface.NetworkInterfaceId},
			{DeviceIndex: aws.Int32(0), SubnetId: &w.subnetA, Groups: []string{w.group},
				PrivateIpAddress: aws.String("10.0.1.100"), Description: aws.String("primary")},
		}
	})
	if *got.PrivateIpAddress != "10.0.1.100" || len(got.NetworkInterfaces) != 2 ||
		*got.NetworkInterfaces[1].PrivateIpAddress != "10.0.1.200" {
		t.Errorf("the instance has %+v", got.NetworkInterfaces)
	}
	if *got.NetworkInterfaces[1].Attachment.DeleteOnTermination {
		t.Error("an interface that was there before goes with the instance")
	}
	must(w.client.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{
		InstanceIds: []string{*got.InstanceId}}))(t)
	left := must(w.client.DescribeNetworkInterfaces(t.Context(), &sdk.DescribeNetworkInterfacesInput{}))(t)
	if len(left.NetworkInterfaces) != 2 { // still shutting down: the next call finds it terminated
		t.Logf("%d interfaces while shutting down", len(left.NetworkInterfaces))
	}
	w.describe(*got.InstanceId)
	left = must(w.client.DescribeNetworkInterfaces(t.Context(), &sdk.DescribeNetworkInterfacesInput{}))(t)
	if len(left.NetworkInterfaces) != 1 || left.NetworkInterfaces[0].Status != types.NetworkInterfaceStatusAvailable {
		t.Errorf("after the end: %+v", left.NetworkInterfaces)
	}
	public := w.run(func(in *sdk.RunInstancesInput) {
		in.SubnetId, in.SecurityGroupIds = nil, nil
		in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{{DeviceIndex: aws.Int32(0),
			SubnetId: &w.subnetA, AssociatePublicIpAddress: aws.Bool(true)}}
	})
	if public.PublicIpAddress == nil {
		t.Error("no public address")
	}
}
