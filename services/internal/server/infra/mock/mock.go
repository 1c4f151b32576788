// Package mock is an in-memory cloud: an infra.Provider with all optional capabilities, for tests, benchmarks and the
// simulator. No release binary links it.
//
// The package starts no goroutines and reads no clock. Config.Now supplies the time, Config.Sleep waits, and
// Config.Script decides about faults. The states of VMs depend only on the time. The same calls at the same times give
// the same answers, so a deterministic simulator can drive the mock from one thread. The mock is also safe for
// concurrent use.
//
// Invariant: an instance ID never has more than one VM. To hide the optional capabilities in a test, wrap the mock:
// struct{ infra.Provider }{mock}.
package mock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Kind is the kind of a call.
type Kind string

// The kinds of calls. Only the kinds Create, CreateBatch, Delete, Sleep and Wake change VMs.
const (
	Create         Kind = "create"
	CreateBatch    Kind = "create_batch"
	Delete         Kind = "delete"
	Sleep          Kind = "sleep"
	Wake           Kind = "wake"
	Get            Kind = "get"
	List           Kind = "list"
	FindByInstance Kind = "find"
	Acquire        Kind = "acquire"
	Release        Kind = "release"
	MachineState   Kind = "machine_state"
	HasRoom        Kind = "has_room"
	Register       Kind = "register"
	Deregister     Kind = "deregister"
	Resolve        Kind = "resolve"
	DescribeType   Kind = "describe_type"
	MemberHealth   Kind = "member_health"
	ReadConsole    Kind = "read_console"

	DeregistrationDelay Kind = "deregistration_delay"
)

// Call describes one call for the functions Script and Yield of [Config]. Fields that do not apply to the kind are
// zero.
type Call struct {
	Kind       Kind
	Seq        uint64 // 1 for the provider's first call
	At         time.Time
	Owner      infra.Owner
	Instance   ident.ID
	ProviderID string
	Request    *infra.CreateRequest // set for Create; read-only
	Batch      *infra.BatchRequest  // set for CreateBatch; read-only
	Name       string               // load balancer, machine ID, or how a VM is to sleep
}

// Outcome is the script's decision about a call. With the zero value, the call succeeds.
type Outcome struct {
	// Latency is the time to sleep before the effect.
	Latency time.Duration
	// Err, if set, is returned to the caller, and the call has no effect. If Err has no class, the caller must treat it
	// as infra.Indeterminate.
	Err error
	// Lost makes the call take effect, but the caller gets infra.Indeterminate.
	Lost bool
	// Late, if positive, is the delay of the effect. The caller gets infra.Indeterminate immediately. A late read never
	// gets an answer.
	Late time.Duration
	// Lag is the age of the state that a read returns. Zero means the current state.
	Lag time.Duration
	// Stuck makes a VM that is put to sleep remain stopping, and a VM that is woken remain pending, until SetState
	// changes its state.
	Stuck bool
}

// Config configures a mock. Only Now is required.
type Config struct {
	Now func() time.Time
	// Sleep waits until a latency has passed. Scripts with latencies require it.
	Sleep func(context.Context, time.Duration) error
	// Script decides the outcome of every call when the call starts. No lock is held, so Script may block and may call
	// the provider's control methods.
	Script func(context.Context, Call) Outcome
	// Yield is called between the effect of a call and its answer, with no lock held. A simulator may run other tasks
	// in it.
	Yield func(context.Context, Call)
	// Changed is called for every state that a VM enters. It is called in advance for a state that the VM will enter
	// later. The parameter at is the time at which the VM enters the state. Another change before that time cancels the
	// later state. The provider's lock is held, so Changed must not call the provider.
	Changed func(vm infra.VM, at time.Time)
	// Boot is the time for which a new VM is pending. If Boot is negative, the VM is pending until SetState changes its
	// state. Shutdown is the time that it takes to delete a VM.
	Boot, Shutdown time.Duration
	// FallAsleep is the time for which a VM that is put to sleep is stopping. WakeUp is the time for which a VM that is
	// woken is pending. If they are negative, the VM remains in that state until SetState changes it.
	FallAsleep, WakeUp time.Duration
	// Remember is the time for which deleted VMs are listed. Zero means one hour.
	Remember time.Duration
	// Types are the instance types that DescribeType knows.
	Types map[string]infra.InstanceType
	// Images answers Resolve. If Images is nil, there are no images.
	Images func(infra.ImageQuery) (string, error)
	// Health supplies the result of MemberHealth: the health of each member of a load balancer, by provider ID. The
	// provider's lock is held, so Health must not call the provider. If Health is nil, there are no load balancers to
	// ask.
	Health func(lb string) (map[string]infra.MemberHealth, error)
	// Delay supplies the result of DeregistrationDelay. If Delay is nil, load balancers have no delay. The provider's
	// lock is held, so Delay must not call the provider.
	Delay func(lb string) (time.Duration, error)
}

