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
				{Target: &elbtypes.TargetDescription{Id: sdk.String("i-odd")}}},
			"two": {target("i-well", "initial", "Elb.InitialHealthChecking"),
				target("i-half", "unhealthy", "Target.ResponseCodeMismatch"), target("i-sick", "healthy", ""),
				target("i-twice", "unhealthy", "Target.FailedHealthChecks")},
		}}
	})
	balancer := config.LoadBalancer{Provider: "aws"}
	balancer.TargetGroupARNs = []string{"one", "two"}
	p.Configure(&config.Shard{LoadBalancers: map[string]config.LoadBalancer{"web": balancer}})
	got, err := p.MemberHealth(t.Context(), "web", nil)
	if diff := cmp.Diff(map[string]infra.MemberHealth{"i-well": {Healthy: true}, "i-sick": {Reason: "Target.Timeout"},
		"i-half": {Reason: "Target.ResponseCodeMismatch"}, "i-twice": {Reason: "Target.Timeout"}}, got); err != nil ||
		diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestTargetGroupThatDoesNotAnswer checks that MemberHealth returns an error and no verdicts if one target group does
// not answer.
func TestTargetGroupThatDoesNotAnswer(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	arn := r.balancer(t)
	missing := strings.Replace(arn, "/web/", "/gone/", 1)
	configure := func(arns ...string) {
		balancer := config.LoadBalancer{Provider: "aws"}
		balancer.TargetGroupARNs = arns
		p.Configure(&config.Shard{LoadBalancers: map[string]config.LoadBalancer{"web": balancer}})
	}
	configure(arn)
	vm := r.create(p)
	r.cloud.EC2().Settle()
	if err := p.Register(t.Context(), "web", vm); err != nil {
		t.Fatal(err)
	}
	r.setHealth(t, arn, vm, false)
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
}
