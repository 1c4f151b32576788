package registerapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

type testLeader struct {
	*leadertest.Leader
	leader       *registerapi.Registrar
	service      *registerapi.Service
	checkAddress atomic.Bool
	mu           sync.Mutex
	recorded     []record.Event
	ask          func(ident.ID) // the answer of the provider about a VM
	addr         string
	client       nstancev1.RegistrationServiceClient
}

var workers = config.Group{Template: "worker", Kind: "knd", Size: 1, RuntimeHash: "r1", InfraHash: "i1"}

func newTestLeader(t testing.TB) *testLeader {
	t.Helper()
	return serveLeader(t, leadertest.New(t, workers))
}

func serveLeader(t testing.TB, leader *leadertest.Leader) *testLeader {
	t.Helper()
	w := &testLeader{Leader: leader}
	w.leader = &registerapi.Registrar{Context: w.Context, Cluster: w.Name, Shard: w.Shard, Term: w.Term(),
		Incarnation: leadertest.Incarnation, State: w.State,
		Records: w.Executor, Store: w.Bucket, NonceKeys: w.NonceKey.Accepted(), Issuer: w.Issuer(),
		Addresses: &vmaddress.Checker{State: w.State, Enabled: w.checkAddress.Load, Now: w.Clock.Now,
			Ask: func(_ context.Context, id ident.ID) error {
				if w.ask != nil {
					w.ask(id)
				}
				return nil
			}}, Record: func(e record.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.recorded = append(w.recorded, e)
		}}
	w.checkAddress.Store(true)
	w.service = &registerapi.Service{Now: w.Clock.Now, Log: w.Log, Metrics: metrics.NewServer("test", w.Shard),
		Leader: func() (*registerapi.Registrar, error) {
			if err := w.Current(); err != nil {
				return nil, err
			}
			return w.leader, nil
		}}
	w.addr = w.Serve(t, "", func(s *grpc.Server) { nstancev1.RegisterRegistrationServiceServer(s, w.service) })
	w.client = nstancev1.NewRegistrationServiceClient(w.Dial(t, w.addr, nil))
	return w
}

// journal returns the recorded events.
func (l *testLeader) journal() []record.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.recorded)
}

// nonce returns a new nonce for an agent. The function `change` may modify its claims.
func (l *testLeader) nonce(t testing.TB, id ident.ID, change func(*authority.NonceSpec)) string {
	t.Helper()
	spec := authority.NonceSpec{Role: authority.RoleAgent, Cluster: l.Name, Tenant: "prod", ID: id, Shard: l.Shard,
		Group: "workers", ConfigHash: "i1"}
	if change != nil {
		change(&spec)
	}
	nonce, _, err := authority.MintNonce(l.NonceKey, spec, rand.Reader, l.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	return nonce.Reveal()
}

func (l *testLeader) operatorNonce(t testing.TB) (string, ident.ID) {
	t.Helper()
	nonce, claims, err := authority.MintNonce(l.NonceKey, authority.NonceSpec{Role: authority.RoleOperator,
		Cluster: l.Name, Tenant: "prod"}, rand.Reader, l.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	return nonce.Reveal(), claims.ID
}

func (l *testLeader) register(nonce string, key ed25519.PrivateKey) (*nstancev1.RegisterAgentResponse, error) {
	return l.client.RegisterAgent(context.Background(), &nstancev1.RegisterAgentRequest{Nonce: nonce,
		PublicKey: transporttest.Public(key),
		Ipv4:      "10.1.2.3", Ipv6: "2001:DB8::1", Hostname: "node-1"})
}

func (l *testLeader) registerOperator(nonce string, key ed25519.PrivateKey) (*nstancev1.RegisterOperatorResponse,
	error) {
	return l.client.RegisterOperator(context.Background(), &nstancev1.RegisterOperatorRequest{Nonce: nonce,
		PublicKey: transporttest.Public(key)})
}

func wants(t testing.TB, what string, err error, code codes.Code, message string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), message) {
		t.Errorf("%s: %v, want %s with %q", what, err, code, message)
	}
}

