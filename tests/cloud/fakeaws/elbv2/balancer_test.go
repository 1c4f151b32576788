package elbv2_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/google/go-cmp/cmp"
)

func TestLoadBalancer(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	lb := w.lb()
	if !strings.HasPrefix(*lb.LoadBalancerArn,
		"arn:aws:elasticloadbalancing:us-west-2:123456789012:loadbalancer/net/lb/") ||
		lb.State.Code != types.LoadBalancerStateEnumProvisioning || *lb.VpcId != "vpc-1" ||
		lb.IpAddressType != types.IpAddressTypeIpv4 ||
		lb.Scheme != types.LoadBalancerSchemeEnumInternal || !strings.HasSuffix(*lb.DNSName,
		".elb.us-west-2.amazonaws.com") {
		t.Errorf("created: %+v", lb)
	}
	var zones []string
	for _, z := range lb.AvailabilityZones {
		zones = append(zones, *z.ZoneName+" "+*z.SubnetId)
	}
	if diff := cmp.Diff([]string{"us-west-2a subnet-a", "us-west-2b subnet-b"}, zones); diff != "" {
		t.Error(diff)
	}
	again := w.lb()
	if *again.LoadBalancerArn != *lb.LoadBalancerArn || len(w.network.interfaces) != 2 {
		t.Errorf("the same call made another: %s, %d interfaces", *again.LoadBalancerArn, len(w.network.interfaces))
	}
	_, err := w.CreateLoadBalancer(ctx, &elb.CreateLoadBalancerInput{Name: aws.String("lb"),
		Type: types.LoadBalancerTypeEnumNetwork, Subnets: []string{"subnet-a"}})
	wantCode(t, "the same name", err, "DuplicateLoadBalancerName")

	found := must(w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{Names: []string{"lb"}}))(t).LoadBalancers
	if len(found) != 1 || found[0].State.Code != types.LoadBalancerStateEnumActive {
		t.Errorf("found: %+v", found)
	}
	_, err = w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{Names: []string{"other"}})
	wantCode(t, "another name", err, "LoadBalancerNotFound")
	_, err = w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{
		LoadBalancerArns: []string{*lb.LoadBalancerArn + "0"}})
	wantCode(t, "another ARN", err, "LoadBalancerNotFound")

	// The interfaces follow the subnets.
	before := *found[0].LoadBalancerArn
	must(w.SetSubnets(ctx, &elb.SetSubnetsInput{LoadBalancerArn: &before, Subnets: []string{"subnet-a", "subnet-c"}}))(
		t)
	var subnets []string
	for _, i := range w.network.interfaces {
		subnets = append(subnets, i.Subnet)
		if !strings.HasPrefix(i.Description, "ELB net/lb/") || i.Kind != "network_load_balancer" {
			t.Errorf("interface: %+v", i)
		}
	}
	slices.Sort(subnets)
	if diff := cmp.Diff([]string{"subnet-a", "subnet-c"}, subnets); diff != "" {
		t.Error(diff)
	}
	w.network.full = "subnet-b"
	_, err = w.SetSubnets(ctx, &elb.SetSubnetsInput{LoadBalancerArn: &before,
		Subnets: []string{"subnet-a2", "subnet-b"}})
	wantCode(t, "a full subnet", err, "InsufficientFreeAddressesInSubnet")
	if len(w.network.interfaces) != 2 {
		t.Errorf("%d interfaces after a failure", len(w.network.interfaces))
	}

	_, err = w.SetIpAddressType(ctx, &elb.SetIpAddressTypeInput{LoadBalancerArn: &before,
		IpAddressType: types.IpAddressTypeDualstack})
	wantCode(t, "dual stack in a subnet without IPv6", err, "InvalidConfigurationRequest")
	_, err = w.SetSecurityGroups(ctx, &elb.SetSecurityGroupsInput{LoadBalancerArn: &before,
		SecurityGroups: []string{"sg-1"}})
	wantCode(t, "security groups afterwards", err, "InvalidConfigurationRequest")

	must(w.ModifyLoadBalancerAttributes(ctx, &elb.ModifyLoadBalancerAttributesInput{LoadBalancerArn: &before,
		Attributes: []types.LoadBalancerAttribute{
			{Key: aws.String("deletion_protection.enabled"), Value: aws.String("true")},
		}}))(t)
	_, err = w.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: &before})
	wantCode(t, "delete what is protected", err, "OperationNotPermitted")
	must(w.ModifyLoadBalancerAttributes(ctx, &elb.ModifyLoadBalancerAttributesInput{LoadBalancerArn: &before,
		Attributes: []types.LoadBalancerAttribute{
			{Key: aws.String("deletion_protection.enabled"), Value: aws.String("false")},
		}}))(t)
	for range 2 { // "if it does not exist, the call succeeds"
		must(w.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: &before}))(t)
	}
	if len(w.network.interfaces) != 0 {
		t.Errorf("%d interfaces are left", len(w.network.interfaces))
	}
}

