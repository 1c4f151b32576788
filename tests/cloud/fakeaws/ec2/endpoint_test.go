package ec2

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

const (
	s3Service  = "com.amazonaws.us-west-2.s3"
	ec2Service = "com.amazonaws.us-west-2.ec2"
)

func (f *testRegion) endpoint(id string) types.VpcEndpoint {
	f.Helper()
	return must(f.client.DescribeVpcEndpoints(f.Context(), &sdk.DescribeVpcEndpointsInput{
		VpcEndpointIds: []string{id}}))(f.T).VpcEndpoints[0]
}

func TestGatewayEndpoint(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	one := w.addTable()
	create := func(change func(in *sdk.CreateVpcEndpointInput)) (*types.VpcEndpoint, error) {
		in := &sdk.CreateVpcEndpointInput{VpcId: &w.vpc, ServiceName: aws.String(s3Service),
			RouteTableIds: []string{one}}
		if change != nil {
			change(in)
		}
		out, err := w.client.CreateVpcEndpoint(ctx, in)
		if err != nil {
			return nil, err
		}
		return out.VpcEndpoint, nil
	}
	for name, c := range map[string]struct {
		change func(in *sdk.CreateVpcEndpointInput)
		want   string
	}{
		"no service": {func(in *sdk.CreateVpcEndpointInput) {
			in.ServiceName = aws.String("com.amazonaws.us-west-2.coffee")
		}, "InvalidServiceName"},
		"of a kind": {func(in *sdk.CreateVpcEndpointInput) {
			in.ServiceName = aws.String(ec2Service)
		}, "InvalidServiceName"},
		"subnets": {func(in *sdk.CreateVpcEndpointInput) { in.SubnetIds = []string{w.subnetA} }, "InvalidParameter"},
		"no table": {func(in *sdk.CreateVpcEndpointInput) {
			in.RouteTableIds = []string{"rtb-0"}
		}, "InvalidRouteTableID.NotFound"},
		"no policy": {func(in *sdk.CreateVpcEndpointInput) {
			in.PolicyDocument = aws.String("{}")
		}, "InvalidPolicyDocument"},
	} {
		_, err := create(c.change)
		want(t, name, err, c.want)
	}
	made := must(create(nil))(t)
	// AWS's answers contain endpoint states in lower case. The SDK's constants for them begin with a capital letter.
	if made.State != "available" || made.VpcEndpointType != types.VpcEndpointTypeGateway || *made.PolicyDocument == "" {
		t.Errorf("the endpoint: %+v", made)
	}
	lists := must(w.client.DescribePrefixLists(ctx, &sdk.DescribePrefixListsInput{Filters: by("prefix-list-name",
		s3Service)}))(t).PrefixLists
	if len(lists) != 1 || len(lists[0].Cidrs) == 0 {
		t.Fatalf("the prefix lists: %+v", lists)
	}
	if r := w.route(one, *lists[0].PrefixListId); r == nil || *r.GatewayId != *made.VpcEndpointId ||
		r.State != types.RouteStateActive {
		t.Errorf("the route: %+v", r)
	}
	_, err := create(nil)
	want(t, "a second endpoint in a table", err, "RouteAlreadyExists")
	_, err = w.client.DeleteRoute(ctx, &sdk.DeleteRouteInput{RouteTableId: &one,
		DestinationPrefixListId: lists[0].PrefixListId})
	want(t, "deleting an endpoint's route", err, "InvalidParameterValue")
	out := must(w.client.DeleteVpcEndpoints(ctx, &sdk.DeleteVpcEndpointsInput{
		VpcEndpointIds: []string{*made.VpcEndpointId, "vpce-00000000000000000"}}))(t)
	if len(out.Unsuccessful) != 1 || *out.Unsuccessful[0].Error.Code != "InvalidVpcEndpoint.NotFound" {
		t.Errorf("not deleted: %+v", out.Unsuccessful)
	}
	_, err = w.client.DescribeVpcEndpoints(ctx, &sdk.DescribeVpcEndpointsInput{
		VpcEndpointIds: []string{*made.VpcEndpointId}})
	want(t, "an endpoint that is gone", err, "InvalidVpcEndpointId.NotFound")
	if r := w.route(one, *lists[0].PrefixListId); r != nil {
		t.Errorf("its route: %+v", r)
	}
}

