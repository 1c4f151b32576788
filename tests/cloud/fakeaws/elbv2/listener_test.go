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
	w := newTestService(t)
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
	wantCode(t, "an action of others", create("TCP", 80, []types.Action{{Type: "redirect"}}),
		"InvalidLoadBalancerAction")
	second := must(w.CreateLoadBalancer(ctx, &elb.CreateLoadBalancerInput{Name: aws.String("second"), Type: "network",
		Subnets: []string{"subnet-a"}}))(t).LoadBalancers[0]
	_, err := w.CreateListener(ctx, &elb.CreateListenerInput{LoadBalancerArn: second.LoadBalancerArn, Protocol: "TCP",
		Port: aws.Int32(1), DefaultActions: forward(g)})
	wantCode(t, "a target group of another load balancer", err, "TargetGroupAssociationLimit")

	all := must(w.DescribeListeners(ctx, &elb.DescribeListenersInput{LoadBalancerArn: lb.LoadBalancerArn}))(t).Listeners
	if len(all) != 1 || *all[0].Port != 443 {
		t.Errorf("all: %+v", all)
	}
	must(w.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: lb.LoadBalancerArn}))(t)
	_, err = w.DescribeListeners(ctx, &elb.DescribeListenersInput{ListenerArns: []string{*l.ListenerArn}})
	wantCode(t, "a listener of what is gone", err, "ListenerNotFound")
}

func TestTLS(t *testing.T) {
	w := newTestService(t)
	ctx, lb, g := t.Context(), w.lb(), w.tg("g")
	certificates := []types.Certificate{
		{CertificateArn: aws.String("arn:aws:acm:us-west-2:123456789012:certificate/1")}}
	in := &elb.CreateListenerInput{
		LoadBalancerArn: lb.LoadBalancerArn, Protocol: "TLS", Port: aws.Int32(443), DefaultActions: forward(g),
		Certificates: certificates, SslPolicy: aws.String("mine"),
	}
	_, err := w.CreateListener(ctx, in)
	wantCode(t, "unknown security policy", err, "SSLPolicyNotFound")
	in.SslPolicy = aws.String("ELBSecurityPolicy-TLS13-1-2-2021-06")
	l := must(w.CreateListener(ctx, in))(t).Listeners[0]
	if aws.ToString(l.SslPolicy) != *in.SslPolicy ||
		*l.Certificates[0].CertificateArn != *certificates[0].CertificateArn {
		t.Errorf("created: %+v", l)
	}
}

func TestTags(t *testing.T) {
	w := newTestService(t)
	ctx, lb, g := t.Context(), w.lb(), w.tg("g")
	arns := []string{*lb.LoadBalancerArn, *g.TargetGroupArn}
	var has []string
	for _, d := range must(w.DescribeTags(ctx, &elb.DescribeTagsInput{ResourceArns: arns}))(t).TagDescriptions {
		for _, tag := range d.Tags {
			has = append(has, *tag.Key+"="+*tag.Value)
		}
	}
	if !slices.Equal(has, []string{"Name=lb", "Name=g"}) {
		t.Errorf("tags: %v", has)
	}
	_, err := w.DescribeTags(ctx, &elb.DescribeTagsInput{ResourceArns: []string{arns[0] + "0"}})
	wantCode(t, "tags of an unknown load balancer", err, "LoadBalancerNotFound")
}

// TestPermissions checks which permissions the service requests, and that a denied call changes nothing.
func TestPermissions(t *testing.T) {
	w := newTestService(t)
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