func leaf(t testing.TB, text []byte) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(text)
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one PEM block: %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (l *testLeader) log(t testing.TB) []record.CertLog {
	t.Helper()
	entries, err := l.Bucket.ListCertLog(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestRegisterAgent(t *testing.T) {
	w := newTestLeader(t)
	id, key := w.Created(t), transporttest.NewKey(t)
	answer, err := w.register(w.nonce(t, id, nil), key)
	if err != nil {
		t.Fatal(err)
	}
	cert := leaf(t, answer.GetCertificate())
	identity, err := authority.ParseIdentity(cert)
	if err != nil || identity != w.Agent(id) || !cert.PublicKey.(ed25519.PublicKey).Equal(key.Public()) {
		t.Errorf("certificate of %v (%v)", identity, err)
	}
	if !answer.GetNotAfter().AsTime().Equal(cert.NotAfter) || !cert.NotAfter.Equal(
		w.Clock.Now().Add(authority.AgentTTL)) {
		t.Errorf("not after %v, certificate's %v", answer.GetNotAfter().AsTime(), cert.NotAfter)
	}
	if bundle, err := authority.ParseBundle(answer.GetCaBundle()); err != nil || !bundle[0].Equal(w.CA.Certificate()) {
		t.Errorf("bundle: %v", err)
	}
	stored := w.Stored(t, id)
	if stored.State != record.Registered || !bytes.Equal(stored.PublicKey, transporttest.Public(key)) ||
		stored.Certificate.Serial != authority.Serial(cert) ||
		!stored.Certificate.NotAfter.Equal(cert.NotAfter) || !stored.RegisteredAt.Equal(w.Clock.Now()) ||
		stored.NonceID == "" {
		t.Errorf("record %+v", stored)
	}
	if stored.IPv4 != "10.1.2.3" || stored.IPv6 != "" || stored.Hostname != id.String() {
		t.Errorf("addresses %s %s %s", stored.IPv4, stored.IPv6, stored.Hostname)
	}
	want := []record.CertLog{{Schema: record.CertLogSchema, Cluster: "example", Shard: "a", Tenant: "prod",
		Instance: id, Term: 3, Writer: leadertest.Incarnation,
		IssuedAt: w.Clock.Now(), Issued: []record.Issued{{Name: "agent", Kind: record.CertAgent,
			Serial: authority.Serial(cert), NotAfter: cert.NotAfter}}}}
	if diff := cmp.Diff(want, w.log(t), cmp.Comparer(func(a, b ident.ID) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if n := w.Events(id, shardstate.EventRegistered); n != 1 {
		t.Errorf("%d events", n)
	}
	if reason := w.LastEvent(id).Reason; reason != "from 127.0.0.1" {
		t.Errorf("the event says %q, want the source", reason)
	}
	if rec, _, _ := w.State.Record(id); rec.State != record.Registered {
		t.Errorf("the state has it as %s", rec.State)
	}
}

// If an answer is lost, the client registers again with the same key and gets the same certificate, even after the
// nonce has expired. Nothing is written.
func TestSameKeyAgain(t *testing.T) {
	w := newTestLeader(t)
	id, key := w.Created(t), transporttest.NewKey(t)
	nonce := w.nonce(t, id, nil)
	first, err := w.register(nonce, key)
	if err != nil {
		t.Fatal(err)
	}
	revision := w.Stored(t, id).Revision
	w.Clock.Advance(24 * time.Hour)
	again, err := w.register(nonce, key)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.GetCertificate(), again.GetCertificate()) {
		t.Error("another certificate")
	}
	if w.Stored(t, id).Revision != revision || len(w.log(t)) != 1 || w.Events(id, shardstate.EventRegistered) != 1 {
		t.Error("something was written or an event was sent")
	}
	_, err = w.register(nonce, transporttest.NewKey(t))
	wants(t, "another key", err, codes.PermissionDenied, "registered with another key")
	_, err = w.register(w.nonce(t, id, nil), key)
	wants(t, "another nonce", err, codes.PermissionDenied, "another key or nonce")

	// When less than half of the certificate's validity is left, a new certificate is issued and recorded.
	w.Clock.Advance(5 * 24 * time.Hour)
	late, err := w.register(nonce, key)
	if err != nil {
		t.Fatal(err)
	}
	stored := w.Stored(t, id)
	if stored.Certificate.Serial != authority.Serial(leaf(t, late.GetCertificate())) || stored.Revision != revision+1 ||
		len(w.log(t)) != 2 {
		t.Errorf("revision %d, log %v", stored.Revision, w.log(t))
	}
}

// TestConsumedNonceEnds checks a client that registers again and again with one nonce and one key. It is refused once
// its last certificate has been expired for longer than RenewalGrace.
func TestConsumedNonceEnds(t *testing.T) {
	w := newTestLeader(t)
	id, key := w.Created(t), transporttest.NewKey(t)
	nonce := w.nonce(t, id, nil)
	operatorNonce, _ := w.operatorNonce(t)
	registrations := map[time.Duration]func() error{
		authority.AgentTTL: func() error {
			_, err := w.register(nonce, key)
			return err
		},
		authority.OperatorTTL: func() error {
			_, err := w.registerOperator(operatorNonce, key)
			return err
		},
	}
	for _, life := range []time.Duration{authority.AgentTTL, authority.OperatorTTL} {
		register := registrations[life]
		if err := register(); err != nil {
			t.Fatal(err)
		}
		w.Clock.Advance(life + transport.RenewalGrace)
		if err := register(); err != nil {
			t.Errorf("at the end of the grace: %v", err)
		}
		w.Clock.Advance(life + transport.RenewalGrace + time.Second)
		wants(t, "after the grace", register(), codes.Unauthenticated, "is consumed, and its certificate expired at")
		operatorNonce, _ = w.operatorNonce(t)
	}
}

func TestTwoRacingRegistrations(t *testing.T) {
	for range 20 {
		w := newTestLeader(t)
		id := w.Created(t)
		nonce := w.nonce(t, id, nil)
		keys := []ed25519.PrivateKey{transporttest.NewKey(t), transporttest.NewKey(t), transporttest.NewKey(t)}
		answers, errs := make([]*nstancev1.RegisterAgentResponse, len(keys)), make([]error, len(keys))
		var wg sync.WaitGroup
		for i, key := range keys {
			wg.Go(func() { answers[i], errs[i] = w.register(nonce, key) })
		}
		wg.Wait()
		winners, stored := 0, w.Stored(t, id)
		for i, err := range errs {
			if err != nil {
				wants(t, "the loser", err, codes.PermissionDenied, "another key")
				continue
			}
			winners++
			if !bytes.Equal(stored.PublicKey, transporttest.Public(keys[i])) ||
				stored.Certificate.Serial != authority.Serial(leaf(t, answers[i].GetCertificate())) {
				t.Error("the record is not the winner's")
			}
		}
		if winners != 1 || w.Events(id, shardstate.EventRegistered) != 1 {
			t.Errorf("%d winners, %d events", winners, w.Events(id, shardstate.EventRegistered))
		}
	}
}

// hookedStore calls a hook before it appends to the certificate log.
type hookedStore struct {
	registerapi.Store
	before func()
}

func (s hookedStore) AppendCertLog(ctx context.Context, entry record.CertLog) error {
	s.before()
	return s.Store.AppendCertLog(ctx, entry)
}

// TestRegistrationOfAnInstanceThatChanges checks that a registration is refused if the record changes after the checks
// and before the registration is written.
func TestRegistrationOfAnInstanceThatChanges(t *testing.T) {
	other := transporttest.Public(transporttest.NewKey(t))
	for name, test := range map[string]struct {
		change  func(t *testing.T, w *testLeader, id ident.ID)
		code    codes.Code
		message string
	}{
		"registered with another key": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Change(t, id, func(r *record.Instance) {
				r.State, r.RegisteredAt, r.PublicKey, r.NonceID = record.Registered, w.Clock.Now(), other, "other"
				r.Certificate = &record.CertificateRef{Serial: strings.Repeat("0a", 16),
					NotAfter: w.Clock.Now().Add(time.Hour)}
			})
		}, codes.PermissionDenied, "registered with another key or nonce"},
		"being deleted": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Delete(t, id, false)
		}, codes.PermissionDenied, "is being deleted"},
		"deleted": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Delete(t, id, true)
		}, codes.PermissionDenied, "is deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestLeader(t)
			id := w.Created(t)
			var changed record.Instance
			w.leader.Store = hookedStore{w.leader.Store, func() {
				test.change(t, w, id)
				changed = w.Stored(t, id)
			}}
			_, err := w.register(w.nonce(t, id, nil), transporttest.NewKey(t))
			wants(t, name, err, test.code, test.message)
			if diff := cmp.Diff(changed, w.Stored(t, id), cmp.Comparer(func(a, b ident.ID) bool {
				return a == b
			})); diff != "" {
				t.Errorf("the record changed: %s", diff)
			}
			if n := w.Events(id, shardstate.EventRegistered); n != 0 {
				t.Errorf("%d events", n)
			}
		})
	}
}

