package aws

import (
	"context"
	"maps"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/awscloud"
)

// Sleep implements infra.Sleeper with StopInstances. EC2 describes a hibernated instance as stopped.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StopInstances.html
func (p *Provider) Sleep(ctx context.Context, vm infra.VM, how string) error {
	what := "put " + vm.ProviderID + " to sleep"
	instance, err := p.owned(ctx, what, vm)
	if err != nil {
		return err
	}
	hibernate := how == config.SparesSuspended
	switch state := stateOf(instance); {
	case !hibernate && how != config.SparesStopped:
		return refused(what, "there is no way to sleep %q, only stopped and suspended", how)
	case instance.InstanceLifecycle == types.InstanceLifecycleTypeSpot:
		return refused(what, "it is a spot instance, which cannot be started again after a stop; let the spares of "+
			"its group run, or buy them on demand")
	case instance.RootDeviceType == types.DeviceTypeInstanceStore:
		return refused(what, "its root device is in the instance store, and would be lost; let the spares of its "+
			"group run, or use an image whose root device is in EBS")
	case hibernate && (instance.HibernationOptions == nil || !deref(instance.HibernationOptions.Configured)):
		return refused(what, "it was launched without hibernation, which cannot be changed; delete it, so that the "+
			"next spare is launched with hibernation")
	case state == infra.Stopping || state == infra.Stopped:
		return nil
	case state == infra.Pending:
		return infra.Errorf(infra.Conflict, what, "it is still starting")
	}
	_, err = call(ctx, what, "StopInstances", p.cfg.EC2.StopInstances,
		&ec2.StopInstancesInput{InstanceIds: []string{vm.ProviderID}, Hibernate: sdk.Bool(hibernate)},
		p.rates.stopping)
	if awscloud.CodeOf(err) == "UnsupportedOperation" && hibernate {
		// The instance is not ready: this takes about two minutes after each start.
		// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshoot-instance-hibernate.html
		return infra.Reclass(err, infra.Conflict)
	}
	return err
}

// Wake implements infra.Sleeper with StartInstances.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StartInstances.html
func (p *Provider) Wake(ctx context.Context, vm infra.VM) error {
	what := "wake " + vm.ProviderID
	instance, err := p.owned(ctx, what, vm)
	if err != nil {
		return err
	}
	switch stateOf(instance) {
	case infra.Pending, infra.Running:
		return nil
	case infra.Stopping:
		return infra.Errorf(infra.Conflict, what, "it is still stopping")
	}
	_, err = call(ctx, what, "StartInstances", p.cfg.EC2.StartInstances,
		&ec2.StartInstancesInput{InstanceIds: []string{vm.ProviderID}}, p.rates.starting)
	return err
}

// owned describes an instance that has not ended. It fails as NotFound if there is none, and as Invalid if the instance
// has another owner or another instance ID.
func (p *Provider) owned(ctx context.Context, what string, vm infra.VM) (types.Instance, error) {
	instance, err := p.instance(ctx, what, vm.ProviderID)
	if err != nil {
		return types.Instance{}, err
	}
	if state := stateOf(instance); ending(state) {
		return types.Instance{}, infra.Errorf(infra.NotFound, what, "it is %s", state)
	}
	return instance, infra.CheckOwned(what, p.describe(instance).Tags, vm.Tags)
}

// hibernationAdvice says what a VM needs to hibernate.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/hibernating-prerequisites.html
const hibernationAdvice = "a suspended spare needs an instance type and an image that support hibernation, and an " +
	"encrypted root volume that is larger than its memory; otherwise set spares.state to stopped"

// explainHibernation adds advice to the error of a create that EC2 refused because the VM could not hibernate.
func explainHibernation(err error, instanceType string) error {
	if awscloud.CodeOf(err) != "UnsupportedHibernationConfiguration" {
		return err
	}
	return infra.Errorf(infra.ClassOf(err), "create a "+instanceType+" that can hibernate", "%w (%s)", err,
		hibernationAdvice)
}

// describedTypes is the largest number of types in one call of DescribeInstanceTypes.
const describedTypes = 100

// checkHibernation fails as Invalid if a type of a group whose spares are suspended cannot hibernate.
func (p *Provider) checkHibernation(ctx context.Context, shard *config.Shard) error {
	groups := map[types.InstanceType][]string{} // by type
	merged, _ := shard.Merged(config.Groups{})
	for key, group := range merged {
		if group.Spares.Count == 0 || group.Spares.Sleep() != config.SparesSuspended {
			continue
		}
		for _, name := range append([]string{group.InstanceType}, group.InstanceTypes...) {
			groups[types.InstanceType(name)] = append(groups[types.InstanceType(name)], key.String())
		}
	}
	const what = "check spares.state"
	var problems []string
	for names := range slices.Chunk(slices.Sorted(maps.Keys(groups)), describedTypes) {
		out, err := call(ctx, what, "DescribeInstanceTypes", p.cfg.EC2.DescribeInstanceTypes,
			&ec2.DescribeInstanceTypesInput{InstanceTypes: names})
		if err != nil {
			return err
		}
		for _, t := range out.InstanceTypes {
			if !deref(t.HibernationSupported) {
				slices.Sort(groups[t.InstanceType])
				problems = append(problems, string(t.InstanceType)+" of "+strings.Join(groups[t.InstanceType], ", "))
			}
		}
	}
	if len(problems) > 0 {
		return refused(what, "these instance types cannot hibernate: %s (%s)", strings.Join(problems, "; "),
			hibernationAdvice)
	}
	return nil
}
