package infra

import (
	"context"
	"errors"
	"log/slog"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Cloud describes one provider of VMs. Each folder beside this file defines a Cloud in its cloud.go, and the server's
// main package lists the clouds that its binary supports. No other code of the server depends on a particular cloud.
type Cloud struct {
	// Config describes the cloud's part of the shard configuration. Its Name is the cloud's name.
	Config cloud.Block
	// Open makes the provider of a shard. It sends no requests, so that a server can start while the cloud does not
	// answer.
	Open func(ctx context.Context, env Env) (Provider, error)
	// Identity describes the machine that this process runs on. It fails if the process does not run in the cloud.
	Identity func(ctx context.Context, env Env) (Machine, error)
	// Member describes this machine as a member of the named scaling group. It is nil for a cloud without such groups.
	Member func(ctx context.Context, group string) (Member, error)
	// Consoles reads the consoles of the machines on which a shard's servers run or recently ran. It is nil for a cloud
	// without consoles.
	Consoles func(ctx context.Context, shard *config.Shard) ([]Console, error)
}

// Name returns the cloud's name, as in server.provider.kind.
func (c Cloud) Name() string { return c.Config.Name }

// Env contains the inputs with which a cloud makes its provider.
type Env struct {
	// Shard is the configuration with defaults filled in.
	Shard *config.Shard
	Log   *slog.Logger
	// Throttled is called for each API call that the cloud refused because the server makes too many calls. Its
	// argument is the call's name.
	Throttled func(call string)
}

// Machine describes the machine that a server runs on.
type Machine struct {
	// ID is the provider's ID of the machine, or empty if it is not known. The provider never reuses it.
	ID string
	// Named reports whether people use the machine's ID as its name. If so, the server that runs on the machine uses ID
	// as its default server ID.
	Named bool
}

// Configurer is an optional capability: the provider reads more of the configuration than [Cloud.Open] does.
type Configurer interface {
	// Configure is called with each configuration that comes into force, with defaults filled in. It may run while the
	// provider is in use. It sends no requests.
	Configure(shard *config.Shard)
}

// Attestor is an optional capability: it checks on which VM an agent runs.
type Attestor interface {
	// Attest checks a proof that an agent sent. It fails with class [Denied] if the proof does not show that the agent
	// runs on vm. It fails with class [NotFound] if the provider does not know enough about vm yet. It fails with
	// another class if the cloud's keys could not be read.
	Attest(ctx context.Context, proof []byte, vm VM) error
}

// Watcher is an optional capability: it reports changes of VMs when they happen.
type Watcher interface {
	// Watch calls changed with the instance ID of each VM whose state may have changed. The VM may belong to any owner.
	// Such a call proves nothing: the recipient must ask for the VM's state. Watch has no timeout: it returns when ctx
	// ends.
	Watch(ctx context.Context, changed func(ident.ID))
}

// Wrapper is a Provider that forwards its calls to another Provider, for example to measure them.
type Wrapper interface {
	Provider
	Unwrap() Provider
}

// Capability returns an optional capability of a provider, and whether the provider has it. A [Wrapper] has exactly the
// capabilities of the provider that it wraps. If the wrapper implements the capability too, Capability returns the
// wrapper. Otherwise it returns the wrapped provider.
func Capability[T any](p Provider) (capability T, ok bool) {
	own, implements := p.(T)
	wrapper, wraps := p.(Wrapper)
	if !wraps {
		return own, implements
	}
	capability, ok = Capability[T](wrapper.Unwrap())
	if ok && implements {
		return own, true
	}
	return capability, ok
}

// Console is what the machine of a server has written to its console.
type Console struct {
	// Machine is the provider's ID of the machine. State is the machine's state in the provider's words.
	Machine string `json:"machine"`
	State   string `json:"state"`
	Output  string `json:"output"` // empty if the provider has none yet
}

// Member is a server's machine as a member of the scaling group that keeps the number of servers constant. All methods
// are safe to repeat.
type Member interface {
	// MachineID returns the provider's ID of the machine.
	MachineID() string
	// Ready tells the group that this server is ready. While the group waits for a server to become ready, it replaces
	// no other server. [ErrNotAwaited] means that the group does not wait for this machine.
	Ready(ctx context.Context) error
	// Abandon tells the group to stop waiting for this machine, to terminate it, and to start another one.
	// [ErrNotAwaited] means that the group does not wait for this machine.
	Abandon(ctx context.Context) error
	// Replace tells the group that the server is unhealthy, so that the group replaces the machine. The group ignores
	// this in the grace period of a new machine.
	Replace(ctx context.Context) error
}

// ErrNotAwaited means that a scaling group does not wait for a machine: the machine is a full member already, or the
// group never waits.
var ErrNotAwaited = errors.New("the scaling group does not wait for this machine")
