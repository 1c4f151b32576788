package ec2

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func (f *testRegion) eni(id string) types.NetworkInterface {
	f.Helper()
	out := must(f.client.DescribeNetworkInterfaces(f.Context(), &sdk.DescribeNetworkInterfacesInput{
		NetworkInterfaceIds: []string{id}}))(f.T)
	return out.NetworkInterfaces[0]
}

func (f *testRegion) addInterface(subnet string) types.NetworkInterface {
	f.Helper()
	return *must(f.client.CreateNetworkInterface(f.Context(), &sdk.CreateNetworkInterfaceInput{SubnetId: &subnet,
		Groups: []string{f.group}}))(f.T).NetworkInterface
}

func (f *testRegion) attach(eni, instance string, index int32) (string, error) {
	out, err := f.client.AttachNetworkInterface(f.Context(), &sdk.AttachNetworkInterfaceInput{NetworkInterfaceId: &eni,
		InstanceId: &instance, DeviceIndex: &index})
	if err != nil {
		return "", err
	}
	return *out.AttachmentId, nil
}

func (f *testRegion) detach(attachment string, force bool) error {
	_, err := f.client.DetachNetworkInterface(f.Context(), &sdk.DetachNetworkInterfaceInput{AttachmentId: &attachment,
		Force: &force})
	return err
}

func TestCreateInterface(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	got := must(w.client.CreateNetworkInterface(ctx, &sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA,
		Description: aws.String("d")}))(t).NetworkInterface
	if got.Status != types.NetworkInterfaceStatusAvailable || *got.VpcId != w.vpc ||
		*got.AvailabilityZone != "us-west-2a" || !*got.SourceDestCheck || *got.RequesterManaged {
		t.Errorf("the interface: %+v", got)
	}
	if len(got.Groups) != 1 || *got.Groups[0].GroupName != "default" {
		t.Errorf("without groups it has %+v", got.Groups)
	}
	other := must(w.client.CreateVpc(ctx, &sdk.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")}))(t).Vpc
	foreign := must(w.client.CreateSecurityGroup(ctx, &sdk.CreateSecurityGroupInput{VpcId: other.VpcId,
		GroupName: aws.String("f"), Description: aws.String("f")}))(t).GroupId
	for name, c := range map[string]struct {
		in   sdk.CreateNetworkInterfaceInput
		want string
	}{
		"no subnet": {sdk.CreateNetworkInterfaceInput{SubnetId: aws.String("subnet-0")},
			"InvalidSubnetID.NotFound"},
		"no group": {sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA, Groups: []string{"sg-0"}},
			"InvalidGroup.NotFound"},
		"a group of another VPC": {sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA, Groups: []string{*foreign}},
			"InvalidParameter"},
		"two primary addresses": {sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA,
			PrivateIpAddresses: []types.PrivateIpAddressSpecification{
				{Primary: aws.Bool(true), PrivateIpAddress: aws.String("10.0.1.9")},
				{Primary: aws.Bool(true), PrivateIpAddress: aws.String("10.0.1.10")},
			}}, "InvalidParameterCombination"},
	} {
		_, err := w.client.CreateNetworkInterface(ctx, &c.in)
		want(t, name, err, c.want)
	}
	// A request may list the primary and the additional addresses in any order.
	several := must(w.client.CreateNetworkInterface(ctx, &sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA,
		PrivateIpAddresses: []types.PrivateIpAddressSpecification{
			{PrivateIpAddress: aws.String("10.0.1.20")}, {Primary: aws.Bool(true),
				PrivateIpAddress: aws.String("10.0.1.21")},
		}}))(t).NetworkInterface
	if *several.PrivateIpAddress != "10.0.1.21" || len(several.PrivateIpAddresses) != 2 ||
		*several.PrivateIpAddresses[1].PrivateIpAddress != "10.0.1.20" {
		t.Errorf("its addresses: %+v", several.PrivateIpAddresses)
	}
}

