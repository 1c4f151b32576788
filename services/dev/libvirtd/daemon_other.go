//go:build !linux

package libvirtd

import (
	"context"
	"errors"
	"os/exec"
)

// Daemon is a running libvirtd. It needs Linux.
type Daemon struct{}

var errNotLinux = errors.New("libvirt needs Linux")

// Start fails: libvirt needs Linux.
func Start(context.Context, Options) (*Daemon, error) { return nil, errNotLinux }

// RemoveLinks does nothing, because a daemon needs Linux.
func RemoveLinks() error { return nil }

// Machines are the machines of a stack's servers. They need Linux.
type Machines struct{}

// Host implements local.Network.
func (*Machines) Host(string) string { return Gateway }

// Start implements local.Network.
func (*Machines) Start(string, *exec.Cmd) error { return errNotLinux }

// Close does nothing.
func (*Machines) Close() {}