func TestRefusedAgents(t *testing.T) {
	w := newTestLeader(t)
	key := transporttest.NewKey(t)
	created := w.Created(t)
	deleting, deleted := w.Created(t), w.Created(t)
	w.Delete(t, deleting, false)
	w.Delete(t, deleted, true)
	otherKey, err := authority.CreateNonceKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreign, _, err := authority.MintNonce(otherKey, authority.NonceSpec{Role: authority.RoleAgent, Cluster: w.Name,
		Tenant: "prod", ID: created, Shard: "a", Group: "workers"},
		rand.Reader, w.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	good := w.nonce(t, created, nil)
	operator, _ := w.operatorNonce(t)
	for _, test := range []struct {
		name, nonce string
		key         []byte
		change      func(*nstancev1.RegisterAgentRequest)
		code        codes.Code
		message     string
	}{
		{"no nonce", "", nil, nil, codes.InvalidArgument, "nonce: is empty"},
		{"no JWT", "a.b.c", nil, nil, codes.InvalidArgument, "nonce: "},
		{"too long", good + strings.Repeat("x", 5000), nil, nil, codes.InvalidArgument, "at most"},
		{"short key", good, []byte{1, 2}, nil, codes.InvalidArgument, "public_key: has 2 bytes"},
		{"foreign signature", foreign.Reveal(), nil, nil, codes.Unauthenticated, "not signed by this cluster"},
		{"other cluster", w.nonce(t, created, func(s *authority.NonceSpec) {
			s.Cluster = "other"
		}), nil, nil, codes.PermissionDenied, "another cluster"},
		{"other shard", w.nonce(t, created, func(s *authority.NonceSpec) {
			s.Shard = "b"
		}), nil, nil, codes.PermissionDenied, "is for shard b, this is a"},
		{"other tenant", w.nonce(t, created, func(s *authority.NonceSpec) {
			s.Tenant = "dev"
		}), nil, nil, codes.PermissionDenied, "dev/workers"},
		{"other group", w.nonce(t, created, func(s *authority.NonceSpec) {
			s.Group = "masters"
		}), nil, nil, codes.PermissionDenied, "prod/masters"},
		{"an operator's", operator, nil, nil, codes.PermissionDenied, "is for the role operator"},
		{"no instance", w.nonce(t, w.NewID(t, "knd"), nil), nil, nil, codes.NotFound, "there is no instance"},
		{"deleting", w.nonce(t, deleting, nil), nil, nil, codes.PermissionDenied, "is being deleted"},
		{"deleted", w.nonce(t, deleted, nil), nil, nil, codes.PermissionDenied, "is deleted"},
		{"left over", w.nonce(t, w.Reserved(t, true), nil), nil, nil, codes.Unavailable, "not settled yet"},
		{"not answered by the provider", w.nonce(t, w.Reserved(t, false), nil), nil, nil, codes.Unavailable,
			"not recorded yet"},
	} {
		req := &nstancev1.RegisterAgentRequest{Nonce: test.nonce, PublicKey: transporttest.Public(key),
			Ipv4: "10.0.0.1"}
		if test.key != nil {
			req.PublicKey = test.key
		}
		if test.change != nil {
			test.change(req)
		}
		_, err := w.client.RegisterAgent(t.Context(), req)
		wants(t, test.name, err, test.code, test.message)
		if err != nil && test.nonce != "" && strings.Contains(err.Error(), test.nonce) {
			t.Errorf("%s: the error quotes the nonce", test.name)
		}
	}
	if len(w.log(t)) != 0 || w.Stored(t, created).State != record.Created {
		t.Error("a refusal left something behind")
	}
	refused := w.journal()
	if len(refused) == 0 || !slices.ContainsFunc(refused, func(e record.Event) bool {
		return e.Kind == record.EventRegistrationRefused && e.Tenant == "prod" && e.Instance == deleting.String() &&
			strings.Contains(e.Message, "is being deleted") && strings.HasPrefix(e.Actor, "127.0.0.1")
	}) {
		t.Errorf("the journal has %v: want the refusal of the deleting instance with its address", refused)
	}

	w.Clock.Advance(authority.AgentNonceTTL)
	_, err = w.register(good, key)
	wants(t, "expired", err, codes.Unauthenticated, "nonce: expired at")
	w.Clock.Advance(-authority.AgentNonceTTL - 10*time.Minute)
	_, err = w.register(good, key)
	wants(t, "a clock that is behind", err, codes.Unavailable, "not valid yet")
}

// TestRegisteredBeforeCreated registers an agent while the answer to the create call is not recorded yet. The agent
// must retry. When the provider has reported the VM, the registration also records the provider's data about the VM. A
// later update by the executor must keep the registration.
func TestRegisteredBeforeCreated(t *testing.T) {
	w := newTestLeader(t)
	id, key := w.Reserved(t, false), transporttest.NewKey(t)
	nonce := w.nonce(t, id, nil)
	_, err := w.register(nonce, key)
	wants(t, "too soon", err, codes.Unavailable, "try again")
	w.Answer(id)
	if _, err := w.register(nonce, key); err != nil {
		t.Fatal(err)
	}
	stored := w.Stored(t, id)
	if stored.State != record.Registered || stored.ProviderID != "vm-"+id.String() || stored.Group != "workers" ||
		stored.LaunchedAt.IsZero() {
		t.Errorf("record %+v", stored)
	}
}

// TestStorageFaults makes one write of a registration fail, or loses the bucket's answer to this write. After the agent
// has registered again, its certificate is in the record and in the log.
func TestStorageFaults(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for failing := 1; failing <= 2; failing++ {
			w := newTestLeader(t)
			id, key := w.Created(t), transporttest.NewKey(t)
			nonce := w.nonce(t, id, nil)
			puts := 0
			w.Fault(func(r mem.Request) mem.Fault {
				if r.Op != mem.Put {
					return mem.Fault{}
				}
				if puts++; puts != failing {
					return mem.Fault{}
				}
				if lost {
					return mem.Fault{Lost: true}
				}
				return mem.Fault{Err: errors.New("disk on fire")}
			})
			_, err := w.register(nonce, key)
			if lost {
				if err != nil {
					t.Errorf("put %d, answer lost: %v", failing, err)
				}
			} else {
				wants(t, "a failing put", err, codes.Unavailable, "try again")
				if strings.Contains(err.Error(), "fire") {
					t.Errorf("the client sees internal details: %v", err)
				}
			}
			w.Fault(nil)
			answer, err := w.register(nonce, key)
			if err != nil {
				t.Fatal(err)
			}
			serial := authority.Serial(leaf(t, answer.GetCertificate()))
			logged := false
			for _, entry := range w.log(t) {
				logged = logged || entry.Issued[0].Serial == serial
			}
			if stored := w.Stored(t, id); stored.Certificate.Serial != serial || !logged {
				t.Errorf("put %d, lost %v: the certificate is not the record's or not in the log", failing, lost)
			}
		}
	}
}

