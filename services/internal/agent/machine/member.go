package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"
)

// MemberTarget is the systemd unit that the agent starts when its instance is a member of its group, and stops while
// the instance is a spare.
const MemberTarget = "nstance-member.target"

// noSuchUnit is the D-Bus error of systemd for a unit that is not installed.
const noSuchUnit = "org.freedesktop.systemd1.NoSuchUnit"

// ErrNoSystemd means that this machine has no systemd that can be reached.
var ErrNoSystemd = errors.New("there is no systemd")

// SetMember starts or stops [MemberTarget]. It does not wait for the units that the target starts. It returns nil if
// the unit is not installed.
func SetMember(ctx context.Context, member bool) error {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoSystemd, err)
	}
	defer func() { _ = bus.Close() }()
	method := "org.freedesktop.systemd1.Manager.StopUnit"
	if member {
		method = "org.freedesktop.systemd1.Manager.StartUnit"
	}
	err = bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx, method, 0,
		MemberTarget, "replace").Err
	var refused dbus.Error
	if errors.As(err, &refused) && refused.Name == noSuchUnit {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", MemberTarget, err)
	}
	return nil
}
