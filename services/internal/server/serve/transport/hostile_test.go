package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// busy is an AgentService whose handlers do not end by themselves.
type busy struct {
	nstancev1.UnimplementedAgentServiceServer
	running, most atomic.Int64
	sent          atomic.Int64 // bytes that ReceiveFiles has sent
	release       chan struct{}
}

func (b *busy) SubmitPublicKeys(context.Context, *nstancev1.SubmitPublicKeysRequest) (
	*nstancev1.SubmitPublicKeysResponse, error) {
	return &nstancev1.SubmitPublicKeysResponse{}, nil
}

func (b *busy) ReportHealth(grpc.ClientStreamingServer[nstancev1.ReportHealthRequest,
	nstancev1.ReportHealthResponse]) error {
	now := b.running.Add(1)
	defer b.running.Add(-1)
	for most := b.most.Load(); now > most && !b.most.CompareAndSwap(most, now); most = b.most.Load() {
	}
	<-b.release
	return nil
}

func (b *busy) ReceiveFiles(_ *nstancev1.ReceiveFilesRequest,
	to grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	for {
		if err := to.Send(&nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_File{
			File: &nstancev1.File{Content: make([]byte, 16<<10)}}}); err != nil {
			return err
		}
		b.sent.Add(16 << 10)
	}
}

const (
	reportHealth = nstancev1.AgentService_ReportHealth_FullMethodName
	submitKeys   = nstancev1.AgentService_SubmitPublicKeys_FullMethodName
	receiveFiles = nstancev1.AgentService_ReceiveFiles_FullMethodName
)

// port is one of a server's four ports. It includes a connection of a client that the port accepts.
type port struct {
	*busy
	c      *transporttest.Cluster
	addr   string
	config *tls.Config
	good   *grpc.ClientConn
	limit  int64 // streams per connection
}

// everyPort runs a test against a port of each kind. A well-behaved client is served before and after the test.
func everyPort(t *testing.T, test func(t *testing.T, p *port)) {
	for role, limit := range map[authority.Role]int64{"": 4, authority.RoleAgent: 8, authority.RoleOperator: 32,
		authority.RoleServer: 4} {
		name := string(role)
		if role == "" {
			name = "registration"
		}
		t.Run(name, func(t *testing.T) {
			c := transporttest.New(t)
			p := &port{c: c, busy: &busy{release: make(chan struct{})}, limit: limit}
			p.addr = c.Serve(t, role, func(s *grpc.Server) { nstancev1.RegisterAgentServiceServer(s, p.busy) })
			t.Cleanup(func() { close(p.release) })
			var hostile, honest *tls.Certificate
			switch role {
			case "":
			case authority.RoleServer:
				hostile, honest = certificateOf(t, c.Source), certificateOf(t, sourceOf(t, c, "two"))
			default:
				hostile, honest = certificateFor(t, c, role), certificateFor(t, c, role)
			}
			p.config, p.good = c.ClientTLS(hostile), c.Dial(t, p.addr, honest)
			p.config.NextProtos = []string{"h2"}
			p.served(t)
			test(t, p)
			p.served(t)
		})
	}
}

func (p *port) served(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := nstancev1.NewAgentServiceClient(p.good).SubmitPublicKeys(ctx,
		&nstancev1.SubmitPublicKeysRequest{}); err != nil {
		t.Errorf("a well-behaved client: %v", err)
	}
}

