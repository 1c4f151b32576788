package server

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// fullProvider has every capability. It records the context of its last call.
type fullProvider struct {
	infra.Provider
	last context.Context
}

var (
	_ infra.LeaderNetwork   = (*fullProvider)(nil)
	_ infra.MachineEvidence = (*fullProvider)(nil)
	_ infra.SubnetCapacity  = (*fullProvider)(nil)
	_ infra.InstanceTypes   = (*fullProvider)(nil)
	_ infra.LoadBalancers   = (*fullProvider)(nil)
	_ infra.Images          = (*fullProvider)(nil)
	_ infra.UserdataRemover = (*fullProvider)(nil)
	_ infra.Verifier        = (*fullProvider)(nil)
	_ infra.Batch           = (*fullProvider)(nil)
	_ infra.Sleeper         = (*fullProvider)(nil)

	_ infra.LoadBalancerHealth     = (*fullProvider)(nil)
	_ infra.LoadBalancerMembership = (*fullProvider)(nil)
	_ infra.DeregistrationDelay    = (*fullProvider)(nil)
)

func (p *fullProvider) IsMember(ctx context.Context, _ string, _ infra.VM) (bool, error) {
	p.last = ctx
	return false, infra.Throttled
}
func (p *fullProvider) Create(ctx context.Context, _ infra.CreateRequest) (infra.VM, error) {
	p.last = ctx
	return infra.VM{}, infra.Throttled
}
func (p *fullProvider) CreateBatch(ctx context.Context, _ infra.BatchRequest) ([]infra.VM, error) {
	p.last = ctx
	return nil, infra.Throttled
}
func (p *fullProvider) Sleep(ctx context.Context, _ infra.VM, _ string) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) Wake(ctx context.Context, _ infra.VM) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) Delete(ctx context.Context, _ infra.VM) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) Get(ctx context.Context, _ string) (infra.VM, error) {
	p.last = ctx
	return infra.VM{}, infra.Throttled
}
func (p *fullProvider) List(ctx context.Context, _ infra.Owner) ([]infra.VM, error) {
	p.last = ctx
	return nil, infra.Throttled
}
func (p *fullProvider) FindByInstance(ctx context.Context, _ infra.Owner, _ ident.ID) (infra.VM, error) {
	p.last = ctx
	return infra.VM{}, infra.Throttled
}
func (p *fullProvider) Acquire(ctx context.Context, _ string) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) Release(ctx context.Context, _ string) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) MachineState(ctx context.Context, _ string) (infra.State, error) {
	p.last = ctx
	return "", infra.Throttled
}
func (p *fullProvider) HasRoom(ctx context.Context, _ []string) (map[string]bool, error) {
	p.last = ctx
	return nil, infra.Throttled
}
func (p *fullProvider) DescribeType(ctx context.Context, _ string) (infra.InstanceType, error) {
	p.last = ctx
	return infra.InstanceType{}, infra.Throttled
}
func (p *fullProvider) ReadConsole(ctx context.Context, _ infra.VM) ([]byte, error) {
	p.last = ctx
	return nil, infra.Throttled
}
func (p *fullProvider) Register(ctx context.Context, _ string, _ infra.VM) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) Deregister(ctx context.Context, _ string, _ infra.VM) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) DeregistrationDelay(ctx context.Context, _ string) (time.Duration, error) {
	p.last = ctx
	return 0, infra.Throttled
}
func (p *fullProvider) MemberHealth(ctx context.Context, _ string, _ []infra.VM) (map[string]infra.MemberHealth,
	error) {
	p.last = ctx
	return nil, infra.Throttled
}
func (p *fullProvider) Resolve(ctx context.Context, _ infra.ImageQuery) (string, error) {
	p.last = ctx
	return "", infra.Throttled
}
func (p *fullProvider) RemoveUserdata(ctx context.Context, _ infra.Owner, _ ident.ID) error {
	p.last = ctx
	return infra.Throttled
}
func (p *fullProvider) Verify(ctx context.Context, _ *config.Shard) error {
	p.last = ctx
	return infra.Throttled
}

// providerInterfaces returns the names of the methods of Provider and of every capability that package infra declares.
// The keys of the map are the interfaces. A capability is an exported interface with methods that take a context.
func providerInterfaces(t *testing.T) map[string][]string {
	t.Helper()
	interfaces := map[string][]string{}
	for _, name := range []string{"infra/infra.go", "infra/batch.go", "infra/console.go", "infra/sleep.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for name, object := range file.Scope.Objects {
			spec, ok := object.Decl.(*ast.TypeSpec)
			if !ok {
				continue
			}
			declared, ok := spec.Type.(*ast.InterfaceType)
			if !ok {
				continue
			}
			for _, method := range declared.Methods.List {
				interfaces[name] = append(interfaces[name], method.Names[0].Name)
			}
		}
	}
	if len(interfaces) < 6 {
		t.Fatalf("found only the interfaces %v in package infra", interfaces)
	}
	return interfaces
}

