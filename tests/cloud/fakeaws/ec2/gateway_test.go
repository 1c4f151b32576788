package ec2

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

func (f *testRegion) addAddress() string {
	f.Helper()
	return *must(f.client.AllocateAddress(f.Context(), &sdk.AllocateAddressInput{Domain: types.DomainTypeVpc}))(
		f.T).AllocationId
}

func (f *testRegion) address(id string) types.Address {
	f.Helper()
	return must(f.client.DescribeAddresses(f.Context(), &sdk.DescribeAddressesInput{AllocationIds: []string{id}}))(
		f.T).Addresses[0]
}

func TestInternetGateway(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	id := w.addGateway()
	got := must(w.client.DescribeInternetGateways(ctx, &sdk.DescribeInternetGatewaysInput{
		Filters: by("attachment.vpc-id", w.vpc)}))(t).InternetGateways
	if len(got) != 1 || got[0].Attachments[0].State != "available" {
		t.Errorf("the VPC's gateways: %+v", got)
	}
	attach := func(id string) error {
		_, err := w.client.AttachInternetGateway(ctx, &sdk.AttachInternetGatewayInput{InternetGatewayId: &id,
			VpcId: &w.vpc})
		return err
	}
	detach := func() error {
		_, err := w.client.DetachInternetGateway(ctx, &sdk.DetachInternetGatewayInput{InternetGatewayId: &id,
			VpcId: &w.vpc})
		return err
	}
	other := must(w.client.CreateInternetGateway(ctx, &sdk.CreateInternetGatewayInput{}))(
		t).InternetGateway.InternetGatewayId
	want(t, "attaching again", attach(id), "Resource.AlreadyAssociated")
	want(t, "a second gateway", attach(*other), "InvalidParameterValue")
	_, err := w.client.DeleteInternetGateway(ctx, &sdk.DeleteInternetGatewayInput{InternetGatewayId: &id})
	want(t, "deleting one that is attached", err, "DependencyViolation")
	address := w.addAddress()
	nat := must(w.client.CreateNatGateway(ctx, &sdk.CreateNatGatewayInput{SubnetId: &w.subnetA,
		AllocationId: &address}))(t).NatGateway.NatGatewayId
	want(t, "detaching with a mapped address", detach(), "DependencyViolation")
	must(w.client.DeleteNatGateway(ctx, &sdk.DeleteNatGatewayInput{NatGatewayId: nat}))(t)
	want(t, "detaching", detach(), "")
	want(t, "detaching again", detach(), "Gateway.NotAttached")
}

// TestEgressGateway makes, describes and deletes a gateway. After that, describing the gateway gives an empty answer,
// and deleting it gives an error.
func TestEgressGateway(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	id := must(w.client.CreateEgressOnlyInternetGateway(ctx, &sdk.CreateEgressOnlyInternetGatewayInput{VpcId: &w.vpc}))(
		t).EgressOnlyInternetGateway.EgressOnlyInternetGatewayId
	describe := func() []types.EgressOnlyInternetGateway {
		in := &sdk.DescribeEgressOnlyInternetGatewaysInput{EgressOnlyInternetGatewayIds: []string{*id}}
		return must(w.client.DescribeEgressOnlyInternetGateways(ctx, in))(t).EgressOnlyInternetGateways
	}
	if got := describe(); len(got) != 1 || got[0].Attachments[0].State != types.AttachmentStatusAttached {
		t.Errorf("the gateway: %+v", got)
	}
	remove := func() error {
		_, err := w.client.DeleteEgressOnlyInternetGateway(ctx, &sdk.DeleteEgressOnlyInternetGatewayInput{
			EgressOnlyInternetGatewayId: id})
		return err
	}
	want(t, "deleting", remove(), "")
	want(t, "deleting again", remove(), "InvalidGatewayID.NotFound")
	if got := describe(); len(got) != 0 {
		t.Errorf("still there: %+v", got)
	}
}

