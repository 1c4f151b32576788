package ec2

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

func (f *testRegion) addTable() string {
	f.Helper()
	return *must(f.client.CreateRouteTable(f.Context(), &sdk.CreateRouteTableInput{VpcId: &f.vpc}))(
		f.T).RouteTable.RouteTableId
}

// addGateway attaches an internet gateway to the VPC.
func (f *testRegion) addGateway() string {
	f.Helper()
	id := must(f.client.CreateInternetGateway(f.Context(), &sdk.CreateInternetGatewayInput{}))(
		f.T).InternetGateway.InternetGatewayId
	must(f.client.AttachInternetGateway(f.Context(), &sdk.AttachInternetGatewayInput{InternetGatewayId: id,
		VpcId: &f.vpc}))(f.T)
	return *id
}

// route returns a table's route to a destination, nil for none.
func (f *testRegion) route(table, destination string) *types.Route {
	f.Helper()
	out := must(f.client.DescribeRouteTables(f.Context(), &sdk.DescribeRouteTablesInput{
		RouteTableIds: []string{table}}))(f.T)
	for _, r := range out.RouteTables[0].Routes {
		if aws.ToString(r.DestinationCidrBlock)+aws.ToString(r.DestinationIpv6CidrBlock)+
			aws.ToString(r.DestinationPrefixListId) == destination {
			return &r
		}
	}
	return nil
}

func TestRoutes(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	table, gateway := w.addTable(), w.addGateway()
	egress := must(w.client.CreateEgressOnlyInternetGateway(ctx, &sdk.CreateEgressOnlyInternetGatewayInput{
		VpcId: &w.vpc}))(t).EgressOnlyInternetGateway.EgressOnlyInternetGatewayId
	nat := must(w.client.CreateNatGateway(ctx, &sdk.CreateNatGatewayInput{SubnetId: &w.subnetA,
		ConnectivityType: types.ConnectivityTypePrivate}))(t).NatGateway.NatGatewayId
	instance := w.run(nil)
	eni := instance.NetworkInterfaces[0].NetworkInterfaceId
	loose := w.addInterface(w.subnetA).NetworkInterfaceId
	s3 := "pl-68a54001"
	for name, c := range map[string]struct {
		in   sdk.CreateRouteInput
		want string
	}{
		"internet": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("0.0.0.0/0"),
			GatewayId: &gateway}, ""},
		"IPv6 internet": {sdk.CreateRouteInput{DestinationIpv6CidrBlock: aws.String("::/0"),
			EgressOnlyInternetGatewayId: egress}, ""},
		"NAT": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("192.168.0.0/16"),
			NatGatewayId: nat}, ""},
		"interface": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("172.16.0.0/16"),
			NetworkInterfaceId: loose}, ""},
		"instance": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("172.17.0.0/16"),
			InstanceId: instance.InstanceId}, ""},
		"prefix list": {sdk.CreateRouteInput{DestinationPrefixListId: &s3, GatewayId: &gateway}, ""},
		"no target": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("1.0.0.0/8")},
			"MissingParameter"},
		"two targets": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("1.0.0.0/8"),
			GatewayId: &gateway, NatGatewayId: nat}, "InvalidParameterCombination"},
		"no destination": {sdk.CreateRouteInput{GatewayId: &gateway}, "MissingParameter"},
		"no block": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("x"), GatewayId: &gateway},
			"InvalidParameterValue"},
		"IPv4 to egress-only": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("1.0.0.0/8"),
			EgressOnlyInternetGatewayId: egress}, "InvalidParameterValue"},
		"the VPC itself": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("10.0.0.0/16"),
			GatewayId: &gateway}, "RouteAlreadyExists"},
		"no such gateway": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("1.0.0.0/8"),
			GatewayId: aws.String("igw-0")}, "InvalidGatewayID.NotFound"},
		"no such NAT gateway": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("1.0.0.0/8"),
			NatGatewayId: aws.String("nat-0")}, "InvalidNatGatewayID.NotFound"},
		"no such interface": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("1.0.0.0/8"),
			NetworkInterfaceId: aws.String("eni-0")}, "InvalidNetworkInterfaceID.NotFound"},
		"no such table": {sdk.CreateRouteInput{RouteTableId: aws.String("rtb-0"),
			DestinationCidrBlock: aws.String("1.0.0.0/8"), GatewayId: &gateway}, "InvalidRouteTableID.NotFound"},
		"no such list": {sdk.CreateRouteInput{DestinationPrefixListId: aws.String("pl-0"),
			GatewayId: &gateway}, "InvalidPrefixListID.NotFound"},
		"IPv6 block in IPv4 place": {sdk.CreateRouteInput{DestinationCidrBlock: aws.String("::/0"),
			GatewayId: &gateway}, "InvalidParameterValue"},
	} {
		if c.in.RouteTableId == nil {
			c.in.RouteTableId = &table
		}
		_, err := w.client.CreateRoute(ctx, &c.in)
		want(t, name, err, c.want)
	}
	_, err := w.client.CreateRoute(ctx, &sdk.CreateRouteInput{RouteTableId: &table,
		DestinationCidrBlock: aws.String("0.0.0.0/0"), GatewayId: &gateway})
	want(t, "the same route again", err, "")
	_, err = w.client.CreateRoute(ctx, &sdk.CreateRouteInput{RouteTableId: &table,
		DestinationCidrBlock: aws.String("0.0.0.0/0"), NatGatewayId: nat})
	want(t, "the same destination elsewhere", err, "RouteAlreadyExists")

	for destination, state := range map[string]types.RouteState{
		"0.0.0.0/0": "active", "::/0": "active", "192.168.0.0/16": "active", "172.16.0.0/16": "blackhole",
		"172.17.0.0/16": "active", "10.0.0.0/16": "active", s3: "active",
	} {
		if r := w.route(table, destination); r == nil || r.State != state {
			t.Errorf("the route to %s: %+v", destination, r)
		}
	}
	if r := w.route(table, "172.17.0.0/16"); *r.InstanceId != *instance.InstanceId || *r.NetworkInterfaceId != *eni ||
		r.Origin != types.RouteOriginCreateRoute {
		t.Errorf("the route to an instance: %+v", r)
	}
	must(w.client.DeleteNatGateway(ctx, &sdk.DeleteNatGatewayInput{NatGatewayId: nat}))(t)
	if r := w.route(table, "192.168.0.0/16"); r.State != types.RouteStateBlackhole {
		t.Errorf("the route to a NAT gateway that is gone: %+v", r)
	}

	remove := func(destination string) error {
		_, err := w.client.DeleteRoute(ctx, &sdk.DeleteRouteInput{RouteTableId: &table,
			DestinationCidrBlock: &destination})
		return err
	}
	want(t, "deleting the local route", remove("10.0.0.0/16"), "InvalidParameterValue")
	want(t, "deleting", remove("192.168.0.0/16"), "")
	want(t, "deleting again", remove("192.168.0.0/16"), "InvalidRoute.NotFound")
}

