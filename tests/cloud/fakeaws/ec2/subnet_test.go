package ec2

import (
	"net/netip"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// block6 returns an IPv6 block inside the VPC's block. Its prefix has the length `bits`. n is the last byte of the
// block's first /64 prefix.
func (f *testRegion) block6(n byte, bits int) string {
	f.Helper()
	v := must(f.client.DescribeVpcs(f.Context(), &sdk.DescribeVpcsInput{VpcIds: []string{f.vpc}}))(f.T).Vpcs[0]
	b := netip.MustParsePrefix(*v.Ipv6CidrBlockAssociationSet[0].Ipv6CidrBlock).Addr().As16()
	b[7] = n
	return netip.PrefixFrom(netip.AddrFrom16(b), bits).String()
}

func (f *testRegion) subnet(id string) types.Subnet {
	f.Helper()
	return must(f.client.DescribeSubnets(f.Context(), &sdk.DescribeSubnetsInput{SubnetIds: []string{id}}))(
		f.T).Subnets[0]
}

func TestSubnetBlocks(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	must(w.client.CreateSubnet(ctx, &sdk.CreateSubnetInput{VpcId: &w.vpc, CidrBlock: aws.String("10.0.64.0/24"),
		Ipv6CidrBlock: aws.String(w.block6(9, 64))}))(t)
	for name, c := range map[string]struct {
		in   sdk.CreateSubnetInput
		want string
	}{
		"outside of the VPC":  {sdk.CreateSubnetInput{CidrBlock: aws.String("10.1.0.0/24")}, "InvalidSubnet.Range"},
		"larger than the VPC": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.0.0/15")}, "InvalidSubnet.Range"},
		"too small":           {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.9.0/29")}, "InvalidSubnet.Range"},
		"overlapping": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.0.0/22")},
			"InvalidSubnet.Conflict"},
		"the same": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.1.0/24")},
			"InvalidSubnet.Conflict"},
		"no block": {sdk.CreateSubnetInput{}, "MissingParameter"},
		"no CIDR":  {sdk.CreateSubnetInput{CidrBlock: aws.String("ten")}, "InvalidParameterValue"},
		"no zone": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.9.0/24"),
			AvailabilityZone: aws.String("us-east-1a")}, "InvalidParameterValue"},
		"no VPC": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.9.0/24"),
			VpcId: aws.String("vpc-0")}, "InvalidVpcID.NotFound"},
		"IPv6 conflict": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.9.0/24"),
			Ipv6CidrBlock: aws.String(w.block6(9, 64))}, "InvalidSubnet.Conflict"},
		"IPv6 outside": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.9.0/24"),
			Ipv6CidrBlock: aws.String("2a00::/64")}, "InvalidSubnet.Range"},
		"IPv6 between the steps": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.9.0/24"),
			Ipv6CidrBlock: aws.String(w.block6(2, 63))}, "InvalidSubnet.Range"},
		"IPv6-only with IPv4": {sdk.CreateSubnetInput{CidrBlock: aws.String("10.0.9.0/24"),
			Ipv6Native: aws.Bool(true)}, "InvalidParameterCombination"},
		"IPv6-only without any": {sdk.CreateSubnetInput{Ipv6Native: aws.Bool(true)}, "MissingParameter"},
	} {
		if c.in.VpcId == nil {
			c.in.VpcId = &w.vpc
		}
		_, err := w.client.CreateSubnet(ctx, &c.in)
		want(t, name, err, c.want)
	}
	got := w.subnet(w.addSubnet("10.0.9.7/24", "us-west-2c"))
	if *got.CidrBlock != "10.0.9.0/24" || *got.AvailabilityZoneId != "usw2-az3" ||
		got.State != types.SubnetStateAvailable || *got.AvailableIpAddressCount != 251 {
		t.Errorf("the subnet: %+v", got)
	}
}

