package mock

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Acquire implements infra.LeaderNetwork. Each call gives the address to the given machine, and takes it from any other
// machine.
func (p *Provider) Acquire(ctx context.Context, machineID string) error {
	return p.change(ctx, Call{Kind: Acquire, Name: machineID}, func(time.Time) error {
		p.holder = machineID
		return nil
	})
}

// Release implements infra.LeaderNetwork.
func (p *Provider) Release(ctx context.Context, machineID string) error {
	return p.change(ctx, Call{Kind: Release, Name: machineID}, func(time.Time) error {
		if p.holder == machineID {
			p.holder = ""
		}
		return nil
	})
}

// MachineState implements infra.MachineEvidence. It returns the state that SetMachine set.
func (p *Provider) MachineState(ctx context.Context, machineID string) (state infra.State, err error) {
	call := Call{Kind: MachineState, Name: machineID}
	err = p.read(ctx, call, func(_, _ time.Time) error {
		var ok bool
		if state, ok = p.machines[machineID]; !ok {
			return infra.Errorf(infra.NotFound, op(call), "no such machine")
		}
		return nil
	})
	return state, err
}

// HasRoom implements infra.SubnetCapacity. It considers only those limits of a subnet that apply to all instance types.
func (p *Provider) HasRoom(ctx context.Context, subnets []string) (room map[string]bool, err error) {
	err = p.read(ctx, Call{Kind: HasRoom}, func(_, _ time.Time) error {
		room = make(map[string]bool, len(subnets))
		for _, s := range subnets {
			limit, limited := p.limits[Place{Subnet: s}]
			room[s] = !limited || p.used[Place{Subnet: s}] < limit
		}
		return nil
	})
	return room, err
}

// Register implements infra.LoadBalancers.
func (p *Provider) Register(ctx context.Context, lb string, vm infra.VM) error {
	call := Call{Kind: Register, Name: lb, ProviderID: vm.ProviderID}
	return p.change(ctx, call, func(at time.Time) error {
		m := p.byID[vm.ProviderID]
		if m == nil {
			return infra.Errorf(infra.Invalid, op(call), "no such VM")
		}
		if err := infra.CheckOwned(op(call), m.vm.Tags, vm.Tags); err != nil {
			return err
		}
		if now, _ := m.at(at); !now.State.Alive() {
			return infra.Errorf(infra.Invalid, op(call), "the VM is %s", now.State)
		}
		if p.balancers[lb] == nil {
			p.balancers[lb] = map[string]bool{}
		}
		p.balancers[lb][vm.ProviderID] = true
		return nil
	})
}

// Deregister implements infra.LoadBalancers.
func (p *Provider) Deregister(ctx context.Context, lb string, vm infra.VM) error {
	return p.change(ctx, Call{Kind: Deregister, Name: lb, ProviderID: vm.ProviderID}, func(time.Time) error {
		delete(p.balancers[lb], vm.ProviderID)
		return nil
	})
}

// MemberHealth implements infra.LoadBalancerHealth with Config.Health.
func (p *Provider) MemberHealth(ctx context.Context, lb string, vms []infra.VM) (
	answer map[string]infra.MemberHealth, err error) {
	call := Call{Kind: MemberHealth, Name: lb}
	err = p.read(ctx, call, func(_, _ time.Time) error {
		if p.cfg.Health == nil {
			return infra.Errorf(infra.Invalid, op(call), "no such load balancer")
		}
		all, err := p.cfg.Health(lb)
		if err != nil {
			return infra.Wrap(infra.ClassOf(err), op(call), err)
		}
		answer = map[string]infra.MemberHealth{}
		for _, vm := range vms {
			if said, decided := all[vm.ProviderID]; decided && p.balancers[lb][vm.ProviderID] {
				answer[vm.ProviderID] = said
			}
		}
		return nil
	})
	return answer, err
}

// DeregistrationDelay implements infra.DeregistrationDelay with Config.Delay.
func (p *Provider) DeregistrationDelay(ctx context.Context, lb string) (delay time.Duration, err error) {
	call := Call{Kind: DeregistrationDelay, Name: lb}
	err = p.read(ctx, call, func(_, _ time.Time) error {
		if p.cfg.Delay == nil {
			return nil
		}
		delay, err = p.cfg.Delay(lb)
		return infra.Wrap(infra.ClassOf(err), op(call), err)
	})
	return delay, err
}

// Resolve implements infra.Images with Config.Images.
func (p *Provider) Resolve(ctx context.Context, q infra.ImageQuery) (image string, err error) {
	call := Call{Kind: Resolve}
	err = p.read(ctx, call, func(_, _ time.Time) error {
		if p.cfg.Images == nil {
			return infra.Errorf(infra.NotFound, op(call), "no such image")
		}
		image, err = p.cfg.Images(q)
		return infra.Wrap(infra.ClassOf(err), op(call), err)
	})
	return image, err
}

// DescribeType implements infra.InstanceTypes with Config.Types.
func (p *Provider) DescribeType(ctx context.Context, name string) (size infra.InstanceType, err error) {
	call := Call{Kind: DescribeType, Name: name}
	err = p.read(ctx, call, func(_, _ time.Time) error {
		var ok bool
		if size, ok = p.cfg.Types[name]; !ok {
			return infra.Errorf(infra.NotFound, op(call), "no such type")
		}
		return nil
	})
	return size, err
}
