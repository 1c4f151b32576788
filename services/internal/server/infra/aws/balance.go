package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	elbv2 "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/awscloud"
)

// Register implements infra.LoadBalancers. It registers the instance by its ID in every target group of the load
// balancer.
func (p *Provider) Register(ctx context.Context, lb string, vm infra.VM) error {
	what := fmt.Sprintf("register %s with load balancer %s", vm.ProviderID, lb)
	arns, ok := p.targetGroups(lb)
	if !ok {
		return refused(what, "the configuration has no such load balancer of provider aws")
	}
	if vm.ProviderID == "" {
		return infra.Errorf(infra.NotFound, what, "the VM is not known yet")
	}
	return each(arns, func(arn string) error {
		_, err := call(ctx, what+" at "+arn, "RegisterTargets", p.cfg.ELB.RegisterTargets,
			&elbv2.RegisterTargetsInput{TargetGroupArn: &arn, Targets: []types.TargetDescription{{Id: &vm.ProviderID}}})
		return err
	})
}

// Deregister implements infra.LoadBalancers. A missing target group or target is not an error.
func (p *Provider) Deregister(ctx context.Context, lb string, vm infra.VM) error {
	what := fmt.Sprintf("deregister %s from load balancer %s", vm.ProviderID, lb)
	arns, _ := p.targetGroups(lb)
	if vm.ProviderID == "" {
		return nil
	}
	return each(arns, func(arn string) error {
		_, err := call(ctx, what+" at "+arn, "DeregisterTargets", p.cfg.ELB.DeregisterTargets,
			&elbv2.DeregisterTargetsInput{TargetGroupArn: &arn,
				Targets: []types.TargetDescription{{Id: &vm.ProviderID}}})
		if code := awscloud.CodeOf(err); code == "TargetGroupNotFound" || code == "InvalidTarget" {
			return nil
		}
		return err
	})
}

// MemberHealth implements infra.LoadBalancerHealth, with one call for each target group. An instance is unhealthy if a
// target group calls it unhealthy. It is healthy if a target group calls it healthy and none calls it unhealthy.
// MemberHealth leaves out an instance whose targets all have other states.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html
func (p *Provider) MemberHealth(ctx context.Context, lb string, _ []infra.VM) (map[string]infra.MemberHealth, error) {
	members := map[string]infra.MemberHealth{}
	err := p.eachTarget(ctx, "ask for the health in load balancer "+lb, lb,
		func(id string, health *types.TargetHealth) {
			if health != nil {
				addTarget(members, id, health)
			}
		})
	if err != nil {
		return nil, err
	}
	return members, nil
}

// IsMember implements infra.LoadBalancerMembership, with one call for each target group. AWS lists a removed target as
// draining during its deregistration delay.
func (p *Provider) IsMember(ctx context.Context, lb string, vm infra.VM) (is bool, err error) {
	err = p.eachTarget(ctx, "ask whether load balancer "+lb+" has "+vm.ProviderID, lb,
		func(id string, _ *types.TargetHealth) { is = is || id == vm.ProviderID })
	return is, err
}

// eachTarget calls f for each target of the target groups of a load balancer. The health may be nil.
func (p *Provider) eachTarget(ctx context.Context, what, lb string, f func(id string,
	health *types.TargetHealth)) error {
	arns, ok := p.targetGroups(lb)
	if !ok {
		return refused(what, "the configuration has no such load balancer of provider aws")
	}
	return each(arns, func(arn string) error {
		out, err := call(ctx, what+" at "+arn, "DescribeTargetHealth", p.cfg.ELB.DescribeTargetHealth,
			&elbv2.DescribeTargetHealthInput{TargetGroupArn: &arn})
		if err != nil {
			return err
		}
		for _, d := range out.TargetHealthDescriptions {
			if d.Target != nil {
				f(sdk.ToString(d.Target.Id), d.TargetHealth)
			}
		}
		return nil
	})
}

// addTarget merges the health of one target into members. It ignores an unhealthy target whose reason is an internal
// error, because that is a fault of the load balancer.
func addTarget(members map[string]infra.MemberHealth, id string, health *types.TargetHealth) {
	known, decided := members[id]
	switch {
	case health.State == types.TargetHealthStateEnumHealthy && !decided:
		members[id] = infra.MemberHealth{Healthy: true}
	case health.State == types.TargetHealthStateEnumUnhealthy && (!decided || known.Healthy) &&
		health.Reason != types.TargetHealthReasonEnumInternalError:
		members[id] = infra.MemberHealth{Reason: string(health.Reason)}
	}
}

// defaultDelay is the deregistration delay of a target group that has no own one.
const defaultDelay = 300 * time.Second

// DeregistrationDelay implements infra.DeregistrationDelay, with one call for each target group. The delay has no
// earlier end: AWS reports a target as draining for the whole delay, even if it has no requests any more.
//
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetGroupAttribute.html
func (p *Provider) DeregistrationDelay(ctx context.Context, lb string) (longest time.Duration, err error) {
	what := "ask for the deregistration delay of load balancer " + lb
	arns, ok := p.targetGroups(lb)
	if !ok {
		return 0, infra.Errorf(infra.NotFound, what, "the configuration has no such load balancer of provider aws")
	}
	err = each(arns, func(arn string) error {
		out, err := call(ctx, what+" at "+arn, "DescribeTargetGroupAttributes",
			p.cfg.ELB.DescribeTargetGroupAttributes, &elbv2.DescribeTargetGroupAttributesInput{TargetGroupArn: &arn})
		if err != nil {
			return err
		}
		delay := defaultDelay
		for _, a := range out.Attributes {
			if sdk.ToString(a.Key) == "deregistration_delay.timeout_seconds" {
				seconds, err := strconv.ParseUint(sdk.ToString(a.Value), 10, 16)
				if err != nil {
					return refused(what+" at "+arn, "AWS answered: %w", err)
				}
				delay = time.Duration(seconds) * time.Second
			}
		}
		longest = max(longest, delay)
		return nil
	})
	return longest, err
}

func (p *Provider) targetGroups(lb string) (arns []string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	arns, ok = p.balancers[lb]
	return arns, ok
}

// each calls do for every target group, even after an error, and joins the errors. The class of a joined error is the
// class of its first error. So the errors that are most likely to disappear by themselves come first.
func each(arns []string, do func(arn string) error) error {
	var errs []error
	for _, arn := range arns {
		if err := do(arn); err != nil {
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(errs, func(a, b error) int { return urgency(infra.ClassOf(a)) - urgency(infra.ClassOf(b)) })
	return errors.Join(errs...)
}

// urgency orders classes. Classes of errors that may disappear without a change of the configuration come first.
func urgency(c infra.Class) int {
	return slices.Index([]infra.Class{infra.Indeterminate, infra.Throttled, infra.Capacity, infra.Denied,
		infra.Conflict, infra.Invalid, infra.NotFound}, c)
}
