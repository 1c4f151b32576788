package supervise

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// message is the content of one sd_notify(3) datagram.
type message struct{ ready, stopping, fed bool }

// parseMessage parses the lines of one datagram. An assignment that nstance-server and nstance-agent do not send is an
// error.
func parseMessage(text string) (m message, err error) {
	for line := range strings.Lines(text) {
		switch line = strings.TrimSuffix(line, "\n"); line {
		case "READY=1":
			m.ready = true
		case "STOPPING=1":
			m.stopping = true
		case "WATCHDOG=1":
			m.fed = true
		default:
			return message{}, fmt.Errorf("%q is not supported", line)
		}
	}
	return m, nil
}

// datagram is one message and its sender.
type datagram struct {
	text string
	pid  int
}

// mailbox is a datagram socket to which every process may write. The kernel reports the sender of each message.
type mailbox struct {
	conn *net.UnixConn
	path string
	in   chan datagram
}

func openMailbox(path string) (*mailbox, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	if err := errors.Join(err, set, os.Chmod(path, 0o777)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	m := &mailbox{conn: conn, path: path, in: make(chan datagram)}
	go m.receive()
	return m, nil
}

func (m *mailbox) receive() {
	defer close(m.in)
	text, control := make([]byte, 16<<10), make([]byte, 512)
	for {
		n, oobn, _, _, err := m.conn.ReadMsgUnix(text, control)
		if err != nil {
			return // Closed.
		}
		m.in <- datagram{string(text[:n]), sender(control[:oobn])}
	}
}

// sender returns the PID of a datagram's sender.
func sender(control []byte) (pid int) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for i := range messages {
		if credentials, err := syscall.ParseUnixCredentials(&messages[i]); err == nil {
			pid = int(credentials.Pid)
		}
	}
	return pid
}

// close ends the mailbox. Unread messages are dropped.
func (m *mailbox) close() {
	_ = m.conn.Close() // Ends receive.
	go func() {
		for range m.in {
		}
	}()
	_ = os.Remove(m.path) // Below /run, which each boot empties.
}
