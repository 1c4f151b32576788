package admin

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

func FuzzParsePrivateKey(f *testing.F) {
	encode := func(key ed25519.PrivateKey) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			f.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	good := encode(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	f.Add(good)
	f.Add(append(good, good...))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nx: y\n\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := authority.ParsePrivateKey(text)
		if err != nil {
			return
		}
		if again, err := authority.ParsePrivateKey(encode(key)); err != nil || !again.Equal(key) {
			t.Errorf("%q changes when written: %v", text, err)
		}
	})
}