// TestSubnetRoom checks that a /28 has 16 addresses, of which AWS reserves 5.
func TestSubnetRoom(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	id := w.addSubnet("10.0.16.0/28", "us-west-2a")
	create := func(address string, further int32) (*types.NetworkInterface, error) {
		in := &sdk.CreateNetworkInterfaceInput{SubnetId: &id}
		if address != "" {
			in.PrivateIpAddress = &address
		}
		if further > 0 {
			in.SecondaryPrivateIpAddressCount = &further
		}
		out, err := w.client.CreateNetworkInterface(ctx, in)
		if err != nil {
			return nil, err
		}
		return out.NetworkInterface, nil
	}
	room := func(n int32) {
		t.Helper()
		if got := *w.subnet(id).AvailableIpAddressCount; got != n {
			t.Errorf("room for %d, want %d", got, n)
		}
	}
	room(11)
	for address, wanted := range map[string]string{
		"10.0.16.0": "InvalidParameterValue", "10.0.16.3": "InvalidParameterValue",
		"10.0.16.15": "InvalidParameterValue", "10.0.16.16": "InvalidParameterValue",
		"10.0.1.9": "InvalidParameterValue", "x": "InvalidParameterValue", "::1": "InvalidParameterValue",
	} {
		_, err := create(address, 0)
		want(t, address, err, wanted)
	}
	first := must(create("10.0.16.9", 0))(t)
	_, err := create("10.0.16.9", 0)
	want(t, "a taken address", err, "InvalidIPAddress.InUse")
	room(10)
	seen := map[string]bool{}
	for range 3 {
		for _, a := range must(create("", 2))(t).PrivateIpAddresses {
			seen[*a.PrivateIpAddress] = true
		}
	}
	if len(seen) != 9 || seen["10.0.16.9"] || seen["10.0.16.3"] || seen["10.0.16.15"] {
		t.Errorf("addresses given: %v", seen)
	}
	room(1)
	_, err = create("", 1)
	want(t, "two in the room of one", err, "InsufficientFreeAddressesInSubnet")
	room(1)
	must(create("", 0))(t)
	_, err = create("", 0)
	want(t, "no room", err, "InsufficientFreeAddressesInSubnet")
	room(0)
	must(w.client.DeleteNetworkInterface(ctx, &sdk.DeleteNetworkInterfaceInput{
		NetworkInterfaceId: first.NetworkInterfaceId}))(t)
	room(1)
	if again := must(create("", 0))(t); *again.PrivateIpAddress != "10.0.16.9" {
		t.Errorf("the freed address is not given again: %s", *again.PrivateIpAddress)
	}
}

func TestIPv6Subnet(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	made := must(w.client.CreateSubnet(ctx, &sdk.CreateSubnetInput{VpcId: &w.vpc,
		Ipv6CidrBlock: aws.String(w.block6(5, 64)), Ipv6Native: aws.Bool(true)}))(t).Subnet
	if !*made.Ipv6Native || !*made.AssignIpv6AddressOnCreation || *made.AvailableIpAddressCount != 0 ||
		made.CidrBlock != nil ||
		made.PrivateDnsNameOptionsOnLaunch.HostnameType != types.HostnameTypeResourceName {
		t.Errorf("the IPv6-only subnet: %+v", made)
	}
	eni := must(w.client.CreateNetworkInterface(ctx, &sdk.CreateNetworkInterfaceInput{SubnetId: made.SubnetId}))(
		t).NetworkInterface
	block := netip.MustParsePrefix(w.block6(5, 64))
	if len(eni.PrivateIpAddresses) != 0 || eni.PrivateIpAddress != nil || len(eni.Ipv6Addresses) != 1 ||
		!block.Contains(netip.MustParseAddr(*eni.Ipv6Addresses[0].Ipv6Address)) {
		t.Errorf("the interface in it: %+v", eni)
	}
	_, err := w.client.CreateNetworkInterface(ctx, &sdk.CreateNetworkInterfaceInput{SubnetId: made.SubnetId,
		PrivateIpAddress: aws.String("10.0.0.9")})
	want(t, "an IPv4 address there", err, "InvalidParameterValue")
	_, err = w.client.CreateNetworkInterface(ctx, &sdk.CreateNetworkInterfaceInput{SubnetId: &w.subnetA,
		Ipv6AddressCount: aws.Int32(1)})
	want(t, "an IPv6 address in an IPv4 subnet", err, "InvalidParameterValue")

	// In a dual-stack subnet, create an interface with a requested IPv6 address. Later, add another IPv6 address to the
	// interface.
	dual := must(w.client.CreateSubnet(ctx, &sdk.CreateSubnetInput{VpcId: &w.vpc, CidrBlock: aws.String("10.0.40.0/24"),
		Ipv6CidrBlock: aws.String(w.block6(6, 64))}))(t).Subnet
	own := netip.MustParsePrefix(w.block6(6, 64)).Addr().Next().Next().Next().Next().Next().String()
	specific := &sdk.CreateNetworkInterfaceInput{SubnetId: dual.SubnetId,
		Ipv6Addresses: []types.InstanceIpv6Address{{Ipv6Address: &own}}, EnablePrimaryIpv6: aws.Bool(true)}
	eni = must(w.client.CreateNetworkInterface(ctx, specific))(t).NetworkInterface
	if len(eni.PrivateIpAddresses) != 1 || *eni.Ipv6Addresses[0].Ipv6Address != own ||
		!*eni.Ipv6Addresses[0].IsPrimaryIpv6 {
		t.Errorf("the dual-stack interface: %+v", eni)
	}
	specific.ClientToken = nil // the SDK has set one
	_, err = w.client.CreateNetworkInterface(ctx, specific)
	want(t, "a taken IPv6 address", err, "InvalidIPAddress.InUse")
}

