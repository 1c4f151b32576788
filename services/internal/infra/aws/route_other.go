//go:build !linux

package aws

import (
	"errors"
	"net/netip"
)

// replyInterface returns the name of the interface by which packets from an address of this machine leave to other
// subnets. Only Linux, which all server images run, has an implementation.
func replyInterface(netip.Addr) (string, error) {
	return "", errors.New("routes are checked on Linux only")
}
