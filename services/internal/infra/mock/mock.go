// Package mock is a cloud in memory: an infra.Provider with all optional capabilities, for tests, benchmarks and the
// simulator. No release binary links it.
//
// It starts no goroutine and reads no clock: time comes from Config.Now, waiting from Config.Sleep, faults from
// Config.Script, and states change as a function of time. The same calls at the same times give the same answers, so a
// deterministic simulator can drive it from one thread; it is safe for concurrent use as well.
//
// Invariant: an instance ID has at most one VM, ever. To test without an optional capability, hide it: struct{
// infra.Provider }{mock}.
package mock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/infra"
)

// Kind of a call.
type Kind string

// The calls, of which the first three change VMs.
const (
	Create         Kind = "create"
	Delete         Kind = "delete"
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
)

// Call is one call as the hooks see it. Fields that the kind has no use for are zero.
type Call struct {
	Kind       Kind
	Seq        uint64 // 1 for the provider's first call
	At         time.Time
	Owner      infra.Owner
	Instance   ident.ID
	ProviderID string
	Request    *infra.CreateRequest // of Create; read only
	Name       string               // load balancer or machine ID
}

// Outcome is what the script makes of a call. The zero value lets it succeed.
type Outcome struct {
	// Latency is slept before the effect, on top of Config.Latency.
	Latency time.Duration
	// Err is answered and nothing happens. An error without class is infra.Indeterminate to the caller.
	Err error
	// Lost: it takes effect, and the caller gets infra.Indeterminate.
	Lost bool
	// Late, when positive: the caller gets infra.Indeterminate now, and the call takes effect that much later. Reads
	// are just lost.
	Late time.Duration
	// Lag: a read is answered from the world as it was that long ago.
	Lag time.Duration
}

// Config of a mock. Only Now is required.
type Config struct {
	Now func() time.Time
	// Sleep waits for a latency to pass; required by those who script any.
	Sleep func(context.Context, time.Duration) error
	// Latency of every call of a kind.
	Latency map[Kind]time.Duration
	// Script is asked about every call when it enters, with no lock held: it may block, and may call the provider's
	// control methods.
	Script func(context.Context, Call) Outcome
	// Yield is called before a call takes effect and again before it answers, with no lock held: where a simulator
	// switches tasks.
	Yield func(context.Context, Call)
	// OnCreateEntered is called first of all in Create. at is Now at that moment.
	OnCreateEntered func(at time.Time, req infra.CreateRequest)
	// Changed is told, with the lock held, of every state that a VM has entered or will enter at the given time unless
	// something else comes between. It must not call the provider.
	Changed func(vm infra.VM, at time.Time)
	// Limits throttle the calls of a kind by the injected clock.
	Limits map[Kind]*rate.Limiter
	// Boot is how long a VM is pending; negative: until SetState says otherwise. Shutdown is how long it takes to
	// delete or stop one.
	Boot, Shutdown time.Duration
	// Remember is how long deleted VMs are listed; zero is an hour.
	Remember time.Duration
	// Images answers Resolve; nil knows none.
	Images func(infra.ImageQuery) (string, error)
}

// Provider is the cloud. Make it with New.
type Provider struct {
	cfg Config

	mu         sync.Mutex
	seq        uint64
	counts     map[Kind]uint64
	made       uint64
	byID       map[string]*machine
	byInstance map[ident.ID]*machine // tokens: never removed
	byOwner    map[infra.Owner][]*machine
	late       []landing // by time
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
)

// New makes an empty cloud. It panics without a clock.
func New(cfg Config) *Provider {
	if cfg.Now == nil {
		panic("mock: Config.Now is missing")
	}
	if cfg.Remember == 0 {
		cfg.Remember = time.Hour
	}
	return &Provider{
		cfg:        cfg,
		counts:     map[Kind]uint64{},
		byID:       map[string]*machine{},
		byInstance: map[ident.ID]*machine{},
		byOwner:    map[infra.Owner][]*machine{},
		limits:     map[Place]int{},
		used:       map[Place]int{},
		machines:   map[string]infra.State{},
		balancers:  map[string]map[string]bool{},
	}
}

