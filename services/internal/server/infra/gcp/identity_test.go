package gcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

// engine returns the claim google.compute_engine of a VM's identity token.
func engine(vm infra.VM) map[string]any {
	return map[string]any{"instance_id": vm.ProviderID, "project_id": project, "zone": zone}
}

// claims returns the claims of a VM's identity token. change may modify them.
func (c *testCloud) claims(vm infra.VM, change map[string]any) jwt.MapClaims {
	all := jwt.MapClaims{"iss": "https://accounts.google.com", "aud": "nstance:" + vm.Tags.Instance.String(),
		"iat": c.now().Unix(), "exp": c.now().Add(time.Hour).Unix(),
		"google": map[string]any{"compute_engine": engine(vm)}}
	maps.Copy(all, change)
	return all
}

// proof returns a VM's identity token, signed with Google's key. change may modify its claims.
func (c *testCloud) proof(vm infra.VM, change map[string]any) []byte {
	c.t.Helper()
	text, err := credentials.SignIdentity(c.claims(vm, change))
	if err != nil {
		c.t.Fatal(err)
	}
	return []byte(text)
}

// unsigned returns an identity token without a valid signature.
func (c *testCloud) unsigned(vm infra.VM, method jwt.SigningMethod, key any) []byte {
	c.t.Helper()
	token := jwt.NewWithClaims(method, c.claims(vm, nil))
	token.Header["kid"] = "key-1"
	text, err := token.SignedString(key)
	if err != nil {
		c.t.Fatal(err)
	}
	return []byte(text)
}

