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

// Issuer issues the client certificates of agents and operators. It is safe for concurrent use if Rand is.
type Issuer struct {
	CA authority.CA
	// Bundle is the CA bundle in PEM, which clients receive with their certificates.
	Bundle []byte
	// Trust identifies CA and Bundle, see authority.Trust.
	Trust string
	Rand  io.Reader // crypto/rand.Reader except in tests
	Now   func() time.Time
}

// Issue issues a certificate. It also returns a reference to the certificate, for the client's record.
func (i Issuer) Issue(identity authority.Identity, key ed25519.PublicKey) (*x509.Certificate, record.CertificateRef,
	error) {
	cert, err := i.CA.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: key}, i.Rand, i.Now())
	if err != nil {
		return nil, record.CertificateRef{}, err
	}
	return cert, record.CertificateRef{Serial: authority.Serial(cert), NotAfter: cert.NotAfter.UTC(),
		Trust: i.Trust}, nil
}

// Reissue issues a certificate a second time, for a client that did not receive it. ref refers to that certificate. The
// client's record does not change. ok is false if Reissue cannot make the same certificate, if half of the
// certificate's lifetime has passed, or if a CA rotation has changed the CA or the bundle. The caller then issues a new
// one.
func (i Issuer) Reissue(identity authority.Identity, key ed25519.PublicKey,
	ref record.CertificateRef) (cert *x509.Certificate, ok bool) {
	ttl := authority.AgentTTL
	if identity.Role == authority.RoleOperator {
		ttl = authority.OperatorTTL
	}
	serial, err := hex.DecodeString(ref.Serial)
	if err != nil || ref.Trust != i.Trust || ref.NotAfter.Sub(i.Now()) < ttl/2 {
		return nil, false
	}
	// IssueClient takes the serial from the first random bytes. So these bytes must be the serial of the certificate to
	// issue again.
	rand := io.MultiReader(bytes.NewReader(serial), i.Rand)
	cert, err = i.CA.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: key, TTL: ttl}, rand,
		ref.NotAfter.Add(-ttl))
	if err != nil || authority.Serial(cert) != ref.Serial || !cert.NotAfter.Equal(ref.NotAfter) {
		return nil, false
	}
	return cert, true
}

// CheckPublicKey returns what is wrong with a public key from a message, or nil.
func CheckPublicKey(key []byte) error {
	if len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("has %d bytes, a raw Ed25519 key has %d", len(key), ed25519.PublicKeySize)
	}
	return nil
}
