package aws

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// CreateBatch implements infra.Batch with one RunInstances, of which the batch is the client token. EC2 launches as
// many of the instances as it has room for, at least one, and numbers them: an instance's launch index is its index in
// the batch. Neither the client token nor the launch index can be changed afterwards.
//
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html (MaxCount) and API_Instance.html
// (amiLaunchIndex).
func (p *Provider) CreateBatch(ctx context.Context, req infra.BatchRequest) ([]infra.VM, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	what := "create " + req.Batch.String()
	in, err := launch(req.VM, p.cfg.Zone, req.Batch.String(), req.Count)
	if err != nil {
		return nil, infra.Wrap(infra.Invalid, what, err)
	}
	out, err := p.run(ctx, what, req.VM, in)
	if err != nil {
		return nil, err
	}
	if n := len(out.Instances); n < 1 || n > req.Count {
		return nil, infra.Errorf(infra.Indeterminate, what, "RunInstances answered %d instances", n)
	}
	var vms []infra.VM
	for _, instance := range out.Instances {
		vm, asked := p.describe(instance), req.Tags(int(deref(instance.AmiLaunchIndex)))
		asked.CreatedAt = asked.CreatedAt.Round(0).UTC() // normalized as decodeTags returns it
		switch {
		case !req.Batch.Has(asked.Instance):
			return nil, infra.Errorf(infra.Indeterminate, what, "%s has the launch index %d", vm.ProviderID,
				deref(instance.AmiLaunchIndex))
		case len(instance.Tags) == 0 || ending(vm.State):
			vm.Tags, vm.Warning = asked, "" // the answer holds no tags, or the VM has lost them
		case vm.Tags != asked:
			return nil, infra.Errorf(infra.Conflict, what, "%s was made before with other tags", vm.ProviderID)
		}
		vms = append(vms, vm)
	}
	if !slices.ContainsFunc(vms, func(vm infra.VM) bool { return !ending(vm.State) }) {
		return nil, infra.Errorf(infra.Conflict, what, "all instances of this request were terminated")
	}
	return infra.SortVMs(vms), nil
}

// madeAs returns the instance ID for which an instance was launched. It follows from the client token and the launch
// index, which nobody can change. It is zero if this package did not launch the instance.
func madeAs(instance types.Instance) ident.ID {
	token := deref(instance.ClientToken)
	if batch, err := ident.ParseBatch(token); err == nil {
		id, _ := batch.Member(int(deref(instance.AmiLaunchIndex)))
		return id
	}
	id, _ := ident.ParseID(token)
	return id
}

// run sends the request of one create call.
func (p *Provider) run(ctx context.Context, what string, req infra.CreateRequest,
	in *ec2.RunInstancesInput) (*ec2.RunInstancesOutput, error) {
	if p.foreign(req.Subnet) {
		return nil, refused(what, "subnet %s is not in zone %s", req.Subnet, p.cfg.Zone)
	}
	p.rememberKeys(&req.Tags, volumeKeys(in))
	out, err := call(ctx, what, "RunInstances", p.cfg.EC2.RunInstances, in, p.rates.creating)
	err = explainHibernation(withQuota(err, req.InstanceType), req.InstanceType)
	if infra.ClassOf(err) == infra.NotFound {
		// EC2 did not find a resource that the request names. NotFound cannot mean the instance, which does not
		// exist yet.
		return nil, infra.Reclass(err, infra.Invalid)
	}
	return out, err
}
