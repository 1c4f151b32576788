// Package control owns what is said between a machine's init and those who ask it: the systemctl inside of it and the
// runner outside.
//
// Invariant: one connection carries one request and one answer; who hangs up before the answer has called it off.
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

// Socket is where init listens, inside of the machine. Only root may connect.
const Socket = "/run/fakeaws/control"

// Guest is where the program that is init, systemctl and the others lies inside of the machine.
const Guest = "/usr/lib/fakeaws/guest"

// largest is the size of a message in bytes, more than any output that tests ask for.
const largest = 64 << 20

// Request is a program that init runs, or is itself.
type Request struct {
	// Program is "systemctl", "journalctl", "shutdown" and so on, which init answers itself, or "exec", which runs
	// Args.
	Program string
	Args    []string
	// Environment, Directory and Input are for exec; Environment comes on top of the machine's default one.
	Environment []string
	Directory   string
	Input       []byte
}

// Response is how it ended.
type Response struct {
	Code           int
	Output, Errors []byte
}

// Send asks and waits for the answer. When ctx ends it hangs up.
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

// Serve answers requests, each in a goroutine, until the listener is closed. A handler's context ends when the asker
// hangs up.
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
		// the asker may be gone
		_ = json.NewEncoder(conn).Encode(Response{Code: 1, Errors: fmt.Appendf(nil, "read request: %v\n", err)})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // returns when the asker hangs up
		cancel()
	}()
	_ = json.NewEncoder(conn).Encode(handle(ctx, r)) // the asker may be gone
}
