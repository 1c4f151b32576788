package transport_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/transport/transporttest"
)

// BenchmarkFrames is what a frame of a flood costs, in processor time of both ends, and a handshake. The frames come
// from this machine to the registration port, where nobody counts what such a client says.
func BenchmarkFrames(b *testing.B) {
	c := transporttest.New(b)
	addr := c.Serve(b, "", func(s *grpc.Server) { nstancev1.RegisterAgentServiceServer(s, &who{}) })
	for name, write := range map[string]func(r *transporttest.Raw, out *http2.Framer, n uint32) error{
		"settings": func(_ *transporttest.Raw, out *http2.Framer, _ uint32) error {
			return out.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16 << 10})
		},
		"window": func(_ *transporttest.Raw, out *http2.Framer, _ uint32) error {
			return out.WriteWindowUpdate(1<<31-1, 1)
		},
		"reset": func(_ *transporttest.Raw, out *http2.Framer, _ uint32) error {
			return out.WriteRSTStream(1, http2.ErrCodeCancel)
		},
		"stream and reset": func(r *transporttest.Raw, out *http2.Framer, n uint32) error {
			if err := out.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 3, BlockFragment: r.Fields(submitKeys),
				EndHeaders: true}); err != nil {
				return err
			}
			return out.WriteRSTStream(2*n+3, http2.ErrCodeCancel)
		},
		// The call is made and answered with a refusal.
		"call": func(r *transporttest.Raw, out *http2.Framer, n uint32) error {
			if err := out.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 3,
				BlockFragment: r.Fields("/no.such/Method"), EndHeaders: true}); err != nil {
				return err
			}
			return out.WriteData(2*n+3, true, make([]byte, 5))
		},
	} {
		b.Run(name, func(b *testing.B) {
			config := c.ClientTLS(nil)
			config.NextProtos = []string{"h2"}
			conn, err := (&tls.Dialer{Config: config}).DialContext(b.Context(), "tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			r, err := transporttest.NewRaw(conn)
			if err != nil {
				b.Fatal(err)
			}
			var all bytes.Buffer
			framer := http2.NewFramer(&all, nil)
			framer.AllowIllegalWrites = true
			if err := r.Call(1, submitKeys); err != nil { // a stream there is
				b.Fatal(err)
			}
			for n := range uint32(b.N) { //nolint:gosec // never so many
				if err := write(r, framer, n); err != nil {
					b.Fatal(err)
				}
			}
			if err := framer.WritePing(false, [8]byte{'e', 'n', 'd'}); err != nil {
				b.Fatal(err)
			}
			before := processorTime(b)
			b.ResetTimer()
			go func() { _, _ = io.Copy(conn, &all) }()
			for {
				frame, err := r.ReadFrame()
				if err != nil {
					b.Fatal(err)
				}
				if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
					break
				}
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
	b.Run("handshake", func(b *testing.B) {
		addr, _ := serveAgents(b, c, authority.RoleAgent)
		config := c.ClientTLS(certificateFor(b, c, authority.RoleAgent))
		config.NextProtos = []string{"h2"}
		before := processorTime(b)
		for b.Loop() {
			conn, err := (&tls.Dialer{Config: config}).DialContext(b.Context(), "tcp", addr)
			if err == nil {
				_, err = transporttest.NewRaw(conn)
			}
			if err == nil {
				_, err = conn.Read(make([]byte, 1)) // the server is done
			}
			if err != nil {
				b.Fatal(err)
			}
			_ = conn.Close()
		}
		b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
	})
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
