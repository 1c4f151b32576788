package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/lease"
)

// Machine is this server's own machine and the provider that makes the others.
type Machine struct {
	Provider infra.Provider
	// ID is the provider's ID of the machine that this server runs on, one that is never used again; empty where there is none.
	ID string
}

// ProviderFactory makes the provider of a shard. The composition root's caller says which kinds there are, so that a binary links only those.
type ProviderFactory func(ctx context.Context, cfg config.Provider, log *slog.Logger) (Machine, error)

func (s *server) openProvider(ctx context.Context, cfg config.Provider) (Machine, error) {
	factory, ok := s.cfg.Providers[cfg.Kind]
	if !ok {
		return Machine{}, fmt.Errorf("server.provider.kind: this nstance-server has no provider %q; it has %s", cfg.Kind,
			strings.Join(slices.Sorted(maps.Keys(s.cfg.Providers)), ", "))
	}
	machine, err := factory(ctx, cfg, s.log)
	if err != nil {
		return Machine{}, fmt.Errorf("open provider %s: %w", cfg.Kind, err)
	}
	return machine, nil
}

// evidence asks the provider what became of a lock holder's machine. What it cannot say is unknown, which never counts.
func evidence(provider infra.Provider) func(ctx context.Context, id string) lease.Evidence {
	asker, ok := infra.Capability[infra.MachineEvidence](provider)
	if !ok {
		return nil
	}
	return func(ctx context.Context, id string) lease.Evidence {
		state, err := asker.MachineState(ctx, id)
		switch {
		case infra.ClassOf(err) == infra.NotFound && err != nil:
			return lease.MachineNotFound
		case err != nil:
			return lease.MachineUnknown
		}
		switch state {
		case infra.Running, infra.Pending:
			return lease.MachineRunning
		case infra.Stopping, infra.Deleting:
			return lease.MachineStopping
		case infra.Stopped:
			return lease.MachineStopped
		case infra.Deleted:
			return lease.MachineTerminated
		default:
			return lease.MachineUnknown
		}
	}
}

// measured counts a provider's calls and bounds each by the request time-out.
type measured struct {
	infra.Provider
	timeout time.Duration
	observe func(call, class string, took time.Duration)
}

// Unwrap implements the look for capabilities behind wrappers.
func (m *measured) Unwrap() infra.Provider { return m.Provider }

func (m *measured) call(ctx context.Context, name string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	began := time.Now()
	err := fn(ctx)
	class := "ok"
	if err != nil {
		class = string(infra.ClassOf(err))
	}
	m.observe(name, class, time.Since(began))
	return err
}

func (m *measured) Create(ctx context.Context, req infra.CreateRequest) (vm infra.VM, err error) {
	err = m.call(ctx, "create", func(ctx context.Context) error { vm, err = m.Provider.Create(ctx, req); return err })
	return vm, err
}

func (m *measured) Delete(ctx context.Context, providerID string) error {
	return m.call(ctx, "delete", func(ctx context.Context) error { return m.Provider.Delete(ctx, providerID) })
}

func (m *measured) Get(ctx context.Context, providerID string) (vm infra.VM, err error) {
	err = m.call(ctx, "get", func(ctx context.Context) error { vm, err = m.Provider.Get(ctx, providerID); return err })
	return vm, err
}

func (m *measured) List(ctx context.Context, owner infra.Owner) (vms []infra.VM, err error) {
	err = m.call(ctx, "list", func(ctx context.Context) error { vms, err = m.Provider.List(ctx, owner); return err })
	return vms, err
}

func (m *measured) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (vm infra.VM, err error) {
	err = m.call(ctx, "find", func(ctx context.Context) error { vm, err = m.Provider.FindByInstance(ctx, owner, id); return err })
	return vm, err
}
