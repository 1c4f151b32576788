package aws_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	elbv2 "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	elbtypes "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

// elb returns a client that has the permissions of the account, not those of the server's role.
func (r *testCloud) elb() *elbv2.Client {
	access, secret := r.cloud.Credentials()
	return elbv2.NewFromConfig(sdk.Config{Region: region, BaseEndpoint: &r.url,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")})
}

// delay is the deregistration delay of the target groups that the method balancer makes.
const delay = 40 * time.Second

// balancer makes a network load balancer with a listener, and returns the ARN of its target group.
func (r *testCloud) balancer(t *testing.T) string {
	t.Helper()
	client := r.elb()
	group, err := client.CreateTargetGroup(t.Context(), &elbv2.CreateTargetGroupInput{Name: sdk.String("web"),
		VpcId: &r.vpc, Protocol: elbtypes.ProtocolEnumTcp, Port: sdk.Int32(8080)})
	if err != nil {
		t.Fatal(err)
	}
	arn := group.TargetGroups[0].TargetGroupArn
	r.setDelay(t, *arn, "40")
	lb, err := client.CreateLoadBalancer(t.Context(), &elbv2.CreateLoadBalancerInput{Name: sdk.String("web"),
		Type: elbtypes.LoadBalancerTypeEnumNetwork, Scheme: elbtypes.LoadBalancerSchemeEnumInternal,
		Subnets: []string{r.a}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CreateListener(t.Context(), &elbv2.CreateListenerInput{
		LoadBalancerArn: lb.LoadBalancers[0].LoadBalancerArn, Protocol: elbtypes.ProtocolEnumTcp, Port: sdk.Int32(80),
		DefaultActions: []elbtypes.Action{{Type: elbtypes.ActionTypeEnumForward, TargetGroupArn: arn}}}); err != nil {
		t.Fatal(err)
	}
	return *arn
}

func (r *testCloud) setDelay(t *testing.T, arn, seconds string) {
	t.Helper()
	if _, err := r.elb().ModifyTargetGroupAttributes(t.Context(), &elbv2.ModifyTargetGroupAttributesInput{
		TargetGroupArn: &arn, Attributes: []elbtypes.TargetGroupAttribute{
			{Key: sdk.String("deregistration_delay.timeout_seconds"), Value: &seconds}}}); err != nil {
		t.Fatal(err)
	}
}

// shardWith is a shard with the load balancer web, which has the given target groups.
func shardWith(arns ...string) *config.Shard {
	balancer := config.LoadBalancer{Provider: "aws"}
	balancer.TargetGroupARNs = arns
	return &config.Shard{LoadBalancers: map[string]config.LoadBalancer{"web": balancer}}
}

// setHealth makes a target pass or fail its health checks, and waits until the target group reports the result.
func (r *testCloud) setHealth(t *testing.T, arn string, vm infra.VM, healthy bool) {
	t.Helper()
	want := elbtypes.TargetHealthStateEnumHealthy
	if healthy {
		r.unhealthy.Delete(vm.ProviderID)
	} else {
		want = elbtypes.TargetHealthStateEnumUnhealthy
		r.unhealthy.Store(vm.ProviderID, true)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		out, err := r.elb().DescribeTargetHealth(t.Context(), &elbv2.DescribeTargetHealthInput{TargetGroupArn: &arn,
			Targets: []elbtypes.TargetDescription{{Id: &vm.ProviderID}}})
		if err != nil {
			t.Fatal(err)
		}
		if out.TargetHealthDescriptions[0].TargetHealth.State == want {
			return
		}
	}
	t.Fatalf("%s does not become %s", vm.ProviderID, want)
}

// targets implements aws.ELB with fixed descriptions of the targets of each target group.
type targets struct {
	aws.ELB
	states map[string][]elbtypes.TargetHealthDescription
}

func (e targets) DescribeTargetHealth(_ context.Context, in *elbv2.DescribeTargetHealthInput, _ ...func(*elbv2.Options)) (
	*elbv2.DescribeTargetHealthOutput, error) {
	return &elbv2.DescribeTargetHealthOutput{TargetHealthDescriptions: e.states[*in.TargetGroupArn]}, nil
}

// TestVerdictsOfTargetGroups checks which of AWS's states are verdicts, and how the verdicts of several target groups
// are combined.
func TestVerdictsOfTargetGroups(t *testing.T) {
	target := func(id, state, reason string) elbtypes.TargetHealthDescription {
		return elbtypes.TargetHealthDescription{Target: &elbtypes.TargetDescription{Id: &id},
			TargetHealth: &elbtypes.TargetHealth{State: elbtypes.TargetHealthStateEnum(state),
				Reason: elbtypes.TargetHealthReasonEnum(reason)}}
	}
	r := newTestCloud(t)
	p := r.open(func(cfg *aws.Config) {
		cfg.ELB = targets{states: map[string][]elbtypes.TargetHealthDescription{
			"one": {target("i-well", "healthy", ""), target("i-new", "initial", "Elb.InitialHealthChecking"),
				target("i-joins", "initial", "Elb.RegistrationInProgress"),
				target("i-sick", "unhealthy", "Target.Timeout"), target("i-half", "healthy", ""),
				target("i-twice", "unhealthy", "Target.Timeout"),
				target("i-fault", "unhealthy", "Elb.InternalError"), target("i-idle", "unused", "Target.NotInUse"),
				target("i-leaves", "draining", "Target.DeregistrationInProgress"),
				target("i-sick-leaves", "unhealthy.draining", ""),
				target("i-dark", "unavailable", "Target.HealthCheckDisabled"), {},
				{Target: &elbtypes.TargetDescription{Id: sdk.String("i-odd")}},
				{TargetHealth: &elbtypes.TargetHealth{State: elbtypes.TargetHealthStateEnumHealthy}}},
			"two": {target("i-well", "initial", "Elb.InitialHealthChecking"),
				target("i-half", "unhealthy", "Target.ResponseCodeMismatch"), target("i-sick", "healthy", ""),
				target("i-twice", "unhealthy", "Target.FailedHealthChecks")},
		}}
	})
	p.Configure(shardWith("one", "two"))
	got, err := p.MemberHealth(t.Context(), "web", nil)
	if diff := cmp.Diff(map[string]infra.MemberHealth{"i-well": {Healthy: true}, "i-sick": {Reason: "Target.Timeout"},
		"i-half": {Reason: "Target.ResponseCodeMismatch"}, "i-twice": {Reason: "Target.Timeout"}}, got); err != nil ||
		diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// attributes implements aws.ELB with fixed attributes of each target group.
type attributes struct {
	aws.ELB
	of map[string][]elbtypes.TargetGroupAttribute
}

func (e attributes) DescribeTargetGroupAttributes(_ context.Context, in *elbv2.DescribeTargetGroupAttributesInput,
	_ ...func(*elbv2.Options)) (*elbv2.DescribeTargetGroupAttributesOutput, error) {
	return &elbv2.DescribeTargetGroupAttributesOutput{Attributes: e.of[*in.TargetGroupArn]}, nil
}

// TestDelaysOfTargetGroups checks that the longest delay of the target groups counts, and that an answer which is no
// number is an error.
func TestDelaysOfTargetGroups(t *testing.T) {
	r := newTestCloud(t)
	attribute := func(key, value string) []elbtypes.TargetGroupAttribute {
		return []elbtypes.TargetGroupAttribute{{Key: sdk.String("stickiness.enabled"), Value: sdk.String("true")},
			{Key: &key, Value: &value}}
	}
	const key = "deregistration_delay.timeout_seconds"
	p := r.open(func(cfg *aws.Config) {
		cfg.ELB = attributes{of: map[string][]elbtypes.TargetGroupAttribute{"off": attribute(key, "0"),
			"short": attribute(key, "30"), "long": attribute(key, "3600"), "odd": attribute(key, "1h"),
			"less": attribute(key, "-1"), "none": attribute("x", "1"), "empty": {{}}}}
	})
	for _, test := range []struct {
		groups []string
		want   time.Duration
		class  infra.Class
	}{
		{[]string{"off"}, 0, ""}, {[]string{"off", "long", "short"}, time.Hour, ""},
		{[]string{"short", "none"}, 5 * time.Minute, ""}, {[]string{"empty"}, 5 * time.Minute, ""},
		{[]string{"short", "odd"}, 0, infra.Invalid}, {[]string{"less"}, 0, infra.Invalid},
	} {
		p.Configure(shardWith(test.groups...))
		got, err := p.DeregistrationDelay(t.Context(), "web")
		if (err != nil || test.class != "") && infra.ClassOf(err) != test.class || err == nil && got != test.want {
			t.Errorf("%v: %s, %v; want %s, class %q", test.groups, got, err, test.want, test.class)
		}
	}
}

// TestDelayThatCannotBeRead asks for the delay of a load balancer with a missing target group, and with one that
// throttles and that the role may not read.
func TestDelayThatCannotBeRead(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	arn := r.balancer(t)
	missing := strings.Replace(arn, "/web/", "/gone/", 1)
	ask := func(what string, class infra.Class, arns ...string) {
		t.Helper()
		p.Configure(shardWith(arns...))
		_, err := p.DeregistrationDelay(t.Context(), "web")
		wantClass(t, what, err, class, arns[len(arns)-1])
	}
	ask("a missing target group", infra.NotFound, arn, missing)
	question := fault.Match{Service: "elasticloadbalancing", Action: "DescribeTargetGroupAttributes"}
	r.cloud.Faults().Fail(question, 1, http.StatusForbidden, "AccessDenied", "no")
	ask("denied", infra.Denied, arn)
	r.cloud.Faults().Fail(question, 1, http.StatusBadRequest, "TargetGroupNotFound", "no")
	r.cloud.Faults().Throttle(question, fault.Forever)
	ask("throttled, and one is missing", infra.Throttled, missing, arn)
}

// TestTargetGroupThatDoesNotAnswer checks that MemberHealth returns an error and no verdicts if one target group does
// not answer.
func TestTargetGroupThatDoesNotAnswer(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	arn := r.balancer(t)
	missing := strings.Replace(arn, "/web/", "/gone/", 1)
	configure := func(arns ...string) { p.Configure(shardWith(arns...)) }
	configure(arn)
	vm := r.create(p)
	r.cloud.EC2().Settle()
	if err := p.Register(t.Context(), "web", vm); err != nil {
		t.Fatal(err)
	}
	r.setHealth(t, arn, vm, false)
	isMember := func(want bool) {
		t.Helper()
		if is, err := p.IsMember(t.Context(), "web", vm); err != nil || is != want {
			t.Errorf("it is a member: %t, %v, want %t", is, err, want)
		}
	}
	isMember(true)
	ask := func() error {
		got, err := p.MemberHealth(t.Context(), "web", []infra.VM{vm})
		if (err == nil) != (len(got) == 1) {
			t.Errorf("%v, with the error %v", got, err)
		}
		return err
	}
	if err := ask(); err != nil {
		t.Error(err)
	}
	configure(arn, missing)
	wantClass(t, "a target group that is gone", ask(), infra.NotFound, missing)
	configure(arn)
	question := fault.Match{Service: "elasticloadbalancing", Action: "DescribeTargetHealth"}
	r.cloud.Faults().Throttle(question, fault.Forever)
	wantClass(t, "throttled", ask(), infra.Throttled)
	r.cloud.Faults().Fail(fault.Match{Service: "elasticloadbalancing", Action: "DeregisterTargets"}, 1,
		http.StatusForbidden, "AccessDenied", "no")
	r.cloud.Faults().Fail(fault.Match{Service: "elasticloadbalancing", Action: "DeregisterTargets"}, 1,
		http.StatusBadRequest, "InvalidTarget", "no")
	wantClass(t, "a refused deregistration", p.Deregister(t.Context(), "web", vm), infra.Denied, arn)
	if err := p.Deregister(t.Context(), "web", vm); err != nil {
		t.Errorf("a target that is gone: %v", err)
	}
	r.cloud.Faults().Clear()
	configure(arn)
	isMember(true) // it is draining
	vm.ProviderID = "i-00000000000000000"
	isMember(false)
	p.Configure(shardWith())
	if _, err := p.IsMember(t.Context(), "other", vm); infra.ClassOf(err) != infra.Invalid {
		t.Errorf("an unknown load balancer: %v", err)
	}
}
