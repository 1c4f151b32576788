package peer

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// node is a server with an election port.
type node struct {
	self    election.Peer
	network *Network
	source  *transport.Source
	addr    string
	events  <-chan election.Input
	pauses  atomic.Int64 // that it has begun
	stop    func()
}

func source(t *testing.T, c *transporttest.Cluster, shard, server string) *transport.Source {
	t.Helper()
	s, err := transport.NewSource(transport.Options{
		Identity: authority.Identity{Role: authority.RoleServer, Cluster: c.Name, Shard: shard, Server: server},
		Hosts:    []string{"127.0.0.1"}, CA: c.CA, Bundle: []*x509.Certificate{c.CA.Certificate()}, Rand: rand.Reader,
		Now: c.Clock.Now, Log: c.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t *testing.T, c *transporttest.Cluster, shard, id string) *node {
	t.Helper()
	return startLogged(t, c, shard, id, slog.DiscardHandler)
}

func startLogged(t *testing.T, c *transporttest.Cluster, shard, id string, log slog.Handler) *node {
	t.Helper()
	return startOn(t, c, shard, id, log, shared)
}

// shared is the bucket of all servers that startLogged starts.
var shared = mem.New(mem.Options{})

// startOn starts a server that uses the given bucket.
func startOn(t *testing.T, c *transporttest.Cluster, shard, id string, log slog.Handler, bucket objstore.Store) *node {
	t.Helper()
	n := &node{self: election.Peer{ID: id, Incarnation: id + "-1"}, source: source(t, c, shard, id)}
	n.network = New(Options{Self: n.self, Shard: shard, Source: func() *transport.Source {
		return n.source
	}, Log: slog.New(log), Bucket: bucket,
		Sleep: func(ctx context.Context, d time.Duration) error {
			n.pauses.Add(1)
			timer := time.NewTimer(min(d, 10*time.Millisecond))
			defer timer.Stop()
			select {
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.addr = listener.Addr().String()
	server := n.network.Server(n.source)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	group.Go(func() { n.network.Run(ctx) })
	n.events = n.network.Events(ctx)
	n.stop = sync.OnceFunc(func() {
		server.Stop()
		cancel()
		group.Wait()
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) lock() record.Lock {
	return record.Lock{LeaderID: n.self.ID, Incarnation: n.self.Incarnation, Term: 3, Revision: 9, LeaseMS: 10_000,
		RenewMS:   5_000,
		Addresses: record.LockAddresses{Election: n.addr}}
}

func (n *node) hears(t *testing.T, want election.Input) {
	t.Helper()
	select {
	case got := <-n.events:
		if h, ok := got.(election.Heartbeat); ok { // a decoded lock contains its schema version
			h.Lock.Schema = 0
			got = h
		}
		if got != want {
			t.Fatalf("%s hears %T%+v, want %T%+v", n.self.ID, got, got, want, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not hear %T%+v", n.self.ID, want, want)
	}
}

func TestLeaderAndStandbyExchangeMessages(t *testing.T) {
	c := transporttest.New(t)
	a, b := start(t, c, "s", "one"), start(t, c, "s", "two")
	b.network.Follow(a.lock())
	a.hears(t, election.LinkUp{Peer: b.self})
	for beat := range uint64(3) {
		h := election.Heartbeat{Leader: a.self, Standby: b.self, Term: 3, Beat: beat + 1, Length: time.Second,
			Lock: a.lock(), Token: "t"}
		a.network.Send(b.self, h)
		b.hears(t, h)
		p := election.Promise{Leader: a.self, Standby: b.self, Term: 3, Beat: beat + 1, Length: time.Second}
		b.network.Send(a.self, p)
		a.hears(t, p)
	}
	// No process receives this message.
	a.network.Send(election.Peer{ID: "two", Incarnation: "two-0"}, election.Handover{Leader: a.self, Standby: b.self,
		Term: 3})
	f := election.Handover{Leader: a.self, Standby: b.self, Term: 3}
	a.network.Send(b.self, f)
	b.hears(t, f)

	// A follower takes over, announces its takeover to the former leader, and then follows no server. The announcement
	// still arrives.
	taken := election.TookOver{Leader: a.self, Standby: b.self, Term: 4}
	b.network.Send(a.self, taken)
	b.network.Follow(record.Lock{})
	a.hears(t, taken)
	a.hears(t, election.LinkDown{Peer: b.self})
	b.hears(t, election.LeaderLinkDown{Leader: a.self})

	// Then the other server follows.
	a.network.Follow(b.lock())
	b.hears(t, election.LinkUp{Peer: a.self})
	later := b.network.Events(t.Context()) // another election of the same process receives the existing links
	if got := <-later; got != (election.LinkUp{Peer: a.self}) {
		t.Errorf("the next election hears %T%+v first", got, got)
	}
	b.events = later
	a.stop()
	b.hears(t, election.LinkDown{Peer: a.self})
}

func TestStandbyNoticesTheEndOfALeader(t *testing.T) {
	c := transporttest.New(t)
	a, b := start(t, c, "s", "one"), start(t, c, "s", "two")
	b.network.Follow(a.lock())
	a.hears(t, election.LinkUp{Peer: b.self})
	f := election.Handover{Leader: a.self, Standby: b.self, Term: 3}
	a.network.Send(b.self, f)
	b.hears(t, f) // the link is up at both ends
	a.stop()
	b.hears(t, election.LeaderLinkDown{Leader: a.self})
}

// loggedMessages is a log handler that keeps messages of level INFO and above.
type loggedMessages chan string

func (loggedMessages) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}
func (m loggedMessages) WithAttrs([]slog.Attr) slog.Handler { return m }
func (m loggedMessages) WithGroup(string) slog.Handler      { return m }
func (m loggedMessages) Handle(_ context.Context, r slog.Record) error {
	m <- r.Level.String() + " " + r.Message
	return nil
}

// TestMissingLinkIsLogged checks that a follower logs a warning while a link is missing, but not after every attempt to
// connect. It also logs when the link is back.
func TestMissingLinkIsLogged(t *testing.T) {
	c := transporttest.New(t)
	log := make(loggedMessages, 1000)
	began := time.Now()
	a, b := start(t, c, "s", "one"), startLogged(t, c, "s", "two", log)
	wrong := a.lock()
	wrong.Incarnation = "one-0" // an earlier process of the same server
	b.network.Follow(wrong)
	for range 5 { // attempts
		a.hears(t, election.LinkUp{Peer: b.self})
		a.hears(t, election.LinkDown{Peer: b.self})
	}
	b.network.Follow(a.lock())
	var warnings int
	for message := ""; message != "INFO linked to the leader"; {
		select {
		case message = <-log:
		case <-time.After(20 * time.Second):
			t.Fatal("the log does not say that the link is back")
		}
		if message == "WARN no link to the leader" {
			warnings++
		}
	}
	if most := 2 + int(time.Since(began)/warnEvery); warnings < 1 || warnings > most {
		t.Errorf("%d warnings, want 1 to %d", warnings, most)
	}
}

// TestLinkAfterALeadership checks the logged time for which a link was missing. It must not include the time in which
// this server had no leader to follow.
func TestLinkAfterALeadership(t *testing.T) {
	c := transporttest.New(t)
	log := make(loggedMessages, 1000)
	a, b := start(t, c, "s", "one"), startLogged(t, c, "s", "two", log)
	wrong := a.lock()
	wrong.Incarnation = "one-0" // an earlier process of the same server
	b.network.Follow(wrong)
	if message := <-log; message != "WARN no link to the leader" {
		t.Fatal(message)
	}
	b.network.Follow(record.Lock{}) // it leads
	began := b.pauses.Load()
	for deadline := time.Now().Add(20 * time.Second); b.pauses.Load() < began+2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not notice that there is no leader to follow")
		}
	}
	b.network.Follow(a.lock())
	h := election.Heartbeat{Leader: a.self, Standby: b.self, Term: 3, Beat: 1, Length: time.Second, Lock: a.lock(),
		Token: "t"}
	deadline := time.Now().Add(20 * time.Second)
	for linked := false; !linked; {
		if a.network.Send(b.self, h); time.Now().After(deadline) {
			t.Fatal("no link to the right process")
		}
		select {
		case got := <-b.events:
			_, linked = got.(election.Heartbeat)
		case <-time.After(10 * time.Millisecond):
		}
	}
	for len(log) > 0 {
		if message := <-log; message == "INFO linked to the leader" {
			t.Error("it reports a link that was missing before it led as missing until now")
		}
	}
}

func TestLinkReconnects(t *testing.T) {
	c := transporttest.New(t)
	a, b := start(t, c, "s", "one"), start(t, c, "s", "two")
	wrong := a.lock()
	wrong.Incarnation = "one-0" // an earlier process of the same server
	b.network.Follow(wrong)
	a.hears(t, election.LinkUp{Peer: b.self})
	a.hears(t, election.LinkDown{Peer: b.self})
	b.network.Follow(a.lock())
	for range 50 { // links to the wrong process open and close until the right one stays open
		in := <-a.events
		if _, up := in.(election.LinkUp); !up {
			continue
		}
		h := election.Heartbeat{Leader: a.self, Standby: b.self, Term: 3, Beat: 1, Length: time.Second, Lock: a.lock(),
			Token: "t"}
		a.network.Send(b.self, h)
		select {
		case got := <-b.events:
			if beat, ok := got.(election.Heartbeat); !ok || beat.Leader != a.self {
				t.Errorf("heard %T%+v", got, got)
			}
			return
		case <-time.After(time.Second):
		}
	}
	t.Error("no link to the right process")
}

// call opens a stream to an election port, sends the given messages, and returns the error that ends the stream.
func call(t *testing.T, c *transporttest.Cluster, addr string, cert *tls.Certificate, first ...any) error {
	t.Helper()
	conn := c.Dial(t, addr, cert)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method,
		grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	for _, message := range first {
		if err := s.SendMsg(message); err != nil {
			break // the answer contains the reason
		}
	}
	for {
		var message any
		if err := s.RecvMsg(&message); err != nil {
			return err
		}
	}
}

// rawCodec can also send bytes that are not a message.
type rawCodec struct{ codec }

func (c rawCodec) Marshal(message any) ([]byte, error) {
	if frame, ok := message.([]byte); ok {
		return frame, nil
	}
	return c.codec.Marshal(message)
}

func TestOnlyServersOfTheShardAreAccepted(t *testing.T) {
	c, other := transporttest.New(t), transporttest.New(t)
	a := start(t, c, "s", "one")
	self := election.Peer{ID: "two", Incarnation: "two-1"}
	if _, err := shared.Put(t.Context(), keys.Probe("s", self.Incarnation), []byte(self.Incarnation),
		objstore.Always()); err != nil {
		t.Fatal(err)
	}
	certificate := func(s *transport.Source) *tls.Certificate {
		cert, err := s.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	good := certificate(source(t, c, "s", "two"))
	promise := election.Promise{Leader: a.self, Standby: self, Term: 3, Beat: 1, Length: time.Second}
	agent := authority.Identity{Role: authority.RoleAgent, Cluster: c.Name, Tenant: "prod", ID: c.NewID(t, "knd")}
	operator := authority.Identity{Role: authority.RoleOperator, Cluster: c.Name, Tenant: "prod", ID: c.NewID(t, "opr")}
	for name, tc := range map[string]struct {
		cert *tls.Certificate
		say  []any
		code codes.Code
		want string
	}{
		"no certificate": {nil, []any{hello{self}}, codes.Unavailable, "certificate"},
		"another cluster's authority": {certificate(source(t, other, "s", "two")), []any{hello{self}},
			codes.Unavailable, "certificate"},
		"agent": {c.Certificate(t, agent, transporttest.NewKey(t)), []any{hello{self}},
			codes.PermissionDenied, "role agent"},
		"operator": {c.Certificate(t, operator, transporttest.NewKey(t)), []any{hello{self}},
			codes.PermissionDenied, "role operator"},
		"another shard": {certificate(source(t, c, "r", "two")), []any{hello{self}},
			codes.PermissionDenied, "servers of the shard s"},
		"another's name": {certificate(source(t, c, "s", "three")), []any{hello{self}},
			codes.PermissionDenied, "the certificate of three"},
		"no hello": {good, []any{promise}, codes.InvalidArgument, "before the hello"},
		"itself": {certificate(a.source), []any{hello{a.self}}, codes.InvalidArgument,
			"is this process"},
		"another's key": {good, []any{hello{election.Peer{ID: "two", Incarnation: "../leader.json"}}},
			codes.FailedPrecondition, "not the leader's bucket"},
		"garbage": {good, []any{hello{self}, []byte("garbage")}, codes.Internal, "invalid character"},
		"in another's name": {good, []any{hello{self}, election.Promise{Leader: a.self, Standby: leader,
			Term: 3, Beat: 1, Length: 1}}, codes.Aborted, "another process"},
		"as a leader": {good, []any{hello{self}, election.Handover{Leader: a.self, Standby: self,
			Term: 3}}, codes.Aborted, "another process"},
		"two hellos": {good, []any{hello{self}, hello{self}}, codes.Aborted, "another process"},
		"too much": {good, []any{hello{self}, make([]byte, maxFrame+1)}, codes.ResourceExhausted,
			"larger than max"},
	} {
		err := call(t, c, a.addr, tc.cert, tc.say...)
		if got := status.Code(err); got != tc.code && (got != codes.Aborted || tc.code != codes.ResourceExhausted) ||
			!strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%s: %v, want %s with %q", name, err, tc.code, tc.want)
		}
	}
	for len(a.events) > 0 {
		if in := <-a.events; in != (election.LinkUp{Peer: self}) && in != (election.LinkDown{Peer: self}) {
			t.Errorf("heard %T%+v", in, in)
		}
	}
}

func TestFollowerChecksTheLeader(t *testing.T) {
	c := transporttest.New(t)
	a, b := start(t, c, "s", "one"), start(t, c, "s", "two")
	stranger := start(t, c, "r", "one") // a server of another shard
	for name, lock := range map[string]record.Lock{
		"another shard": {LeaderID: "one", Incarnation: "one-1", Addresses: record.LockAddresses{
			Election: stranger.addr}},
		"another server": {LeaderID: "three", Incarnation: "one-1", Addresses: record.LockAddresses{Election: a.addr}},
	} {
		err := b.network.connect(t.Context(), lock, make(chan struct{}), func() {})
		if err == nil || !strings.Contains(err.Error(), "server certificate: it is of") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(a.events)+len(stranger.events) > 0 {
		t.Error("a link is up")
	}
}
