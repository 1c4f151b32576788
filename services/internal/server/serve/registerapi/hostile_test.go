package registerapi_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// In the tests of this file, a process on one VM has stolen the nonce of another VM and tries to register with it.

// dialFrom returns a client that calls from the given address of this machine.
func (l *testLeader) dialFrom(t *testing.T, addr string) nstancev1.RegistrationServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+l.addr, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(l.ClientTLS(nil))),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
			return dialer.DialContext(ctx, "tcp", to)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return nstancev1.NewRegistrationServiceClient(conn)
}

// located returns an instance whose VM, according to the provider, has the given state and addresses.
func (l *testLeader) located(t *testing.T, state infra.State, addresses ...string) ident.ID {
	t.Helper()
	id := l.Created(t)
	l.State.Answered(id, infra.VM{ProviderID: "vm-" + id.String(), State: state, Addresses: addresses,
		LaunchedAt: l.Clock.Now()}, l.Clock.Now())
	return id
}

func TestHostileRegistrationFromAnotherAddress(t *testing.T) {
	for _, test := range []struct {
		name      string
		state     infra.State
		addresses []string
		from      string
		asked     []string // the addresses that the provider tells when it is asked
		unchecked bool     // check_registration_address is false
		code      codes.Code
		message   string
	}{
		{name: "from another address", state: infra.Running, addresses: []string{"10.1.2.3", "127.0.0.2"},
			from: "127.0.0.3", code: codes.PermissionDenied, message: "127.0.0.3 is not an address of its VM"},
		{name: "before the provider knows all addresses", state: infra.Pending, addresses: []string{"10.1.2.3"},
			from: "127.0.0.3", code: codes.Unavailable, message: "127.0.0.3 is not an address of its VM so far"},
		{name: "from its own address", state: infra.Running, addresses: []string{"10.1.2.3", "127.0.0.2"},
			from: "127.0.0.2"},
		{name: "addresses are unknown", state: infra.Running, from: "127.0.0.3"},
		{name: "only the provider knows the address", state: infra.Running, asked: []string{"127.0.0.2"},
			from: "127.0.0.2"},
		{name: "only the provider knows another address", state: infra.Running, asked: []string{"127.0.0.2"},
			from: "127.0.0.3", code: codes.PermissionDenied, message: "127.0.0.3 is not an address of its VM"},
		{name: "the check is off", state: infra.Running, addresses: []string{"10.1.2.3"}, from: "127.0.0.3",
			unchecked: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, logs := newTestLeader(t), &transporttest.Logs{}
			w.service.Log = logs.Logger()
			w.checkAddress.Store(!test.unchecked)
			id, key := w.located(t, test.state, test.addresses...), transporttest.NewKey(t)
			w.ask = func(id ident.ID) {
				w.State.Answered(id, infra.VM{ProviderID: "vm-" + id.String(), State: test.state,
					Addresses: test.asked, LaunchedAt: w.Clock.Now()}, w.Clock.Now())
			}
			_, err := w.dialFrom(t, test.from).RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{
				Nonce: w.nonce(t, id, nil), PublicKey: transporttest.Public(key)})
			about := []string{"client=" + id.String(), "tenant=prod", "role=agent", "source=" + test.from}
			if test.code == codes.OK {
				if err != nil {
					t.Fatal(err)
				}
				if len(logs.Lines(append(about, "level=INFO", "msg=registered")...)) != 1 {
					t.Error("the registration is not in the log")
				}
				return
			}
			wants(t, test.name, err, test.code, test.message)
			if rec := w.Stored(t, id); rec.State != record.Created {
				t.Errorf("the record is %s, want created: the nonce was consumed", rec.State)
			}
			if view, _ := w.State.Instance(id); !strings.Contains(view.Plan.Refused, test.message) {
				t.Errorf("the leader knows the refusal as %q", view.Plan.Refused)
			}
			refused := logs.Lines(append(about, "level=WARN", `msg="registration refused"`, test.message)...)
			if want := test.code == codes.PermissionDenied; (len(refused) == 1) != want {
				t.Errorf("the log has %d refusals", len(refused))
			}
		})
	}
}

// TestHostileNonceIsLogged checks that a registration with a bad nonce is logged with the client's address.
func TestHostileNonceIsLogged(t *testing.T) {
	w, logs := newTestLeader(t), &transporttest.Logs{}
	w.service.Log = logs.Logger()
	_, err := w.register(strings.Repeat("x", 100), transporttest.NewKey(t))
	wants(t, "nonsense", err, codes.InvalidArgument, "nonce: ")
	if len(logs.Lines("level=WARN", `msg="registration refused"`, "source=127.0.0.1", "nonce: ")) != 1 {
		t.Error("the refusal is not in the log")
	}
	if have := w.journal(); len(have) != 0 {
		t.Errorf("anybody can write to the journal: %+v", have)
	}
}

// TestHostileClaimsAreNotRecorded checks that the record has the addresses and the host name of the provider, whatever
// the agent says.
func TestHostileClaimsAreNotRecorded(t *testing.T) {
	w := newTestLeader(t)
	id := w.Created(t)
	w.State.Answered(id, infra.VM{ProviderID: "vm-" + id.String(), State: infra.Running, IPv4: "10.1.2.3",
		IPv6: "2001:DB8::3", Hostname: "ip-10-1-2-3.ec2.internal"}, w.Clock.Now())
	if _, err := w.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: w.nonce(t, id, nil),
		PublicKey: transporttest.Public(transporttest.NewKey(t)), Hostname: "api.example.internal", Ipv4: "192.0.2.66",
		Ipv6: "2001:db8::66"}); err != nil {
		t.Fatal(err)
	}
	rec := w.Stored(t, id)
	if rec.IPv4 != "10.1.2.3" || rec.IPv6 != "2001:db8::3" || rec.Hostname != "ip-10-1-2-3.ec2.internal" {
		t.Errorf("the record has %s, %s and %s, want what the provider says", rec.IPv4, rec.IPv6, rec.Hostname)
	}
}

