package ec2

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// by returns a filter.
func by(name string, values ...string) []types.Filter {
	return []types.Filter{{Name: &name, Values: values}}
}

// want checks the code of an error, "" for none.
func want(t *testing.T, what string, err error, wanted string) {
	t.Helper()
	if got := code(t, err); got != wanted {
		t.Errorf("%s: %v, want %q", what, err, wanted)
	}
}

// TestNetworkAsks checks that every network operation checks the caller's permission before it returns any other error,
// whatever its parameters are.
func TestNetworkAsks(t *testing.T) {
	w := newTestRegion(t, nil)
	gateway := must(w.client.CreateInternetGateway(t.Context(), &sdk.CreateInternetGatewayInput{}))(
		t).InternetGateway.InternetGatewayId
	table := must(w.client.CreateRouteTable(t.Context(), &sdk.CreateRouteTableInput{VpcId: &w.vpc}))(
		t).RouteTable.RouteTableId
	known := map[string]string{
		"VpcId": w.vpc, "SubnetId": w.subnetA, "InternetGatewayId": *gateway, "RouteTableId": *table,
		"GroupId": w.group, "CidrBlock": "10.8.0.0/16",
		"GroupName": "x", "GroupDescription": "x", "ServiceName": "com.amazonaws.us-west-2.s3",
		"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": *gateway,
	}
	operations := w.service.networkOperations()
	maps.Copy(operations, w.service.tagOperations())
	for action, handler := range operations {
		ask := func(form url.Values) (code string, count int) {
			_, err := handler(&wire.Call{Service: "ec2", Action: action, Form: form,
				Authorize: func(string, string, policy.Context) error {
					count++
					return wire.Errorf(http.StatusForbidden, "UnauthorizedOperation", "no")
				}})
			if err == nil {
				return "", count
			}
			return wire.AsError(err).Code, count
		}
		all := url.Values{} // parameters that the operation accepts
		for key, value := range known {
			if code, _ := ask(url.Values{key: {value}}); code == "UnauthorizedOperation" {
				all.Set(key, value)
			}
		}
		for name, form := range map[string]url.Values{"nothing": {}, "a resource": all} {
			if code, count := ask(form); code != "UnauthorizedOperation" || count != 1 {
				t.Errorf("%s of %s without permissions: %q, asked %d times", action, name, code, count)
			}
		}
	}
}