func TestStandby(t *testing.T) {
	w := newTestLeader(t)
	id := w.Created(t)
	w.Lose()
	_, err := w.register(w.nonce(t, id, nil), transporttest.NewKey(t))
	notLeader(t, err)
	nonce, _ := w.operatorNonce(t)
	_, err = w.registerOperator(nonce, transporttest.NewKey(t))
	notLeader(t, err)
}

func notLeader(t testing.TB, err error) {
	t.Helper()
	wants(t, "a standby", err, codes.Unavailable, "another server leads")
	details := status.Convert(err).Details()
	if len(details) != 1 || details[0].(*nstancev1.NotLeader).GetLeaderId() != "two" {
		t.Errorf("details %v", details)
	}
}

// A leader that is superseded during a registration returns the error that names the new leader.
func TestSupersededLeader(t *testing.T) {
	w := newTestLeader(t)
	id := w.Created(t)
	rec, token, err := w.Bucket.GetInstance(t.Context(), "prod", id)
	if err != nil {
		t.Fatal(err)
	}
	rec.Revision, rec.Term, rec.Writer = rec.Revision+1, 4, "another"
	if _, err := w.Bucket.PutInstance(t.Context(), rec, token); err != nil {
		t.Fatal(err)
	}
	_, err = w.register(w.nonce(t, id, nil), transporttest.NewKey(t))
	notLeader(t, err)
	if stored := w.Stored(t, id); stored.State != record.Created || stored.Term != 4 {
		t.Errorf("record %+v", stored)
	}
}