// Provider is the in-memory cloud. Make it with New.
type Provider struct {
	cfg Config

	mu         sync.Mutex
	seq        uint64
	counts     map[Kind]uint64
	made       uint64
	byID       map[string]*machine
	byInstance map[ident.ID]*machine // idempotency keys; never removed
	byOwner    map[infra.Owner][]*machine
	batches    map[ident.Batch]*batch // never removed
	late       []landing              // ordered by time
	limits     map[Place]int
	used       map[Place]int
	machines   map[string]infra.State
	holder     string
	balancers  map[string]map[string]bool
}

var (
	_ infra.Provider        = (*Provider)(nil)
	_ infra.LeaderNetwork   = (*Provider)(nil)
	_ infra.MachineEvidence = (*Provider)(nil)
	_ infra.SubnetCapacity  = (*Provider)(nil)
	_ infra.LoadBalancers   = (*Provider)(nil)
	_ infra.Images          = (*Provider)(nil)
	_ infra.Batch           = (*Provider)(nil)
	_ infra.Sleeper         = (*Provider)(nil)
)

// OnCreate returns a script that passes every create call to fn. All calls succeed.
func OnCreate(fn func(Call)) func(context.Context, Call) Outcome {
	return func(_ context.Context, call Call) Outcome {
		if call.Kind == Create {
			fn(call)
		}
		return Outcome{}
	}
}

// New makes an empty cloud. It panics if Config.Now is missing.
func New(cfg Config) *Provider {
	if cfg.Now == nil {
		panic("mock: Config.Now is missing")
	}
	cfg.Remember = cmp.Or(cfg.Remember, time.Hour)
	return &Provider{
		cfg:        cfg,
		counts:     map[Kind]uint64{},
		byID:       map[string]*machine{},
		byInstance: map[ident.ID]*machine{},
		byOwner:    map[infra.Owner][]*machine{},
		batches:    map[ident.Batch]*batch{},
		limits:     map[Place]int{},
		used:       map[Place]int{},
		machines:   map[string]infra.State{},
		balancers:  map[string]map[string]bool{},
	}
}

// Create implements infra.Provider.
func (p *Provider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	call := Call{Kind: Create, Owner: req.Tags.Owner, Instance: req.Tags.Instance, Request: &req}
	var vm infra.VM
	err := p.change(ctx, call, func(at time.Time, _ Outcome) error {
		digest, err := req.Digest()
		if err != nil {
			return infra.Wrap(infra.Invalid, op(call), err)
		}
		vm, err = p.create(at, req, digest)
		return err
	})
	if err != nil {
		return infra.VM{}, err
	}
	return vm, nil
}

// Delete implements infra.Provider.
func (p *Provider) Delete(ctx context.Context, vm infra.VM) error {
	return p.change(ctx, Call{Kind: Delete, ProviderID: vm.ProviderID}, func(at time.Time, _ Outcome) error {
		if m, ok := p.byID[vm.ProviderID]; ok && !p.forgotten(m, at) {
			if err := infra.CheckOwned("delete "+vm.ProviderID, m.vm.Tags, vm.Tags); err != nil {
				return err
			}
			p.end(m, at)
		}
		return nil
	})
}

// Get implements infra.Provider.
func (p *Provider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	return p.describe(ctx, Call{Kind: Get, ProviderID: providerID}, func() *machine { return p.byID[providerID] })
}

// FindByInstance implements infra.Provider.
func (p *Provider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	return p.describe(ctx, Call{Kind: FindByInstance, Owner: owner, Instance: id}, func() *machine {
		if m := p.byInstance[id]; m != nil && m.vm.Tags.Owner == owner {
			return m
		}
		return nil
	})
}

func (p *Provider) describe(ctx context.Context, call Call, find func() *machine) (infra.VM, error) {
	var vm infra.VM
	err := p.read(ctx, call, func(now, asOf time.Time) error {
		if m := find(); m != nil && !p.forgotten(m, now) {
			var ok bool
			if vm, ok = m.at(asOf); ok {
				return nil
			}
		}
		return infra.Errorf(infra.NotFound, op(call), "no such VM")
	})
	if err != nil {
		return infra.VM{}, err
	}
	return vm, nil
}

