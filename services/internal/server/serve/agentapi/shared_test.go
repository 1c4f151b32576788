package agentapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
)

// The tests of this file have two agents with the identity of one instance, as after a copy of a disk.

// sharedAlert returns the text of the alert about an instance's identity, or "".
func (l *testLeader) sharedAlert(id ident.ID) string {
	for _, e := range l.State.Standing("prod") {
		if e.Kind == plan.AlertSharedIdentity && e.Instance == id && e.Group == "workers" {
			return e.Message
		}
	}
	return ""
}

// disk has the files of a registered agent.
type disk struct{ identity, keys, files foldertest.Memory }

func newDisk(t *testing.T, w *testLeader, id ident.ID, key ed25519.PrivateKey, cert *x509.Certificate) *disk {
	t.Helper()
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{}
	for name, content := range map[string][]byte{
		"ca.crt": authority.EncodeBundle(w.CA.Certificate()), "identity.crt": authority.EncodeCertificate(cert),
		"identity.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		"instance":     []byte(id.String()),
	} {
		if err := d.identity.Write(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// dialFrom connects to the leader from an address of this machine.
func dialFrom(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		return dialer.DialContext(ctx, "tcp", addr)
	}
}

type machine struct{}

func (machine) Facts() agent.Facts { return agent.Facts{Hostname: "node-1"} }

func (machine) Sample(context.Context) (*nstancev1.Metrics, time.Duration) { return nil, 0 }

// boot runs an agent from a disk until stop is called.
func (l *testLeader) boot(t *testing.T, id ident.ID, d *disk, from string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client := agent.New(agent.Options{ID: id, RegistrationAddrs: []string{l.addr}, AgentAddrs: []string{l.addr},
		Identity: &d.identity, Keys: &d.keys, Files: &d.files, IdentityMode: 0o600, KeysMode: 0o600, FilesMode: 0o600,
		Machine: machine{}, Dial: dialFrom(from), Version: "test", Log: l.Log})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// now sets the leader's clock to the time of this machine, which real agents use.
func (l *testLeader) now() { l.Clock.Advance(time.Since(l.Clock.Now())) }

func TestTwoAgentsWithOneIdentity(t *testing.T) {
	w, logs := newTestLeader(t), &transporttest.Logs{}
	w.Log = logs.Logger()
	w.service.Log = w.Log
	w.now()
	w.interval.Store(int64(time.Second))
	id, key, cert := w.registered(t)
	w.boot(t, id, newDisk(t, w, id, key, cert.Leaf), "127.0.0.2")
	w.boot(t, id, newDisk(t, w, id, key, cert.Leaf), "127.0.0.3")
	eventually(t, "the alert about two agents", func() bool { return w.sharedAlert(id) != "" })
	want := "two agents use the identity of " + id.String() + ", from 127.0.0.2 and 127.0.0.3"
	if text := w.sharedAlert(id); !strings.HasPrefix(text, want) {
		t.Errorf("the alert is %q, want %q", text, want)
	}
	// From now on the leader serves one of them.
	eventually(t, "the other agent is refused", func() bool { return len(logs.Lines("another agent")) > 0 })
	before := len(logs.Lines("msg=Connected"))
	time.Sleep(4 * time.Second)
	if after := len(logs.Lines("msg=Connected")); after > before {
		t.Errorf("the agents still replace each other: %d sessions, then %d", before, after)
	}
	if view, _ := w.State.Instance(id); !view.Plan.Connected {
		t.Error("no agent is connected")
	}
	if !strings.Contains(w.sharedAlert(id), "two agents") {
		t.Error("the alert has ended")
	}
}

// TestRestartedAgent checks that an agent that restarts, or connects again, is no second agent.
func TestRestartedAgent(t *testing.T) {
	w := newTestLeader(t)
	w.now()
	id, key, cert := w.registered(t)
	d := newDisk(t, w, id, key, cert.Leaf)
	for range 4 {
		reports := w.service.Metrics.Reports
		before := testutil.ToFloat64(reports)
		stop := w.boot(t, id, d, "127.0.0.2")
		eventually(t, "a report", func() bool { return testutil.ToFloat64(reports) > before })
		stop()
	}
	c := w.connect(t, id, key, cert)
	for range 4 {
		c.as("one").reports().send(nil)
		c = c.again()
	}
	if text := w.sharedAlert(id); text != "" {
		t.Errorf("one agent that restarts raises %q", text)
	}
}

// TestSharedIdentityIsResolved checks that the alert ends when the second agent is gone.
func TestSharedIdentityIsResolved(t *testing.T) {
	w := newTestLeader(t)
	id, key, cert := w.registered(t)
	w.connect(t, id, key, cert).as("one").reports().send(nil)
	w.connect(t, id, key, cert).as("two").reports().send(nil)
	if text := w.sharedAlert(id); text != "" {
		t.Errorf("after a restart: %q", text)
	}
	r := w.connect(t, id, key, cert).as("one").reports()
	r.send(nil)
	if w.sharedAlert(id) == "" {
		t.Fatal("no alert about two agents")
	}
	// The second agent can do nothing while the first one is connected.
	for rpc, err := range w.connect(t, id, key, cert).as("two").each(t, id.String()) {
		wants(t, rpc, err, codes.PermissionDenied, "another agent")
	}
	w.Clock.Advance(9 * time.Minute)
	r.send(nil)
	if w.sharedAlert(id) == "" {
		t.Fatal("the alert ended early")
	}
	w.Clock.Advance(2 * time.Minute)
	r.send(nil)
	if text := w.sharedAlert(id); text != "" {
		t.Errorf("the alert stays: %q", text)
	}
	// The agent may restart as often as it likes.
	w.connect(t, id, key, cert).as("three").reports().send(nil)
	w.connect(t, id, key, cert).as("four").reports().send(nil)
	if text := w.sharedAlert(id); text != "" {
		t.Errorf("after two restarts: %q", text)
	}
}

// TestSecondAgentReplacesALostOne checks that the agent with the other process is served when the first one is gone.
func TestSecondAgentReplacesALostOne(t *testing.T) {
	w := newTestLeader(t)
	id, key, cert := w.registered(t)
	w.connect(t, id, key, cert).as("one").reports().send(nil)
	w.connect(t, id, key, cert).as("two").reports().send(nil)
	first := w.connect(t, id, key, cert).as("one")
	first.reports().send(nil)
	first.conn.Close()
	eventually(t, "the first agent is gone", func() bool {
		view, _ := w.State.Instance(id)
		return !view.Plan.Connected
	})
	w.connect(t, id, key, cert).as("two").reports().send(nil)
}

// TestTwoOlderAgents checks agents that do not name their process: only their addresses tell them apart.
func TestTwoOlderAgents(t *testing.T) {
	w := newTestLeader(t)
	id, key, cert := w.registered(t)
	for n := 0; n < 10 && w.sharedAlert(id) == ""; n++ {
		w.connectFrom(t, id, key, cert.Leaf, []string{"127.0.0.2", "127.0.0.3"}[n%2]).reports().send(nil)
	}
	if text := w.sharedAlert(id); !strings.Contains(text, "from 127.0.0.2 and 127.0.0.3") {
		t.Errorf("the alert is %q", text)
	}
	// One agent that connects again and again over two addresses ends its old connection itself.
	id, key, cert = w.registered(t)
	for n := range 10 {
		c := w.connectFrom(t, id, key, cert.Leaf, []string{"127.0.0.2", "127.0.0.3"}[n%2])
		c.reports().send(nil)
		c.conn.Close()
		eventually(t, "the stream ends", func() bool {
			view, _ := w.State.Instance(id)
			return !view.Plan.Connected
		})
		w.Clock.Advance(time.Second)
	}
	if text := w.sharedAlert(id); text != "" {
		t.Errorf("one agent with two addresses raises %q", text)
	}
}

// TestStreamFromAnotherAddress checks that an agent's calls must come from an address of its VM, as its registration.
func TestStreamFromAnotherAddress(t *testing.T) {
	for _, test := range []struct {
		name      string
		addresses []string // that the leader knows
		asked     []string // that the provider tells
		unchecked bool     // check_registration_address is false
		refused   bool
	}{
		{name: "from an address of its VM", addresses: []string{"10.1.2.3", "127.0.0.3"}},
		{name: "from another address", addresses: []string{"127.0.0.2"}, asked: []string{"127.0.0.2"}, refused: true},
		{name: "from a new address of its VM", addresses: []string{"127.0.0.2"}, asked: []string{"127.0.0.3"}},
		{name: "addresses are unknown"},
		{name: "only the provider knows another address", asked: []string{"127.0.0.2"}, refused: true},
		{name: "the check is off", addresses: []string{"127.0.0.2"}, asked: []string{"127.0.0.2"}, unchecked: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newTestLeader(t)
			id, key, cert := w.registered(t)
			know := func(addresses []string) {
				w.Clock.Advance(time.Second)
				w.State.Answered(id, infra.VM{ProviderID: "vm-" + id.String(), State: infra.Running,
					Addresses: addresses, LaunchedAt: w.Clock.Now()}, w.Clock.Now())
			}
			know(test.addresses)
			w.checkAddresses(!test.unchecked, func(_ context.Context, asked ident.ID) error {
				if asked != id {
					t.Errorf("asked about %s", asked)
				}
				know(test.asked)
				return nil
			})
			c := w.connectFrom(t, id, key, cert.Leaf, "127.0.0.3")
			if !test.refused {
				c.reports().send(nil)
				if text := w.sharedAlert(id); text != "" {
					t.Errorf("the alert is %q", text)
				}
				return
			}
			for rpc, err := range c.each(t, id.String()) {
				wants(t, rpc, err, codes.PermissionDenied, "127.0.0.3 is not an address of its VM")
			}
			if text := w.sharedAlert(id); !strings.Contains(text, "from 127.0.0.3") {
				t.Errorf("the alert is %q", text)
			}
			// The agent on the VM is undisturbed, and the alert names both addresses.
			r := w.connectFrom(t, id, key, cert.Leaf, "127.0.0.2").reports()
			r.send(nil)
			for rpc, err := range c.each(t, id.String()) {
				wants(t, rpc, err, codes.PermissionDenied, "127.0.0.3 is not an address of its VM")
			}
			r.send(nil)
			want := "two agents use the identity of " + id.String() + ", from 127.0.0.2 and 127.0.0.3"
			if text := w.sharedAlert(id); !strings.HasPrefix(text, want) {
				t.Errorf("the alert is %q, want %q", text, want)
			}
		})
	}
}

// TestReportsAskNobody checks that a report waits for no answer of the provider, although the leader knows no address of
// the VM. A report may be the notice that the VM ends.
func TestReportsAskNobody(t *testing.T) {
	w := newTestLeader(t)
	id, key, cert := w.registered(t)
	var asked atomic.Int32
	w.checkAddresses(true, func(context.Context, ident.ID) error { asked.Add(1); return nil })
	r := w.connectFrom(t, id, key, cert.Leaf, "127.0.0.3").reports()
	r.send(nil)
	before := asked.Load()
	for range 3 {
		w.Clock.Advance(time.Minute)
		r.send(nil)
	}
	if n := asked.Load() - before; n != 0 {
		t.Errorf("three reports asked the provider %d times", n)
	}
}

// TestAddressLearntDuringAStream checks that a stream ends when the leader learns that it comes from elsewhere.
func TestAddressLearntDuringAStream(t *testing.T) {
	w := newTestLeader(t)
	id, key, cert := w.registered(t)
	w.checkAddresses(true, func(context.Context, ident.ID) error { return nil })
	r := w.connectFrom(t, id, key, cert.Leaf, "127.0.0.3").reports()
	r.send(nil)
	w.Clock.Advance(time.Minute)
	w.State.Answered(id, infra.VM{ProviderID: "vm-" + id.String(), State: infra.Running,
		Addresses: []string{"127.0.0.2"}, LaunchedAt: w.Clock.Now()}, w.Clock.Now())
	r.sequence++
	if err := r.Send(&nstancev1.ReportHealthRequest{InstanceId: id.String(), Sequence: r.sequence}); err != nil {
		t.Fatal(err)
	}
	wants(t, "the report", r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.PermissionDenied,
		"127.0.0.3 is not an address of its VM")
	if !strings.Contains(w.sharedAlert(id), "from 127.0.0.3") {
		t.Errorf("the alert is %q", w.sharedAlert(id))
	}
}

// checkAddresses sets the check of addresses, and the answer of the provider.
func (l *testLeader) checkAddresses(enabled bool, ask func(context.Context, ident.ID) error) {
	l.leader.Load().Addresses = &vmaddress.Checker{State: l.State, Enabled: func() bool { return enabled }, Ask: ask,
		Now: l.Clock.Now}
}

// connectFrom connects an agent that does not name its process.
func (l *testLeader) connectFrom(t *testing.T, id ident.ID, key ed25519.PrivateKey, cert *x509.Certificate,
	from string) *client {
	t.Helper()
	tlsCert := l.Certificate(t, l.Agent(id), key)
	conn, err := grpc.NewClient("passthrough:///"+l.addr, grpc.WithNoProxy(), grpc.WithContextDialer(dialFrom(from)),
		grpc.WithTransportCredentials(credentials.NewTLS(l.ClientTLS(tlsCert))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{AgentServiceClient: nstancev1.NewAgentServiceClient(conn), t: t, w: l, id: id, key: key,
		cert: tlsCert, conn: conn}
}

// as makes the agent name its process in every call.
func (c *client) as(process string) *client {
	named := *c
	named.AgentServiceClient = nstancev1.NewAgentServiceClient(naming{c.conn, process})
	return &named
}

type naming struct {
	grpc.ClientConnInterface
	process string
}

func (n naming) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return n.ClientConnInterface.Invoke(metadata.AppendToOutgoingContext(ctx, "nstance-agent-process", n.process),
		method, args, reply, opts...)
}

func (n naming) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error) {
	return n.ClientConnInterface.NewStream(metadata.AppendToOutgoingContext(ctx, "nstance-agent-process", n.process),
		desc, method, opts...)
}

// TestAlertEndsWithTheInstance checks that a deleted instance has no alert.
func TestAlertEndsWithTheInstance(t *testing.T) {
	w := newTestLeader(t)
	id, key, cert := w.registered(t)
	for _, process := range []string{"one", "two", "one"} {
		w.connect(t, id, key, cert).as(process).reports().send(nil)
	}
	if w.sharedAlert(id) == "" {
		t.Fatal("no alert")
	}
	w.Delete(t, id, true)
	w.service.Deleted(t.Context(), id)
	if w.Stored(t, id).State != record.Deleted || w.sharedAlert(id) != "" {
		t.Errorf("the alert outlives the instance: %q", w.sharedAlert(id))
	}
}