func TestRegisterOperator(t *testing.T) {
	w := newTestLeader(t)
	nonce, id := w.operatorNonce(t)
	key := transporttest.NewKey(t)
	first, err := w.registerOperator(nonce, key)
	if err != nil {
		t.Fatal(err)
	}
	cert := leaf(t, first.GetCertificate())
	identity, err := authority.ParseIdentity(cert)
	want := authority.Identity{Role: authority.RoleOperator, Cluster: "example", Tenant: "prod", ID: id}
	if err != nil || identity != want || first.GetOperatorId() != id.String() ||
		!cert.NotAfter.Equal(w.Clock.Now().Add(authority.OperatorTTL)) {
		t.Errorf("certificate of %v until %v (%v)", identity, cert.NotAfter, err)
	}
	rec, _, err := w.Bucket.GetOperator(t.Context(), "prod", id)
	if err != nil || !bytes.Equal(rec.PublicKey, transporttest.Public(key)) ||
		rec.Certificate.Serial != authority.Serial(cert) ||
		!rec.NonceExpires.Equal(w.Clock.Now().Add(authority.OperatorNonceTTL)) {
		t.Errorf("record %+v (%v)", rec, err)
	}
	registered := record.Event{Kind: record.EventOperatorRegistered, Tenant: "prod", Actor: id.String(),
		Message: "from 127.0.0.1"}
	if have := w.journal(); len(have) != 1 || have[0] != registered {
		t.Errorf("the journal has %+v, want %+v", have, registered)
	}
	w.Clock.Advance(24 * time.Hour)
	again, err := w.registerOperator(nonce, key)
	if err != nil || !bytes.Equal(first.GetCertificate(), again.GetCertificate()) {
		t.Errorf("again: %v", err)
	}
	_, err = w.registerOperator(nonce, transporttest.NewKey(t))
	wants(t, "another key", err, codes.PermissionDenied, "used with another key")
	refused := record.Event{Kind: record.EventRegistrationRefused, Tenant: "prod", Actor: "127.0.0.1",
		Message: "nonce: was used with another key by operator " + id.String()}
	if have := w.journal(); len(have) != 2 || have[1] != refused {
		t.Errorf("the journal has %+v, want %+v last", have, refused)
	}

	w.Clock.Advance(20 * 24 * time.Hour)
	late, err := w.registerOperator(nonce, key)
	if err != nil {
		t.Fatal(err)
	}
	rec, token, err := w.Bucket.GetOperator(t.Context(), "prod", id)
	if err != nil || rec.Certificate.Serial != authority.Serial(leaf(t, late.GetCertificate())) || rec.Revision != 2 {
		t.Errorf("record %+v (%v)", rec, err)
	}

	rec.RemovedAt, rec.Revision = w.Clock.Now(), rec.Revision+1
	if _, err := w.Bucket.PutOperator(t.Context(), rec, token); err != nil {
		t.Fatal(err)
	}
	_, err = w.registerOperator(nonce, key)
	wants(t, "removed", err, codes.PermissionDenied, "was removed")
}

