package health

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// TestOpenConnectionsDoNotBlockProbes checks that connections which clients keep open never block a probe.
func TestOpenConnectionsDoNotBlockProbes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var probe Probe
	probe.Ready()
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), listener, &probe, nil) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	var held []net.Conn
	for n := range 3 * maxVisitors {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if n%2 == 0 { // a slow header
			if _, err := io.WriteString(conn, "GET /health HT"); err != nil {
				t.Fatal(err)
			}
		}
		held = append(held, conn)
	}
	for range 5 {
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" +
			listener.Addr().String() + "/health")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%d %v", resp.StatusCode, err)
		}
		resp.Body.Close()
	}
	// The server must close the oldest connections immediately, long before these connections time out.
	closed, deadline := 0, time.Now().Add(2*time.Second)
	for _, conn := range held[:maxVisitors] {
		_ = conn.SetReadDeadline(deadline)
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != maxVisitors {
		t.Errorf("%d of the oldest %d are closed", closed, maxVisitors)
	}
}

// TestClientsThatDoNotRead checks that a client is disconnected after the timeout if it does not read the answer or
// does not finish a header.
func TestClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, say := range map[string]string{"answer not read": "GET /big HTTP/1.1\r\nHost: x\r\n\r\n",
			"slow header": "GET /big HTTP/1.1\r\nHo", "silent": ""} {
			listener := bufconn.Listen(16 << 10)
			ended := make(chan error, 1)
			wrote := make(chan error, 1)
			var probe Probe
			big := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, err := w.Write(bytes.Repeat([]byte("x"), 1<<20))
				wrote <- err
			})
			go func() { ended <- Serve(t.Context(), listener, &probe, map[string]http.Handler{"/big": big}) }()
			conn, err := listener.Dial()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, say); err != nil {
				t.Fatal(err)
			}
			time.Sleep(11 * time.Second) // fake time
			synctest.Wait()
			if name == "answer not read" {
				select {
				case err := <-wrote:
					if err == nil {
						t.Error("a MiB was written without a reader")
					}
				default:
					t.Error("the handler still waits for a client that does not read")
				}
			} else if _, err := fmt.Fprint(conn, "x"); err == nil {
				t.Errorf("%s: still open", name)
			}
			_ = conn.Close()
			_ = listener.Close()
			<-ended
		}
	})
}
