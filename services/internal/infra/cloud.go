package infra

import (
	"context"
	"log/slog"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Cloud describes one provider of machines. Each folder beside this file makes one in its cloud.go; the server's main
// package lists those that its binary has. Nothing else in the server names a cloud.
type Cloud struct {
	// Config describes the cloud's part of the shard configuration. Its Name is the cloud's name.
	Config cloud.Block
	// Open makes the provider of a shard. It sends nothing: a cloud that does not answer must not keep a server from
	// starting.
	Open func(ctx context.Context, env Env) (Provider, error)
	// Identity describes the machine that this process runs on. It fails where the process does not run in the cloud.
	Identity func(ctx context.Context, env Env) (Machine, error)
}

// Name returns the cloud's name, as in server.provider.kind.
func (c Cloud) Name() string { return c.Config.Name }

// Env is what a provider is made for.
type Env struct {
	// Shard is the configuration, with defaults filled in.
	Shard *config.Shard
	Log   *slog.Logger
	// Throttled is called with the name of each API call that the cloud refused because of too many calls.
	Throttled func(call string)
}

// Machine is the machine that a server runs on.
type Machine struct {
	// ID is the provider's ID of the machine. It is never reused. Empty: not known.
	ID string
	// Named reports whether people know the machine by ID. If so, ID is the default of the server's ID.
	Named bool
}

// Configurer is an optional capability: a provider that takes more from the configuration than [Cloud.Open] does.
type Configurer interface {
	// Configure is called with each configuration that comes into force, defaults filled in, also while the provider
	// is in use. It sends nothing.
	Configure(shard *config.Shard)
}
