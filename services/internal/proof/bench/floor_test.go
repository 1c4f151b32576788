package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// BenchmarkFloor measures the CPU time that a receiver needs for the "paced" reports of BenchmarkReports if it only
// discards them. The benchmark sends 1,000 messages per second over 4,000 connections, so each connection is silent for
// seconds between messages. With "grpc", a gRPC server reads the messages. With "tls", the receiver reads TLS records
// of the same size. With "tcp", it reads the same bytes without TLS.
func BenchmarkFloor(b *testing.B) {
	for _, kind := range []string{"grpc", "tls", "tcp"} {
		b.Run(kind, func(b *testing.B) {
			const senders, interval, span = 4000, 4 * time.Second, 20 * time.Second
			f := startFloor(b, kind)
			sends := make([]func(*nstancev1.ReportHealthRequest) error, senders)
			for n := range sends {
				sends[n] = f.connect(b)
			}
			ctx, stop := context.WithCancel(b.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer stop()
			for n, send := range sends {
				all.Go(func() {
					if err := f.report(ctx, send, time.Duration(n)*interval/senders, interval); err != nil {
						b.Error(err)
					}
				})
			}
			<-time.After(30 * time.Second) // as in BenchmarkReports
			for b.Loop() {
				before := f.daemon.ask(b, question{CPU: profiles("floor-" + kind + ".cpu")})
				<-time.After(span)
				after := f.daemon.ask(b, question{})
				const count = senders * float64(span/interval)
				b.ReportMetric((after.CPU-before.CPU).Seconds()*10_000/count, "cpu-s/10k")
				b.ReportMetric((after.System-before.System).Seconds()*10_000/count, "system-cpu-s/10k")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/count, "allocs/report")
				b.ReportMetric(float64(after.Allocated-before.Allocated)/count, "B/report")
				b.ReportMetric(float64(after.GCs-before.GCs), "collections")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// floorEnv is the environment variable that makes this program run as the process that discards messages. The process
// reads the kind of connection from its input, and writes the address on which it listens to its output.
const floorEnv = "NSTANCE_BENCH_FLOOR"

func runFloor(in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	var kind string
	if err := decoder.Decode(&kind); err != nil {
		return err
	}
	config, err := floorTLS()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	debug.SetGCPercent(gcPercent)
	switch kind {
	case "grpc":
		const window = 64<<10 - 1 // the values of package transport
		server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.ReadBufferSize(0),
			grpc.WriteBufferSize(4<<10),
			grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window))
		nstancev1.RegisterAgentServiceServer(server, idler{})
		go func() { _ = server.Serve(listener) }()
	case "tls":
		go swallow(tls.NewListener(listener, config))
	default:
		go swallow(listener)
	}
	if err := encoder.Encode(listener.Addr().String()); err != nil {
		return err
	}
	answerQuestions(decoder, encoder)
	return nil
}

// swallow reads and discards everything.
func swallow(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			for buffer := make([]byte, 512); err == nil; _, err = conn.Read(buffer) {
			}
		}()
	}
}

// idler reads reports and discards them.
type idler struct {
	nstancev1.UnimplementedAgentServiceServer
}

func (idler) ReportHealth(stream grpc.ClientStreamingServer[nstancev1.ReportHealthRequest,
	nstancev1.ReportHealthResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func floorTLS() (*tls.Config, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"floor"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}},
		NextProtos: []string{"h2"},
		MinVersion: tls.VersionTLS13}, nil
}

// floor is the benchmark's connection to the process that discards messages.
type floor struct {
	daemon     *daemon
	kind, addr string
}

func startFloor(b *testing.B, kind string) *floor {
	b.Helper()
	in, out, wait := startSelf(b, floorEnv)
	f := &floor{daemon: &daemon{in: in, wait: wait, encoder: json.NewEncoder(in), decoder: json.NewDecoder(out),
		stop: func() {}}, kind: kind}
	b.Cleanup(func() {
		if err := f.daemon.shutDown(); err != nil {
			b.Errorf("floor's process: %v", err)
		}
	})
	if err := f.daemon.encoder.Encode(kind); err != nil {
		b.Fatal(err)
	}
	if err := f.daemon.decoder.Decode(&f.addr); err != nil {
		b.Fatal(err)
	}
	return f
}

// connect makes one connection, and returns a function that sends a report over it.
func (f *floor) connect(b *testing.B) func(*nstancev1.ReportHealthRequest) error {
	b.Helper()
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "floor", NextProtos: []string{"h2"},
		MinVersion: tls.VersionTLS13} //nolint:gosec // nothing is secret
	if f.kind == "grpc" {
		conn, err := grpc.NewClient("passthrough:///"+f.addr, grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
			grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close() })
		stream, err := nstancev1.NewAgentServiceClient(conn).ReportHealth(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		return stream.Send
	}
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	if f.kind == "tls" {
		secured := tls.Client(conn, config)
		if err := secured.HandshakeContext(b.Context()); err != nil {
			b.Fatal(err)
		}
		conn = secured
	}
	return func(m *nstancev1.ReportHealthRequest) error {
		buffer, err := proto.Marshal(m)
		if err == nil {
			_, err = conn.Write(append(make([]byte, 9+5), buffer...)) // with the headers of the frame and the message
		}
		return err
	}
}

// report sends unchanged reports of one agent until ctx ends.
func (f *floor) report(ctx context.Context, send func(*nstancev1.ReportHealthRequest) error, first,
	interval time.Duration) error {
	due := time.NewTimer(first)
	defer due.Stop()
	for n := uint64(1); ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		}
		due.Reset(interval)
		if err := send(&nstancev1.ReportHealthRequest{InstanceId: "bnc06fs2nhw4s4ybxcy0hhmmznx4c", Sequence: n,
			Uptime: durationpb.New(time.Hour), Unchanged: true, Healthy: true,
			Metrics:      &nstancev1.Metrics{Cpu: 0.1, MemoryUsedBytes: 1 << 30, MemoryTotalBytes: 4 << 30},
			AgentVersion: "bench", Ipv4: "10.0.0.1",
			RuntimeHash: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
}
