package server

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	contractcloud "github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/layer2"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// ownMachine is the machine that this server runs on, together with the shard's provider.
type ownMachine struct {
	infra.Machine
	Provider infra.Provider
	// address is the means by which this server moves the shard's fixed address to this machine. The server repeats the
	// move every addressInterval. address is nil if there is no fixed address, or if servers do not move it.
	address         infra.LeaderNetwork
	addressInterval time.Duration
}

// openProvider opens the provider of the shard and identifies this machine. If the provider does not know the machine,
// the server starts without an identity. But if the provider moves the leader's address, an unknown machine is an
// error. If `applied` is true, a leader has run with this configuration. openProvider then only logs a refusal of the
// configuration by the provider.
func (s *server) openProvider(ctx context.Context, shard *config.Shard, applied bool) (ownMachine, error) {
	kind := shard.Server.Provider.Kind
	i := slices.IndexFunc(s.cfg.Clouds, func(c infra.Cloud) bool { return c.Name() == kind })
	if i < 0 {
		var names []string
		for _, cloud := range s.cfg.Clouds {
			names = append(names, cloud.Name())
		}
		return ownMachine{}, fmt.Errorf("server.provider.kind: this nstance-server has no provider %q; it has %s", kind,
			strings.Join(names, ", "))
	}
	cloud := s.cfg.Clouds[i]
	env := infra.Env{Shard: shard, Log: s.log, Throttled: s.metrics.ObserveThrottling}
	provider, err := cloud.Open(ctx, env)
	if err != nil {
		return ownMachine{}, fmt.Errorf("open provider %s: %w", kind, err)
	}
	own := ownMachine{Provider: measure(provider, s.requestTimeout, s.metrics.ObserveProvider)}
	if err := own.openAddress(shard.Server.LeaderNetwork); err != nil {
		return ownMachine{}, fmt.Errorf("server.leader_network: %w", err)
	}
	own.Machine, err = cloud.Identity(ctx, env)
	if network := shard.Server.LeaderNetwork; err != nil && network != nil && network.Kind != contractcloud.LeaderARP {
		return ownMachine{}, fmt.Errorf("open provider %s: server.leader_network: %w", kind, err)
	}
	if err != nil {
		s.log.Warn("this machine is not known to the provider: other servers cannot ask whether it still runs",
			"provider", kind, "error", err)
	}
	own.configure(shard)
	switch err := own.verify(ctx, shard); {
	case infra.ClassOf(err) == infra.Invalid && !applied:
		return ownMachine{}, err
	case err != nil && ctx.Err() == nil:
		// A check that fails or finds a missing resource must not prevent the server from leading. As leader, the
		// server raises an alert about it.
		s.log.Warn("configuration not verified", "error", err)
	}
	return own, nil
}

// openAddress sets m.address to the means for moving the shard's fixed address: layer 2 announcements or the provider.
func (m *ownMachine) openAddress(network *config.LeaderNetwork) error {
	switch {
	case network == nil:
	case network.Kind == contractcloud.LeaderARP:
		var addrs []netip.Addr
		for _, text := range []string{network.IPv4, network.IPv6} {
			if addr, err := netip.ParseAddr(text); err == nil { // the configuration is valid: it is absent
				addrs = append(addrs, addr)
			}
		}
		address, err := layer2.New(addrs...)
		if err != nil {
			return err
		}
		m.address, m.addressInterval = address, layer2.Interval
	default:
		if address, ok := infra.Capability[infra.LeaderNetwork](m.Provider); ok {
			m.address, m.addressInterval = address, leader.AddressCheck
		}
	}
	return nil
}

func (m ownMachine) configure(shard *config.Shard) {
	if configurer, ok := infra.Capability[infra.Configurer](m.Provider); ok {
		configurer.Configure(shard)
	}
}

func (m ownMachine) verify(ctx context.Context, shard *config.Shard) error {
	verifier, ok := infra.Capability[infra.Verifier](m.Provider)
	if !ok {
		return nil
	}
	return verifier.Verify(ctx, shard)
}

// attest checks an agent's proof of the VM that it runs on, if the configuration requires one.
func (s *server) attest(ctx context.Context, proof []byte, vm infra.VM) error {
	if !s.attested() {
		return nil
	}
	attestor, ok := infra.Capability[infra.Attestor](s.machine.Provider)
	if !ok {
		return infra.Errorf(infra.Denied, "attest "+vm.ProviderID, "the provider cannot check attestations")
	}
	return attestor.Attest(ctx, proof, vm)
}