func TestInterfaceEndpoint(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	create := func(change func(in *sdk.CreateVpcEndpointInput)) (*types.VpcEndpoint, error) {
		in := &sdk.CreateVpcEndpointInput{
			VpcId: &w.vpc, ServiceName: aws.String(ec2Service), VpcEndpointType: types.VpcEndpointTypeInterface,
			SubnetIds:        []string{w.subnetA},
			SecurityGroupIds: []string{w.group}, PrivateDnsEnabled: aws.Bool(true),
		}
		if change != nil {
			change(in)
		}
		out, err := w.client.CreateVpcEndpoint(ctx, in)
		if err != nil {
			return nil, err
		}
		return out.VpcEndpoint, nil
	}
	_, err := create(nil)
	want(t, "private DNS in a VPC without host names", err, "InvalidParameter")
	must(w.client.ModifyVpcAttribute(ctx, &sdk.ModifyVpcAttributeInput{VpcId: &w.vpc,
		EnableDnsHostnames: &types.AttributeBooleanValue{Value: aws.Bool(true)}}))(t)
	twin := w.addSubnet("10.0.50.0/24", "us-west-2a")
	room := *w.subnet(w.subnetA).AvailableIpAddressCount
	_, err = create(func(in *sdk.CreateVpcEndpointInput) { in.SubnetIds = []string{w.subnetA, twin} })
	want(t, "two subnets of a zone", err, "DuplicateSubnetsInSameZone")
	_, err = create(func(in *sdk.CreateVpcEndpointInput) { in.RouteTableIds = []string{"rtb-0"} })
	want(t, "route tables", err, "InvalidParameter")
	_, err = create(func(in *sdk.CreateVpcEndpointInput) { in.IpAddressType = types.IpAddressTypeDualstack })
	want(t, "dual stack in an IPv4 subnet", err, "InvalidParameter")
	if left := *w.subnet(w.subnetA).AvailableIpAddressCount; left != room {
		t.Errorf("refused calls took %d addresses", room-left)
	}

	made := must(create(nil))(t)
	if made.State != "pending" {
		t.Errorf("the new endpoint is %s", made.State)
	}
	id := *made.VpcEndpointId
	got := w.endpoint(id)
	if got.State != "available" || len(got.NetworkInterfaceIds) != 1 || *got.Groups[0].GroupId != w.group ||
		len(got.DnsEntries) != 3 {
		t.Errorf("the endpoint: %+v", got)
	}
	eni := w.eni(got.NetworkInterfaceIds[0])
	if eni.InterfaceType != types.NetworkInterfaceTypeVpcEndpoint || *eni.SubnetId != w.subnetA ||
		*eni.Description != "VPC Endpoint Interface "+id {
		t.Errorf("its interface: %+v", eni)
	}
	_, err = create(func(in *sdk.CreateVpcEndpointInput) { in.SubnetIds = []string{w.subnetB} })
	want(t, "a second one with private DNS", err, "InvalidParameter")
	_, err = w.client.DeleteSecurityGroup(ctx, &sdk.DeleteSecurityGroupInput{GroupId: &w.group})
	want(t, "deleting its group", err, "DependencyViolation")

	must(w.client.DeleteVpcEndpoints(ctx, &sdk.DeleteVpcEndpointsInput{VpcEndpointIds: []string{id}}))(t)
	_, err = w.client.DescribeNetworkInterfaces(ctx, &sdk.DescribeNetworkInterfacesInput{
		NetworkInterfaceIds: got.NetworkInterfaceIds})
	want(t, "its interface", err, "InvalidNetworkInterfaceID.NotFound")
}
