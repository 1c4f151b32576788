package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// portTakenError means that another process listens on an address. The server retries until the port is free.
type portTakenError struct{ addr, what string }

func (e *portTakenError) Error() string {
	return fmt.Sprintf("listen on %s for %s: the port is taken: stop the process that has it, or give this server "+
		"another (server.bind in the shard's configuration, --health-addr, --instance)", e.addr, e.what)
}

func isPortTaken(err error) bool {
	var taken *portTakenError
	return errors.As(err, &taken)
}

// listen opens a TCP listener. Its error is a portTakenError or a fatalError.
func listen(ctx context.Context, addr, what string) (net.Listener, error) {
	var cfg net.ListenConfig
	listener, err := cfg.Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &portTakenError{addr, what}
	}
	if err != nil {
		return nil, &fatalError{fmt.Errorf("listen for %s: %w", what, err)}
	}
	return listener, nil
}
