package transport

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Issuer makes the client certificates of agents and operators.
type Issuer struct {
	CA authority.CA
	// Bundle is the CA bundle in PEM, which clients receive with their certificates.
	Bundle []byte
	Rand   io.Reader // crypto/rand.Reader except in tests; used concurrently
	Now    func() time.Time
}

// Issue makes a certificate, and what a record says of it.
func (i Issuer) Issue(identity authority.Identity, key ed25519.PublicKey) (*x509.Certificate, record.CertificateRef,
	error) {
	cert, err := i.CA.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: key}, i.Rand, i.Now())
	if err != nil {
		return nil, record.CertificateRef{}, err
	}
	return cert, record.CertificateRef{Serial: authority.Serial(cert), NotAfter: cert.NotAfter.UTC()}, nil
}

// Again makes the very certificate that a record names, for whoever did not get the answer: nothing has to be written
// for it. ok is false when it cannot be made again, or is in the second half of its life; a new one is then due.
func (i Issuer) Again(identity authority.Identity, key ed25519.PublicKey,
	ref record.CertificateRef) (cert *x509.Certificate, ok bool) {
	ttl := authority.AgentTTL
	if identity.Role == authority.RoleOperator {
		ttl = authority.OperatorTTL
	}
	serial, err := hex.DecodeString(ref.Serial)
	if err != nil || ref.NotAfter.Sub(i.Now()) < ttl/2 {
		return nil, false
	}
	// A certificate is a function of its specification, the time, and the random bytes, the first of which are its
	// serial.
	rand := io.MultiReader(bytes.NewReader(serial), i.Rand)
	cert, err = i.CA.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: key, TTL: ttl}, rand,
		ref.NotAfter.Add(-ttl))
	if err != nil || authority.Serial(cert) != ref.Serial || !cert.NotAfter.Equal(ref.NotAfter) {
		return nil, false
	}
	return cert, true
}

// Check says what is wrong with a public key as a message brought it.
func Check(key []byte) error {
	if len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("has %d bytes, a raw Ed25519 key has %d", len(key), ed25519.PublicKeySize)
	}
	return nil
}
