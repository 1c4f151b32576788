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
}

// measure wraps provider. Each call gets the timeout that the function timeout returns, and is reported to the function
// observe.
func measure(provider infra.Provider, timeout func() time.Duration,
	observe func(call, class string, took time.Duration)) infra.Provider {
	return &measuredProvider{provider: provider, timeout: timeout, observe: observe}
}

// Unwrap implements [infra.Wrapper].
func (m *measuredProvider) Unwrap() infra.Provider { return m.provider }

// capability returns an optional capability of the wrapped provider. It returns nil if the provider lacks it.
func capability[T any](m *measuredProvider) T {
	found, _ := infra.Capability[T](m.provider)
	return found
}

// measureCall makes one call of a provider with the timeout. It reports the call to the function observe under the
// given name.
func measureCall[A, T any](ctx context.Context, m *measuredProvider, name string,
	call func(context.Context, A) (T, error), argument A) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout())
	defer cancel()
	began := time.Now()
	result, err := call(ctx, argument)
	class := "ok"
	if err != nil {
		class = string(infra.ClassOf(err))
	}
	m.observe(name, class, time.Since(began))
	return result, err
}

// measureError is measureCall for calls that return only an error.
func measureError[A any](ctx context.Context, m *measuredProvider, name string, call func(context.Context, A) error,
	argument A) error {
	_, err := measureCall(ctx, m, name, func(ctx context.Context, argument A) (struct{}, error) {
		return struct{}{}, call(ctx, argument)
	}, argument)
	return err
}

func (m *measuredProvider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	return measureCall(ctx, m, "create", m.provider.Create, req)
}

func (m *measuredProvider) Delete(ctx context.Context, vm infra.VM) error {
	return measureError(ctx, m, "delete", m.provider.Delete, vm)
}

func (m *measuredProvider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	return measureCall(ctx, m, "get", m.provider.Get, providerID)
}

func (m *measuredProvider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	return measureCall(ctx, m, "list", m.provider.List, owner)
}

func (m *measuredProvider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	return measureCall(ctx, m, "find", func(ctx context.Context, id ident.ID) (infra.VM, error) {
		return m.provider.FindByInstance(ctx, owner, id)
	}, id)
}

func (m *measuredProvider) Acquire(ctx context.Context, machineID string) error {
	return measureError(ctx, m, "acquire_address", capability[infra.LeaderNetwork](m).Acquire, machineID)
}

func (m *measuredProvider) Release(ctx context.Context, machineID string) error {
	return measureError(ctx, m, "release_address", capability[infra.LeaderNetwork](m).Release, machineID)
}

func (m *measuredProvider) MachineState(ctx context.Context, machineID string) (infra.State, error) {
	return measureCall(ctx, m, "machine_state", capability[infra.MachineEvidence](m).MachineState, machineID)
}

func (m *measuredProvider) HasRoom(ctx context.Context, subnets []string) (map[string]bool, error) {
	return measureCall(ctx, m, "subnet_capacity", capability[infra.SubnetCapacity](m).HasRoom, subnets)
}

func (m *measuredProvider) DescribeType(ctx context.Context, name string) (infra.InstanceType, error) {
	return measureCall(ctx, m, "describe_type", capability[infra.InstanceTypes](m).DescribeType, name)
}

func (m *measuredProvider) Register(ctx context.Context, lb string, vm infra.VM) error {
	return measureError(ctx, m, "register", func(ctx context.Context, vm infra.VM) error {
		return capability[infra.LoadBalancers](m).Register(ctx, lb, vm)
	}, vm)
}

func (m *measuredProvider) Deregister(ctx context.Context, lb string, vm infra.VM) error {
	return measureError(ctx, m, "deregister", func(ctx context.Context, vm infra.VM) error {
		return capability[infra.LoadBalancers](m).Deregister(ctx, lb, vm)
	}, vm)
}

func (m *measuredProvider) MemberHealth(ctx context.Context, lb string, vms []infra.VM) (
	map[string]infra.MemberHealth, error) {
	return measureCall(ctx, m, "load_balancer_health",
		func(ctx context.Context, vms []infra.VM) (map[string]infra.MemberHealth, error) {
			return capability[infra.LoadBalancerHealth](m).MemberHealth(ctx, lb, vms)
		}, vms)
}

func (m *measuredProvider) DeregistrationDelay(ctx context.Context, lb string) (time.Duration, error) {
	return measureCall(ctx, m, "deregistration_delay", capability[infra.DeregistrationDelay](m).DeregistrationDelay, lb)
}

func (m *measuredProvider) Resolve(ctx context.Context, query infra.ImageQuery) (string, error) {
	return measureCall(ctx, m, "resolve_image", capability[infra.Images](m).Resolve, query)
}

func (m *measuredProvider) RemoveUserdata(ctx context.Context, owner infra.Owner, id ident.ID) error {
	return measureError(ctx, m, "remove_userdata", func(ctx context.Context, id ident.ID) error {
		return capability[infra.UserdataRemover](m).RemoveUserdata(ctx, owner, id)
	}, id)
}

func (m *measuredProvider) Verify(ctx context.Context, shard *config.Shard) error {
	return measureError(ctx, m, "verify", capability[infra.Verifier](m).Verify, shard)
}
