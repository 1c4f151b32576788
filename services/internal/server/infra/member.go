package infra

import (
	"context"
	"errors"
)

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
