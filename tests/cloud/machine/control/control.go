// Package control owns the protocol between a machine's init and its clients: systemctl inside the machine and the
// runner outside.
//
// Invariant: one connection carries one request and one response. A client that closes the connection before the
// response cancels the request.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Socket is the path, inside the machine, of the socket on which init listens. Only root may connect.
const Socket = "/run/machine/control"

// JournalSocket is the path of the socket for journalctl. Root and the group systemd-journal may connect.
const JournalSocket = "/run/machine/journal"

// Guest is the path, inside the machine, of the program that serves as init, systemctl and the related programs.
const Guest = "/usr/lib/machine/guest"

// The runner uses these values of Request.Program to tell init that a network interface was plugged in or unplugged.
// The argument of LinkAdded is a networkd.Link in JSON. The argument of LinkRemoved is the name of the device.
const (
	LinkAdded   = "link-added"
	LinkRemoved = "link-removed"
)

// The runner uses these values of Request.Program to put the machine to sleep and to wake it. The argument of Sleep is
// ShutDown or Freeze. A machine that sleeps answers no other requests about its processes.
const (
	Sleep    = "sleep"
	ShutDown = "shut-down"
	Freeze   = "freeze"
	Wake     = "wake"
)

// largest is the number of bytes that a message may have. It exceeds any output that the tests request.
const largest = 64 << 20

// Request asks init to run a program, or to act as one.
type Request struct {
	// Program tells what init does for the client. For the name of a program, such as "systemctl", "journalctl" or
	// "shutdown", init does the work of that program. For "exec", init runs Args. Other values are LinkAdded,
	// LinkRemoved, Sleep and Wake.
	Program string
	Args    []string
}

// Response is the result of a request.
type Response struct {
	Code           int
	Output, Errors []byte
}

// Send writes a request and waits for the response. When ctx ends, Send closes the connection and returns an error.
func Send(ctx context.Context, conn net.Conn, r Request) (Response, error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return Response{}, failed(ctx, err)
	}
	var answer Response
	if err := json.NewDecoder(io.LimitReader(conn, largest)).Decode(&answer); err != nil {
		return Response{}, failed(ctx, err)
	}
	return answer, nil
}

func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("the machine went down: %w", err)
	}
	return fmt.Errorf("ask init: %w", err)
}

// Serve answers requests, each in its own goroutine, until the listener is closed. The context of a handler ends when
// the client closes the connection.
func Serve(l net.Listener, handle func(context.Context, Request) Response) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go serve(conn, handle)
	}
}

func serve(conn net.Conn, handle func(context.Context, Request) Response) {
	defer conn.Close()
	var r Request
	decoder := json.NewDecoder(io.LimitReader(conn, largest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		// The client may have closed the connection.
		_ = json.NewEncoder(conn).Encode(Response{Code: 1, Errors: fmt.Appendf(nil, "read request: %v\n", err)})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // Returns when the client closes the connection.
		cancel()
	}()
	_ = json.NewEncoder(conn).Encode(handle(ctx, r)) // The client may have closed the connection.
}
