package supervise

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// message is what a service says of itself, as sd_notify(3) has it.
type message struct {
	ready, stopping, reloading bool
	status                     *string
	mainPID                    int
	// fed is the watchdog's food, trigger asks for its bite.
	fed, trigger bool
	// watchdog and extend change a span when above 0.
	watchdog, extend time.Duration
	unknown          []string
}

// parseMessage reads the lines of one datagram. What sd_notify(3) does not list is told to the log only.
func parseMessage(text string) (m message, err error) {
	for entry := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		key, value, ok := strings.Cut(entry, "=")
		if !ok {
			return m, fmt.Errorf("%q is no assignment", entry)
		}
		switch key {
		case "READY", "STOPPING", "RELOADING":
			if value != "1" {
				return m, fmt.Errorf("%q is not supported", entry)
			}
			m.ready, m.stopping, m.reloading = m.ready || key == "READY", m.stopping || key == "STOPPING",
				m.reloading || key == "RELOADING"
		case "STATUS":
			m.status = &value
		case "WATCHDOG":
			m.fed, m.trigger = m.fed || value == "1", m.trigger || value == "trigger"
		case "MAINPID":
			if m.mainPID, err = strconv.Atoi(value); err != nil || m.mainPID <= 1 {
				return m, fmt.Errorf("%q is no process", entry)
			}
		case "WATCHDOG_USEC", "EXTEND_TIMEOUT_USEC":
			n, err := strconv.ParseInt(value, 10, 48)
			if err != nil || n <= 0 {
				return m, fmt.Errorf("%q is no time span", entry)
			}
			if key == "WATCHDOG_USEC" {
				m.watchdog = time.Duration(n) * time.Microsecond
			} else {
				m.extend = time.Duration(n) * time.Microsecond
			}
		case "BARRIER", "ERRNO", "MONOTONIC_USEC", "INVOCATION_ID":
		default:
			m.unknown = append(m.unknown, entry)
		}
	}
	return m, nil
}

// datagram is one message with who sent it.
type datagram struct {
	text string
	pid  int
}

// mailbox is a datagram socket that everybody may write to and that tells who did.
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
			return // closed
		}
		m.in <- datagram{string(text[:n]), sender(control[:oobn])}
	}
}

// sender reads who sent a datagram and closes files that came with it, which is what a sender behind a barrier waits
// for.
func sender(control []byte) (pid int) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for i := range messages {
		if credentials, err := syscall.ParseUnixCredentials(&messages[i]); err == nil {
			pid = int(credentials.Pid)
		} else if files, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			for _, fd := range files {
				_ = syscall.Close(fd) // it was only ever to be closed
			}
		}
	}
	return pid
}

// close ends the mailbox; what is in it is dropped.
func (m *mailbox) close() {
	_ = m.conn.Close() // ends receive
	go func() {
		for range m.in {
		}
	}()
	_ = os.Remove(m.path) // it is below /run
}
