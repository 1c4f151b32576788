package elbv2_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
)

func TestListener(t *testing.T) {
	w := newWorld(t)
	ctx, lb, g := t.Context(), w.lb(), w.tg("g")
	l := w.listener(lb, g, 443)
	if !strings.HasPrefix(*l.ListenerArn, strings.Replace(*lb.LoadBalancerArn, ":loadbalancer/", ":listener/", 1)+"/") {
		t.Errorf("ARN: %s", *l.ListenerArn)
	}
	a := l.DefaultActions[0]
	if *a.TargetGroupArn != *g.TargetGroupArn || len(a.ForwardConfig.TargetGroups) != 1 ||
		*a.ForwardConfig.TargetGroups[0].TargetGroupArn != *g.TargetGroupArn {
		t.Errorf("action: %+v", a)
	}
	if again := w.listener(lb, g, 443); *again.ListenerArn != *l.ListenerArn {
		t.Error("the same call made another")
	}
	other := w.tg("other")
	create := func(protocol types.ProtocolEnum, port int32, actions []types.Action) error {
		_, err := w.CreateListener(ctx, &elb.CreateListenerInput{LoadBalancerArn: lb.LoadBalancerArn,
			Protocol: protocol, Port: &port, DefaultActions: actions})
		return err
	}
	wantCode(t, "the same port", create("TCP", 443, forward(other)), "DuplicateListener")
	wantCode(t, "a protocol of others", create("HTTP", 80, forward(other)), "UnsupportedProtocol")
	wantCode(t, "TCP to UDP", create("UDP", 443, forward(other)), "IncompatibleProtocols")
	wantCode(t, "TLS without a certificate", create("TLS", 444, forward(other)), "ValidationError")
	wantCode(t, "no target group", create("TCP", 80, []types.Action{{Type: "forward"}}), "ValidationError")
	wantCode(t, "unknown target group", create("TCP", 80, []types.Action{{Type: "forward",
		TargetGroupArn: aws.String(*g.TargetGroupArn + "0")}}), "TargetGroupNotFound")
	wantCode(t, "an action of others", create("TCP", 80, []types.Action{{
		Type: "redirect", RedirectConfig: &types.RedirectActionConfig{StatusCode: "HTTP_301"},
	}}), "InvalidLoadBalancerAction")
	second := must(w.CreateLoadBalancer(ctx, &elb.CreateLoadBalancerInput{Name: aws.String("second"), Type: "network",
		Subnets: []string{"subnet-a"}}))(t).LoadBalancers[0]
	_, err := w.CreateListener(ctx, &elb.CreateListenerInput{LoadBalancerArn: second.LoadBalancerArn, Protocol: "TCP",
		Port: aws.Int32(1), DefaultActions: forward(g)})
	wantCode(t, "a target group of another load balancer", err, "TargetGroupAssociationLimit")

	changed := must(w.ModifyListener(ctx, &elb.ModifyListenerInput{ListenerArn: l.ListenerArn, Port: aws.Int32(8443),
		DefaultActions: forward(other)}))(t).Listeners[0]
	if *changed.Port != 8443 || *changed.DefaultActions[0].TargetGroupArn != *other.TargetGroupArn ||
		*changed.ListenerArn != *l.ListenerArn {
		t.Errorf("changed: %+v", changed)
	}
	must(w.DeleteTargetGroup(ctx, &elb.DeleteTargetGroupInput{TargetGroupArn: g.TargetGroupArn}))(t)
	all := must(w.DescribeListeners(ctx, &elb.DescribeListenersInput{LoadBalancerArn: lb.LoadBalancerArn}))(t).Listeners
	if len(all) != 1 || *all[0].Port != 8443 {
		t.Errorf("all: %+v", all)
	}
	must(w.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: lb.LoadBalancerArn}))(t)
	_, err = w.DescribeListeners(ctx, &elb.DescribeListenersInput{ListenerArns: []string{*l.ListenerArn}})
	wantCode(t, "a listener of what is gone", err, "ListenerNotFound")
}

