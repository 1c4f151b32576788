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
	if s.manager.Shard().Server.Attestation == nil {
		return nil
	}
	attestor, ok := infra.Capability[infra.Attestor](s.machine.Provider)
	if !ok {
		return infra.Errorf(infra.Denied, "attest "+vm.ProviderID, "the provider cannot check attestations")
	}
	return attestor.Attest(ctx, proof, vm)
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