func TestAttach(t *testing.T) {
	w := newTestRegion(t, nil)
	a, b := *w.run(nil).InstanceId, *w.run(nil).InstanceId
	w.describe(a) // this call makes it running
	eni := *w.addInterface(w.subnetA).NetworkInterfaceId
	far := *w.addInterface(w.subnetB).NetworkInterfaceId
	for name, c := range map[string]struct {
		eni, instance string
		index         int32
		want          string
	}{
		"another zone":       {far, a, 1, "InvalidParameterCombination"},
		"the primary's slot": {eni, a, 0, "InvalidParameterValue"},
		"no interface":       {"eni-00000000000000000", a, 1, "InvalidNetworkInterfaceID.NotFound"},
		"no instance":        {eni, "i-00000000000000000", 1, "InvalidInstanceID.NotFound"},
	} {
		_, err := w.attach(c.eni, c.instance, c.index)
		want(t, name, err, c.want)
	}
	attachment := must(w.attach(eni, a, 1))(t)
	got := w.eni(eni)
	if got.Status != types.NetworkInterfaceStatusInUse || *got.Attachment.InstanceId != a ||
		got.Attachment.Status != types.AttachmentStatusAttached ||
		*got.Attachment.DeviceIndex != 1 || *got.Attachment.DeleteOnTermination ||
		*got.Attachment.AttachmentId != attachment {
		t.Errorf("attached: %+v", got.Attachment)
	}
	if n := len(w.describe(a).NetworkInterfaces); n != 2 {
		t.Errorf("the instance has %d interfaces", n)
	}
	_, err := w.attach(eni, b, 1)
	want(t, "a second attachment", err, "InvalidNetworkInterface.InUse")
	_, err = w.attach(eni, a, 1)
	want(t, "the same attachment again", err, "InvalidNetworkInterface.InUse")
	_, err = w.client.DeleteNetworkInterface(t.Context(), &sdk.DeleteNetworkInterfaceInput{NetworkInterfaceId: &eni})
	want(t, "deleting one that is attached", err, "InvalidParameterValue")
	_, err = w.attach(*w.addInterface(w.subnetA).NetworkInterfaceId, a, 2)
	want(t, "more than a t3.micro takes", err, "AttachmentLimitExceeded")

	primary := *w.describe(a).NetworkInterfaces[0].Attachment.AttachmentId
	want(t, "detaching the primary interface", w.detach(primary, true), "OperationNotPermitted")
	want(t, "detaching", w.detach(attachment, false), "")
	want(t, "detaching again", w.detach(attachment, false), "InvalidAttachmentID.NotFound")
	must(w.attach(eni, b, 1))(t)

	// When an instance terminates, its primary interface is deleted. Its additional interface becomes available.
	primary = *w.describe(b).NetworkInterfaces[0].NetworkInterfaceId
	must(w.client.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{InstanceIds: []string{b}}))(t)
	if got := w.eni(eni); got.Status != types.NetworkInterfaceStatusAvailable || got.Attachment != nil {
		t.Errorf("after the end of its instance: %+v", got)
	}
	_, err = w.client.DescribeNetworkInterfaces(t.Context(), &sdk.DescribeNetworkInterfacesInput{
		NetworkInterfaceIds: []string{primary}})
	want(t, "the primary interface of an ended instance", err, "InvalidNetworkInterfaceID.NotFound")
	_, err = w.attach(eni, b, 1)
	want(t, "attaching to an ended instance", err, "IncorrectState")
}

