//go:build !linux

package layer2

import (
	"context"
	"errors"
	"net/netip"
)

// Address is the leader's address. It needs Linux.
type Address struct{}

var errNotLinux = errors.New("kind arp needs Linux")

// New fails: the address needs Linux.
func New(...netip.Addr) (*Address, error) { return nil, errNotLinux }

// Acquire fails.
func (*Address) Acquire(context.Context, string) error { return errNotLinux }

// Release fails.
func (*Address) Release(context.Context, string) error { return errNotLinux }