// TestHostileRegistrationWithoutProof checks registrations under a configuration that requires a proof of the VM. The
// nonce and the address are right in every case.
func TestHostileRegistrationWithoutProof(t *testing.T) {
	for _, test := range []struct {
		name    string
		proof   string
		refusal error
		code    codes.Code
		message string
	}{
		{name: "the right proof", proof: "right"},
		{name: "the proof of another VM", proof: "wrong", code: codes.PermissionDenied, message: "for another VM",
			refusal: infra.Errorf(infra.Denied, "attest", "the proof is for another VM")},
		{name: "no proof", code: codes.Unavailable, message: "sent no proof",
			refusal: infra.Errorf(infra.Denied, "attest", "the agent sent no proof")},
		{name: "the VM is not known yet", proof: "right", code: codes.Unavailable, message: "try again",
			refusal: infra.Errorf(infra.NotFound, "attest", "the VM is not known yet")},
		{name: "the cloud's keys cannot be read", proof: "right", code: codes.Unavailable, message: "try again",
			refusal: errors.New("read Google's keys: timeout")},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, logs := newTestLeader(t), &transporttest.Logs{}
			w.service.Log = logs.Logger()
			id := w.located(t, infra.Running, "127.0.0.1")
			w.leader.Attest = func(_ context.Context, proof []byte, vm infra.VM) error {
				if string(proof) != test.proof || vm.ProviderID != "vm-"+id.String() {
					t.Errorf("asked to attest %q for %s", proof, vm.ProviderID)
				}
				return test.refusal
			}
			_, err := w.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: w.nonce(t, id, nil),
				PublicKey: transporttest.Public(transporttest.NewKey(t)), Attestation: []byte(test.proof)})
			if test.code == codes.OK {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wants(t, test.name, err, test.code, test.message)
			if rec := w.Stored(t, id); rec.State != record.Created {
				t.Errorf("the record is %s, want created: the nonce was consumed", rec.State)
			}
			refused := logs.Lines("level=WARN", `msg="registration refused"`, "client="+id.String(), test.message)
			if want := test.code == codes.PermissionDenied || test.proof == ""; (len(refused) == 1) != want {
				t.Errorf("the log has %d refusals", len(refused))
			}
		})
	}
}

// TestRoleOfANonce checks that an operator gets the role in its nonce, and that without one it gets the default.
func TestRoleOfANonce(t *testing.T) {
	w := newTestLeader(t)
	for _, role := range []record.OperatorRole{"", record.RoleViewer, record.RoleOperator, record.RoleAdmin} {
		nonce, claims, err := authority.MintNonce(w.NonceKey, authority.NonceSpec{Role: authority.RoleOperator,
			Cluster: w.Name, Tenant: "prod", OperatorRole: role}, rand.Reader, w.Clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.registerOperator(nonce.Reveal(), transporttest.NewKey(t)); err != nil {
			t.Fatal(err)
		}
		rec, _, err := w.Bucket.GetOperator(t.Context(), "prod", claims.ID)
		if want := cmp.Or(role, record.RoleOperator); err != nil || cmp.Or(rec.Role, record.RoleOperator) != want {
			t.Errorf("a nonce with the role %q: the record has %q, %v", role, rec.Role, err)
		}
	}
	for name, spec := range map[string]authority.NonceSpec{
		"unknown role": {Role: authority.RoleOperator, Cluster: w.Name, Tenant: "prod", OperatorRole: "root"},
		"agent with a role": {Role: authority.RoleAgent, Cluster: w.Name, Tenant: "prod", ID: w.NewID(t, "knd"),
			Shard: "a", Group: "workers", OperatorRole: record.RoleAdmin},
	} {
		if _, _, err := authority.MintNonce(w.NonceKey, spec, rand.Reader, w.Clock.Now()); err == nil {
			t.Errorf("%s: a nonce was made", name)
		}
	}
}

// TestKeyOfAnotherInstance checks that two instances never get certificates for the same key, as after a copy of a disk,
// and that the refused agent can register with another key and the same nonce.
func TestKeyOfAnotherInstance(t *testing.T) {
	w := newTestLeader(t)
	first, second := w.located(t, infra.Running, "127.0.0.1"), w.located(t, infra.Running, "127.0.0.1")
	key := transporttest.Public(transporttest.NewKey(t))
	if _, err := w.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: w.nonce(t, first, nil),
		PublicKey: key}); err != nil {
		t.Fatal(err)
	}
	nonce := w.nonce(t, second, nil)
	_, err := w.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: nonce, PublicKey: key})
	wants(t, "the same key", err, codes.AlreadyExists, "is the key of instance "+first.String())
	const why = "public_key: is the key of instance "
	if view, _ := w.State.Instance(second); !strings.HasPrefix(view.Plan.Refused, why) ||
		!strings.HasSuffix(view.Plan.Refused, ", from 127.0.0.1") {
		t.Errorf("the leader knows the refusal as %q", view.Plan.Refused)
	}
	if have := w.journal(); len(have) != 1 || have[0].Instance != second.String() ||
		!strings.HasPrefix(have[0].Message, why) {
		t.Errorf("the journal has %+v", have)
	}
	if _, err := w.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: nonce,
		PublicKey: transporttest.Public(transporttest.NewKey(t))}); err != nil {
		t.Errorf("another key: %v", err)
	}
	if view, _ := w.State.Instance(second); view.Plan.Refused != "" {
		t.Errorf("a registered agent counts as refused: %s", view.Plan.Refused)
	}
}