func TestVPC(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	v := must(w.client.CreateVpc(ctx, &sdk.CreateVpcInput{CidrBlock: aws.String("10.5.1.1/16"),
		AmazonProvidedIpv6CidrBlock: aws.Bool(true)}))(t).Vpc
	if *v.CidrBlock != "10.5.0.0/16" || v.State != types.VpcStateAvailable || len(v.Ipv6CidrBlockAssociationSet) != 1 {
		t.Errorf("the new VPC: %+v", v)
	}
	for block, wanted := range map[string]string{
		"10.0.0.0/15": "InvalidVpc.Range", "10.0.0.0/29": "InvalidVpc.Range", "10.0.0.0": "InvalidParameterValue",
		"2600::/56": "InvalidParameterValue", "": "MissingParameter",
	} {
		_, err := w.client.CreateVpc(ctx, &sdk.CreateVpcInput{CidrBlock: &block})
		want(t, "a VPC of "+block, err, wanted)
	}

	// AWS creates a VPC with default resources. Check them.
	groups := must(w.client.DescribeSecurityGroups(ctx, &sdk.DescribeSecurityGroupsInput{Filters: by("vpc-id",
		*v.VpcId)}))(t).SecurityGroups
	if len(groups) != 1 || *groups[0].GroupName != "default" || len(groups[0].IpPermissions) != 1 ||
		*groups[0].IpPermissions[0].UserIdGroupPairs[0].GroupId != *groups[0].GroupId {
		t.Errorf("the groups of a new VPC: %+v", groups)
	}
	egress := groups[0].IpPermissionsEgress
	if len(egress) != 1 || len(egress[0].IpRanges) != 1 || len(egress[0].Ipv6Ranges) != 1 || egress[0].FromPort != nil {
		t.Errorf("its egress: %+v", egress)
	}
	tables := must(w.client.DescribeRouteTables(ctx, &sdk.DescribeRouteTablesInput{
		Filters: append(by("vpc-id", *v.VpcId), by("association.main", "true")...)}))(t).RouteTables
	if len(tables) != 1 || len(tables[0].Routes) != 2 || *tables[0].Routes[0].GatewayId != "local" ||
		*tables[0].Routes[1].DestinationIpv6CidrBlock == "" {
		t.Errorf("its route tables: %+v", tables)
	}
	acls := must(w.client.DescribeNetworkAcls(ctx, &sdk.DescribeNetworkAclsInput{Filters: append(by("vpc-id", *v.VpcId),
		by("default", "true")...)}))(t).NetworkAcls
	if len(acls) != 1 || len(acls[0].Entries) != 8 {
		t.Errorf("its network ACLs: %+v", acls)
	}

	// Attributes.
	attribute := func(name types.VpcAttributeName) *sdk.DescribeVpcAttributeOutput {
		return must(w.client.DescribeVpcAttribute(ctx, &sdk.DescribeVpcAttributeInput{VpcId: v.VpcId,
			Attribute: name}))(t)
	}
	if !*attribute(types.VpcAttributeNameEnableDnsSupport).EnableDnsSupport.Value ||
		*attribute(types.VpcAttributeNameEnableDnsHostnames).EnableDnsHostnames.Value {
		t.Error("a new VPC has DNS support and no host names")
	}
	on := &types.AttributeBooleanValue{Value: aws.Bool(true)}
	must(w.client.ModifyVpcAttribute(ctx, &sdk.ModifyVpcAttributeInput{VpcId: v.VpcId, EnableDnsHostnames: on}))(t)
	if !*attribute(types.VpcAttributeNameEnableDnsHostnames).EnableDnsHostnames.Value {
		t.Error("host names are still off")
	}
	_, err := w.client.ModifyVpcAttribute(ctx, &sdk.ModifyVpcAttributeInput{VpcId: v.VpcId, EnableDnsHostnames: on,
		EnableDnsSupport: on})
	want(t, "two attributes in one call", err, "InvalidParameterCombination")
}