func TestTLS(t *testing.T) {
	w := newWorld(t)
	ctx, lb, g := t.Context(), w.lb(), w.tg("g")
	cert := func(id string) types.Certificate {
		return types.Certificate{CertificateArn: aws.String("arn:aws:acm:us-west-2:123456789012:certificate/" + id)}
	}
	l := must(w.CreateListener(ctx, &elb.CreateListenerInput{
		LoadBalancerArn: lb.LoadBalancerArn, Protocol: "TLS", Port: aws.Int32(443), DefaultActions: forward(g),
		Certificates: []types.Certificate{cert("1")},
	}))(t).Listeners[0]
	if aws.ToString(l.SslPolicy) != "ELBSecurityPolicy-2016-08" {
		t.Errorf("policy: %v", l.SslPolicy)
	}
	must(w.AddListenerCertificates(ctx, &elb.AddListenerCertificatesInput{ListenerArn: l.ListenerArn,
		Certificates: []types.Certificate{cert("2"), cert("3")}}))(t)
	_, err := w.RemoveListenerCertificates(ctx, &elb.RemoveListenerCertificatesInput{ListenerArn: l.ListenerArn,
		Certificates: []types.Certificate{cert("1")}})
	wantCode(t, "remove the default", err, "OperationNotPermitted")
	must(w.RemoveListenerCertificates(ctx, &elb.RemoveListenerCertificatesInput{ListenerArn: l.ListenerArn,
		Certificates: []types.Certificate{cert("2")}}))(t)
	must(w.ModifyListener(ctx, &elb.ModifyListenerInput{ListenerArn: l.ListenerArn,
		Certificates: []types.Certificate{cert("4")}}))(t)
	var has []string
	for _, c := range must(w.DescribeListenerCertificates(ctx, &elb.DescribeListenerCertificatesInput{
		ListenerArn: l.ListenerArn}))(t).Certificates {
		has = append(has, (*c.CertificateArn)[len(*c.CertificateArn)-1:])
		if *c.IsDefault != (len(has) == 1) {
			t.Errorf("%+v", c)
		}
	}
	if !slices.Equal(has, []string{"4", "3"}) {
		t.Errorf("certificates: %v", has)
	}
	_, err = w.ModifyListener(ctx, &elb.ModifyListenerInput{ListenerArn: l.ListenerArn, SslPolicy: aws.String("mine")})
	wantCode(t, "unknown policy", err, "SSLPolicyNotFound")
}

func TestRules(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	lb := must(w.CreateLoadBalancer(ctx, &elb.CreateLoadBalancerInput{Name: aws.String("app"),
		Subnets: []string{"subnet-a", "subnet-b"}}))(t).LoadBalancers[0]
	g := must(w.CreateTargetGroup(ctx, &elb.CreateTargetGroupInput{Name: aws.String("web"), Protocol: "HTTP",
		Port: aws.Int32(80), VpcId: aws.String("vpc-1")}))(t).TargetGroups[0]
	l := must(w.CreateListener(ctx, &elb.CreateListenerInput{LoadBalancerArn: lb.LoadBalancerArn, Protocol: "HTTP",
		Port: aws.Int32(80), DefaultActions: []types.Action{{
			Type: "fixed-response", FixedResponseConfig: &types.FixedResponseActionConfig{StatusCode: aws.String("404"),
				ContentType: aws.String("text/plain")},
		}}}))(t).Listeners[0]
	rule := func(priority int32) (*elb.CreateRuleOutput, error) {
		return w.CreateRule(ctx, &elb.CreateRuleInput{
			ListenerArn: l.ListenerArn, Priority: &priority, Actions: forward(g), Conditions: []types.RuleCondition{
				{Field: aws.String("path-pattern"), PathPatternConfig: &types.PathPatternConditionConfig{
					Values: []string{"/a*"}}},
				{Field: aws.String("http-header"), HttpHeaderConfig: &types.HttpHeaderConditionConfig{
					HttpHeaderName: aws.String("X"), Values: []string{"y"}}},
				{Field: aws.String("query-string"), QueryStringConfig: &types.QueryStringConditionConfig{
					Values: []types.QueryStringKeyValuePair{{Value: aws.String("v")}}}},
			},
		})
	}
	second := must(rule(20))(t).Rules[0]
	first := must(rule(10))(t).Rules[0]
	_, err := rule(20)
	wantCode(t, "the same priority", err, "PriorityInUse")
	if c := first.Conditions; c[0].Values[0] != "/a*" || *c[1].HttpHeaderConfig.HttpHeaderName != "X" ||
		*c[2].QueryStringConfig.Values[0].Value != "v" {
		t.Errorf("conditions: %+v", c)
	}
	_, err = w.DeleteTargetGroup(ctx, &elb.DeleteTargetGroupInput{TargetGroupArn: g.TargetGroupArn})
	wantCode(t, "delete what a rule uses", err, "ResourceInUse")
	must(w.SetRulePriorities(ctx, &elb.SetRulePrioritiesInput{RulePriorities: []types.RulePriorityPair{
		{RuleArn: first.RuleArn, Priority: aws.Int32(20)}, {RuleArn: second.RuleArn, Priority: aws.Int32(10)},
	}}))(t)
	var order []string
	for _, r := range must(w.DescribeRules(ctx, &elb.DescribeRulesInput{ListenerArn: l.ListenerArn}))(t).Rules {
		order = append(order, *r.Priority)
		if *r.Priority == "10" && *r.RuleArn != *second.RuleArn {
			t.Error("priorities are not exchanged")
		}
	}
	if !slices.Equal(order, []string{"10", "20", "default"}) {
		t.Errorf("order: %v", order)
	}
	must(w.DeleteRule(ctx, &elb.DeleteRuleInput{RuleArn: first.RuleArn}))(t)
	must(w.DeleteListener(ctx, &elb.DeleteListenerInput{ListenerArn: l.ListenerArn}))(t)
	_, err = w.DescribeRules(ctx, &elb.DescribeRulesInput{RuleArns: []string{*second.RuleArn}})
	wantCode(t, "a rule of what is gone", err, "RuleNotFound")
}