func TestModifySubnet(t *testing.T) {
	w := newTestRegion(t, nil)
	native := *must(w.client.CreateSubnet(t.Context(), &sdk.CreateSubnetInput{VpcId: &w.vpc,
		Ipv6CidrBlock: aws.String(w.block6(5, 64)), Ipv6Native: aws.Bool(true)}))(t).Subnet.SubnetId
	on, off := &types.AttributeBooleanValue{Value: aws.Bool(true)}, &types.AttributeBooleanValue{Value: aws.Bool(false)}
	for name, c := range map[string]struct {
		in   sdk.ModifySubnetAttributeInput
		want string
		seen func(types.Subnet) bool
	}{
		"nothing": {in: sdk.ModifySubnetAttributeInput{}, want: "MissingParameter"},
		"two": {in: sdk.ModifySubnetAttributeInput{MapPublicIpOnLaunch: on,
			EnableResourceNameDnsARecordOnLaunch: on}, want: "InvalidParameterCombination"},
		"DNS64 without IPv6": {in: sdk.ModifySubnetAttributeInput{EnableDns64: on}, want: "InvalidParameterValue"},
		"IPv6 without IPv6": {in: sdk.ModifySubnetAttributeInput{AssignIpv6AddressOnCreation: on},
			want: "InvalidParameterValue"},
		"public": {in: sdk.ModifySubnetAttributeInput{MapPublicIpOnLaunch: on}, seen: func(n types.Subnet) bool {
			return *n.MapPublicIpOnLaunch
		}},
		"names": {
			in: sdk.ModifySubnetAttributeInput{PrivateDnsHostnameTypeOnLaunch: types.HostnameTypeResourceName},
			seen: func(n types.Subnet) bool {
				return n.PrivateDnsNameOptionsOnLaunch.HostnameType == types.HostnameTypeResourceName
			},
		},
		"A records": {
			in:   sdk.ModifySubnetAttributeInput{EnableResourceNameDnsARecordOnLaunch: on},
			seen: func(n types.Subnet) bool { return *n.PrivateDnsNameOptionsOnLaunch.EnableResourceNameDnsARecord },
		},
		"DNS64 of IPv6-only": {in: sdk.ModifySubnetAttributeInput{SubnetId: &native, EnableDns64: on},
			seen: func(n types.Subnet) bool {
				return *n.EnableDns64
			}},
		"names of IPv6-only": {in: sdk.ModifySubnetAttributeInput{SubnetId: &native,
			PrivateDnsHostnameTypeOnLaunch: types.HostnameTypeIpName}, want: "InvalidParameterValue"},
		"IPv6-only without IPv6": {in: sdk.ModifySubnetAttributeInput{SubnetId: &native,
			AssignIpv6AddressOnCreation: off}, want: "InvalidParameterValue"},
		"IPv6-only and public": {in: sdk.ModifySubnetAttributeInput{SubnetId: &native, MapPublicIpOnLaunch: on},
			want: "InvalidParameterValue"},
	} {
		if c.in.SubnetId == nil {
			c.in.SubnetId = &w.subnetA
		}
		_, err := w.client.ModifySubnetAttribute(t.Context(), &c.in)
		want(t, name, err, c.want)
		if c.seen != nil && !c.seen(w.subnet(*c.in.SubnetId)) {
			t.Errorf("%s: not seen", name)
		}
	}
}

func TestDeleteSubnet(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	deletion := func() error {
		_, err := w.client.DeleteSubnet(ctx, &sdk.DeleteSubnetInput{SubnetId: &w.subnetA})
		return err
	}
	table := must(w.client.CreateRouteTable(ctx, &sdk.CreateRouteTableInput{VpcId: &w.vpc}))(t).RouteTable.RouteTableId
	must(w.client.AssociateRouteTable(ctx, &sdk.AssociateRouteTableInput{RouteTableId: table, SubnetId: &w.subnetA}))(t)
	id := *w.run(nil).InstanceId
	want(t, "a subnet with an instance", deletion(), "DependencyViolation")
	must(w.client.TerminateInstances(ctx, &sdk.TerminateInstancesInput{InstanceIds: []string{id}}))(t)
	// No other call follows the termination, so DeleteSubnet itself must apply the state changes that are due.
	want(t, "a subnet with an instance that is gone", deletion(), "")
	want(t, "a subnet that is gone", deletion(), "InvalidSubnetID.NotFound")
	if left := must(w.client.DescribeRouteTables(ctx, &sdk.DescribeRouteTablesInput{RouteTableIds: []string{*table}}))(
		t).RouteTables[0].Associations; len(left) != 0 {
		t.Errorf("its route table: %+v", left)
	}
}
