package mock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// batch is what a call of CreateBatch made.
type batch struct {
	digest   string
	machines []*machine
}

// CreateBatch implements infra.Batch. It makes as many VMs as there is room for.
func (p *Provider) CreateBatch(ctx context.Context, req infra.BatchRequest) ([]infra.VM, error) {
	call := Call{Kind: CreateBatch, Owner: req.VM.Tags.Owner, Batch: &req}
	var vms []infra.VM
	err := p.change(ctx, call, func(at time.Time, _ Outcome) error {
		if err := cmp.Or(req.Check(), checkSleep(op(call), req.VM)); err != nil {
			return err
		}
		digest, err := req.Digest()
		if err != nil {
			return infra.Wrap(infra.Invalid, op(call), err)
		}
		vms, err = p.createBatch(at, req, digest)
		return err
	})
	if err != nil {
		return nil, err
	}
	return vms, nil
}

// createBatch makes VMs, or finds the VMs that the same request made. The caller holds p.mu.
func (p *Provider) createBatch(at time.Time, req infra.BatchRequest, digest string) (vms []infra.VM, err error) {
	what := op(Call{Kind: CreateBatch, Batch: &req})
	made := p.batches[req.Batch]
	if made == nil {
		place := Place{req.VM.InstanceType, req.VM.Subnet}
		count := p.room(place, req.Count)
		if count < 1 {
			return nil, noRoom(what, place)
		}
		for n := range count {
			if p.byInstance[req.Tags(n).Instance] != nil {
				return nil, infra.Errorf(infra.Conflict, what, "%s has a VM", req.Tags(n).Instance)
			}
		}
		made = &batch{digest: digest}
		for n := range count {
			one := req.VM
			one.Tags = req.Tags(n)
			made.machines = append(made.machines, p.make(at, one, digest))
		}
		p.batches[req.Batch] = made
	}
	if made.digest != digest {
		return nil, infra.Errorf(infra.Conflict, what, "made before with other parameters")
	}
	if !slices.ContainsFunc(made.machines, func(m *machine) bool { return !ended(m.final().state) }) {
		return nil, infra.Errorf(infra.Conflict, what, "the VMs of this request were deleted")
	}
	for _, m := range made.machines {
		vm, _ := m.at(at)
		vms = append(vms, vm)
	}
	return vms, nil
}

func ended(s infra.State) bool { return s == infra.Deleting || s == infra.Deleted }