// TestDeleteVPC checks that only an empty VPC can be deleted, and that its default resources are deleted with it.
func TestDeleteVPC(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	v := must(w.client.CreateVpc(ctx, &sdk.CreateVpcInput{CidrBlock: aws.String("10.7.0.0/16")}))(t).Vpc.VpcId
	deletion := func() error {
		_, err := w.client.DeleteVpc(ctx, &sdk.DeleteVpcInput{VpcId: v})
		return err
	}
	type thing struct {
		make   func() (string, error)
		remove func(id string) error
	}
	for name, c := range map[string]thing{
		"subnet": {
			func() (string, error) {
				out, err := w.client.CreateSubnet(ctx, &sdk.CreateSubnetInput{VpcId: v,
					CidrBlock: aws.String("10.7.1.0/24")})
				return *out.Subnet.SubnetId, err
			},
			func(id string) error {
				_, err := w.client.DeleteSubnet(ctx, &sdk.DeleteSubnetInput{SubnetId: &id})
				return err
			},
		},
		"internet gateway": {
			func() (string, error) {
				out := must(w.client.CreateInternetGateway(ctx, &sdk.CreateInternetGatewayInput{}))(t)
				_, err := w.client.AttachInternetGateway(ctx, &sdk.AttachInternetGatewayInput{
					InternetGatewayId: out.InternetGateway.InternetGatewayId, VpcId: v})
				return *out.InternetGateway.InternetGatewayId, err
			},
			func(id string) error {
				_, err := w.client.DetachInternetGateway(ctx, &sdk.DetachInternetGatewayInput{InternetGatewayId: &id,
					VpcId: v})
				return err
			},
		},
		"egress-only internet gateway": {
			func() (string, error) {
				out, err := w.client.CreateEgressOnlyInternetGateway(ctx,
					&sdk.CreateEgressOnlyInternetGatewayInput{VpcId: v})
				return *out.EgressOnlyInternetGateway.EgressOnlyInternetGatewayId, err
			},
			func(id string) error {
				_, err := w.client.DeleteEgressOnlyInternetGateway(ctx,
					&sdk.DeleteEgressOnlyInternetGatewayInput{EgressOnlyInternetGatewayId: &id})
				return err
			},
		},
		"route table": {
			func() (string, error) {
				out, err := w.client.CreateRouteTable(ctx, &sdk.CreateRouteTableInput{VpcId: v})
				return *out.RouteTable.RouteTableId, err
			},
			func(id string) error {
				_, err := w.client.DeleteRouteTable(ctx, &sdk.DeleteRouteTableInput{RouteTableId: &id})
				return err
			},
		},
		"security group": {
			func() (string, error) {
				out, err := w.client.CreateSecurityGroup(ctx, &sdk.CreateSecurityGroupInput{VpcId: v,
					GroupName: aws.String("g"), Description: aws.String("d")})
				return *out.GroupId, err
			},
			func(id string) error {
				_, err := w.client.DeleteSecurityGroup(ctx, &sdk.DeleteSecurityGroupInput{GroupId: &id})
				return err
			},
		},
		"gateway endpoint": {
			func() (string, error) {
				out, err := w.client.CreateVpcEndpoint(ctx, &sdk.CreateVpcEndpointInput{VpcId: v,
					ServiceName: aws.String("com.amazonaws.us-west-2.s3")})
				return *out.VpcEndpoint.VpcEndpointId, err
			},
			func(id string) error {
				_, err := w.client.DeleteVpcEndpoints(ctx, &sdk.DeleteVpcEndpointsInput{VpcEndpointIds: []string{id}})
				return err
			},
		},
	} {
		id, err := c.make()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want(t, "a VPC with a "+name, deletion(), "DependencyViolation")
		if err := c.remove(id); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	want(t, "an empty VPC", deletion(), "")
	want(t, "a VPC that is gone", deletion(), "InvalidVpcID.NotFound")
	if left := must(w.client.DescribeSecurityGroups(ctx, &sdk.DescribeSecurityGroupsInput{Filters: by("vpc-id", *v)}))(
		t).SecurityGroups; len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	if left := must(w.client.DescribeRouteTables(ctx, &sdk.DescribeRouteTablesInput{Filters: by("vpc-id", *v)}))(
		t).RouteTables; len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestZones(t *testing.T) {
	w := newTestRegion(t, nil)
	all := must(w.client.DescribeAvailabilityZones(t.Context(), &sdk.DescribeAvailabilityZonesInput{
		Filters: by("zone-type", "availability-zone")}))(t).AvailabilityZones
	got := each(all, func(z types.AvailabilityZone) string { return *z.ZoneName + " " + *z.ZoneId })
	if diff := cmp.Diff([]string{"us-west-2a usw2-az1", "us-west-2b usw2-az2", "us-west-2c usw2-az3"},
		got); diff != "" {
		t.Error(diff)
	}
	_, err := w.client.DescribeAvailabilityZones(t.Context(), &sdk.DescribeAvailabilityZonesInput{
		ZoneNames: []string{"us-west-2z"}})
	want(t, "a zone that there is not", err, "InvalidParameterValue")
	some := must(w.client.DescribeAvailabilityZones(t.Context(), &sdk.DescribeAvailabilityZonesInput{
		ZoneIds: []string{"usw2-az2"}}))(t).AvailabilityZones
	if !slices.Equal(each(some, func(z types.AvailabilityZone) string { return *z.ZoneName }), []string{"us-west-2b"}) {
		t.Errorf("by ID: %+v", some)
	}
}
