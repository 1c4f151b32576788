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
	"time"

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
	create func(ident.ID) infra.VM
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
	thief := &Thief{leader: w, create: create}
	leader := &registerapi.Registrar{Context: w.Context, Cluster: w.Name, Shard: "a", Term: w.Term(),
		Incarnation: leadertest.Incarnation, State: w.State, Records: w.Executor, Store: w.Bucket,
		NonceKeys: w.NonceKey.Accepted(), Issuer: w.Issuer(),
		Addresses: &vmaddress.Checker{State: w.State, Enabled: func() bool { return true }, Now: w.Clock.Now},
		Attest:    attest, Attested: func() bool { return true }, Record: func(e record.Event) {
			thief.mu.Lock()
			defer thief.mu.Unlock()
			thief.events = append(thief.events, e)
		}}
	service := &registerapi.Service{Now: w.Clock.Now, Log: thief.logs.Logger(),
		Leader: func() (*registerapi.Registrar, error) { return leader, nil }}
	thief.client = nstancev1.NewRegistrationServiceClient(w.Dial(t, w.Serve(t, "", func(s *grpc.Server) {
		nstancev1.RegisterRegistrationServiceServer(s, service)
	}), nil))
	thief.Victim, thief.Own = thief.made(t, w.NewID(t, "knd")), thief.made(t, w.NewID(t, "knd"))
	thief.nonce = thief.mint(t, func(s *authority.NonceSpec) { s.ID = thief.Victim.Tags.Instance })
	return thief
}

// made makes the VM of an instance.
func (thief *Thief) made(t *testing.T, id ident.ID) infra.VM {
	t.Helper()
	vm := thief.create(thief.leader.CreatedAs(t, id))
	vm.State, vm.Addresses = infra.Running, []string{"127.0.0.1"} // so that the check of addresses never refuses
	thief.leader.State.Answered(id, vm, thief.leader.Clock.Now())
	return vm
}

func (thief *Thief) mint(t *testing.T, change func(*authority.NonceSpec)) string {
	t.Helper()
	w := thief.leader
	spec := authority.NonceSpec{Role: authority.RoleAgent, Cluster: w.Name, Tenant: leadertest.Group.Tenant, Shard: "a",
		Group: leadertest.Group.Group, ConfigHash: "i1"}
	change(&spec)
	nonce, _, err := authority.MintNonce(w.NonceKey, spec, rand.Reader, w.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	return nonce.Reveal()
}

// Register registers the victim's instance with a proof and a new key.
func (thief *Thief) Register(t *testing.T, proof []byte) error {
	t.Helper()
	return thief.register(t, thief.nonce, thief.Victim, proof)
}

// register registers the instance of a VM with a nonce, a proof and a new key.
func (thief *Thief) register(t *testing.T, nonce string, vm infra.VM, proof []byte) error {
	t.Helper()
	_, err := thief.client.RegisterAgent(t.Context(), &nstancev1.RegisterAgentRequest{Nonce: nonce,
		InstanceId: vm.Tags.Instance.String(), PublicKey: transporttest.Public(transporttest.NewKey(t)),
		Attestation: proof})
	return err
}

// Batch checks the nonce that all VMs of a batch have. With it, each VM can register once, as its own instance only.
// The function prove returns the proof of a VM.
func (thief *Thief) Batch(t *testing.T, prove func(infra.VM) []byte) {
	t.Helper()
	batch := thief.leader.NewID(t, "knd").Batch()
	var vms []infra.VM
	for n := range 3 {
		id, _ := batch.Member(n)
		vms = append(vms, thief.made(t, id))
	}
	victim, own, late := vms[0], vms[1], vms[2]
	nonce := thief.mint(t, func(s *authority.NonceSpec) { s.Batch = batch })
	check := func(name string, vm infra.VM, proof []byte, code codes.Code, reason string) {
		t.Helper()
		err := thief.register(t, nonce, vm, proof)
		if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), reason) {
			t.Errorf("%s: %v, want %s with %q", name, err, code, reason)
		}
	}
	check("without a proof", victim, nil, codes.Unavailable, "the agent sent no")
	check("from another VM of the batch", victim, prove(own), codes.PermissionDenied, "")
	check("from a VM of no batch", victim, prove(thief.Own), codes.PermissionDenied, "")
	check("as an instance of no batch", thief.Own, prove(thief.Own), codes.PermissionDenied, "is no instance of batch")
	if rec := thief.leader.Stored(t, victim.Tags.Instance); rec.State != record.Created {
		t.Fatalf("the record is %s, so the instance was taken", rec.State)
	}
	check("as its own instance", own, prove(own), codes.OK, "")
	check("a second time", own, prove(own), codes.PermissionDenied, "registered with another key or nonce")
	check("the victim", victim, prove(victim), codes.OK, "")
	thief.leader.Clock.Advance(time.Hour)
	check("after its time", late, prove(late), codes.Unauthenticated, "expired")
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
