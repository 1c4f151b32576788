package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// endTime is the time that a program gets to end by itself when its connection is closed, and again after a signal.
	endTime = 2 * time.Second
	// startTime limits the time until a program has opened its port.
	startTime = 30 * time.Second
	// ownTime is the time in which a program that has closed its connection ends, if it does.
	ownTime = 500 * time.Millisecond
	// shownOutput is the number of bytes of a program's output that an error quotes.
	shownOutput = 1000
)

// Dialer connects to the servers of one shard. It is safe for concurrent use. The caller must call Close.
type Dialer struct {
	way Way

	mu     sync.Mutex
	open   map[*program]bool
	closed bool
}

// New returns a dialer without connections.
func New(way Way) *Dialer { return &Dialer{way: way, open: map[*program]bool{}} }

// Close ends the programs of all connections, and waits until they have ended.
func (d *Dialer) Close() {
	d.mu.Lock()
	d.closed = true
	var open []*program
	for p := range d.open {
		open = append(open, p)
	}
	d.mu.Unlock()
	var wait sync.WaitGroup
	for _, p := range open {
		wait.Go(p.end)
	}
	wait.Wait()
}

// Dial connects to a server. The address is the server's own one, also if the connection does not go there directly.
// If a program carries the connection, the program ends when the connection is closed. Errors of a tunnel are *[Error].
func (d *Dialer) Dial(ctx context.Context, addr string) (net.Conn, error) {
	to := addr
	if d.way.kind == "" {
		if !d.way.IsZero() {
			to = d.way.target
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
		if err != nil && !d.way.IsZero() {
			return nil, &Error{d.way, err.Error(), "does the program run that forwards this port?"}
		}
		return conn, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	known := kinds[d.way.kind]
	args := known.command(known.pattern.FindStringSubmatch(d.way.target), host, port)
	path, err := exec.LookPath(args[0])
	if err != nil {
		return nil, &Error{d.way, args[0] + " is not on PATH", known.install}
	}
	if known.opened != nil {
		return d.throughPort(ctx, path, args)
	}
	return d.throughPipes(path, args)
}

// program is a running program that carries one connection.
type program struct {
	dialer *Dialer
	cmd    *exec.Cmd
	said   output
	ended  chan struct{} // closed when the program has ended
	err    error         // set before ended is closed
	// hangUp makes the program end by itself. It may be nil.
	hangUp func()
	once   sync.Once
}

// start starts a program after a call of prepare.
func (d *Dialer) start(path string, args []string, prepare func(*exec.Cmd, *program)) (*program, error) {
	cmd := exec.Command(path, args[1:]...) //nolint:gosec,noctx // the user's own tool; [program.end] ends it
	cmd.WaitDelay = time.Second            // a child of the program may keep its standard error open
	p := &program{dialer: d, cmd: cmd, ended: make(chan struct{})}
	cmd.Stderr = &p.said
	// Signals to a process group reach the children of its leader too. But only the group of this process may read from
	// the terminal.
	if !kinds[d.way.kind].asks {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	prepare(cmd, p)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, net.ErrClosed
	}
	if err := cmd.Start(); err != nil {
		return nil, &Error{d.way, err.Error(), kinds[d.way.kind].install}
	}
	d.open[p] = true
	go func() {
		p.err = cmd.Wait()
		d.mu.Lock()
		delete(d.open, p)
		d.mu.Unlock()
		close(p.ended)
	}()
	return p, nil
}

// end ends the program and waits for it: first by itself, then with an interrupt as from the keyboard, which tools
// answer by ending their sessions, and then by force.
func (p *program) end() {
	p.once.Do(func() {
		if p.hangUp != nil {
			p.hangUp()
			if p.wait(endTime) {
				return
			}
		}
		p.signal(syscall.SIGINT)
		if !p.wait(endTime) {
			p.signal(syscall.SIGKILL)
		}
	})
	<-p.ended
}

// wait reports whether the program ends within a time.
func (p *program) wait(limit time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(limit):
		return false
	}
}

func (p *program) signal(signal syscall.Signal) {
	pid := p.cmd.Process.Pid
	if p.cmd.SysProcAttr != nil && p.cmd.SysProcAttr.Setpgid {
		pid = -pid
	}
	_ = syscall.Kill(pid, signal) // it may have ended
}

// failure returns why the program carries nothing any more. It ends the program.
func (p *program) failure(what string) error {
	reason := what
	var exit *exec.ExitError
	if p.wait(ownTime) && errors.As(p.err, &exit) {
		reason = fmt.Sprintf("%s: %s", filepath.Base(p.cmd.Path), exit)
	}
	p.end()
	if text := p.said.String(); text != "" {
		reason += ": " + text
	}
	return &Error{p.dialer.way, reason, kinds[p.dialer.way.kind].advice}
}

// output keeps the end of what a program prints. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, text...)
	o.text = o.text[max(0, len(o.text)-shownOutput):]
	return len(text), nil
}

