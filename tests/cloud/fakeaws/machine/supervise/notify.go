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

// message is the content of one sd_notify(3) datagram.
type message struct {
	ready, stopping, reloading bool
	status                     *string
	mainPID                    int
	// fed is a WATCHDOG=1. trigger is a WATCHDOG=trigger, which asks for the reaction to a missed deadline.
	fed, trigger bool
	// watchdog and extend, if positive, set the watchdog's timeout and extend the current state's timeout.
	watchdog, extend time.Duration
	unknown          []string
}

// parseMessage parses the lines of one datagram. Assignments that sd_notify(3) does not list go to unknown, which is
// only logged.
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

// sender returns the PID of a datagram's sender. It closes files that came with the datagram: the sender of a BARRIER=1
// waits for that.
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
				_ = syscall.Close(fd) // There is nothing to do about an error.
			}
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
