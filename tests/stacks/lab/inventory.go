package lab

import (
	"slices"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
)

// Inventory returns all resources of all services, sorted. After a destroy it lists what would cost money or obstruct
// later stacks.
func (l *Lab) Inventory(t *testing.T) (found []string) {
	t.Helper()
	ctx, cfg := t.Context(), l.Config()
	add := func(kind string, id *string) { found = append(found, kind+" "+awssdk.ToString(id)) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, instance := range l.Instances("") {
		add("instance", &instance.ID)
	}

	network := ec2.NewFromConfig(cfg)
	vpcs, err := network.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{})
	check(err)
	for _, v := range vpcs.Vpcs {
		add("vpc", v.VpcId)
	}
	subnets, err := network.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{})
	check(err)
	for _, v := range subnets.Subnets {
		add("subnet", v.SubnetId)
	}
	interfaces, err := network.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{})
	check(err)
	for _, v := range interfaces.NetworkInterfaces {
		add("network interface", v.NetworkInterfaceId)
	}
	groups, err := network.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{})
	check(err)
	for _, v := range groups.SecurityGroups {
		add("security group", v.GroupId)
	}
	tables, err := network.DescribeRouteTables(ctx, &ec2.DescribeRouteTablesInput{})
	check(err)
	for _, v := range tables.RouteTables {
		add("route table", v.RouteTableId)
	}
	gateways, err := network.DescribeInternetGateways(ctx, &ec2.DescribeInternetGatewaysInput{})
	check(err)
	for _, v := range gateways.InternetGateways {
		add("internet gateway", v.InternetGatewayId)
	}
	nats, err := network.DescribeNatGateways(ctx, &ec2.DescribeNatGatewaysInput{})
	check(err)
	for _, v := range nats.NatGateways {
		if v.State != "deleted" {
			add("NAT gateway", v.NatGatewayId)
		}
	}
	addresses, err := network.DescribeAddresses(ctx, &ec2.DescribeAddressesInput{})
	check(err)
	for _, v := range addresses.Addresses {
		add("address", v.AllocationId)
	}
	endpoints, err := network.DescribeVpcEndpoints(ctx, &ec2.DescribeVpcEndpointsInput{})
	check(err)
	for _, v := range endpoints.VpcEndpoints {
		add("endpoint", v.VpcEndpointId)
	}
	templates, err := network.DescribeLaunchTemplates(ctx, &ec2.DescribeLaunchTemplatesInput{})
	check(err)
	for _, v := range templates.LaunchTemplates {
		add("launch template", v.LaunchTemplateId)
	}

	scaling, err := autoscaling.NewFromConfig(cfg).DescribeAutoScalingGroups(ctx,
		&autoscaling.DescribeAutoScalingGroupsInput{})
	check(err)
	for _, v := range scaling.AutoScalingGroups {
		add("auto scaling group", v.AutoScalingGroupName)
	}
	elb := elasticloadbalancingv2.NewFromConfig(cfg)
	balancers, err := elb.DescribeLoadBalancers(ctx, &elasticloadbalancingv2.DescribeLoadBalancersInput{})
	check(err)
	for _, v := range balancers.LoadBalancers {
		add("load balancer", v.LoadBalancerArn)
	}
	targets, err := elb.DescribeTargetGroups(ctx, &elasticloadbalancingv2.DescribeTargetGroupsInput{})
	check(err)
	for _, v := range targets.TargetGroups {
		add("target group", v.TargetGroupArn)
	}

	identity := iam.NewFromConfig(cfg)
	roles, err := identity.ListRoles(ctx, &iam.ListRolesInput{})
	check(err)
	for _, v := range roles.Roles {
		if !strings.HasPrefix(awssdk.ToString(v.Path), "/aws-service-role/") {
			add("role", v.RoleName)
		}
	}
	profiles, err := identity.ListInstanceProfiles(ctx, &iam.ListInstanceProfilesInput{})
	check(err)
	for _, v := range profiles.InstanceProfiles {
		add("instance profile", v.InstanceProfileName)
	}

	buckets, err := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = true
	}).ListBuckets(ctx, &s3.ListBucketsInput{})
	check(err)
	for _, v := range buckets.Buckets {
		add("bucket", v.Name)
	}
	secrets, err := secretsmanager.NewFromConfig(cfg).ListSecrets(ctx, &secretsmanager.ListSecretsInput{})
	check(err)
	for _, v := range secrets.SecretList {
		add("secret", v.Name)
	}
	parameters, err := ssm.NewFromConfig(cfg).DescribeParameters(ctx, &ssm.DescribeParametersInput{})
	check(err)
	for _, v := range parameters.Parameters {
		add("parameter", v.Name)
	}
	slices.Sort(found)
	return found
}
