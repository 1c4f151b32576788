package elbv2_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/elbv2"
)

func TestTargetGroupDefaults(t *testing.T) {
	w := newTestService(t)
	for _, test := range []struct {
		protocol, check                       types.ProtocolEnum
		want                                  types.ProtocolEnum
		interval, timeout, healthy, unhealthy int32
		path, codes                           string
	}{
		{"TCP", "", "TCP", 30, 10, 5, 2, "", ""},
		{"TCP", "HTTP", "HTTP", 30, 6, 5, 2, "/", "200-399"},
		{"UDP", "", "TCP", 30, 10, 5, 2, "", ""},
	} {
		name := "g" + string(test.protocol) + string(test.check)
		g := must(w.CreateTargetGroup(t.Context(), &elb.CreateTargetGroupInput{
			Name: &name, Protocol: test.protocol, Port: aws.Int32(80), VpcId: aws.String("vpc-1"),
			HealthCheckProtocol: test.check,
		}))(t).TargetGroups[0]
		codes := ""
		if g.Matcher != nil {
			codes = *g.Matcher.HttpCode
		}
		if g.HealthCheckProtocol != test.want || *g.HealthCheckIntervalSeconds != test.interval ||
			*g.HealthCheckTimeoutSeconds != test.timeout ||
			*g.HealthyThresholdCount != test.healthy || *g.UnhealthyThresholdCount != test.unhealthy ||
			aws.ToString(g.HealthCheckPath) != test.path ||
			codes != test.codes || *g.HealthCheckPort != "traffic-port" ||
			g.TargetType != types.TargetTypeEnumInstance || !*g.HealthCheckEnabled {
			t.Errorf("%s with %s: %+v, matcher %q", test.protocol, test.check, g, codes)
		}
	}
}

func TestTargetGroup(t *testing.T) {
	w := newTestService(t)
	ctx, g := t.Context(), w.tg("g")
	if again := w.tg("g"); *again.TargetGroupArn != *g.TargetGroupArn {
		t.Error("the same call made another")
	}
	_, err := w.CreateTargetGroup(ctx, &elb.CreateTargetGroupInput{Name: aws.String("g"), Protocol: "TCP",
		Port: aws.Int32(1), VpcId: aws.String("vpc-1")})
	wantCode(t, "the same name", err, "DuplicateTargetGroupName")
	for name, in := range map[string]elb.CreateTargetGroupInput{
		"no VPC":      {Name: aws.String("x"), Protocol: "TCP", Port: aws.Int32(1)},
		"unknown VPC": {Name: aws.String("x"), Protocol: "TCP", Port: aws.Int32(1), VpcId: aws.String("vpc-0")},
		"port":        {Name: aws.String("x"), Protocol: "TCP", Port: aws.Int32(0), VpcId: aws.String("vpc-1")},
		"protocol":    {Name: aws.String("x"), Protocol: "FTP", Port: aws.Int32(1), VpcId: aws.String("vpc-1")},
		"interval": {Name: aws.String("x"), Protocol: "TCP", Port: aws.Int32(1), VpcId: aws.String("vpc-1"),
			HealthCheckIntervalSeconds: aws.Int32(4)},
		"path of TCP": {Name: aws.String("x"), Protocol: "TCP", Port: aws.Int32(1), VpcId: aws.String("vpc-1"),
			HealthCheckPath: aws.String("/")},
	} {
		_, err := w.CreateTargetGroup(ctx, &in)
		wantCode(t, name, err, "ValidationError")
	}
	lb := w.lb()
	l := w.listener(lb, g, 443)
	found := must(w.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{LoadBalancerArn: lb.LoadBalancerArn}))(
		t).TargetGroups
	if len(found) != 1 || !slices.Equal(found[0].LoadBalancerArns, []string{*lb.LoadBalancerArn}) {
		t.Errorf("found: %+v", found)
	}
	_, err = w.DeleteTargetGroup(ctx, &elb.DeleteTargetGroupInput{TargetGroupArn: g.TargetGroupArn})
	wantCode(t, "delete what a listener uses", err, "ResourceInUse")
	must(w.DeleteListener(ctx, &elb.DeleteListenerInput{ListenerArn: l.ListenerArn}))(t)
	must(w.DeleteTargetGroup(ctx, &elb.DeleteTargetGroupInput{TargetGroupArn: g.TargetGroupArn}))(t)
	_, err = w.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{Names: []string{"g"}})
	wantCode(t, "find what is gone", err, "TargetGroupNotFound")
	_, err = w.RegisterTargets(ctx, &elb.RegisterTargetsInput{TargetGroupArn: g.TargetGroupArn,
		Targets: targets("i-1")})
	wantCode(t, "register with what is gone", err, "TargetGroupNotFound")
}