func TestRouteTableAssociations(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	one, two := w.addTable(), w.addTable()
	associate := func(table, subnet string) (*sdk.AssociateRouteTableOutput, error) {
		return w.client.AssociateRouteTable(ctx, &sdk.AssociateRouteTableInput{RouteTableId: &table, SubnetId: &subnet})
	}
	id := must(associate(one, w.subnetA))(t).AssociationId
	if again := must(associate(one, w.subnetA))(t).AssociationId; *again != *id {
		t.Errorf("associated twice: %s and %s", *id, *again)
	}
	_, err := associate(two, w.subnetA)
	want(t, "a second table", err, "Resource.AlreadyAssociated")
	_, err = w.client.DeleteRouteTable(ctx, &sdk.DeleteRouteTableInput{RouteTableId: &one})
	want(t, "deleting a table with a subnet", err, "DependencyViolation")
	if found := must(w.client.DescribeRouteTables(ctx, &sdk.DescribeRouteTablesInput{
		Filters: by("association.subnet-id", w.subnetA)}))(t).RouteTables; *found[0].RouteTableId != one {
		t.Errorf("the subnet's table: %+v", found)
	}
	must(w.client.DisassociateRouteTable(ctx, &sdk.DisassociateRouteTableInput{AssociationId: id}))(t)
	_, err = w.client.DisassociateRouteTable(ctx, &sdk.DisassociateRouteTableInput{AssociationId: id})
	want(t, "an association that is gone", err, "InvalidAssociationID.NotFound")
	must(w.client.DeleteRouteTable(ctx, &sdk.DeleteRouteTableInput{RouteTableId: &one}))(t)

	// The association of the main table can be moved, but not removed.
	main := must(w.client.DescribeRouteTables(ctx, &sdk.DescribeRouteTablesInput{
		Filters: append(by("association.main", "true"), by("vpc-id", w.vpc)...)}))(t).RouteTables[0]
	association := main.Associations[0].RouteTableAssociationId
	_, err = w.client.DisassociateRouteTable(ctx, &sdk.DisassociateRouteTableInput{AssociationId: association})
	want(t, "disassociating the main table", err, "InvalidParameterValue")
	_, err = w.client.DeleteRouteTable(ctx, &sdk.DeleteRouteTableInput{RouteTableId: main.RouteTableId})
	want(t, "deleting the main table", err, "DependencyViolation")
}

func TestNetworkACL(t *testing.T) {
	w := newTestRegion(t, nil)
	found := must(w.client.DescribeNetworkAcls(t.Context(), &sdk.DescribeNetworkAclsInput{
		Filters: append(by("vpc-id", w.vpc), by("default", "true")...)}))(t).NetworkAcls
	if len(found) != 1 || len(found[0].Entries) != 8 || len(found[0].Associations) != 2 {
		t.Errorf("the default network ACL: %+v", found)
	}
}