func TestNATGateway(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	address := w.addAddress()
	in := &sdk.CreateNatGatewayInput{SubnetId: &w.subnetA, AllocationId: &address, ClientToken: aws.String("once")}
	_, err := w.client.CreateNatGateway(ctx, in)
	want(t, "without an internet gateway", err, "Gateway.NotAttached")
	w.addGateway()
	room := *w.subnet(w.subnetA).AvailableIpAddressCount
	made := must(w.client.CreateNatGateway(ctx, in))(t).NatGateway
	if made.State != types.NatGatewayStatePending {
		t.Errorf("the new gateway is %s", made.State)
	}
	if again := must(w.client.CreateNatGateway(ctx, in))(t).NatGateway; *again.NatGatewayId != *made.NatGatewayId {
		t.Error("made twice by one token")
	}
	describe := func() (*types.NatGateway, error) {
		out, err := w.client.DescribeNatGateways(ctx, &sdk.DescribeNatGatewaysInput{
			NatGatewayIds: []string{*made.NatGatewayId}})
		if err != nil {
			return nil, err
		}
		return &out.NatGateways[0], nil
	}
	got := must(describe())(t)
	a := got.NatGatewayAddresses[0]
	if got.State != types.NatGatewayStateAvailable || *a.AllocationId != address ||
		*a.PublicIp != *w.address(address).PublicIp || *got.VpcId != w.vpc {
		t.Errorf("the gateway: %+v", got)
	}
	eni := w.eni(*a.NetworkInterfaceId)
	if eni.InterfaceType != "nat_gateway" || *eni.SourceDestCheck || eni.Status != types.NetworkInterfaceStatusInUse ||
		*eni.PrivateIpAddress != *a.PrivateIp {
		t.Errorf("its interface: %+v", eni)
	}
	if left := *w.subnet(w.subnetA).AvailableIpAddressCount; left != room-1 {
		t.Errorf("room for %d after %d", left, room)
	}
	for name, c := range map[string]struct {
		in   sdk.CreateNatGatewayInput
		want string
	}{
		"the address in use": {sdk.CreateNatGatewayInput{SubnetId: &w.subnetB, AllocationId: &address},
			"Resource.AlreadyAssociated"},
		"no address": {sdk.CreateNatGatewayInput{SubnetId: &w.subnetB}, "MissingParameter"},
		"a private one's": {sdk.CreateNatGatewayInput{SubnetId: &w.subnetB, AllocationId: &address,
			ConnectivityType: "private"}, "InvalidParameterCombination"},
		"another token use": {sdk.CreateNatGatewayInput{SubnetId: &w.subnetB, AllocationId: &address,
			ClientToken: aws.String("once")}, "IdempotentParameterMismatch"},
	} {
		_, err := w.client.CreateNatGateway(ctx, &c.in)
		want(t, name, err, c.want)
	}
	_, err = w.client.ReleaseAddress(ctx, &sdk.ReleaseAddressInput{AllocationId: &address})
	want(t, "releasing the address in use", err, "InvalidIPAddress.InUse")
	_, err = w.client.DisassociateAddress(ctx, &sdk.DisassociateAddressInput{AssociationId: a.AssociationId})
	want(t, "taking the address away", err, "AuthFailure")

	// The NAT gateway is deleted immediately, but visible for an hour.
	must(w.client.DeleteNatGateway(ctx, &sdk.DeleteNatGatewayInput{NatGatewayId: made.NatGatewayId}))(t)
	if got := must(describe())(t); got.State != types.NatGatewayStateDeleted || got.DeleteTime == nil ||
		len(got.NatGatewayAddresses) != 1 {
		t.Errorf("deleted: %+v", got)
	}
	if left := *w.subnet(w.subnetA).AvailableIpAddressCount; left != room {
		t.Errorf("room for %d after the end", left)
	}
	must(w.client.ReleaseAddress(ctx, &sdk.ReleaseAddressInput{AllocationId: &address}))(t)
	w.sleep(natVisible + time.Second)
	_, err = describe()
	want(t, "an hour later", err, "NatGatewayNotFound")
}

func TestAddresses(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	w.addGateway()
	ids := make([]string, defaultAddressLimit)
	for i := range ids {
		ids[i] = w.addAddress()
	}
	_, err := w.client.AllocateAddress(ctx, &sdk.AllocateAddressInput{})
	want(t, "one more than five", err, "AddressLimitExceeded")
	w.service.SetAddressLimit(6)
	w.addAddress()

	attributes := must(w.client.DescribeAddressesAttribute(ctx, &sdk.DescribeAddressesAttributeInput{
		AllocationIds: ids[:1], Attribute: types.AddressAttributeNameDomainName}))(t)
	if len(attributes.Addresses) != 1 || attributes.Addresses[0].PtrRecord != nil {
		t.Errorf("attributes: %+v", attributes.Addresses)
	}
	must(w.client.ReleaseAddress(ctx, &sdk.ReleaseAddressInput{AllocationId: &ids[0]}))(t)
	_, err = w.client.ReleaseAddress(ctx, &sdk.ReleaseAddressInput{AllocationId: &ids[0]})
	want(t, "releasing again", err, "InvalidAllocationID.NotFound")
}
