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
	w := newTestService(t)
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

	// Each subnet has an interface.
	before := *found[0].LoadBalancerArn
	var subnets []string
	for _, i := range w.network.interfaces {
		subnets = append(subnets, i.Subnet)
		if !strings.HasPrefix(i.Description, "ELB net/lb/") {
			t.Errorf("interface: %+v", i)
		}
	}
	slices.Sort(subnets)
	if diff := cmp.Diff([]string{"subnet-a", "subnet-b"}, subnets); diff != "" {
		t.Error(diff)
	}

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
	for range 2 { // AWS: "If it does not exist, the call succeeds."
		must(w.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: &before}))(t)
	}
	if len(w.network.interfaces) != 0 {
		t.Errorf("%d interfaces are left", len(w.network.interfaces))
	}
}

func TestLoadBalancerIsRefused(t *testing.T) {
	w := newTestService(t)
	network := types.LoadBalancerTypeEnumNetwork
	w.network.full = "subnet-b"
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
		"full subnet": {elb.CreateLoadBalancerInput{Name: aws.String("a"), Type: network,
			Subnets: []string{"subnet-a", "subnet-b"}}, "InsufficientFreeAddressesInSubnet"},
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
	w := newTestService(t)
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
	for id, i := range w.network.interfaces {
		if !slices.Equal(i.Groups, []string{"sg-1"}) || !i.IPv6 {
			t.Errorf("%s: %+v", id, i)
		}
	}
	w.lb()
	first := must(w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{PageSize: aws.Int32(1)}))(t)
	second := must(w.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{PageSize: aws.Int32(1),
		Marker: first.NextMarker}))(t)
	if *first.LoadBalancers[0].LoadBalancerName != "dual" || *second.LoadBalancers[0].LoadBalancerName != "lb" ||
		second.NextMarker != nil {
		t.Errorf("pages: %v, %v", first, second)
	}
}

func TestAttributes(t *testing.T) {
	w := newTestService(t)
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
	after := must(w.DescribeTargetGroupAttributes(ctx, &elb.DescribeTargetGroupAttributesInput{
		TargetGroupArn: tg.TargetGroupArn}))(t).Attributes
	if i := slices.IndexFunc(after, func(a types.TargetGroupAttribute) bool {
		return *a.Key == "deregistration_delay.timeout_seconds"
	}); *after[i].Value != "300" {
		t.Errorf("half of a refused change was made: %s", *after[i].Value)
	}
}
