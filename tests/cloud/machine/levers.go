package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/machine/control"
)

// commandTime limits the duration of a command that a test runs, including the wait for the boot.
const commandTime = 2 * time.Minute

// ExitError is the error of a command that ended, inside a machine, with an exit code other than 0.
type ExitError struct {
	Code   int
	Errors string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit code %d: %s", e.Code, strings.TrimSpace(e.Errors))
}

// Exec runs a command inside a machine, as root, and returns its standard output. It first waits until the machine has
// booted. If the exit code is not 0, the error is an [*ExitError].
func (r *Runner) Exec(id string, argv ...string) (string, error) {
	i, ok := r.Machine(id)
	if !ok {
		return "", fmt.Errorf("run %q: there is no machine %s", argv, id)
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	out, err := i.exec(ctx, control.Request{Program: "exec", Args: argv})
	if err != nil {
		return out, fmt.Errorf("run %q in %s: %w", argv, id, err)
	}
	return out, nil
}

func (i *Instance) exec(ctx context.Context, request control.Request) (string, error) {
	if err := i.wait(ctx); err != nil {
		return "", err
	}
	// The socket is in the machine's own mount namespace, which is reachable through the machine's first process.
	path := fmt.Sprintf("/proc/%d/root%s", i.cmd.Process.Pid, control.Socket)
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return "", err
	}
	answer, err := control.Send(ctx, conn, request)
	if err != nil {
		return "", err
	}
	if answer.Code != 0 {
		err = &ExitError{answer.Code, string(answer.Errors)}
	}
	return string(answer.Output), err
}

// wait blocks until init listens. It returns an error if ctx ends first or if the machine has ended.
func (i *Instance) wait(ctx context.Context) error {
	select {
	case <-i.booted:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if i.Ended() {
		return errors.New("the machine has ended")
	}
	return nil
}

// Logs returns the machine's output so far. It is empty for a machine that was never started.
func (r *Runner) Logs(id string) string {
	text, err := os.ReadFile(r.logPath(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error()
	}
	return string(text)
}

// Dial waits until the machine has configured its network. Then Dial connects from inside the machine. The address must
// be an IP address with a port.
func (r *Runner) Dial(ctx context.Context, id, network, address string) (net.Conn, error) {
	i, ok := r.Machine(id)
	if !ok {
		return nil, fmt.Errorf("dial %s: there is no machine %s", address, id)
	}
	if err := i.wait(ctx); err != nil {
		return nil, fmt.Errorf("dial %s from %s: %w", address, id, err)
	}
	ns, err := i.network()
	if err != nil {
		return nil, fmt.Errorf("dial %s from %s: %w", address, id, err)
	}
	defer ns.close() //nolint:errcheck // a file descriptor of which only the closing matters
	return ns.dial(ctx, network, address)
}

// network returns the machine's network namespace as a newly opened file. The caller must close this file.
func (i *Instance) network() (*netns, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ns == nil {
		return nil, errors.New("the machine has ended")
	}
	f, err := os.Open(i.ns.path())
	return &netns{f}, err
}

// DialVPC connects from a host that is in the VPC but is not a machine.
func (r *Runner) DialVPC(ctx context.Context, vpc, network, address string) (net.Conn, error) {
	v, err := r.network(vpc)
	if err != nil {
		return nil, err
	}
	return v.ns.dial(ctx, network, address)
}

// ListenVPC listens on a host that is in the VPC but is not a machine. Such a host represents a server that is not an
// instance, for example a load balancer or an endpoint. ListenVPC adds the address to the host, with the VPC's prefix
// length. Port 0 selects any free port.
func (r *Runner) ListenVPC(vpc string, address netip.Prefix, port uint16) (net.Listener, error) {
	v, err := r.network(vpc)
	if err != nil {
		return nil, err
	}
	if err := v.ns.ip(fmt.Sprintf("addr replace %s dev br0", address)); err != nil {
		return nil, fmt.Errorf("listen in %s: %w", vpc, err)
	}
	var l net.Listener
	err = v.ns.do(func() (err error) {
		at := netip.AddrPortFrom(address.Addr(), port).String()
		l, err = net.Listen("tcp", at) //nolint:noctx // it does not wait for anything
		return err
	})
	return l, err
}

// VPCNamespace returns the path of the network namespace of a VPC. A program in it is a host in the VPC that is not a
// machine. Its loopback interface is up.
func (r *Runner) VPCNamespace(vpc string) (path string, err error) {
	v, err := r.network(vpc)
	if err != nil {
		return "", err
	}
	return v.ns.path(), nil
}

// dialTime limits a connection attempt, because a dropped packet never gets an answer.
const dialTime = 10 * time.Second

func (n *netns) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial: %w", err) // A name would be resolved on another thread, in the host's network.
	}
	err = n.do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: dialTime}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