func TestAttachingTakesTime(t *testing.T) {
	w := newTestRegion(t, nil)
	id := *w.run(nil).InstanceId
	w.describe(id)
	w.service.SetAttaching(2 * time.Second)
	eni := *w.addInterface(w.subnetA).NetworkInterfaceId
	attachment := must(w.attach(eni, id, 1))(t)
	status := func(want types.AttachmentStatus) {
		t.Helper()
		if got := w.eni(eni).Attachment; got == nil || got.Status != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	status(types.AttachmentStatusAttaching)
	w.sleep(2 * time.Second)
	status(types.AttachmentStatusAttached)
	want(t, "detaching", w.detach(attachment, false), "")
	status(types.AttachmentStatusDetaching)
	want(t, "detaching while it is under way", w.detach(attachment, false), "")
	_, err := w.attach(eni, id, 1)
	want(t, "attaching before it is off", err, "InvalidNetworkInterface.InUse")
	w.sleep(2 * time.Second)
	if got := w.eni(eni); got.Attachment != nil || got.Status != types.NetworkInterfaceStatusAvailable {
		t.Errorf("detached: %+v", got)
	}
	attachment = must(w.attach(eni, id, 1))(t)
	want(t, "detaching while attaching", w.detach(attachment, false), "")
	want(t, "detaching by force", w.detach(attachment, true), "")
	if got := w.eni(eni); got.Attachment != nil {
		t.Errorf("detached by force: %+v", got.Attachment)
	}
}

// TestAttachAsks checks that AttachNetworkInterface needs permission for the interface and for the instance. Each of
// the two permission checks sees only the tags of its own resource.
func TestAttachAsks(t *testing.T) {
	w := newTestRegion(t, nil)
	id := *w.run(nil).InstanceId
	w.describe(id)
	eni := *w.addInterface(w.subnetA).NetworkInterfaceId
	must(w.client.CreateTags(t.Context(), &sdk.CreateTagsInput{Resources: []string{eni},
		Tags: []types.Tag{tag("role", "leader")}}))(t)
	w.asked = nil
	attachment := must(w.attach(eni, id, 1))(t)
	want(t, "detaching", w.detach(attachment, false), "")
	arn := "arn:aws:ec2:us-west-2:123456789012:"
	got := each(w.asked, func(a asked) string { return a.action + " " + a.resource })
	wanted := []string{
		"ec2:AttachNetworkInterface " + arn + "instance/" + id, "ec2:AttachNetworkInterface " + arn +
			"network-interface/" + eni,
		"ec2:DetachNetworkInterface " + arn + "instance/" + id, "ec2:DetachNetworkInterface " + arn +
			"network-interface/" + eni,
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if tags := w.asked[0].context["aws:ResourceTag/role"]; tags != nil {
		t.Errorf("the instance has the interface's tag: %v", tags)
	}
	for key, want := range map[string]string{
		"aws:ResourceTag/role": "leader", "ec2:ResourceTag/role": "leader", "ec2:AvailabilityZone": "us-west-2a",
		"ec2:Subnet": arn + "subnet/" + w.subnetA,
		"ec2:Vpc":    arn + "vpc/" + w.vpc, "ec2:NetworkInterfaceID": eni, "ec2:Region": "us-west-2",
	} {
		if diff := cmp.Diff([]string{want}, w.asked[1].context[key]); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
	w.deny = func(a asked) bool { return a.resource == arn+"instance/"+id }
	_, err := w.attach(eni, id, 1)
	want(t, "without permission on the instance", err, "UnauthorizedOperation")
	if got := w.eni(eni); got.Attachment != nil {
		t.Errorf("attached all the same: %+v", got.Attachment)
	}
}

// TestServiceInterface checks that an interface that a service manages counts as attached, and that callers cannot
// change it.
func TestServiceInterface(t *testing.T) {
	w := newTestRegion(t, nil)
	w.lock.Lock()
	made, err := w.service.CreateInterface(InterfaceSpec{Subnet: w.subnetA, Type: "network_load_balancer",
		Requester: "amazon-elb", Description: "ELB net/x/1"})
	w.lock.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	got := w.eni(made.ID())
	if !*got.RequesterManaged || got.Status != types.NetworkInterfaceStatusInUse ||
		got.InterfaceType != types.NetworkInterfaceTypeNetworkLoadBalancer ||
		*got.Attachment.InstanceOwnerId != "amazon-aws" {
		t.Errorf("the interface: %+v", got)
	}
	want(t, "detaching it", w.detach(*got.Attachment.AttachmentId, true), "OperationNotPermitted")
	_, err = w.client.DeleteNetworkInterface(t.Context(), &sdk.DeleteNetworkInterfaceInput{
		NetworkInterfaceId: got.NetworkInterfaceId})
	want(t, "deleting it", err, "InvalidParameterValue")
}
