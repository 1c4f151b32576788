// Package identity manages the operator's identity: its key and certificate in Secrets, the cluster CA that it trusts,
// its registration and the renewal of its certificate.
//
// Invariant: the key is stored before a certificate is requested for it, and a stored value is replaced only after its
// replacement was checked. A registration that is interrupted continues after a restart: the same key and nonce get the
// certificate.
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

// Identity is the operator's identity. It is immutable.
type Identity struct {
	Who  authority.Identity
	Leaf *x509.Certificate
	// load returns the certificate with its key. A function keeps the key out of formatted output.
	load func() *tls.Certificate
}

// RenewAt returns the time at which the certificate is due for renewal, at two thirds of its life.
func (i *Identity) RenewAt() time.Time {
	life := i.Leaf.NotAfter.Sub(i.Leaf.NotBefore) - authority.Skew
	return i.Leaf.NotAfter.Add(-life / 3)
}

// String returns the URI in the certificate.
func (i *Identity) String() string { return i.Who.URI() }

// parseCertificate checks that a PEM certificate is for this operator and this key, and was signed by a CA of the
// bundle.
func (k *Keeper) parseCertificate(key ed25519.PrivateKey, roots *trustBundle, text []byte) (*Identity, error) {
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
		return nil, errors.New("the certificate is for another key")
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
	// Verify at the certificate's own start time, because the clocks of operator and server may differ. The callers
	// check the end.
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
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return &trustBundle{text: text, certs: certs, pool: pool}, nil
}

// lacks reports whether a bundle contains a CA that is not in this one.
func (t *trustBundle) lacks(bundle []byte) bool {
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

// encodeKey encodes a key as PEM: PKCS #8 for the private part and PKIX for the public part.
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

// parseKey parses one PEM block with an Ed25519 key in PKCS #8. Its errors do not contain the key.
func parseKey(text []byte) (ed25519.PrivateKey, error) {
	text = bytes.TrimSpace(text)
	block, rest := pem.Decode(text)
	if block == nil || block.Type != privateBlock || len(bytes.TrimSpace(rest)) > 0 ||
		!bytes.HasPrefix(text, []byte("-----BEGIN ")) {
		return nil, errors.New("want exactly one PEM block with a PKCS #8 private key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the PEM block is not a PKCS #8 private key")
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the key is a %T, want an Ed25519 key", parsed)
	}
	return key, nil
}
