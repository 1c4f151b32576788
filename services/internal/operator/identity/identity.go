// Package identity manages the operator's identity: its key and certificate in Secrets, the cluster CA that it trusts,
// its registration and the renewal of its certificate.
//
// Invariant: the operator stores a key before it requests a certificate for the key, and checks each new value before
// it overwrites the stored value. An interrupted registration continues after a restart, because the server issues a
// certificate again for the same key and nonce.
package identity

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

var errOtherKey = errors.New("the certificate is for another key")

// Identity is the operator's identity. It is immutable.
type Identity struct {
	Who  authority.Identity
	Leaf *x509.Certificate
	// load returns the certificate with its key. It is a function, so printing an Identity does not print the key.
	load func() *tls.Certificate
}

// RenewAt returns the time at which the certificate is due for renewal, at two thirds of its life.
func (i *Identity) RenewAt() time.Time {
	return authority.RenewAt(i.Leaf)
}

// String returns the URI in the certificate.
func (i *Identity) String() string { return i.Who.URI() }

// parseCertificate checks that a PEM certificate is for this operator and this key, and was signed by a CA in roots.
func (k *Keeper) parseCertificate(key ed25519.PrivateKey, roots *trustBundle, text []byte) (*Identity, error) {
	leaf, err := authority.ParseCertificate(text)
	if err != nil {
		return nil, err
	}
	public, ok := leaf.PublicKey.(ed25519.PublicKey)
	if !ok || !public.Equal(key.Public()) {
		return nil, errOtherKey
	}
	who, err := authority.ParseIdentity(leaf)
	switch {
	case err != nil:
		return nil, err
	case who.Role != authority.RoleOperator:
		return nil, fmt.Errorf("the certificate has role %s, want %s", who.Role, authority.RoleOperator)
	case who.Cluster != k.Cluster || who.Tenant != k.Tenant:
		return nil, fmt.Errorf(
			"the certificate is for cluster %s, tenant %s; the operator is configured for cluster %s, tenant %s",
			who.Cluster, who.Tenant, k.Cluster, k.Tenant)
	}
	// Verify the signature as of the certificate's start time, because the clocks of operator and server may differ.
	// The callers check the expiry.
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots.pool, CurrentTime: leaf.NotBefore,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, err
	}
	pair := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	return &Identity{Who: who, Leaf: leaf, load: func() *tls.Certificate { return pair }}, nil
}

// trustBundle is the cluster's CA bundle.
type trustBundle struct {
	text  []byte
	certs []*x509.Certificate
	pool  *x509.CertPool
}

func parseTrust(text []byte) (*trustBundle, error) {
	certs, err := authority.ParseBundle(text)
	if err != nil {
		return nil, err
	}
	return &trustBundle{text: text, certs: certs, pool: authority.NewPool(certs)}, nil
}

// with returns a bundle with the CAs of t and those of another bundle. An invalid or empty bundle adds none.
func (t *trustBundle) with(bundle []byte) *trustBundle {
	other, err := authority.ParseBundle(bundle)
	if err != nil {
		return t
	}
	certs := slices.Clone(t.certs)
	for _, cert := range other {
		if !slices.ContainsFunc(certs, cert.Equal) {
			certs = append(certs, cert)
		}
	}
	if len(certs) == len(t.certs) {
		return t
	}
	return &trustBundle{text: authority.EncodeBundle(certs...), certs: certs, pool: authority.NewPool(certs)}
}

// encodeKey encodes a key as PEM: PKCS #8 for the private part and PKIX for the public part.
func encodeKey(key ed25519.PrivateKey) (private, public []byte, err error) {
	if private, err = authority.EncodePrivateKey(key); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode public key: %w", err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}