// TestAttest checks that Attest accepts only a fresh identity token of the VM. The token must be for the instance's
// audience, and signed with a key of Google.
func TestAttest(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm, other := c.create(p, c.request()), c.create(p, c.request())
	if err := p.Attest(t.Context(), c.proof(vm, nil), vm); err != nil {
		t.Errorf("its own proof is refused: %v", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	credentials.IdentityKeys(answer, nil)
	var published map[string]string
	if err := json.Unmarshal(answer.Body.Bytes(), &published); err != nil {
		t.Fatal(err)
	}
	compute := func(name string, value any) map[string]any {
		claims := engine(vm)
		claims[name] = value
		return map[string]any{"google": map[string]any{"compute_engine": claims}}
	}
	for _, test := range []struct {
		name  string
		proof []byte
		vm    infra.VM
		class infra.Class
		want  string
	}{
		{"no proof", nil, vm, infra.Denied, "the agent sent no gcp-identity-token"},
		{"the proof of another VM", c.proof(vm, nil), other, infra.Denied, "invalid audience"},
		{"another VM with this instance's audience", c.proof(vm, compute("instance_id", other.ProviderID)), vm,
			infra.Denied, "the proof is for instance"},
		{"another project", c.proof(vm, compute("project_id", "q")), vm, infra.Denied, "the proof is for project"},
		{"another zone", c.proof(vm, compute("zone", "us-central1-b")), vm, infra.Denied, "the proof is for zone"},
		{"without claims about the VM", c.proof(vm, map[string]any{"google": nil}), vm, infra.Denied,
			"the proof is for instance"},
		{"for another service", c.proof(vm, map[string]any{"aud": "https://example.com"}), vm, infra.Denied,
			"invalid audience"},
		{"expired", c.proof(vm, map[string]any{"exp": c.now().Add(-2 * time.Minute).Unix()}), vm, infra.Denied,
			"expired"},
		{"without an end", c.proof(vm, map[string]any{"exp": nil}), vm, infra.Denied, "exp"},
		{"of another issuer", c.proof(vm, map[string]any{"iss": "https://example.com"}), vm, infra.Denied,
			"invalid issuer"},
		{"signed by another key", c.unsigned(vm, jwt.SigningMethodRS256, key), vm, infra.Denied, "signature"},
		{"signed with the public key as a secret", c.unsigned(vm, jwt.SigningMethodHS256, []byte(published["key-1"])),
			vm, infra.Denied, "signing method HS256 is invalid"},
		{"not signed", c.unsigned(vm, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType), vm, infra.Denied,
			"signing method none is invalid"},
		{"with an unknown key", bytes.Replace(c.proof(vm, nil), []byte("eyJhbGci"), []byte("eyJhbGcj"), 1), vm,
			infra.Denied, "verify the identity token"},
		{"not a token", []byte("§"), vm, infra.Denied, "verify the identity token"},
		{"too long", bytes.Repeat([]byte("A"), 9000), vm, infra.Denied, "at most 8192"},
		{"a VM that is not known yet", c.proof(vm, nil), infra.VM{}, infra.NotFound, "not known yet"},
	} {
		wantClass(t, test.name, p.Attest(t.Context(), test.proof, test.vm), test.class, test.want)
	}
	if n := c.keyReads.Load(); n != 1 {
		t.Errorf("the keys were read %d times, want 1", n)
	}
}

// TestAttestKeysExpire checks that Google's keys are read again when they expire. If reads fail, at most one read
// starts per keysPause. Attest then fails as Indeterminate instead of Denied, so that the agent tries again.
func TestAttestKeysExpire(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.create(p, c.request())
	c.noKeys.Store(true)
	for range 3 {
		wantClass(t, "the keys cannot be read", p.Attest(t.Context(), c.proof(vm, nil), vm), infra.Indeterminate,
			"read Google's keys", "503")
	}
	if n := c.keyReads.Load(); n != 1 {
		t.Errorf("the keys were asked for %d times within %s, want 1", n, keysPause)
	}
	c.noKeys.Store(false)
	for _, test := range []struct {
		after time.Duration
		reads int64
	}{{keysPause, 2}, {5 * time.Hour, 2}, {2 * time.Hour, 3}} { // the fake's keys expire after 6 hours
		c.ahead.Add(int64(test.after))
		if err := p.Attest(t.Context(), c.proof(vm, nil), vm); err != nil {
			t.Errorf("after %s: %v", test.after, err)
		}
		if n := c.keyReads.Load(); n != test.reads {
			t.Errorf("after %s the keys were read %d times, want %d", test.after, n, test.reads)
		}
	}
}

// FuzzParseToken checks that no bytes crash the parser of identity tokens, and that it accepts no unsigned token.
func FuzzParseToken(f *testing.F) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		f.Fatal(err)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"iss": issuer, "aud": "a", "exp": 1e10})
	token.Header["kid"] = "1"
	good, err := token.SignedString(key)
	if err != nil {
		f.Fatal(err)
	}
	keys := map[string]*rsa.PublicKey{"1": &key.PublicKey}
	if _, err := parseToken([]byte(good), keys, "a", time.Now); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(good))
	f.Add([]byte(strings.Replace(good, ".", "..", 1)))
	f.Add([]byte("e30.e30.e30"))
	signed := good[:strings.LastIndexByte(good, '.')]
	f.Fuzz(func(t *testing.T, proof []byte) {
		if _, err := parseToken(proof, keys, "a", time.Now); err == nil && !bytes.HasPrefix(proof, []byte(signed)) {
			t.Errorf("accepted %q", proof)
		}
	})
}

// FuzzParseKeys checks that no bytes crash the parser of Google's keys.
func FuzzParseKeys(f *testing.F) {
	answer := httptest.NewRecorder()
	credentials.IdentityKeys(answer, nil)
	f.Add(answer.Body.Bytes())
	f.Add([]byte(`{"1": "-----BEGIN CERTIFICATE-----"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if keys, err := parseKeys(body); (err == nil) != (len(keys) > 0) {
			t.Errorf("%d keys, %v", len(keys), err)
		}
	})
}

// TestAttestKeysOutliveTheirCaller ends the first call that needs Google's keys before they are read, as a client does
// that hangs up. The next call must get the keys.
func TestAttestKeysOutliveTheirCaller(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.create(p, c.request())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_ = p.Attest(canceled, c.proof(vm, nil), vm) // nobody waits for its result
	if err := p.Attest(t.Context(), c.proof(vm, nil), vm); err != nil {
		t.Errorf("after a client that hung up: %v", err)
	}
}
