package filegen

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// CheckKey accepts only a key of the requested algorithm for which a certificate can be issued.
func FuzzCheckKey(f *testing.F) {
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	short, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		f.Fatal(err)
	}
	for _, key := range []any{ed, p256.Public(), p384.Public(), short.Public()} {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, pkix []byte) {
		isEd, isEC := CheckKey(pkix, Ed25519) == nil, CheckKey(pkix, ECDSAP256) == nil
		if isEd && isEC || CheckKey(pkix, "") == nil {
			t.Errorf("%x is a key of two algorithms, or of none", pkix)
		}
		if !isEd && !isEC {
			return
		}
		key, err := authority.ParsePublicKey(pkix)
		if err != nil {
			t.Fatal(err)
		}
		if ec, ok := key.(*ecdsa.PublicKey); isEC && (!ok || ec.Curve != elliptic.P256()) {
			t.Errorf("%x: %T is no P-256 key", pkix, key)
		}
	})
}
