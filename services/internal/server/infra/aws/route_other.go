//go:build !linux

package aws

import (
	"errors"
	"net/netip"
)

// replyInterface returns the name of the interface through which this machine sends packets from one of its addresses
// to other subnets. Only Linux has an implementation, and all server images run Linux.
func replyInterface(netip.Addr) (string, error) {
	return "", errors.New("routes are checked on Linux only")
}