// Create implements infra.Provider.
func (p *Provider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	at := p.cfg.Now()
	if p.cfg.OnCreateEntered != nil {
		p.cfg.OnCreateEntered(at, req)
	}
	call := Call{Kind: Create, At: at, Owner: req.Tags.Owner, Instance: req.Tags.Instance, Request: &req}
	digest, digestErr := req.Digest()
	var vm infra.VM
	err := p.change(ctx, call, func(at time.Time) error {
		if digestErr != nil {
			return infra.Wrap(infra.Invalid, op(call), digestErr)
		}
		var err error
		vm, err = p.create(at, req, digest)
		return err
	})
	if err != nil {
		return infra.VM{}, err
	}
	return vm, nil
}

// Delete implements infra.Provider.
func (p *Provider) Delete(ctx context.Context, providerID string) error {
	return p.change(ctx, Call{Kind: Delete, ProviderID: providerID}, func(at time.Time) error {
		if m, ok := p.byID[providerID]; ok {
			p.end(m, at, infra.Deleting, infra.Deleted)
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

// List implements infra.Provider. It is sorted by instance ID and costs O(VMs of the owner).
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

// change runs a call that alters something: effect is called under the lock at most once, now or when it lands.
func (p *Provider) change(ctx context.Context, call Call, effect func(at time.Time) error) error {
	out, err := p.enter(ctx, &call)
	if err != nil {
		return err
	}
	p.mu.Lock()
	now := p.cfg.Now()
	p.land(now)
	if out.Late > 0 {
		at := now.Add(out.Late)
		i, _ := slices.BinarySearchFunc(p.late, at, func(l landing, at time.Time) int {
			if l.at.After(at) {
				return 1
			}
			return -1 // after those of the same time
		})
		p.late = slices.Insert(p.late, i, landing{at, effect})
	} else {
		err = effect(now)
	}
	p.mu.Unlock()
	p.yield(ctx, call)
	if out.Lost || out.Late > 0 {
		return infra.Errorf(infra.Indeterminate, op(call), "the answer was lost")
	}
	return err
}

// read runs a call that alters nothing: answer is called under the lock.
func (p *Provider) read(ctx context.Context, call Call, answer func(now, asOf time.Time) error) error {
	out, err := p.enter(ctx, &call)
	if err != nil {
		return err
	}
	p.mu.Lock()
	now := p.cfg.Now()
	p.land(now)
	err = answer(now, now.Add(-out.Lag))
	p.mu.Unlock()
	p.yield(ctx, call)
	if out.Lost || out.Late > 0 {
		return infra.Errorf(infra.Indeterminate, op(call), "the answer was lost")
	}
	return err
}

// enter counts the call, asks the script and lets the latency pass.
func (p *Provider) enter(ctx context.Context, call *Call) (out Outcome, err error) {
	if call.At.IsZero() {
		call.At = p.cfg.Now()
	}
	p.mu.Lock()
	p.seq++
	call.Seq = p.seq
	p.counts[call.Kind]++
	p.mu.Unlock()
	if p.cfg.Script != nil {
		out = p.cfg.Script(ctx, *call)
	}
	if d := out.Latency + p.cfg.Latency[call.Kind]; d > 0 {
		if p.cfg.Sleep == nil {
			panic("mock: a latency was scripted, but Config.Sleep is missing")
		}
		err = p.cfg.Sleep(ctx, d)
	}
	p.yield(ctx, *call)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return out, infra.Wrap(infra.Indeterminate, op(*call), err)
	}
	if out.Err != nil {
		return out, infra.Wrap(infra.ClassOf(out.Err), op(*call), out.Err)
	}
	if l := p.cfg.Limits[call.Kind]; l != nil && !l.AllowN(p.cfg.Now(), 1) {
		return out, infra.Errorf(infra.Throttled, op(*call), "rate exceeded")
	}
	return out, nil
}

func (p *Provider) yield(ctx context.Context, call Call) {
	if p.cfg.Yield != nil {
		p.cfg.Yield(ctx, call)
	}
}

// op says in words what a call is about.
func op(call Call) string {
	switch {
	case call.ProviderID != "":
		return fmt.Sprintf("%s %s", call.Kind, call.ProviderID)
	case !call.Instance.IsZero():
		return fmt.Sprintf("%s %s", call.Kind, call.Instance)
	case call.Name != "":
		return fmt.Sprintf("%s %s", call.Kind, call.Name)
	default:
		return string(call.Kind)
	}
}
