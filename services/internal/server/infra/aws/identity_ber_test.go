package aws

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/smallstep/pkcs7"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

func TestHostileProofIsParsedInLinearTime(t *testing.T) {
	// In the proof "overlapping", child objects extend beyond the end of their parent. A naive parser reads such
	// objects twice: as children, and again as siblings of the parent.
	for name, proof := range map[string][]byte{
		"overlapping": slices.Concat(bytes.Repeat([]byte{0x30, 8, 0x30, 2}, 1500), bytes.Repeat([]byte{4, 0}, 8)),
		"nested":      bytes.Repeat([]byte{0x30, 0x80}, 3072),
	} {
		done := make(chan error, 1)
		go func() {
			_, err := parseIdentity([]byte(base64.StdEncoding.EncodeToString(proof)), nil)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s: accepted", name)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: not refused within 10 s", name)
		}
	}
}

func TestBERSize(t *testing.T) {
	for _, c := range []struct {
		ber  []byte
		want int // 0: refused
	}{
		{[]byte{4, 1, 5, 9}, 3},
		{[]byte{0x30, 0x81, 3, 4, 1, 5}, 6},
		{[]byte{0x30, 0x80, 4, 1, 5, 0, 0, 9}, 7}, // EC2's proofs have indefinite lengths
		{[]byte{0x30, 0x80, 0x30, 0x80, 4, 0, 0, 0, 0, 0}, 10},
		{[]byte{4, 0x84, 0, 0, 0, 1, 5, 9}, 7},
		{[]byte{4, 0x81, 0}, 3},
		{[]byte{0x30, 2, 4, 1, 5}, 0},
		{[]byte{0x30, 0x80, 4, 1, 5}, 0},
		{[]byte{4, 0x80, 0, 0}, 0},
		{[]byte{4, 0x85, 0, 0, 0, 0, 1, 5}, 0},
		{[]byte{4, 0x84, 0xff, 0xff, 0xff, 0xff}, 0},
		{[]byte{4, 0x82, 1}, 0},
		{[]byte{0x1f, 1, 1, 5}, 0},
		{nil, 0},
	} {
		if size, err := berSize(c.ber, 0); size != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%x: size %d (%v), want %d", c.ber, size, err, c.want)
		}
	}
}

// signer signs documents as EC2 does.
type signer struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

func newSigner(t *testing.T) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return signer{key, certificate}
}

// sign makes a proof with some signatures.
func (s signer) sign(t *testing.T, document string, digest asn1.ObjectIdentifier, signatures int) []byte {
	t.Helper()
	signed, err := pkcs7.NewSignedData([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	signed.SetDigestAlgorithm(digest)
	for range signatures {
		if err := signed.AddSigner(s.certificate, s.key, pkcs7.SignerInfoConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	proof, err := signed.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return []byte(base64.StdEncoding.EncodeToString(proof))
}

// TestSignatures checks that a proof needs exactly one signature, and a digest that nobody can forge.
func TestSignatures(t *testing.T) {
	s := newSigner(t)
	for name, c := range map[string]struct {
		digest     asn1.ObjectIdentifier
		signatures int
		valid      bool
	}{
		"one signature":  {pkcs7.OIDDigestAlgorithmSHA256, 1, true},
		"two signatures": {pkcs7.OIDDigestAlgorithmSHA256, 2, false},
		"no signature":   {pkcs7.OIDDigestAlgorithmSHA256, 0, false},
		"SHA-1":          {pkcs7.OIDDigestAlgorithmSHA1, 1, false},
	} {
		doc, err := parseIdentity(s.sign(t, `{"instanceId": "i-1"}`, c.digest, c.signatures),
			[]*x509.Certificate{s.certificate})
		if (err == nil) != c.valid || c.valid && doc.InstanceID != "i-1" {
			t.Errorf("%s: %+v, %v, want valid %v", name, doc, err, c.valid)
		}
	}
}

// TestMissingClaimsProveNothing checks that a document without an instance, account or region is no proof, even if the
// server does not know the region either.
func TestMissingClaimsProveNothing(t *testing.T) {
	s := newSigner(t)
	for _, c := range []struct {
		document, region string
		valid            bool
	}{
		{`{"instanceId": "i-1", "accountId": "1", "region": "r"}`, "r", true},
		{`{"instanceId": "i-1", "accountId": "1", "region": "r"}`, "", false},
		{`{"instanceId": "i-1", "accountId": "1"}`, "", false},
		{`{"instanceId": "i-1", "accountId": "1"}`, "r", false},
		{`{"instanceId": "i-1", "region": "r"}`, "r", false},
		{`{"accountId": "1", "region": "r"}`, "r", false},
		{`{}`, "", false},
	} {
		p := &Provider{signers: []*x509.Certificate{s.certificate}, region: c.region}
		err := p.Attest(t.Context(), s.sign(t, c.document, pkcs7.OIDDigestAlgorithmSHA256, 1),
			infra.VM{ProviderID: "i-1", Account: "1"})
		if (err == nil) != c.valid || !c.valid && infra.ClassOf(err) != infra.Denied {
			t.Errorf("%s for region %q: %v, want valid %v", c.document, c.region, err, c.valid)
		}
	}
}