func TestLoadBalancerIsRefused(t *testing.T) {
	w := newWorld(t)
	network, application := types.LoadBalancerTypeEnumNetwork, types.LoadBalancerTypeEnumApplication
	for name, test := range map[string]struct {
		in   elb.CreateLoadBalancerInput
		code string
	}{
		"name": {elb.CreateLoadBalancerInput{Name: aws.String("a_b"), Type: network,
			Subnets: []string{"subnet-a"}}, "ValidationError"},
		"no subnet": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network}, "ValidationError"},
		"unknown subnet": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-0"}}, "SubnetNotFound"},
		"two of a zone": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-a", "subnet-a2"}}, "InvalidConfigurationRequest"},
		"two VPCs": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-a", "subnet-x"}}, "InvalidConfigurationRequest"},
		"one zone": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: application,
			Subnets: []string{"subnet-a"}}, "ValidationError"},
		"IPv6": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-c"}, IpAddressType: types.IpAddressTypeDualstack}, "InvalidConfigurationRequest"},
		"security group": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-a"}, SecurityGroups: []string{"sg-x"}}, "InvalidConfigurationRequest"},
		"duplicate tags": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-a"}, Tags: tags("k", "1", "k", "2")}, "DuplicateTagKeys"},
		"tags AWS reserves": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-a"}, Tags: tags("aws:k", "1")}, "ValidationError"},
	} {
		_, err := w.CreateLoadBalancer(t.Context(), &test.in)
		wantCode(t, name, err, test.code)
	}
	if len(w.network.interfaces) != 0 {
		t.Errorf("%d interfaces of load balancers that were refused", len(w.network.interfaces))
	}
}

func TestSecurityGroupsAndAddresses(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	lb := must(w.CreateLoadBalancer(ctx, &elb.CreateLoadBalancerInput{
		Name: aws.String("dual"), Type: types.LoadBalancerTypeEnumNetwork, Subnets: []string{"subnet-a", "subnet-b"},
		SecurityGroups: []string{"sg-1"},
		IpAddressType:  types.IpAddressTypeDualstack,
	}))(t).LoadBalancers[0]
	if aws.ToString(lb.EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic) != "on" ||
		lb.IpAddressType != types.IpAddressTypeDualstack {
		t.Errorf("created: %+v", lb)
	}
	must(w.SetSecurityGroups(ctx, &elb.SetSecurityGroupsInput{LoadBalancerArn: lb.LoadBalancerArn,
		SecurityGroups: []string{"sg-2"}}))(t)
	for id, i := range w.network.interfaces {
		if !slices.Equal(i.Groups, []string{"sg-2"}) {
			t.Errorf("%s is in %v", id, i.Groups)
		}
	}
	must(w.SetIpAddressType(ctx, &elb.SetIpAddressTypeInput{LoadBalancerArn: lb.LoadBalancerArn,
		IpAddressType: types.IpAddressTypeIpv4}))(t)
	lb = must(w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{}))(t).LoadBalancers[0]
	if !slices.Equal(lb.SecurityGroups, []string{"sg-2"}) || lb.IpAddressType != types.IpAddressTypeIpv4 {
		t.Errorf("changed: %+v", lb)
	}
	app := must(w.CreateLoadBalancer(ctx, &elb.CreateLoadBalancerInput{Name: aws.String("app"),
		Subnets: []string{"subnet-a", "subnet-b"}}))(t).LoadBalancers[0]
	if app.Type != types.LoadBalancerTypeEnumApplication || !slices.Equal(app.SecurityGroups,
		[]string{"sg-default-vpc-1"}) {
		t.Errorf("application load balancer: %+v", app)
	}
	first := must(w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{PageSize: aws.Int32(1)}))(t)
	second := must(w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{PageSize: aws.Int32(1),
		Marker: first.NextMarker}))(t)
	if *first.LoadBalancers[0].LoadBalancerName != "dual" || *second.LoadBalancers[0].LoadBalancerName != "app" ||
		second.NextMarker != nil {
		t.Errorf("pages: %v, %v", first, second)
	}
}

