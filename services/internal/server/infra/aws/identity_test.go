package aws_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
)

// proof returns the signed identity document of an instance.
func (r *testCloud) proof(id string) []byte {
	r.t.Helper()
	text, ok := r.cloud.EC2().Metadata(id, "dynamic/instance-identity/rsa2048")
	if !ok {
		r.t.Fatalf("%s has no signed identity document", id)
	}
	return []byte(text)
}

// requireProof configures a provider to require a proof that was signed with the key of one of the given certificates.
func requireProof(p *aws.Provider, certificates string) {
	p.Configure(&config.Shard{Server: config.Server{Provider: config.Provider{Region: region},
		Attestation: &config.Attestation{Method: "aws-iid", Certificates: certificates}}})
}

func TestAttest(t *testing.T) {
	r := newTestCloud(t)
	p := r.open(nil)
	requireProof(p, r.cloud.EC2().IdentityCertificate())
	vm, other := r.create(p), r.create(p)
	if vm.Account == "" {
		t.Error("the answer of a create does not name the account")
	}
	if got, err := p.Get(t.Context(), vm.ProviderID); err != nil || got.Account != vm.Account {
		t.Errorf("a look-up names the account %q (%v), want %q", got.Account, err, vm.Account)
	}
	proof := r.proof(vm.ProviderID)
	if err := p.Attest(t.Context(), proof, vm); err != nil {
		t.Errorf("its own proof is refused: %v", err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(proof), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	forged := base64.StdEncoding.EncodeToString(bytes.ReplaceAll(raw, []byte(vm.ProviderID), []byte(other.ProviderID)))
	elsewhere := newTestCloud(t) // has another key
	foreign := elsewhere.create(elsewhere.open(nil))
	foreignVM := vm
	foreignVM.ProviderID = foreign.ProviderID
	account, unknown, unnamed := vm, vm, vm
	account.Account, unknown.Account, unnamed.ProviderID = "999999999999", "", ""
	for _, c := range []struct {
		name  string
		proof []byte
		vm    infra.VM
		class infra.Class
		want  string
	}{
		{"no proof", nil, vm, infra.Denied, "the agent sent no aws-iid"},
		{"the proof of another VM", proof, other, infra.Denied, "the proof is for instance"},
		{"a VM of another account", proof, account, infra.Denied, "the proof is for account"},
		{"a changed document", []byte(forged), other, infra.Denied, "verify the signature"},
		{"signed by another key", elsewhere.proof(foreign.ProviderID), foreignVM, infra.Denied, "verify the signature"},
		{"not base64", []byte("§"), vm, infra.Denied, "not base64"},
		{"not PKCS #7", []byte("AAAA"), vm, infra.Denied, "not PKCS #7"},
		{"too long", bytes.Repeat([]byte("A"), 9000), vm, infra.Denied, "at most 8192"},
		{"a VM that is not known yet", proof, unknown, infra.NotFound, "not known yet"},
		{"a VM without an ID", proof, unnamed, infra.NotFound, "not known yet"},
	} {
		wantClass(t, c.name, p.Attest(t.Context(), c.proof, c.vm), c.class, c.want)
	}
	p.Configure(&config.Shard{Server: config.Server{Provider: config.Provider{Region: "eu-central-1"},
		Attestation: &config.Attestation{Method: "aws-iid", Certificates: r.cloud.EC2().IdentityCertificate()}}})
	wantClass(t, "another region", p.Attest(t.Context(), proof, vm), infra.Denied, "the proof is for region")
	p.Configure(&config.Shard{})
	wantClass(t, "no certificates", p.Attest(t.Context(), proof, vm), infra.Denied, "verify the signature")
}

// FuzzAttest checks that no bytes crash the parser of proofs, and that only a document with the right signature passes.
func FuzzAttest(f *testing.F) {
	r := newTestCloud(f)
	p := r.open(nil)
	requireProof(p, r.cloud.EC2().IdentityCertificate())
	vm := r.create(p)
	proof := r.proof(vm.ProviderID)
	raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(proof), "\n", ""))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Add([]byte{0x30, 0x80, 6, 9, 42, 0x86, 0x48, 0x86, 0xf7, 13, 1, 7, 2, 0xa0, 0x80, 0, 0, 0, 0})
	f.Add(bytes.Repeat([]byte{0x30, 8, 0x30, 2}, 1500)) // the children of an object end behind it
	f.Add([]byte{0x30, 0x84, 0, 0, 0, 3, 4, 0x81, 0})   // lengths of four bytes, and at the end of the object
	f.Fuzz(func(t *testing.T, der []byte) {
		stranger := vm
		stranger.ProviderID = "i-00000000000000000"
		text := []byte(base64.StdEncoding.EncodeToString(der))
		if p.Attest(t.Context(), text, stranger) == nil {
			t.Errorf("a proof for an instance that does not exist passes: %x", der)
		}
		if p.Attest(t.Context(), text, vm) == nil && !bytes.Contains(der, []byte(vm.ProviderID)) {
			t.Errorf("a proof without the instance's ID passes: %x", der)
		}
	})
}
