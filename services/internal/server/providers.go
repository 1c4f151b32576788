package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/election"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

// Machine is this server's own machine and the provider that makes the others.
type Machine struct {
	Provider infra.Provider
	// ID is the provider's ID of the machine that this server runs on, one that is never used again; empty where there
	// is none.
	ID string
	// Named: ID is also what people call the machine, so it is the server's ID where nobody gave one.
	Named bool
	// Configure, if set, is handed the configuration in force, defaults filled in, at the start and whenever there is
	// another, while the provider is in use. It asks nobody.
	Configure func(shard *config.Shard)
	// Verify, if set, asks whether what a configuration names of the provider's is there and can be used as the
	// configuration says. With an error of class infra.Invalid no server starts; others are told of.
	Verify func(ctx context.Context, shard *config.Shard) error
}

// Setup is what a provider is made for.
type Setup struct {
	Shard *config.Shard // defaults filled in
	Log   *slog.Logger
	// Throttled is told the name of each call of the provider's API that was turned away because of too many.
	Throttled func(call string)
}

// ProviderKind is one kind of providers. The composition root's caller says which there are, so that a binary links
// only those.
type ProviderKind struct {
	// Open makes the provider of a shard.
	Open func(ctx context.Context, setup Setup) (Machine, error)
	// Check, if set, finds what is wrong with a valid configuration in the provider's own vocabulary. It asks nobody.
	Check func(shard *config.Shard) config.Problems
}

// openProvider opens the provider of a shard. applied: a leader has run with this configuration, so that what the
// provider finds wrong with it is only logged.
func (s *server) openProvider(ctx context.Context, shard *config.Shard, applied bool) (Machine, error) {
	kind := shard.Server.Provider.Kind
	provider, ok := s.cfg.Providers[kind]
	if !ok {
		return Machine{}, fmt.Errorf("server.provider.kind: this nstance-server has no provider %q; it has %s", kind,
			strings.Join(slices.Sorted(maps.Keys(s.cfg.Providers)), ", "))
	}
	machine, err := provider.Open(ctx, Setup{Shard: shard, Log: s.log, Throttled: s.metrics.ObserveThrottling})
	if err != nil {
		return Machine{}, fmt.Errorf("open provider %s: %w", kind, err)
	}
	machine.Provider = measure(machine.Provider, s.requestTimeout, s.metrics.ObserveProvider)
	if machine.Configure != nil {
		machine.Configure(shard)
	}
	switch err := machine.verify(ctx, shard); {
	case infra.ClassOf(err) == infra.Invalid && !applied:
		return Machine{}, err
	case err != nil && ctx.Err() == nil:
		// What cannot be asked now, or is missing now, keeps no server from leading: the leader says it again.
		s.log.Warn("configuration not verified", "error", err)
	}
	return machine, nil
}

func (m Machine) verify(ctx context.Context, shard *config.Shard) error {
	if m.Verify == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shard.Server.RequestTimeout.D())
	defer cancel()
	return m.Verify(ctx, shard)
}

// judge finds what is wrong with a configuration in the vocabulary of its provider.
func judge(providers map[string]ProviderKind) func(*config.Shard) config.Problems {
	return func(shard *config.Shard) config.Problems {
		if check := providers[shard.Server.Provider.Kind].Check; check != nil {
			return check(shard)
		}
		return nil
	}
}

// configureProvider hands the provider the configuration that came into force. What it finds wrong with it is raised;
// nobody waits for that.
func (s *server) configureProvider(ctx context.Context, l *leadership, shard *config.Shard) {
	if s.machine.Configure != nil {
		s.machine.Configure(shard)
	}
	s.env.Go("verify the configuration", func() {
		key := shardstate.ErrorKey{Kind: plan.AlertProviderConfig}
		switch err := s.machine.verify(ctx, shard); {
		case ctx.Err() != nil || s.manager.Shard() != shard:
		case err != nil:
			l.leader.World.Raise(key, err.Error())
		default:
			l.leader.World.Resolve(key)
		}
	})
}

// evidence asks the provider what became of a lock holder's machine. What it cannot say is unknown, which never counts.
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