// List implements infra.Provider. The list is sorted by instance ID. The cost is O(VMs of the owner).
func (p *Provider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	var vms []infra.VM
	err := p.read(ctx, Call{Kind: List, Owner: owner}, func(now, asOf time.Time) error {
		p.byOwner[owner] = slices.DeleteFunc(p.byOwner[owner], func(m *machine) bool {
			if !p.forgotten(m, now) {
				return false
			}
			delete(p.byID, m.vm.ProviderID)
			return true
		})
		vms = make([]infra.VM, 0, len(p.byOwner[owner]))
		for _, m := range p.byOwner[owner] {
			if vm, ok := m.at(asOf); ok {
				vms = append(vms, vm)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return vms, nil
}

// change runs a call that changes the cloud's state. It calls the function effect at most once, with the lock held:
// immediately or, for a late call, after the delay.
func (p *Provider) change(ctx context.Context, call Call, effect func(at time.Time, out Outcome) error) error {
	return p.run(ctx, call, func(now time.Time, out Outcome) error {
		if out.Late <= 0 {
			return effect(now, out)
		}
		p.late = append(p.late, landing{now.Add(out.Late), func(at time.Time) error { return effect(at, out) }})
		slices.SortStableFunc(p.late, func(a, b landing) int { return a.at.Compare(b.at) })
		return nil
	})
}

// read runs a call that changes nothing. It calls the function answer with the lock held.
func (p *Provider) read(ctx context.Context, call Call, answer func(now, asOf time.Time) error) error {
	return p.run(ctx, call, func(now time.Time, out Outcome) error { return answer(now, now.Add(-out.Lag)) })
}

// run counts the call, asks Config.Script for the outcome of the call, and waits for the outcome's latency. Then it
// calls the function effect with the lock held, unless the outcome is an error.
func (p *Provider) run(ctx context.Context, call Call, effect func(now time.Time, out Outcome) error) error {
	call.At = p.cfg.Now()
	p.mu.Lock()
	p.seq++
	call.Seq = p.seq
	p.counts[call.Kind]++
	p.mu.Unlock()
	var out Outcome
	if p.cfg.Script != nil {
		out = p.cfg.Script(ctx, call)
	}
	err := ctx.Err()
	if out.Latency > 0 {
		err = p.cfg.Sleep(ctx, out.Latency)
	}
	if err != nil {
		return infra.Wrap(infra.Indeterminate, op(call), err)
	}
	if out.Err != nil {
		return infra.Wrap(infra.ClassOf(out.Err), op(call), out.Err)
	}
	p.mu.Lock()
	now := p.cfg.Now()
	p.land(now)
	err = effect(now, out)
	p.mu.Unlock()
	if p.cfg.Yield != nil {
		p.cfg.Yield(ctx, call)
	}
	if out.Lost || out.Late > 0 {
		return infra.Errorf(infra.Indeterminate, op(call), "the answer was lost")
	}
	return err
}

// op describes a call in words.
func op(call Call) string {
	switch {
	case call.ProviderID != "":
		return fmt.Sprintf("%s %s", call.Kind, call.ProviderID)
	case !call.Instance.IsZero():
		return fmt.Sprintf("%s %s", call.Kind, call.Instance)
	case call.Batch != nil:
		return fmt.Sprintf("%s %s", call.Kind, call.Batch.Batch)
	case call.Name != "":
		return fmt.Sprintf("%s %s", call.Kind, call.Name)
	default:
		return string(call.Kind)
	}
}

// Acquire implements infra.LeaderNetwork. Each call gives the address to the given machine, and takes it from any other
// machine.
func (p *Provider) Acquire(ctx context.Context, machineID string) error {
	return p.change(ctx, Call{Kind: Acquire, Name: machineID}, func(time.Time, Outcome) error {
		p.holder = machineID
		return nil
	})
}

// Release implements infra.LeaderNetwork.
func (p *Provider) Release(ctx context.Context, machineID string) error {
	return p.change(ctx, Call{Kind: Release, Name: machineID}, func(time.Time, Outcome) error {
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
	return p.change(ctx, call, func(at time.Time, _ Outcome) error {
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
	return p.change(ctx, Call{Kind: Deregister, Name: lb, ProviderID: vm.ProviderID}, func(time.Time, Outcome) error {
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

// ReadConsole implements infra.VMConsoles. The console of a VM has its name.
func (p *Provider) ReadConsole(ctx context.Context, vm infra.VM) (out []byte, err error) {
	call := Call{Kind: ReadConsole, ProviderID: vm.ProviderID}
	err = p.read(ctx, call, func(_, _ time.Time) error {
		out = []byte("\x1b[32mbooting\r\n" + vm.ProviderID + " login:")
		return nil
	})
	return out, err
}