// attested reports whether the configuration requires agents to prove on which VM they run.
func (s *server) attested() bool { return s.manager.Shard().Server.Attestation != nil }

// batches returns from how many creates of a group on one call makes them. 0 means never.
func (s *server) batches() int {
	if a := s.manager.Shard().Server.Attestation; a == nil || !a.Batches {
		return 0
	}
	return execute.SmallestBatch
}

// configureProvider passes the new configuration to the provider. In the background, it verifies the configuration and
// raises an alert if it finds a problem.
func (s *server) configureProvider(ctx context.Context, l *leadership, shard *config.Shard) {
	s.machine.configure(shard)
	s.env.Go("verify the configuration", func() {
		key := shardstate.ErrorKey{Kind: plan.AlertProviderConfig}
		switch err := s.machine.verify(ctx, shard); {
		case ctx.Err() != nil || s.manager.Shard() != shard:
		case err != nil:
			l.leader.State.RaiseError(key, err.Error())
		default:
			l.leader.State.ResolveError(key)
		}
	})
}

// evidence returns a function that asks the provider for the state of a lock holder's machine. If the provider does not
// answer, the state is unknown, and the election ignores it. Without the capability MachineEvidence, evidence returns
// nil.
func evidence(provider infra.Provider) func(ctx context.Context, id string) election.MachineState {
	asker, ok := infra.Capability[infra.MachineEvidence](provider)
	if !ok {
		return nil
	}
	return func(ctx context.Context, id string) election.MachineState {
		state, err := asker.MachineState(ctx, id)
		switch {
		case infra.ClassOf(err) == infra.NotFound && err != nil:
			return election.MachineNotFound
		case err != nil:
			return election.MachineUnknown
		}
		switch state {
		case infra.Running, infra.Pending:
			return election.MachineRunning
		case infra.Stopping, infra.Deleting:
			return election.MachineStopping
		case infra.Stopped:
			return election.MachineStopped
		case infra.Deleted:
			return election.MachineTerminated
		default:
			return election.MachineUnknown
		}
	}
}

const (
	// startupTimeout bounds a bucket request while the shard's configuration, which contains request_timeout, is
	// unknown.
	startupTimeout = 30 * time.Second
	// minListTimeout is the minimum timeout of a listing, which needs one request per thousand keys.
	minListTimeout = 30 * time.Second
	// maxBucketRequests is the maximum number of concurrent bucket requests. The election's requests do not count.
	maxBucketRequests = 128
)

// requestTimeout returns server.request_timeout of the configuration in force, or startupTimeout before there is one.
func (s *server) requestTimeout() time.Duration {
	if shard := s.manager.Shard(); shard != nil {
		return shard.Server.RequestTimeout.D()
	}
	return startupTimeout
}

// bucketTimeouts returns the timeout of one request to the bucket and that of one listing.
func (s *server) bucketTimeouts() (request, list time.Duration) {
	request = s.requestTimeout()
	return request, max(request, minListTimeout)
}

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

func (m *measuredProvider) CreateBatch(ctx context.Context, req infra.BatchRequest) ([]infra.VM, error) {
	return measureCall(ctx, m, "create_batch", capability[infra.Batch](m).CreateBatch, req)
}

func (m *measuredProvider) Delete(ctx context.Context, vm infra.VM) error {
	return measureError(ctx, m, "delete", m.provider.Delete, vm)
}

func (m *measuredProvider) Sleep(ctx context.Context, vm infra.VM, how string) error {
	return measureError(ctx, m, "sleep", func(ctx context.Context, vm infra.VM) error {
		return capability[infra.Sleeper](m).Sleep(ctx, vm, how)
	}, vm)
}

func (m *measuredProvider) Wake(ctx context.Context, vm infra.VM) error {
	return measureError(ctx, m, "wake", capability[infra.Sleeper](m).Wake, vm)
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

func (m *measuredProvider) ReadConsole(ctx context.Context, vm infra.VM) ([]byte, error) {
	return measureCall(ctx, m, "read_console", capability[infra.VMConsoles](m).ReadConsole, vm)
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

func (m *measuredProvider) IsMember(ctx context.Context, lb string, vm infra.VM) (bool, error) {
	return measureCall(ctx, m, "load_balancer_membership", func(ctx context.Context, vm infra.VM) (bool, error) {
		return capability[infra.LoadBalancerMembership](m).IsMember(ctx, lb, vm)
	}, vm)
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
