package registerapi_test

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// batchLeader is a leader that requires proofs. The proof of a VM is its provider ID. Its batch has the instances ids.
type batchLeader struct {
	*testLeader
	batch    ident.Batch
	ids      []ident.ID
	attested bool
}

func newBatchLeader(t *testing.T) *batchLeader {
	t.Helper()
	w := &batchLeader{testLeader: newTestLeader(t), attested: true}
	w.leader.Attested = func() bool { return w.attested }
	w.leader.Attest = func(_ context.Context, proof []byte, vm infra.VM) error {
		switch {
		case vm.ProviderID == "":
			return infra.Errorf(infra.NotFound, "attest", "the VM is not known yet")
		case string(proof) != vm.ProviderID:
			return infra.Errorf(infra.Denied, "attest", "the proof is for another VM")
		}
		return nil
	}
	w.checkAddress.Store(false)
	w.batch = w.NewID(t, "knd").Batch()
	for n := range 3 {
		id, _ := w.batch.Member(n)
		w.ids = append(w.ids, id)
		w.CreatedAs(t, id)
	}
	return w
}

func (w *batchLeader) nonceOfBatch(t *testing.T, change func(*authority.NonceSpec)) string {
	t.Helper()
	return w.nonce(t, ident.ID{}, func(s *authority.NonceSpec) {
		s.Batch = w.batch
		if change != nil {
			change(s)
		}
	})
}

func (w *batchLeader) as(nonce string, key ed25519.PrivateKey, id, proof string) error {
	_, err := w.client.RegisterAgent(context.Background(), &nstancev1.RegisterAgentRequest{Nonce: nonce,
		PublicKey: transporttest.Public(key), InstanceId: id, Attestation: []byte(proof)})
	return err
}

func (w *batchLeader) proof(id ident.ID) string {
	vm, _ := w.State.VM(id)
	return vm.ProviderID
}

// TestBatchNonce checks that each VM of a batch can register once with the nonce that all of them have, and only as its
// own instance.
func TestBatchNonce(t *testing.T) {
	w := newBatchLeader(t)
	nonce := w.nonceOfBatch(t, nil)
	a, b := w.ids[0], w.ids[1]
	keyA, keyB := transporttest.NewKey(t), transporttest.NewKey(t)

	wants(t, "without proof", w.as(nonce, keyA, a.String(), ""), codes.Unavailable, "")
	wants(t, "with the proof of another VM", w.as(nonce, keyA, a.String(), w.proof(b)), codes.PermissionDenied,
		"another VM")
	wants(t, "without ID", w.as(nonce, keyA, "", w.proof(a)), codes.PermissionDenied, "is no instance of batch")
	wants(t, "as the batch", w.as(nonce, keyA, w.batch.String(), w.proof(a)), codes.PermissionDenied,
		"is no instance of batch")
	other := w.Created(t)
	wants(t, "as an instance of no batch", w.as(nonce, keyA, other.String(), w.proof(other)), codes.PermissionDenied,
		"is no instance of batch")
	unmade, _ := w.batch.Member(7)
	wants(t, "as an ID without VM", w.as(nonce, keyA, unmade.String(), w.proof(a)), codes.NotFound, "there is no")

	for n, id := range w.ids {
		key := transporttest.NewKey(t)
		if n == 0 {
			key = keyA
		}
		if err := w.as(nonce, key, id.String(), w.proof(id)); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		rec := w.Stored(t, id)
		if rec.State != record.Registered || string(rec.PublicKey) != string(transporttest.Public(key)) {
			t.Errorf("%+v", rec)
		}
	}
	if err := w.as(nonce, keyA, a.String(), w.proof(a)); err != nil {
		t.Errorf("the agent did not get its answer and asks again: %v", err)
	}
	wants(t, "a second time, with another key", w.as(nonce, keyB, a.String(), w.proof(a)), codes.PermissionDenied,
		"registered with another key or nonce")
	wants(t, "with a key of another VM", w.as(w.nonceOfBatch(t, nil), keyA, b.String(), w.proof(b)),
		codes.PermissionDenied, "registered with another key or nonce")
}

// TestBatchNonceRefused checks when the nonce of a batch is not valid at all.
func TestBatchNonceRefused(t *testing.T) {
	w := newBatchLeader(t)
	id, key := w.ids[0], transporttest.NewKey(t)
	nonce := w.nonceOfBatch(t, nil)
	w.attested = false
	wants(t, "without attestation", w.as(nonce, key, id.String(), w.proof(id)), codes.PermissionDenied,
		"server.attestation")
	w.attested = true
	attest := w.leader.Attest
	w.leader.Attest = func(context.Context, []byte, infra.VM) error { w.attested = false; return nil }
	wants(t, "attestation ends meanwhile", w.as(nonce, key, id.String(), ""), codes.PermissionDenied,
		"server.attestation")
	w.leader.Attest, w.attested = attest, true

	wants(t, "of another group", w.as(w.nonceOfBatch(t, func(s *authority.NonceSpec) { s.Group = "others" }), key,
		id.String(), w.proof(id)), codes.PermissionDenied, "is for group")
	wants(t, "of another shard", w.as(w.nonceOfBatch(t, func(s *authority.NonceSpec) { s.Shard = "b" }), key,
		id.String(), w.proof(id)), codes.PermissionDenied, "is for shard")
	w.Clock.Advance(time.Hour)
	wants(t, "after its time", w.as(nonce, key, id.String(), w.proof(id)), codes.Unauthenticated, "expired")
	if rec := w.Stored(t, id); rec.State != record.Created {
		t.Errorf("the record is %s", rec.State)
	}
}