func TestRefusedOperators(t *testing.T) {
	w := newTestLeader(t)
	_, err := w.registerOperator(w.nonce(t, w.Created(t), nil), transporttest.NewKey(t))
	wants(t, "an agent's nonce", err, codes.PermissionDenied, "is for the role agent")
	nonce, id := w.operatorNonce(t)
	w.Clock.Advance(authority.OperatorNonceTTL)
	_, err = w.registerOperator(nonce, transporttest.NewKey(t))
	wants(t, "expired", err, codes.Unauthenticated, "expired at")
	if _, _, err := w.Bucket.GetOperator(t.Context(), "prod", id); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("an expired nonce left a record (%v)", err)
	}
}

func TestTwoRacingOperators(t *testing.T) {
	for range 10 {
		w := newTestLeader(t)
		nonce, id := w.operatorNonce(t)
		keys := []ed25519.PrivateKey{transporttest.NewKey(t), transporttest.NewKey(t)}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() { _, errs[i] = w.registerOperator(nonce, keys[i]) })
		}
		wg.Wait()
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		wants(t, "the loser", errs[1-winner], codes.PermissionDenied, "another key")
		rec, _, err := w.Bucket.GetOperator(t.Context(), "prod", id)
		if errs[winner] != nil || err != nil || !bytes.Equal(rec.PublicKey, transporttest.Public(keys[winner])) {
			t.Errorf("%v %v", errs[winner], err)
		}
	}
}