// String returns the output in one line.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(o.text), "")) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// throughPipes starts a program that forwards its standard input and output.
func (d *Dialer) throughPipes(path string, args []string) (net.Conn, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), in.Close())
	}
	p, err := d.start(path, args, func(cmd *exec.Cmd, p *program) {
		cmd.Stdin, cmd.Stdout = theirIn, theirOut
		p.hangUp = func() { _ = in.Close() } // fails only if it is closed already
	})
	_, _ = theirIn.Close(), theirOut.Close() // only the program uses them
	if err != nil {
		_, _ = in.Close(), out.Close()
		return nil, err
	}
	return &connection{&pipes{out, in, pipeAddr(d.way.String())}, p}, nil
}

// pipes is a connection through the standard input and output of a program.
type pipes struct {
	out, in *os.File
	addr    pipeAddr
}

// Close implements net.Conn. The input may be closed already.
func (c *pipes) Close() error { return errors.Join(ignoreClosed(c.in.Close()), c.out.Close()) }

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Read and the methods below implement net.Conn.
func (c *pipes) Read(into []byte) (int, error)      { return c.out.Read(into) }
func (c *pipes) Write(data []byte) (int, error)     { return c.in.Write(data) }
func (c *pipes) LocalAddr() net.Addr                { return c.addr }
func (c *pipes) RemoteAddr() net.Addr               { return c.addr }
func (c *pipes) SetReadDeadline(t time.Time) error  { return c.out.SetReadDeadline(t) }
func (c *pipes) SetWriteDeadline(t time.Time) error { return c.in.SetWriteDeadline(t) }
func (c *pipes) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// pipeAddr is the address of a connection without one: the way to it.
type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

// throughPort starts a program that forwards a port of this machine, and connects to the port.
func (d *Dialer) throughPort(ctx context.Context, path string, args []string) (net.Conn, error) {
	ports := make(chan string, 1)
	p, err := d.start(path, args, func(cmd *exec.Cmd, p *program) {
		known := kinds[d.way.kind]
		cmd.Env = append(os.Environ(), known.env...)
		cmd.Stdout = &lines{each: func(line string) {
			if found := known.opened.FindStringSubmatch(line); found != nil && len(ports) == 0 {
				ports <- found[1]
				return
			}
			_, _ = p.said.Write([]byte(line)) // never fails
		}}
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	select {
	case <-ctx.Done():
		return nil, p.failure("it opened no port in time")
	case <-p.ended:
		return nil, p.failure("it ended before it opened a port")
	case port := <-ports:
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("localhost", port))
		if err != nil {
			p.end()
			return nil, &Error{d.way, err.Error(), kinds[d.way.kind].advice}
		}
		return &connection{conn, p}, nil
	}
}

// lines calls a function for each line that is written to it. It is not safe for concurrent use.
type lines struct {
	each func(line string)
	rest []byte
}

// Write implements io.Writer.
func (l *lines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		if end < 0 {
			l.rest = l.rest[max(0, len(l.rest)-shownOutput):]
			return len(text), nil
		}
		l.each(string(l.rest[:end+1]))
		l.rest = l.rest[end+1:]
	}
}

// connection is a connection that a program carries.
type connection struct {
	net.Conn
	program *program
}

// Read implements net.Conn. If the far end or the program closes the connection, the error has what the program
// printed.
func (c *connection) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	return n, c.explain(err)
}

// Write implements net.Conn.
func (c *connection) Write(data []byte) (int, error) {
	n, err := c.Conn.Write(data)
	return n, c.explain(err)
}

func (c *connection) explain(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return c.program.failure("the connection was closed")
	}
	return err
}

// Close implements net.Conn. It does not wait for the program: [Dialer.Close] does.
func (c *connection) Close() error {
	go c.program.end()
	return c.Conn.Close()
}
