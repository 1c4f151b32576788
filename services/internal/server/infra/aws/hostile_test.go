package aws_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/attesttest"
)

// TestHostileRegistrationsWithIdentityDocuments acts as a process that stole another VM's nonce. It tries to register
// with several identity documents of EC2.
func TestHostileRegistrationsWithIdentityDocuments(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	requireProof(p, r.cloud.EC2().IdentityCertificate())
	thief := attesttest.New(t, p.Attest, func(id ident.ID) infra.VM {
		req := r.request()
		req.Tags.Instance = id
		vm, err := p.Create(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return vm
	})
	victim, own := thief.Victim.ProviderID, thief.Own.ProviderID
	raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(r.proof(own)), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	forged := base64.StdEncoding.EncodeToString(bytes.ReplaceAll(raw, []byte(own), []byte(victim)))
	elsewhere := newTestCloud(t) // has another key
	foreign := elsewhere.create(elsewhere.open(nil))
	for _, test := range []struct {
		name, reason string
		proof        []byte
	}{
		{"without a document", "the agent sent no", nil},
		{"with its own VM's document", "the proof is for instance", r.proof(own)},
		{"with its own VM's document that names the victim", "verif", []byte(forged)},
		{"with a document that AWS has not signed", "verif", elsewhere.proof(foreign.ProviderID)},
	} {
		thief.Refused(t, test.name, test.proof, test.reason)
	}
	thief.Accepted(t, r.proof(victim))
	thief.Batch(t, func(vm infra.VM) []byte { return r.proof(vm.ProviderID) })
}
