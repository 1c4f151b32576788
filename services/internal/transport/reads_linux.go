package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// QuietReads returns a listener whose TCP connections are read without telling Go's scheduler of the system call. It is
// told so that a call that lasts does not hold up other goroutines; these never last, because they take what is there
// or nothing (MSG_DONTWAIT, recv(2)). But to be told wakes the runtime's monitor thread whenever the process had
// nothing to do before (runtime.sysmon), as it has between two reports: that was a third of what receiving one costs. A
// connection is read by one goroutine at a time.
func QuietReads(l net.Listener) net.Listener { return quietListener{l} }

type quietListener struct{ net.Listener }

func (l quietListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	c := &quietConn{TCPConn: tcp}
	if c.raw, err = tcp.SyscallConn(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.take = c.receive // once, not for every read
	return c, nil
}

type quietConn struct {
	*net.TCPConn
	raw  syscall.RawConn
	take func(fd uintptr) (done bool)
	// Of the read that is under way.
	into  []byte
	n     int
	errno syscall.Errno
}

// Read implements net.Conn; deadlines hold.
func (c *quietConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.into = p
	err := c.raw.Read(c.take)
	c.into = nil
	switch {
	case err != nil:
		var failed *net.OpError
		if errors.As(err, &failed) {
			failed.Op = "read" // as with every other connection
		}
		return 0, err
	case c.errno != 0:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(),
			Err: os.NewSyscallError("recvfrom", c.errno)}
	case c.n == 0:
		return 0, io.EOF
	}
	return c.n, nil
}

// receive takes what is there. It answers false if that is nothing: then the caller waits.
func (c *quietConn) receive(fd uintptr) (done bool) {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&c.into[0])),
			uintptr(len(c.into)), syscall.MSG_DONTWAIT, 0, 0) //nolint:gosec // there is no other way
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		case 0:
			c.n, c.errno = int(n), 0 //nolint:gosec // at most len(c.into)
		default:
			c.n, c.errno = 0, errno
		}
		return true
	}
}
