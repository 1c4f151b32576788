package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// attackersEnv makes this program the process of hostile clients.
const attackersEnv = "NSTANCE_BENCH_ATTACKERS"

// target is what attackers are told: a server, and the identity of an instance that they have got hold of.
type target struct {
	CA, Nonce, ID, Other          string
	Registration, Agent, Operator string
	Silent, Slow                  int
}

// outcomes counts what became of each attack.
type outcomes struct {
	mu     sync.Mutex
	counts map[string]map[string]int
}

func (o *outcomes) add(attack, outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts[attack] == nil {
		o.counts[attack] = map[string]int{}
	}
	o.counts[attack][outcome]++
}

// attacker is one machine full of hostile clients.
type attacker struct {
	target
	seen    outcomes
	roots   *x509.CertPool
	cert    tls.Certificate
	waiting atomic.Int64 // connections that are open and say nothing
	ctx     context.Context
}

// runAttackers reads its target, attacks until its input ends, and writes what became of it. It is nice, in the sense of nice(1): on other machines it
// would take no CPU time of the server's except what it makes the server spend.
func runAttackers(in io.Reader, out io.Writer) {
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19)
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	ctx, stop := context.WithCancel(context.Background())
	a := &attacker{roots: x509.NewCertPool(), ctx: ctx, seen: outcomes{counts: map[string]map[string]int{}}}
	if err := decoder.Decode(&a.target); err != nil {
		panic(err)
	}
	a.roots.AppendCertsFromPEM([]byte(a.CA))
	if err := a.register(); err != nil {
		panic(err)
	}
	var all sync.WaitGroup
	for range a.Silent {
		all.Go(func() { a.silent() })
	}
	for range a.Slow {
		all.Go(func() { a.slow() })
	}
	for name, attack := range map[string]func() string{
		"oversized": a.oversized, "malformed": a.malformed, "garbage": a.garbage, "forged nonce": a.forged, "replayed nonce": a.replayed,
		"wrong role": a.wrongRole, "another's name": a.another, "oversized report": a.oversizedReport,
	} {
		all.Go(func() { a.again(name, attack, 20*time.Millisecond) })
	}
	all.Go(func() { a.again("streams", a.streams, time.Millisecond) })
	for end := time.Now().Add(20 * time.Second); int(a.waiting.Load()) < a.Silent*9/10 && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
	}
	_ = encoder.Encode(a.waiting.Load())
	_ = decoder.Decode(&struct{}{}) // until it is cut
	stop()
	all.Wait()
	_ = encoder.Encode(a.seen.counts)
}

// again repeats an attack, at a pace.
func (a *attacker) again(name string, attack func() string, pace time.Duration) {
	for a.ctx.Err() == nil {
		outcome := attack()
		if a.ctx.Err() != nil {
			return
		}
		a.seen.add(name, outcome)
		select {
		case <-a.ctx.Done():
		case <-time.After(pace):
		}
	}
}

// register makes the attackers an agent: they have an instance's nonce.
func (a *attacker) register() error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	conn, err := a.dial(a.Registration, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(a.ctx, &nstancev1.RegisterAgentRequest{Nonce: a.Nonce, PublicKey: public, Ipv4: "10.0.0.1"})
	if err != nil {
		return err
	}
	block, _ := pem.Decode(resp.GetCertificate())
	if block == nil {
		return errors.New("the certificate is no PEM")
	}
	a.cert = tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: private}
	return nil
}

func (a *attacker) tls(certs []tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: a.roots, Certificates: certs, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, ServerName: "127.0.0.1"}
}

func (a *attacker) dial(addr string, certs []tls.Certificate, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, append(options, grpc.WithTransportCredentials(credentials.NewTLS(a.tls(certs))))...)
}

func (a *attacker) open(addr string) net.Conn {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(a.ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	context.AfterFunc(a.ctx, func() { _ = conn.Close() })
	return conn
}

// silent holds a connection open without a word, and opens the next when it is closed.
func (a *attacker) silent() {
	for a.ctx.Err() == nil {
		conn := a.open(a.Agent)
		if conn == nil {
			a.seen.add("silent", "refused")
			continue
		}
		a.waiting.Add(1)
		_, _ = conn.Read(make([]byte, 1)) // until the server has had enough
		a.waiting.Add(-1)
		_ = conn.Close()
		if a.ctx.Err() == nil {
			a.seen.add("silent", "closed")
		}
	}
}

// dripping writes a byte at a time.
type dripping struct{ net.Conn }

func (d dripping) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		<-time.After(100 * time.Millisecond)
		_, err = d.Conn.Write(p[n : n+1])
		n++
	}
	return n, err
}