func (p *port) raw(t *testing.T, settings ...http2.Setting) *transporttest.Raw {
	t.Helper()
	dialer := tls.Dialer{Config: p.config}
	conn, err := dialer.DialContext(t.Context(), "tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw, err := transporttest.NewRaw(conn, settings...)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestRapidReset opens and resets streams faster than their handlers end (CVE-2023-44487).
func TestRapidReset(t *testing.T) {
	everyPort(t, func(t *testing.T, p *port) {
		raw := p.raw(t)
		before := runtime.NumGoroutine()
		go func() { _ = raw.End(10 * time.Second) }() // reads acknowledgements
		for n := range uint32(5000) {
			if raw.Call(2*n+1, reportHealth) != nil || raw.WriteRSTStream(2*n+1, http2.ErrCodeCancel) != nil {
				break // the server stops reading while its handlers are busy
			}
			if n == 100 {
				_ = raw.SetWriteDeadline(time.Now().Add(2 * time.Second))
			}
		}
		if p.most.Load() > p.limit || p.most.Load() == 0 {
			t.Errorf("%d concurrent handlers for one connection, want at most %d", p.most.Load(), p.limit)
		}
		if more := runtime.NumGoroutine() - before; more > 100 {
			t.Errorf("%d goroutines more", more)
		}
	})
}

// TestStreamsLeftOpen opens streams and never ends them.
func TestStreamsLeftOpen(t *testing.T) {
	everyPort(t, func(t *testing.T, p *port) {
		raw := p.raw(t)
		for n := range uint32(200) {
			if err := raw.Call(2*n+1, reportHealth); err != nil {
				t.Fatal(err)
			}
		}
		if how := raw.Reset(399, 10*time.Second); how != "RST REFUSED_STREAM" {
			t.Errorf("the 200th stream: %s", how)
		}
		if p.most.Load() > p.limit {
			t.Errorf("%d concurrent handlers for one connection, want at most %d", p.most.Load(), p.limit)
		}
	})
}

// The server closes a connection with an endless header block, long before the block uses much memory.
func TestContinuationFlood(t *testing.T) {
	everyPort(t, func(t *testing.T, p *port) {
		raw := p.raw(t)
		err := raw.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: raw.Fields(submitKeys)})
		fields, sent := raw.Block("x", strings.Repeat("x", 8000)), 0
		for ; err == nil && sent < 64<<20; sent += len(fields) {
			err = raw.WriteContinuation(1, false, fields)
		}
		if how := raw.End(10 * time.Second); how == "open" || sent >= 8<<20 { // includes the buffers of the kernel
			t.Errorf("%s after %d bytes of headers", how, sent)
		}
	})
}

func TestHugeHeaders(t *testing.T) {
	everyPort(t, func(t *testing.T, p *port) {
		raw := p.raw(t)
		if err := raw.Call(1, submitKeys, "x", strings.Repeat("x", 12<<10)); err != nil {
			t.Fatal(err)
		}
		if how := raw.Reset(1, 10*time.Second); how == "open" || how == "answered" {
			t.Errorf("12 KiB of headers: %s", how)
		}
	})
}

func TestPingFlood(t *testing.T) {
	everyPort(t, func(t *testing.T, p *port) {
		raw := p.raw(t)
		go func() {
			for n := range byte(255) {
				if raw.WritePing(false, [8]byte{n}) != nil {
					return
				}
			}
		}()
		if how := raw.End(10 * time.Second); how == "open" {
			t.Error("255 pings together, and the connection stays")
		}
	})
}

// The server does not queue answers without limit for a client that does not read them.
func TestSettingsFlood(t *testing.T) {
	everyPort(t, func(t *testing.T, p *port) {
		raw := p.raw(t)
		before := heap()
		var many bytes.Buffer
		framer := http2.NewFramer(&many, nil)
		for range 1000 {
			if err := framer.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16 << 10}); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		n := 0
		for ; err == nil && n < 5_000_000; n += 1000 {
			_ = raw.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			_, err = raw.Conn.Write(many.Bytes())
		}
		if err == nil {
			t.Errorf("%d settings were taken, no answer was read", n)
		}
		if more := heap() - before; more > 16<<20 {
			t.Errorf("%d MiB more after %d settings", more>>20, n)
		}
	})
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapInuse)
}

// Nothing is sent to a client whose flow control window is zero. The handler waits, so no data piles up in memory.
func TestZeroWindow(t *testing.T) {
	everyPort(t, func(t *testing.T, p *port) {
		raw := p.raw(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		if err := raw.Call(1, receiveFiles); err != nil {
			t.Fatal(err)
		}
		if err := raw.WriteData(1, true, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); p.sent.Load() == 0 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		if how := raw.Reset(1, 300*time.Millisecond); how != "open" {
			t.Errorf("the stream: %s", how)
		}
		if sent := p.sent.Load(); sent == 0 || sent > 128<<10 {
			t.Errorf("%d KiB wait for a client that reads nothing", sent>>10)
		}
	})
}

// neighbour is a dialer with another source address than this machine's usual one.
var neighbour = net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}
