package transport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/transport"
)

// quietPair is a connection as it is read quietly, and the other end of it.
func quietPair(t *testing.T) (here net.Conn, there *net.TCPConn) {
	t.Helper()
	plain, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := transport.QuietReads(plain)
	t.Cleanup(func() { listener.Close() })
	other, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if here, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); other.Close() })
	if err := here.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil { // a test that fails ends
		t.Fatal(err)
	}
	return here, other.(*net.TCPConn)
}

func TestQuietReadsTakeWhatWasSent(t *testing.T) {
	here, there := quietPair(t)
	sent := bytes.Repeat([]byte("0123456789"), 1<<17) // more than the socket holds: both ends wait for each other
	go func() {
		_, _ = there.Write(sent)
		_ = there.CloseWrite()
	}()
	if n, err := here.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d, %v", n, err)
	}
	got, err := io.ReadAll(here)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(sent), err)
	}
	if n, err := here.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d, %v", n, err)
	}
	if half, ok := here.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		t.Error("it cannot be closed by halves")
	}
	if n, err := there.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the other end, closed by half: %d, %v", n, err)
	}
}

// Errors are those of every other connection: TLS and gRPC look at them.
func TestQuietReadsFailAsOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(t *testing.T, here net.Conn, there *net.TCPConn) error
		want error
	}{
		"deadline": {func(_ *testing.T, here net.Conn, _ *net.TCPConn) error {
			return here.SetReadDeadline(time.Now().Add(time.Millisecond))
		}, os.ErrDeadlineExceeded},
		"closed": {func(_ *testing.T, here net.Conn, _ *net.TCPConn) error { return here.Close() }, net.ErrClosed},
		"reset": {func(_ *testing.T, _ net.Conn, there *net.TCPConn) error {
			return errors.Join(there.SetLinger(0), there.Close())
		}, syscall.ECONNRESET},
	} {
		for _, waiting := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				here, there := quietPair(t)
				if waiting {
					// It most likely waits in Read by then; if not, that is the other case.
					timer := time.AfterFunc(5*time.Millisecond, func() { _ = tc.do(t, here, there) })
					defer timer.Stop()
				} else if err := tc.do(t, here, there); err != nil {
					t.Fatal(err)
				}
				n, err := here.Read(make([]byte, 16))
				var failed *net.OpError
				if n != 0 || !errors.Is(err, tc.want) || !errors.As(err, &failed) || failed.Op != "read" {
					t.Errorf("%d, %v, want a failed read: %v", n, err, tc.want)
				}
			})
		}
	}
}
