package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// attackersEnv is the environment variable that makes this program run the hostile clients.
const attackersEnv = "NSTANCE_BENCH_ATTACKERS"

// The five ports.
const (
	registrationPort = "registration"
	agentPort        = "agents"
	operatorPort     = "operators"
	electionPort     = "election"
	healthPort       = "health"
)

var tlsPorts = []string{registrationPort, agentPort, operatorPort, electionPort}

// target tells the attackers which server to attack, and with which credentials.
type target struct {
	CA string
	// ID and Reporter are instances that the attackers own. Other is one that they do not own.
	ID, Reporter, Other string
	Ports               map[string]string
	Papers              map[string]paper  // certificates
	Nonces              map[string]string // signed nonces of every kind that the server must refuse
	// Kinds lists the kinds of attacks to make. If it is empty, all are made.
	Kinds []string
	// Silent is the number of silent connections to the agents' port, and Slow is the number of slow handshakes there.
	// Every other port gets one hundredth of Silent and one tenth of Slow.
	Silent, Slow int
	// Addresses is the number of source addresses of the attacks. 0 means one.
	Addresses int
	// Least is the minimum number of attempts of each attack. When leastTime has passed, the attackers stop
	// even with fewer attempts.
	Least int
	// Idle means that the attackers use a CPU core only while no other process needs it.
	Idle bool
}

const leastTime = 90 * time.Second

// paper contains a certificate (DER) and its key (PKCS #8).
type paper struct{ Cert, Key []byte }

func (p paper) load() tls.Certificate {
	key, err := x509.ParsePKCS8PrivateKey(p.Key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{p.Cert}, PrivateKey: key}
}

// outcomes counts the outcomes of each attack. It is safe for concurrent use.
type outcomes struct {
	mu     sync.Mutex
	counts map[string]map[string]int
}

// all reports whether each attack was tried at least the given number of times.
func (o *outcomes) all(attacks []string, least int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, attack := range attacks {
		tried := 0
		for _, n := range o.counts[attack] {
			tried += n
		}
		if tried < least {
			return false
		}
	}
	return true
}

func (o *outcomes) add(attack, outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts[attack] == nil {
		o.counts[attack] = map[string]int{}
	}
	o.counts[attack][outcome]++
}

// attacker is one machine that runs all hostile clients.
type attacker struct {
	target
	seen    outcomes
	roots   *x509.CertPool
	certs   map[string][]tls.Certificate
	waiting atomic.Int64 // open connections that send nothing
	ctx     context.Context

	connected atomic.Uint32
}

// noCertificate means that the attacker presents no client certificate.
const noCertificate = "none"

// attack is one kind of attack on one port. Its outcomes are counted by kind and port.
type attack struct {
	kind, port string
	run        func() string
	pace       time.Duration // pause between two attempts
}

// yieldCPU puts this process into the scheduling class SCHED_IDLE, see sched(7). The threads of the process then run
// only on cores that no other process needs. Linux sets the class per thread, and new threads inherit it.
func yieldCPU() error {
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, notNumber := strconv.Atoi(thread.Name())
		err = errors.Join(err, notNumber, unix.SchedSetAttr(id, &unix.SchedAttr{
			Policy: unix.SCHED_IDLE}, 0))
	}
	return err
}

// runAttackers reads its target from in, and attacks until in ends. Then it writes the outcomes to out.
func runAttackers(in io.Reader, out io.Writer) {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	ctx, stop := context.WithCancel(context.Background())
	a := &attacker{roots: x509.NewCertPool(), certs: map[string][]tls.Certificate{noCertificate: nil}, ctx: ctx,
		seen: outcomes{counts: map[string]map[string]int{}}}
	if err := decoder.Decode(&a.target); err != nil {
		panic(err)
	}
	if a.Idle {
		if err := yieldCPU(); err != nil {
			panic(err)
		}
	}
	a.roots.AppendCertsFromPEM([]byte(a.CA))
	for name, p := range a.Papers {
		a.certs[name] = []tls.Certificate{p.load()}
	}
	var all sync.WaitGroup
	silent, names := 0, []string{}
	for port, addr := range a.Ports {
		n, slow := a.Silent/100, a.Slow/10
		if port == agentPort {
			n, slow = a.Silent, a.Slow
		}
		if a.does("silent") {
			silent += n
			names = append(names, "silent "+port)
			for range n {
				all.Go(func() { a.silent(port, addr) })
			}
		}
		if a.does("slow") {
			names = append(names, "slow "+port)
			for range slow {
				all.Go(func() { a.slow(port, addr) })
			}
		}
	}
	for _, attack := range slices.Concat(a.nonces(), a.messages(), a.identities(), a.connections(), a.frames()) {
		if a.does(attack.kind) {
			names = append(names, attack.kind+" "+attack.port)
			all.Go(func() { a.again(attack) })
		}
	}
	for end := time.Now().Add(time.Minute); int(a.waiting.Load()) < silent*9/10 && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
	}
	_ = encoder.Encode(a.waiting.Load())
	_ = decoder.Decode(&struct{}{}) // returns when the input ends
	for end := time.Now().Add(leastTime); !a.seen.all(names, a.Least) && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
	}
	stop()
	all.Wait()
	_ = encoder.Encode(a.seen.counts)
}

func (a *attacker) does(kind string) bool { return len(a.Kinds) == 0 || slices.Contains(a.Kinds, kind) }

// again repeats an attack at its pace.
func (a *attacker) again(attack attack) {
	for a.ctx.Err() == nil {
		outcome := attack.run()
		if a.ctx.Err() != nil {
			return
		}
		a.seen.add(attack.kind+" "+attack.port, outcome)
		select {
		case <-a.ctx.Done():
		case <-time.After(attack.pace):
		}
	}
}

func (a *attacker) tls(certs []tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: a.roots, Certificates: certs, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		ServerName: "127.0.0.1"}
}

// connect dials from a source address that the benchmark's real agents do not use. If there are several source
// addresses for attacks, connect uses each of them in turn.
func (a *attacker) connect(ctx context.Context, addr string) (net.Conn, error) {
	last := byte(66)
	if a.Addresses > 0 {
		last = byte(100 + int(a.connected.Add(1))%a.Addresses)
	}
	return connectFrom(ctx, last, addr)
}

func connectFrom(ctx context.Context, last byte, addr string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, last)}}).DialContext(
		ctx, "tcp", addr)
}

func (a *attacker) dial(addr string, certs []tls.Certificate, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{grpc.WithTransportCredentials(
		credentials.NewTLS(a.tls(certs))),
		grpc.WithContextDialer(a.connect), grpc.WithDisableRetry(), grpc.WithNoProxy()}, options...)...)
}

// open opens a connection that is closed at the end of the attacks. It returns nil if the connection is refused.
func (a *attacker) open(addr string) net.Conn {
	conn, err := a.connect(a.ctx, addr)
	if err != nil {
		return nil
	}
	context.AfterFunc(a.ctx, func() { _ = conn.Close() })
	return conn
}

// call makes one call on a new connection, and returns how it ended.
func (a *attacker) call(port, cert string, fn func(ctx context.Context, conn *grpc.ClientConn) error,
	options ...grpc.DialOption) string {
	conn, err := a.dial(a.Ports[port], a.certs[cert], options...)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(a.ctx, 30*time.Second)
	defer cancel()
	return status.Code(fn(ctx, conn)).String()
}