// TestEveryProviderMethodIsMeasured checks that every method of every capability in package infra has a timeout and is
// counted.
func TestEveryProviderMethodIsMeasured(t *testing.T) {
	for name, methods := range providerInterfaces(t) {
		for _, method := range methods {
			full := &fullProvider{}
			var calls []string
			provider := measure(full, func() time.Duration { return time.Minute },
				func(call, class string, _ time.Duration) { calls = append(calls, call+" "+class) })
			fn := reflect.ValueOf(provider).MethodByName(method)
			if !fn.IsValid() {
				t.Errorf("%s.%s: the measured provider lacks it", name, method)
				continue
			}
			args := []reflect.Value{reflect.ValueOf(context.Background())}
			for i := 1; i < fn.Type().NumIn(); i++ {
				args = append(args, reflect.Zero(fn.Type().In(i)))
			}
			out := fn.Call(args)
			if err, _ := out[len(out)-1].Interface().(error); infra.ClassOf(err) != infra.Throttled {
				t.Errorf("%s.%s: returned %v, want the provider's error", name, method, err)
			}
			if full.last == nil {
				t.Errorf("%s.%s: the provider was not called", name, method)
				continue
			}
			if _, bounded := full.last.Deadline(); !bounded {
				t.Errorf("%s.%s: has no timeout", name, method)
			}
			if len(calls) != 1 || !strings.HasSuffix(calls[0], " throttled") {
				t.Errorf("%s.%s: counted as %q, want one throttled call", name, method, calls)
			}
		}
	}
}

// TestCapabilitiesAreMeasured checks that infra.Capability of a measured provider returns capabilities whose calls are
// measured too.
func TestCapabilitiesAreMeasured(t *testing.T) {
	full := &fullProvider{}
	calls := map[string]int{}
	provider := measure(full, func() time.Duration { return time.Minute },
		func(call, _ string, _ time.Duration) { calls[call]++ })
	network, _ := infra.Capability[infra.LeaderNetwork](provider)
	evidence, _ := infra.Capability[infra.MachineEvidence](provider)
	capacity, _ := infra.Capability[infra.SubnetCapacity](provider)
	balancers, _ := infra.Capability[infra.LoadBalancers](provider)
	members, _ := infra.Capability[infra.LoadBalancerHealth](provider)
	delays, _ := infra.Capability[infra.DeregistrationDelay](provider)
	membership, _ := infra.Capability[infra.LoadBalancerMembership](provider)
	images, _ := infra.Capability[infra.Images](provider)
	types, _ := infra.Capability[infra.InstanceTypes](provider)
	consoles, _ := infra.Capability[infra.VMConsoles](provider)
	ctx := context.Background()
	_, _ = consoles.ReadConsole(ctx, infra.VM{})
	_ = network.Acquire(ctx, "")
	_ = network.Release(ctx, "")
	_, _ = evidence.MachineState(ctx, "")
	_, _ = capacity.HasRoom(ctx, nil)
	_ = balancers.Register(ctx, "", infra.VM{})
	_ = balancers.Deregister(ctx, "", infra.VM{})
	_, _ = members.MemberHealth(ctx, "", nil)
	_, _ = delays.DeregistrationDelay(ctx, "")
	_, _ = membership.IsMember(ctx, "", infra.VM{})
	_, _ = images.Resolve(ctx, infra.ImageQuery{})
	_, _ = types.DescribeType(ctx, "")
	want := map[string]int{"acquire_address": 1, "release_address": 1, "machine_state": 1, "subnet_capacity": 1,
		"register": 1, "deregister": 1, "resolve_image": 1, "describe_type": 1, "load_balancer_health": 1,
		"deregistration_delay": 1, "load_balancer_membership": 1, "read_console": 1}
	if !reflect.DeepEqual(calls, want) {
		t.Errorf("counted %v, want %v", calls, want)
	}
}

func TestMeasuringAddsNoCapability(t *testing.T) {
	provider := measure(struct{ infra.Provider }{}, func() time.Duration { return time.Minute }, nil)
	if _, ok := infra.Capability[infra.LoadBalancers](provider); ok {
		t.Error("a provider without load balancers has some once it is measured")
	}
}
