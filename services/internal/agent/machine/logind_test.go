package machine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/internal/agent/machine"
)

const (
	logindName = ":1.1" // logind's unique name on the test bus
	manager    = "org.freedesktop.login1.Manager"
)

// bus is a message bus with a fake logind, for one client. The client connects over a real socket and receives real
// file descriptors.
type bus struct {
	t         *testing.T
	addr      string
	scheduled string // kind of the scheduled shutdown

	mu      sync.Mutex
	conn    *net.UnixConn
	serial  uint32
	matches []string
	asked   []any // arguments of Inhibit

	inhibited chan *os.File // the other end of each lock
	done      chan struct{}
}

func startBus(t *testing.T) *bus {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bus")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	b := &bus{t: t, addr: "unix:path=" + path, inhibited: make(chan *os.File, 4), done: make(chan struct{})}
	go func() {
		defer close(b.done)
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		b.conn = conn
		if err := b.serve(bufio.NewReader(conn)); err != nil && !errors.Is(err, io.EOF) &&
			!errors.Is(err, net.ErrClosed) {
			t.Errorf("bus: %v", err)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-b.done
	})
	return b
}

func (b *bus) connect(opts ...dbus.ConnOption) (*dbus.Conn, error) {
	return dbus.Connect(b.addr, opts...)
}

// serve handles the authentication protocol and then answers calls. See the D-Bus specification, "Authentication
// Protocol".
func (b *bus) serve(r *bufio.Reader) error {
	for begun := false; !begun; {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		var answer string
		switch line = strings.Trim(line, "\x00\r\n"); {
		case line == "AUTH":
			answer = "REJECTED EXTERNAL"
		case line == "AUTH EXTERNAL":
			answer = "DATA"
		case strings.HasPrefix(line, "DATA"):
			answer = "OK 1234deadbeef1234deadbeef1234dead"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		case line == "BEGIN":
			begun = true
			continue
		default:
			return fmt.Errorf("the client says %q", line)
		}
		if _, err := fmt.Fprintf(b.conn, "%s\r\n", answer); err != nil {
			return err
		}
	}
	for {
		message, err := dbus.DecodeMessage(r)
		if err != nil {
			return err
		}
		if message.Type == dbus.TypeMethodCall {
			if err := b.answer(message); err != nil {
				return err
			}
		}
	}
}

func (b *bus) answer(call *dbus.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()), dbus.FieldSender: dbus.MakeVariant(
			"org.freedesktop.DBus"),
	}}
	var files []*os.File
	switch member := call.Headers[dbus.FieldMember].Value().(string); member {
	case "Hello":
		reply.Body = []any{":1.7"}
	case "AddMatch":
		b.matches = append(b.matches, call.Body[0].(string))
	case "GetNameOwner":
		reply.Body = []any{logindName}
	case "Inhibit":
		b.asked = call.Body
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		b.inhibited <- read
		files = append(files, write)
		reply.Body = []any{dbus.UnixFD(write.Fd())}
		reply.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(1))
	case "Get":
		reply.Body = []any{dbus.MakeVariant(struct {
			Kind string
			Time uint64
		}{b.scheduled, 0})}
	default:
		return fmt.Errorf("the client calls %s", member)
	}
	defer func() {
		for _, file := range files {
			file.Close()
		}
	}()
	return b.send(reply, files...)
}

// send sends a message to the client. It sets the message's serial number, because the D-Bus library does so only for
// its own connections. The caller must hold mu.
func (b *bus) send(message *dbus.Message, files ...*os.File) error {
	if len(message.Body) > 0 {
		message.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(message.Body...))
	}
	var buffer bytes.Buffer
	if _, err := message.EncodeToWithFDs(&buffer, binary.LittleEndian); err != nil {
		return err
	}
	b.serial++
	binary.LittleEndian.PutUint32(buffer.Bytes()[8:], b.serial)
	var oob []byte
	for _, file := range files {
		oob = append(oob, syscall.UnixRights(int(file.Fd()))...)
	}
	_, _, err := b.conn.WriteMsgUnix(buffer.Bytes(), oob, nil)
	return err
}

func (b *bus) signal(sender, member string, body ...any) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.send(&dbus.Message{Type: dbus.TypeSignal, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/login1")),
		dbus.FieldInterface: dbus.MakeVariant(manager),
		dbus.FieldMember:    dbus.MakeVariant(member),
		dbus.FieldSender:    dbus.MakeVariant(sender),
	}})
	if err != nil {
		b.t.Errorf("signal: %v", err)
	}
}

func metadata(kind string) map[string]dbus.Variant {
	return map[string]dbus.Variant{"type": dbus.MakeVariant(kind)}
}

func TestSystemLogind(t *testing.T) {
	b := startBus(t)
	logind, err := machine.ConnectLogind(t.Context(), b.connect)
	if err != nil {
		t.Fatal(err)
	}
	defer logind.Close()
	b.mu.Lock()
	if len(b.matches) != 2 || !strings.Contains(b.matches[0], "sender='org.freedesktop.login1'") ||
		!strings.Contains(b.matches[1], "PrepareForShutdownWithMetadata") {
		t.Errorf("matches %q", b.matches)
	}
	b.mu.Unlock()

	// The lock is one end of a pipe, and logind has the other end. When the agent closes the lock, logind notices.
	lock, err := logind.Inhibit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	if len(b.asked) != 4 || b.asked[0] != "shutdown" || b.asked[3] != "delay" {
		t.Errorf("Inhibit(%v)", b.asked)
	}
	b.mu.Unlock()
	pipe := <-b.inhibited
	defer pipe.Close()
	if err := pipe.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the lock is not held: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := pipe.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the lock is still held: %v", err)
	}

	b.signal(":1.66", "PrepareForShutdown", true) // from another sender
	b.signal(logindName, "PrepareForSleep", true)
	b.signal(logindName, "PrepareForShutdown", "nonsense")
	b.signal(logindName, "PrepareForShutdownWithMetadata", true, metadata("reboot"))
	b.signal(logindName, "PrepareForShutdown", true)
	b.signal(logindName, "PrepareForShutdown", false)
	for i, want := range []machine.Shutdown{{Active: true, Action: "reboot"}, {Active: true}, {}} {
		got, err := logind.Next(t.Context())
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%d: %v %s", i, err, diff)
		}
	}
	b.mu.Lock()
	b.scheduled = "poweroff"
	b.mu.Unlock()
	b.signal(logindName, "PrepareForShutdown", true)
	if got, err := logind.Next(t.Context()); err != nil || got.Action != "poweroff" {
		t.Errorf("a scheduled shutdown: %v, %v", got, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := logind.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v", err)
	}
	b.conn.Close()
	<-b.done
	if _, err := logind.Next(t.Context()); err == nil {
		t.Error("the bus is gone and Next waits")
	}
}

func TestNoBus(t *testing.T) {
	_, err := machine.ConnectLogind(t.Context(), func(opts ...dbus.ConnOption) (*dbus.Conn, error) {
		return dbus.Connect("unix:path="+filepath.Join(t.TempDir(), "none"), opts...)
	})
	if err == nil {
		t.Error("connected to nothing")
	}
}