func TestTargets(t *testing.T) {
	w := newTestService(t)
	ctx, lb, g := t.Context(), w.lb(), w.tg("g")
	want := func(what string, states ...string) {
		t.Helper()
		if diff := cmp.Diff(states, w.states(g)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	w.register(g, "i-1")
	want("without a listener", "i-1:6443 unused Target.NotInUse")
	w.listener(lb, g, 443)
	w.register(g, "i-1", "i-2")
	// The load balancer has no node in the zone of the instance i-2.
	want("with one", "i-1:6443 healthy", "i-2:6443 unused Target.NotInUse")
	if got := w.states(g, targets("i-1", "i-9")...); !slices.Equal(got,
		[]string{"i-1:6443 healthy", "i-9:6443 unused Target.NotRegistered"}) {
		t.Errorf("asked for: %v", got)
	}
	for id, code := range map[string]string{"i-9": "InvalidTarget", "i-p": "InvalidTarget", "i-x": "InvalidTarget",
		"10.0.0.1": "ValidationError"} {
		_, err := w.RegisterTargets(ctx, &elb.RegisterTargetsInput{TargetGroupArn: g.TargetGroupArn,
			Targets: targets("i-1", id)})
		wantCode(t, "register "+id, err, code)
	}
	w.at(func() {
		w.network.instances["i-1"] = elbv2.Instance{State: "shutting-down", VPC: "vpc-1", Zone: "us-west-2a"}
	})
	want("while it goes", "i-1:6443 unused Target.InvalidState", "i-2:6443 unused Target.NotInUse")
	w.at(func() { delete(w.network.instances, "i-1") })
	want("when it is forgotten", "i-2:6443 unused Target.NotInUse")
}

func TestDraining(t *testing.T) {
	w := newTestService(t)
	ctx, g := t.Context(), w.tg("g")
	w.listener(w.lb(), g, 443)
	w.register(g, "i-1")
	deregister := func() {
		t.Helper()
		must(w.DeregisterTargets(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: g.TargetGroupArn,
			Targets: targets("i-1")}))(t)
	}
	deregister()
	if got := w.states(g); !slices.Equal(got, []string{"i-1:6443 draining Target.DeregistrationInProgress"}) {
		t.Errorf("deregistered: %v", got)
	}
	w.register(g, "i-1")
	if got := w.states(g); !slices.Equal(got, []string{"i-1:6443 healthy"}) {
		t.Errorf("registered again: %v", got)
	}
	deregister()
	w.at(func() { w.now = w.now.Add(299 * time.Second) })
	if got := w.states(g); len(got) != 1 {
		t.Errorf("before the delay has passed: %v", got)
	}
	w.at(func() { w.now = w.now.Add(time.Second) })
	if got := w.states(g); len(got) != 0 {
		t.Errorf("after it: %v", got)
	}
	deregister() // An unregistered target is no error.
	must(w.ModifyTargetGroupAttributes(ctx, &elb.ModifyTargetGroupAttributesInput{TargetGroupArn: g.TargetGroupArn,
		Attributes: []types.TargetGroupAttribute{
			{Key: aws.String("deregistration_delay.timeout_seconds"), Value: aws.String("0")},
		}}))(t)
	w.register(g, "i-1")
	deregister()
	if got := w.states(g); len(got) != 0 {
		t.Errorf("without a delay: %v", got)
	}
}

func TestProbe(t *testing.T) {
	w := newTestService(t)
	ctx, g := t.Context(), w.tg("g")
	w.listener(w.lb(), g, 443)
	works := true
	w.at(func() {
		w.service.SetProbe(func(_ context.Context, target elbv2.Target) bool {
			if target.ID != "i-1" || target.Address != "10.0.0.1" || target.Port != 6443 || target.Protocol != "TCP" ||
				target.Timeout != 10*time.Second {
				t.Errorf("probed: %+v", target)
			}
			return works
		})
	})
	w.register(g, "i-1")
	want := func(what, state string) {
		t.Helper()
		if got := w.states(g); !slices.Equal(got, []string{"i-1:6443 " + state}) {
			t.Errorf("%s: %v", what, got)
		}
	}
	check := func(n int) {
		for range n {
			w.service.Check(ctx)
		}
	}
	check(4)
	want("before enough checks", "initial Elb.InitialHealthChecking")
	check(1)
	want("after five", "healthy")
	works = false
	check(1)
	want("one failed", "healthy")
	check(1)
	want("two failed", "unhealthy Target.FailedHealthChecks")
	w.at(func() {
		if got := w.service.Health(*g.TargetGroupArn, "i-1"); got != "unhealthy" {
			t.Errorf("health = %q", got)
		}
		if got := w.service.Health(*g.TargetGroupArn, "i-2"); got != "" {
			t.Errorf("health of no target = %q", got)
		}
	})
	works = true
	check(4)
	want("four passed", "unhealthy Target.FailedHealthChecks")
	check(1)
	want("five passed", "healthy")
}

func TestRunEnds(t *testing.T) {
	w := newTestService(t)
	g := w.tg("g")
	w.listener(w.lb(), g, 443)
	ctx, cancel := context.WithCancel(t.Context())
	checks := 0
	w.at(func() {
		w.service.SetProbe(func(context.Context, elbv2.Target) bool {
			if checks++; checks == 5 {
				cancel()
			}
			return true
		})
	})
	w.register(g, "i-1")
	w.service.Run(ctx, time.Millisecond)
	if checks != 5 {
		t.Errorf("%d checks", checks)
	}
	if got := w.states(g); !slices.Equal(got, []string{"i-1:6443 initial Elb.InitialHealthChecking"}) {
		t.Errorf("a check that was stopped counted: %v", got)
	}
}

func TestGoLevel(t *testing.T) {
	w := newTestService(t)
	g := w.tg("g")
	w.listener(w.lb(), g, 443)
	w.at(func() {
		if err := w.service.Register(*g.TargetGroupArn, "i-p"); err == nil {
			t.Error("registered what does not run")
		}
		if err := w.service.Register(*g.TargetGroupArn, "i-1"); err != nil {
			t.Error(err)
		}
		if got := w.service.Health(*g.TargetGroupArn, "i-1"); got != "healthy" {
			t.Errorf("health = %q", got)
		}
		if err := w.service.Deregister(*g.TargetGroupArn, "i-1"); err != nil {
			t.Error(err)
		}
		if got := w.service.Health(*g.TargetGroupArn, "i-1"); got != "draining" {
			t.Errorf("health = %q", got)
		}
	})
}