// slow shakes hands a byte at a time.
func (a *attacker) slow() {
	for a.ctx.Err() == nil {
		conn := a.open(a.Agent)
		if conn == nil {
			continue
		}
		if err := tls.Client(dripping{conn}, a.tls(nil)).HandshakeContext(a.ctx); err == nil {
			a.seen.add("slow", "accepted")
		} else if a.ctx.Err() == nil {
			a.seen.add("slow", "closed")
		}
		_ = conn.Close()
	}
}

// call makes one call on a connection of its own, and says how it ended.
func (a *attacker) call(addr string, certs []tls.Certificate, fn func(ctx context.Context, conn *grpc.ClientConn) error, options ...grpc.DialOption) string {
	conn, err := a.dial(addr, certs, options...)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(a.ctx, 10*time.Second)
	defer cancel()
	return status.Code(fn(ctx, conn)).String()
}

func (a *attacker) registerWith(nonce string) string {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return a.call(a.Registration, nil, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(ctx, &nstancev1.RegisterAgentRequest{Nonce: nonce, PublicKey: public})
		return err
	})
}

func (a *attacker) oversized() string { return a.registerWith(string(make([]byte, 1<<20))) }

func (a *attacker) replayed() string { return a.registerWith(a.Nonce) }

// forged has another signature.
func (a *attacker) forged() string {
	last := a.Nonce[len(a.Nonce)-10]
	other := byte('A')
	if last == other {
		other = 'B'
	}
	return a.registerWith(a.Nonce[:len(a.Nonce)-10] + string(other) + a.Nonce[len(a.Nonce)-9:])
}

// noise is a codec for messages that are none.
type noise struct{}

func (noise) Name() string { return "proto" }
func (noise) Marshal(any) (mem.BufferSlice, error) {
	raw := make([]byte, 512)
	_, _ = rand.Read(raw)
	raw[0] = 0xff // no field has this tag
	return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
}
func (noise) Unmarshal(mem.BufferSlice, any) error { return nil }

var _ encoding.CodecV2 = noise{}

func (a *attacker) malformed() string {
	return a.call(a.Registration, nil, func(ctx context.Context, conn *grpc.ClientConn) error {
		return conn.Invoke(ctx, nstancev1.RegistrationService_RegisterAgent_FullMethodName, &nstancev1.RegisterAgentRequest{}, &nstancev1.RegisterAgentResponse{})
	}, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(noise{})))
}

// garbage speaks no HTTP/2 once TLS is through.
func (a *attacker) garbage() string {
	conn := a.open(a.Agent)
	if conn == nil {
		return "refused"
	}
	defer conn.Close()
	client := tls.Client(conn, a.tls([]tls.Certificate{a.cert}))
	raw := make([]byte, 4096)
	_, _ = rand.Read(raw)
	if _, err := client.Write(raw); err != nil {
		return "closed"
	}
	_ = client.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, client); err != nil && isTimeout(err) {
		return "kept"
	}
	return "closed"
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // as io.Copy returns it
	return ok && timeout.Timeout()
}

// wrongRole is an agent that would be an operator.
func (a *attacker) wrongRole() string {
	return a.call(a.Operator, []tls.Certificate{a.cert}, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := nstancev1.NewOperatorServiceClient(conn).ListInstances(ctx, &nstancev1.ListInstancesRequest{})
		return err
	})
}

func (a *attacker) report(r *nstancev1.ReportHealthRequest) string {
	return a.call(a.Agent, []tls.Certificate{a.cert}, func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := nstancev1.NewAgentServiceClient(conn).ReportHealth(ctx)
		if err != nil {
			return err
		}
		_ = stream.Send(r) // what is wrong with it, the answer says
		_, err = stream.CloseAndRecv()
		return err
	})
}

// another reports in the name of another instance.
func (a *attacker) another() string {
	return a.report(&nstancev1.ReportHealthRequest{InstanceId: a.Other, Sequence: 1, Healthy: true})
}

func (a *attacker) oversizedReport() string {
	return a.report(&nstancev1.ReportHealthRequest{InstanceId: a.ID, Sequence: 1, Healthy: true, Message: string(make([]byte, 5<<20))})
}

// streams opens streams and resets them as fast as it can, a second long on one connection.
func (a *attacker) streams() string {
	return a.call(a.Agent, []tls.Certificate{a.cert}, func(ctx context.Context, conn *grpc.ClientConn) error {
		for end := time.Now().Add(time.Second); time.Now().Before(end) && ctx.Err() == nil; {
			each, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "x", fmt.Sprint(time.Now())))
			if _, err := nstancev1.NewAgentServiceClient(conn).ReportHealth(each); err != nil {
				cancel()
				return err
			}
			cancel()
		}
		return nil
	})
}
