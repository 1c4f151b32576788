// Package identity owns who the operator is: its key and certificate in Secrets, the cluster CA that it trusts, the
// registration that makes the one of the other, and the renewal that keeps it.
//
// Invariant: the key is stored before anything is signed for it, and nothing that is stored is replaced before what
// replaces it was checked. After a crash between any two steps the same registration goes on: the same key with the
// same nonce gets its certificate again.
package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// Identity is who the operator is. It is not changed once made.
type Identity struct {
	Who  authority.Identity
	Leaf *x509.Certificate
	// load gives the certificate with its key: behind a function no formatting verb reaches it.
	load func() *tls.Certificate
}

// RenewAt is when the certificate is due to be renewed: at two thirds of its life.
func (i *Identity) RenewAt() time.Time {
	life := i.Leaf.NotAfter.Sub(i.Leaf.NotBefore) - authority.Skew
	return i.Leaf.NotAfter.Add(-life / 3)
}

// String says whose certificate it is.
func (i *Identity) String() string { return i.Who.URI() }

// accept checks that a PEM certificate is one of this operator, for this key, from a CA of the bundle.
func (k *Keeper) accept(key ed25519.PrivateKey, roots *trust, text []byte) (*Identity, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("want exactly one PEM certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	public, ok := leaf.PublicKey.(ed25519.PublicKey)
	if !ok || !public.Equal(key.Public()) {
		return nil, errors.New("it is for another key")
	}
	who, err := authority.ParseIdentity(leaf)
	switch {
	case err != nil:
		return nil, err
	case who.Role != authority.RoleOperator:
		return nil, fmt.Errorf("it is of role %s, want %s", who.Role, authority.RoleOperator)
	case who.Cluster != k.Cluster || who.Tenant != k.Tenant:
		return nil, fmt.Errorf("it is of cluster %s, tenant %s; the operator is configured for cluster %s, tenant %s",
			who.Cluster, who.Tenant, k.Cluster, k.Tenant)
	}
	// Our clock need not agree with the server's: as of the certificate's own first moment. Its end is looked at
	// elsewhere.
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots.pool, CurrentTime: leaf.NotBefore,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, err
	}
	pair := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	return &Identity{Who: who, Leaf: leaf, load: func() *tls.Certificate { return pair }}, nil
}

// trust is the cluster's CA bundle.
type trust struct {
	text  []byte
	certs []*x509.Certificate
	pool  *x509.CertPool
}

func parseTrust(text []byte) (*trust, error) {
	certs, err := authority.ParseBundle(text)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return &trust{text: text, certs: certs, pool: pool}, nil
}

// lacks says whether a bundle has a CA that is not in this one.
func (t *trust) lacks(bundle []byte) bool {
	other, err := authority.ParseBundle(bundle)
	if err != nil {
		return false
	}
	for _, cert := range other {
		known := false
		for _, mine := range t.certs {
			known = known || mine.Equal(cert)
		}
		if !known {
			return true
		}
	}
	return false
}

const (
	privateBlock = "PRIVATE KEY"
	publicBlock  = "PUBLIC KEY"
)

// encodeKey writes a key as PEM: PKCS #8 and PKIX.
func encodeKey(key ed25519.PrivateKey) (private, public []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, errors.New("encode private key")
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateBlock, Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: publicBlock, Bytes: pub}), nil
}

// parseKey reads one PEM block with an Ed25519 key in PKCS #8. Errors do not quote it.
func parseKey(text []byte) (ed25519.PrivateKey, error) {
	text = bytes.TrimSpace(text)
	block, rest := pem.Decode(text)
	if block == nil || block.Type != privateBlock || len(bytes.TrimSpace(rest)) > 0 ||
		!bytes.HasPrefix(text, []byte("-----BEGIN ")) {
		return nil, errors.New("want exactly one PEM block with a PKCS #8 private key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a PKCS #8 private key")
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T, want an Ed25519 key", parsed)
	}
	return key, nil
}
