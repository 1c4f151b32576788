// Package attesttest tests how a provider checks the proof that an agent runs on its instance's VM. It sends wrong
// proofs to a real registration port, which must refuse them.
package attesttest

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
)

// Thief is a process that has stolen the nonce of a victim's VM. It calls the registration port of a leader that uses
// the cloud's provider, from an address of the victim's VM.
type Thief struct {
	// Victim is the VM whose nonce the thief has stolen. Own is the VM on which the thief runs.
	Victim, Own infra.VM

	leader *leadertest.Leader
	client nstancev1.RegistrationServiceClient
	nonce  string
	logs   transporttest.Logs

	mu     sync.Mutex
	events []record.Event
}

// New makes two VMs, and a leader that checks proofs with the function attest. The function create makes the VM of an
// instance.
func New(t *testing.T, attest func(context.Context, []byte, infra.VM) error, create func(ident.ID) infra.VM) *Thief {
	t.Helper()
	w := leadertest.New(t, config.Group{Template: "worker", Kind: "knd", Size: 2, RuntimeHash: "r1", InfraHash: "i1"})
	thief := &Thief{leader: w}
	leader := &registerapi.Registrar{Context: w.Context, Cluster: w.Name, Shard: "a", Term: w.Term(),
		Incarnation: leadertest.Incarnation, State: w.State, Records: w.Executor, Store: w.Bucket,
		NonceKeys: w.NonceKey.Accepted(), Issuer: w.Issuer(),
		Addresses: &vmaddress.Checker{State: w.State, Enabled: func() bool { return true }, Now: w.Clock.Now},
		Attest:    attest, Record: func(e record.Event) {
			thief.mu.Lock()
			defer thief.mu.Unlock()
			thief.events = append(thief.events, e)
		}}
	service := &registerapi.Service{Now: w.Clock.Now, Log: thief.logs.Logger(),
		Leader: func() (*registerapi.Registrar, error) { return leader, nil }}
	thief.client = nstancev1.NewRegistrationServiceClient(w.Dial(t, w.Serve(t, "", func(s *grpc.Server) {
		nstancev1.RegisterRegistrationServiceServer(s, service)
	}), nil))
	for _, vm := range []*infra.VM{&thief.Victim, &thief.Own} {
		id := w.Created(t)
		*vm = create(id)
		vm.State, vm.Addresses = infra.Running, []string{"127.0.0.1"} // so that the check of addresses never refuses
		w.State.Answered(id, *vm, w.Clock.Now())
	}
	nonce, _, err := authority.MintNonce(w.NonceKey, authority.NonceSpec{Role: authority.RoleAgent, Cluster: w.Name,
		Tenant: leadertest.Group.Tenant, ID: thief.Victim.Tags.Instance, Shard: "a", Group: leadertest.Group.Group,
		ConfigHash: "i1"}, rand.Reader, w.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	thief.nonce = nonce.Reveal()
	return thief
}

// Register registers the victim's instance with a proof and a new key.
func (thief *Thief) Register(t *testing.T, proof []byte) error {
	t.Helper()
	_, err := thief.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: thief.nonce,
		PublicKey: transporttest.Public(transporttest.NewKey(t)), Attestation: proof})
	return err
}

// Refused checks that a registration with the given proof is refused for the given reason, and does not consume the
// nonce. The log and the journal must contain the refusal with the client's address.
func (thief *Thief) Refused(t *testing.T, name string, proof []byte, reason string) {
	t.Helper()
	id := thief.Victim.Tags.Instance.String()
	want := codes.PermissionDenied
	if len(proof) == 0 {
		want = codes.Unavailable // an honest agent may get a proof in a moment
	}
	if err := thief.Register(t, proof); status.Code(err) != want || !strings.Contains(err.Error(), reason) {
		t.Errorf("%s: %v, want %s with %q", name, err, want, reason)
	}
	if lines := thief.logs.Lines("level=WARN", `msg="registration refused"`, "client="+id, "source=127.0.0.1",
		reason); len(lines) == 0 {
		t.Errorf("%s: the refusal is not in the log", name)
	}
	thief.mu.Lock()
	defer thief.mu.Unlock()
	if !slices.ContainsFunc(thief.events, func(e record.Event) bool {
		return e.Kind == record.EventRegistrationRefused && e.Instance == id && e.Actor == "127.0.0.1" &&
			strings.Contains(e.Message, reason)
	}) {
		t.Errorf("%s: the refusal is not in the journal", name)
	}
	if rec := thief.leader.Stored(t, thief.Victim.Tags.Instance); rec.State != record.Created {
		t.Fatalf("%s: the record is %s, so the nonce was consumed", name, rec.State)
	}
}

// Accepted checks that the victim's agent can still register with its own proof.
func (thief *Thief) Accepted(t *testing.T, proof []byte) {
	t.Helper()
	if err := thief.Register(t, proof); err != nil {
		t.Errorf("the VM's own proof is refused: %v", err)
	}
	if rec := thief.leader.Stored(t, thief.Victim.Tags.Instance); rec.State != record.Registered {
		t.Errorf("the record is %s, want registered", rec.State)
	}
}
