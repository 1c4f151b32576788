package gcp

import (
	"crypto/rand"
	"crypto/rsa"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/attesttest"
)

// TestHostileRegistrationsWithIdentityTokens acts as a process that stole the nonce of another VM. The process tries to
// register with several identity tokens.
func TestHostileRegistrationsWithIdentityTokens(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	thief := attesttest.New(t, p.Attest, func(id ident.ID) infra.VM {
		req := c.request()
		req.Tags.Instance = id
		return c.create(p, req)
	})
	victim, own := thief.Victim, thief.Own
	forger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, reason string
		proof        []byte
	}{
		{"without a token", "the agent sent no gcp-identity-token", nil},
		{"with its own VM's token", "invalid audience", c.proof(own, nil)},
		{"with a token that its own VM got for the victim's audience", "the proof is for instance",
			c.proof(own, map[string]any{"aud": "nstance:" + victim.Tags.Instance.String()})},
		{"with a token that another service was given", "invalid audience",
			c.proof(victim, map[string]any{"aud": "https://example.com"})},
		{"with a forged token", "signature", c.unsigned(victim, jwt.SigningMethodRS256, forger)},
		{"with a token without signature", "signing method none",
			c.unsigned(victim, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType)},
	} {
		thief.Refused(t, test.name, test.proof, test.reason)
	}

	// While Google's keys cannot be read, a registration fails as Unavailable, and the agent may try again.
	c.noKeys.Store(true)
	c.ahead.Add(int64(7 * 24 * time.Hour))
	if err := thief.Register(t, c.proof(victim, nil)); status.Code(err) != codes.Unavailable {
		t.Errorf("without Google's keys: %v, want Unavailable", err)
	}
	c.noKeys.Store(false)
	c.ahead.Add(int64(keysPause))
	thief.Accepted(t, c.proof(victim, nil))
	thief.Batch(t, func(vm infra.VM) []byte { return c.proof(vm, nil) })
}
