package infra

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Answers checks with the kernel that an address belongs to this machine, and that it can be used: a program can listen
// on it and connect to it. The check sends no packets to other machines.
func Answers(ctx context.Context, addr netip.Addr) error {
	var cfg net.ListenConfig
	listener, err := cfg.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return fmt.Errorf("%s cannot be used yet: %w", addr, err)
	}
	defer listener.Close()
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", listener.Addr().String())
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", addr, err)
	}
	return conn.Close()
}