func FuzzRegisterAgent(f *testing.F) {
	w := newTestLeader(f)
	id := w.Created(f)
	good := w.nonce(f, id, nil)
	f.Add(good+"x", []byte("0123456789012345678901234567890"), "10.0.0.1", "::1", "a.b")
	f.Add("", []byte{}, "300.0.0.1", "::ffff:1.2.3.4", "..")
	f.Fuzz(func(t *testing.T, nonce string, key []byte, ipv4, ipv6, hostname string) {
		_, err := w.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: strings.ToValidUTF8(nonce,
			""), PublicKey: key,
			Ipv4: strings.ToValidUTF8(ipv4, ""), Ipv6: strings.ToValidUTF8(ipv6, ""),
			Hostname: strings.ToValidUTF8(hostname, "")})
		if code := status.Code(err); code != codes.InvalidArgument && code != codes.Unauthenticated &&
			code != codes.ResourceExhausted && nonce != good {
			t.Errorf("%v", err)
		}
	})
}

// BenchmarkRegisterAgent measures registrations. Each one uses a separate connection, as in production. Client and
// server share the process.
func BenchmarkRegisterAgent(b *testing.B) {
	w := newTestLeader(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		nonce, key := w.nonce(b, w.Created(b), nil), transporttest.NewKey(b)
		b.StartTimer()
		conn, err := grpc.NewClient("passthrough:///"+w.addr, grpc.WithTransportCredentials(
			credentials.NewTLS(w.ClientTLS(nil))), grpc.WithNoProxy())
		if err != nil {
			b.Fatal(err)
		}
		_, err = nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(b.Context(),
			&nstancev1.RegisterAgentRequest{Nonce: nonce, PublicKey: transporttest.Public(key), Ipv4: "10.1.2.3"})
		if err != nil {
			b.Fatal(err)
		}
		conn.Close()
	}
}

// TestOddClaimsDoNotPreventRegistration sends host names and addresses that are not valid. They are optional and not
// recorded, so the agent must be registered.
func TestOddClaimsDoNotPreventRegistration(t *testing.T) {
	w := newTestLeader(t)
	for name, change := range map[string]func(*nstancev1.RegisterAgentRequest){
		"ipv4":           func(r *nstancev1.RegisterAgentRequest) { r.Ipv4 = "::1" },
		"ipv6":           func(r *nstancev1.RegisterAgentRequest) { r.Ipv6 = "fe80::1%eth0" },
		"host name":      func(r *nstancev1.RegisterAgentRequest) { r.Hostname = "a b" },
		"long host name": func(r *nstancev1.RegisterAgentRequest) { r.Hostname = strings.Repeat("a", 5000) },
	} {
		req := &nstancev1.RegisterAgentRequest{Nonce: w.nonce(t, w.Created(t), nil),
			PublicKey: transporttest.Public(transporttest.NewKey(t))}
		change(req)
		if _, err := w.client.RegisterAgent(t.Context(), req); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