func TestTags(t *testing.T) {
	w := newWorld(t)
	ctx, lb, g := t.Context(), w.lb(), w.tg("g")
	arns := []string{*lb.LoadBalancerArn, *g.TargetGroupArn}
	must(w.AddTags(ctx, &elb.AddTagsInput{ResourceArns: arns, Tags: tags("a", "1", "b", "2")}))(t)
	must(w.RemoveTags(ctx, &elb.RemoveTagsInput{ResourceArns: arns[:1], TagKeys: []string{"a", "Name"}}))(t)
	var has []string
	for _, d := range must(w.DescribeTags(ctx, &elb.DescribeTagsInput{ResourceArns: arns}))(t).TagDescriptions {
		for _, tag := range d.Tags {
			has = append(has, *tag.Key+"="+*tag.Value)
		}
	}
	if !slices.Equal(has, []string{"b=2", "Name=g", "a=1", "b=2"}) {
		t.Errorf("tags: %v", has)
	}
	_, err := w.AddTags(ctx, &elb.AddTagsInput{ResourceArns: []string{arns[0] + "0"}, Tags: tags("a", "1")})
	wantCode(t, "tags of nothing", err, "LoadBalancerNotFound")
}

// TestPermissions checks what policies are asked, and that a denial leaves no trace.
func TestPermissions(t *testing.T) {
	w := newWorld(t)
	ctx, g := t.Context(), w.tg("g")
	w.register(g, "i-1")
	last := w.asked[len(w.asked)-1]
	if last.action != "elasticloadbalancing:RegisterTargets" || last.resource != *g.TargetGroupArn ||
		!slices.Equal(last.conditions["aws:ResourceTag/Name"], []string{"g"}) {
		t.Errorf("asked: %+v", last)
	}
	w.asked = nil
	lb := w.lb()
	if len(w.asked) != 2 || w.asked[0].action != "elasticloadbalancing:CreateLoadBalancer" ||
		w.asked[1].action != "elasticloadbalancing:AddTags" ||
		!slices.Equal(w.asked[1].conditions["elasticloadbalancing:CreateAction"], []string{"CreateLoadBalancer"}) ||
		!slices.Equal(w.asked[0].conditions["aws:RequestTag/Name"], []string{"lb"}) ||
		w.asked[1].resource != w.asked[0].resource {
		t.Errorf("asked: %+v", w.asked)
	}
	if w.asked[0].resource != *lb.LoadBalancerArn {
		t.Errorf("asked for %s, made %s", w.asked[0].resource, *lb.LoadBalancerArn)
	}
	w.deny = "elasticloadbalancing:DeregisterTargets"
	_, err := w.DeregisterTargets(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: g.TargetGroupArn,
		Targets: targets("i-1")})
	wantCode(t, "what is not allowed", err, "AccessDenied")
	if len(w.states(g)) != 1 {
		t.Error("it was done all the same")
	}
	w.deny = "elasticloadbalancing:AddTags"
	_, err = w.CreateTargetGroup(ctx, &elb.CreateTargetGroupInput{Name: aws.String("n"), Protocol: "TCP",
		Port: aws.Int32(1), VpcId: aws.String("vpc-1"), Tags: tags("a", "b")})
	wantCode(t, "tags that are not allowed", err, "AccessDenied")
	if len(must(w.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{}))(t).TargetGroups) != 1 {
		t.Error("it was made all the same")
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t)
	first := must(w.DescribeAccountLimits(t.Context(), &elb.DescribeAccountLimitsInput{PageSize: aws.Int32(4)}))(t)
	rest := must(w.DescribeAccountLimits(t.Context(), &elb.DescribeAccountLimitsInput{Marker: first.NextMarker}))(t)
	if len(first.Limits) != 4 || !slices.ContainsFunc(rest.Limits, func(l types.Limit) bool {
		return *l.Name == "target-groups" && *l.Max == "3000"
	}) {
		t.Errorf("limits: %v, %v", first.Limits, rest.Limits)
	}
	_, err := w.DescribeAccountLimits(t.Context(), &elb.DescribeAccountLimitsInput{PageSize: aws.Int32(401)})
	wantCode(t, "a large page", err, "ValidationError")
	policies := must(w.DescribeSSLPolicies(t.Context(), &elb.DescribeSSLPoliciesInput{
		Names: []string{"ELBSecurityPolicy-2016-08"}}))(t).SslPolicies
	if len(policies) != 1 {
		t.Errorf("policies: %v", policies)
	}
}

// TestOperationsOfTerraform are those that a stack was seen to make with version 5.100 of the AWS provider.
func TestOperationsOfTerraform(t *testing.T) {
	has := newWorld(t).service.Operations()
	const made = `CreateListener CreateLoadBalancer CreateTargetGroup DeleteListener DeleteLoadBalancer DeleteTargetGroup DescribeCapacityReservation
		DescribeListenerAttributes DescribeListeners DescribeLoadBalancerAttributes DescribeLoadBalancers DescribeTags DescribeTargetGroupAttributes
		DescribeTargetGroups DescribeTargetHealth ModifyLoadBalancerAttributes ModifyTargetGroupAttributes RegisterTargets DeregisterTargets`
	for _, name := range strings.Fields(made) {
		if has[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
}