func TestCapacityReservation(t *testing.T) {
	w := newWorld(t)
	ctx, lb := t.Context(), w.lb()
	none := must(w.DescribeCapacityReservation(ctx, &elb.DescribeCapacityReservationInput{
		LoadBalancerArn: lb.LoadBalancerArn}))(t)
	if none.MinimumLoadBalancerCapacity != nil || len(none.CapacityReservationState) != 0 {
		t.Errorf("at first: %+v", none)
	}
	must(w.ModifyCapacityReservation(ctx, &elb.ModifyCapacityReservationInput{
		LoadBalancerArn: lb.LoadBalancerArn, MinimumLoadBalancerCapacity: &types.MinimumLoadBalancerCapacity{
			CapacityUnits: aws.Int32(100)},
	}))(t)
	some := must(w.DescribeCapacityReservation(ctx, &elb.DescribeCapacityReservationInput{
		LoadBalancerArn: lb.LoadBalancerArn}))(t)
	if *some.MinimumLoadBalancerCapacity.CapacityUnits != 100 || len(some.CapacityReservationState) != 2 ||
		some.LastModifiedTime == nil {
		t.Errorf("reserved: %+v", some)
	}
	must(w.ModifyCapacityReservation(ctx, &elb.ModifyCapacityReservationInput{LoadBalancerArn: lb.LoadBalancerArn,
		ResetCapacityReservation: aws.Bool(true)}))(t)
	none = must(w.DescribeCapacityReservation(ctx, &elb.DescribeCapacityReservationInput{
		LoadBalancerArn: lb.LoadBalancerArn}))(t)
	if none.MinimumLoadBalancerCapacity != nil {
		t.Errorf("after the reset: %+v", none)
	}
}

func TestAttributes(t *testing.T) {
	w := newWorld(t)
	ctx, lb, tg := t.Context(), w.lb(), w.tg("g")
	l := w.listener(lb, tg, 6443)
	has := map[string]string{}
	for _, a := range must(w.DescribeLoadBalancerAttributes(ctx, &elb.DescribeLoadBalancerAttributesInput{
		LoadBalancerArn: lb.LoadBalancerArn}))(t).Attributes {
		has[*a.Key] = aws.ToString(a.Value)
	}
	for _, a := range must(w.DescribeTargetGroupAttributes(ctx, &elb.DescribeTargetGroupAttributesInput{
		TargetGroupArn: tg.TargetGroupArn}))(t).Attributes {
		has["tg "+*a.Key] = aws.ToString(a.Value)
	}
	for _, a := range must(w.DescribeListenerAttributes(ctx, &elb.DescribeListenerAttributesInput{
		ListenerArn: l.ListenerArn}))(t).Attributes {
		has["l "+*a.Key] = aws.ToString(a.Value)
	}
	for k, v := range map[string]string{
		"deletion_protection.enabled": "false", "load_balancing.cross_zone.enabled": "false",
		"ipv6.deny_all_igw_traffic":        "true",
		"dns_record.client_routing_policy": "any_availability_zone", "tg deregistration_delay.timeout_seconds": "300",
		"tg stickiness.type":            "source_ip",
		"tg preserve_client_ip.enabled": "true", "tg deregistration_delay.connection_termination.enabled": "false",
		"l tcp.idle_timeout.seconds": "350",
	} {
		if got, ok := has[k]; !ok || got != v {
			t.Errorf("%s = %q, want %q", k, got, v)
		}
	}
	if _, ok := has["idle_timeout.timeout_seconds"]; ok {
		t.Error("a network load balancer has attributes of others")
	}
	_, err := w.ModifyTargetGroupAttributes(ctx,
		&elb.ModifyTargetGroupAttributesInput{TargetGroupArn: tg.TargetGroupArn,
			Attributes: []types.TargetGroupAttribute{
				{Key: aws.String("deregistration_delay.timeout_seconds"), Value: aws.String("5")},
				{Key: aws.String("stickiness.type"), Value: aws.String("lb_cookie")},
			}})
	wantCode(t, "a value of others", err, "ValidationError")
	_, err = w.ModifyLoadBalancerAttributes(ctx,
		&elb.ModifyLoadBalancerAttributesInput{LoadBalancerArn: lb.LoadBalancerArn,
			Attributes: []types.LoadBalancerAttribute{
				{Key: aws.String("idle_timeout.timeout_seconds"), Value: aws.String("5")},
			}})
	wantCode(t, "an attribute of others", err, "InvalidConfigurationRequest")
	_, err = w.ModifyListenerAttributes(ctx, &elb.ModifyListenerAttributesInput{ListenerArn: l.ListenerArn,
		Attributes: []types.ListenerAttribute{
			{Key: aws.String("tcp.idle_timeout.seconds"), Value: aws.String("6001")},
		}})
	wantCode(t, "a value out of range", err, "ValidationError")
	after := must(w.DescribeTargetGroupAttributes(ctx, &elb.DescribeTargetGroupAttributesInput{
		TargetGroupArn: tg.TargetGroupArn}))(t).Attributes
	if i := slices.IndexFunc(after, func(a types.TargetGroupAttribute) bool {
		return *a.Key == "deregistration_delay.timeout_seconds"
	}); *after[i].Value != "300" {
		t.Errorf("half of a refused change was made: %s", *after[i].Value)
	}
}
