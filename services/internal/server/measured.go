package server

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// measuredProvider gives every call of a provider a timeout and counts the call by its error class. It has the methods
// of all optional capabilities in package infra. [infra.Capability] offers only the capabilities that the wrapped
// provider has.
type measuredProvider struct {
	provider infra.Provider
	timeout  func() time.Duration
	observe  func(call, class string, took time.Duration)

	// The capabilities of provider. Each is nil if provider lacks it.
	network   infra.LeaderNetwork
	evidence  infra.MachineEvidence
	capacity  infra.SubnetCapacity
	types     infra.InstanceTypes
	balancers infra.LoadBalancers
	members   infra.LoadBalancerHealth
	images    infra.Images
	userdata  infra.UserdataRemover
	verifier  infra.Verifier
}

// measure wraps provider. Each call gets the timeout that the function timeout returns, and is reported to the function
// observe.
func measure(provider infra.Provider, timeout func() time.Duration,
	observe func(call, class string, took time.Duration)) infra.Provider {
	m := &measuredProvider{provider: provider, timeout: timeout, observe: observe}
	m.network, _ = infra.Capability[infra.LeaderNetwork](provider)
	m.evidence, _ = infra.Capability[infra.MachineEvidence](provider)
	m.capacity, _ = infra.Capability[infra.SubnetCapacity](provider)
	m.types, _ = infra.Capability[infra.InstanceTypes](provider)
	m.balancers, _ = infra.Capability[infra.LoadBalancers](provider)
	m.members, _ = infra.Capability[infra.LoadBalancerHealth](provider)
	m.images, _ = infra.Capability[infra.Images](provider)
	m.userdata, _ = infra.Capability[infra.UserdataRemover](provider)
	m.verifier, _ = infra.Capability[infra.Verifier](provider)
	return m
}

// Unwrap implements [infra.Wrapper].
func (m *measuredProvider) Unwrap() infra.Provider { return m.provider }

// measureCall makes one call of a provider with the timeout. It reports the call to the function observe under the
// given name.
func measureCall[T any](ctx context.Context, m *measuredProvider, name string,
	call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout())
	defer cancel()
	began := time.Now()
	result, err := call(ctx)
	class := "ok"
	if err != nil {
		class = string(infra.ClassOf(err))
	}
	m.observe(name, class, time.Since(began))
	return result, err
}

// measureError is measureCall for calls that return only an error.
func measureError(ctx context.Context, m *measuredProvider, name string, call func(context.Context) error) error {
	_, err := measureCall(ctx, m, name, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

func (m *measuredProvider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	return measureCall(ctx, m, "create", func(ctx context.Context) (infra.VM, error) {
		return m.provider.Create(ctx, req)
	})
}

func (m *measuredProvider) Delete(ctx context.Context, vm infra.VM) error {
	return measureError(ctx, m, "delete", func(ctx context.Context) error { return m.provider.Delete(ctx, vm) })
}

func (m *measuredProvider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	return measureCall(ctx, m, "get", func(ctx context.Context) (infra.VM, error) {
		return m.provider.Get(ctx, providerID)
	})
}

func (m *measuredProvider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	return measureCall(ctx, m, "list", func(ctx context.Context) ([]infra.VM, error) {
		return m.provider.List(ctx, owner)
	})
}

func (m *measuredProvider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	return measureCall(ctx, m, "find", func(ctx context.Context) (infra.VM, error) {
		return m.provider.FindByInstance(ctx, owner, id)
	})
}

func (m *measuredProvider) Acquire(ctx context.Context, machineID string) error {
	return measureError(ctx, m, "acquire_address", func(ctx context.Context) error {
		return m.network.Acquire(ctx, machineID)
	})
}

func (m *measuredProvider) Release(ctx context.Context, machineID string) error {
	return measureError(ctx, m, "release_address", func(ctx context.Context) error {
		return m.network.Release(ctx, machineID)
	})
}

func (m *measuredProvider) MachineState(ctx context.Context, machineID string) (infra.State, error) {
	return measureCall(ctx, m, "machine_state", func(ctx context.Context) (infra.State, error) {
		return m.evidence.MachineState(ctx, machineID)
	})
}

func (m *measuredProvider) HasRoom(ctx context.Context, subnets []string) (map[string]bool, error) {
	return measureCall(ctx, m, "subnet_capacity", func(ctx context.Context) (map[string]bool, error) {
		return m.capacity.HasRoom(ctx, subnets)
	})
}

func (m *measuredProvider) DescribeType(ctx context.Context, name string) (infra.InstanceType, error) {
	return measureCall(ctx, m, "describe_type", func(ctx context.Context) (infra.InstanceType, error) {
		return m.types.DescribeType(ctx, name)
	})
}

func (m *measuredProvider) Register(ctx context.Context, lb string, vm infra.VM) error {
	return measureError(ctx, m, "register", func(ctx context.Context) error {
		return m.balancers.Register(ctx, lb, vm)
	})
}

func (m *measuredProvider) Deregister(ctx context.Context, lb string, vm infra.VM) error {
	return measureError(ctx, m, "deregister", func(ctx context.Context) error {
		return m.balancers.Deregister(ctx, lb, vm)
	})
}

func (m *measuredProvider) MemberHealth(ctx context.Context, lb string, vms []infra.VM) (
	map[string]infra.MemberHealth, error) {
	return measureCall(ctx, m, "load_balancer_health",
		func(ctx context.Context) (map[string]infra.MemberHealth, error) {
			return m.members.MemberHealth(ctx, lb, vms)
		})
}

func (m *measuredProvider) Resolve(ctx context.Context, query infra.ImageQuery) (string, error) {
	return measureCall(ctx, m, "resolve_image", func(ctx context.Context) (string, error) {
		return m.images.Resolve(ctx, query)
	})
}

func (m *measuredProvider) RemoveUserdata(ctx context.Context, owner infra.Owner, id ident.ID) error {
	return measureError(ctx, m, "remove_userdata", func(ctx context.Context) error {
		return m.userdata.RemoveUserdata(ctx, owner, id)
	})
}

func (m *measuredProvider) Verify(ctx context.Context, shard *config.Shard) error {
	return measureError(ctx, m, "verify", func(ctx context.Context) error { return m.verifier.Verify(ctx, shard) })
}
