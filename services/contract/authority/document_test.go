package authority_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

func document() authority.Document {
	return authority.Document{Cluster: "example", Key: "cluster/operator/x.json", Version: 3, Content: []byte("{}\n")}
}

func sign(t testing.TB, doc authority.Document, cas ...authority.CA) []byte {
	t.Helper()
	return must[[]byte](t)(authority.SignDocument(doc, cas...))
}

func TestDocument(t *testing.T) {
	ca := newCA(t)
	data := golden(t, "signed.txt", sign(t, document(), ca))
	got, err := authority.OpenDocument([]*x509.Certificate{ca.Certificate()}, "example", document().Key, data)
	if err != nil || got.Version != 3 || string(got.Content) != "{}\n" {
		t.Errorf("%+v, %v", got, err)
	}
	if content, err := authority.UnverifiedContent(data); err != nil || string(content) != "{}\n" {
		t.Errorf("%q, %v", content, err)
	}
	if content, err := authority.UnverifiedContent([]byte("plain")); err != nil || string(content) != "plain" {
		t.Errorf("%q, %v", content, err)
	}
	if !ca.SignsDocuments() {
		t.Error("a new CA does not say that it signs documents")
	}
	if _, err := authority.SignDocument(document()); err == nil {
		t.Error("signed without a CA")
	}
	if _, err := authority.SignDocument(document(), authority.CA{}); err == nil {
		t.Error("signed with the zero CA")
	}
}

// The certificate of any one signer is enough to open a document, even if the document's content is itself a signed
// document.
func TestDocumentOfSeveralSigners(t *testing.T) {
	first, second := newCA(t), must[authority.CA](t)(authority.CreateCA("example", random(9), t0))
	doc := document()
	doc.Content = sign(t, document(), first)
	data := sign(t, doc, first, second)
	for _, ca := range []authority.CA{first, second} {
		got, err := authority.OpenDocument([]*x509.Certificate{ca.Certificate()}, doc.Cluster, doc.Key, data)
		if err != nil || !bytes.Equal(got.Content, doc.Content) {
			t.Errorf("%q, %v", got.Content, err)
		}
	}
}

func TestOpenDocumentRefuses(t *testing.T) {
	ca := newCA(t)
	other := must[authority.CA](t)(authority.CreateCA("example", random(9), t0))
	data := sign(t, document(), ca)
	from, to := bytes.IndexByte(data, '['), bytes.IndexByte(data, ']')
	signature := data[from+1 : to]
	version := bytes.Replace(data, []byte(`"version":3`), []byte(`"version":4`), 1)
	for name, c := range map[string]struct {
		cluster, key string
		data         []byte
		want         error
	}{
		"unsigned":        {"example", document().Key, document().Content, authority.ErrUnsigned},
		"text behind it":  {"example", document().Key, append(bytes.Clone(data), "{}\n"...), authority.ErrUnsigned},
		"another CA":      {"example", document().Key, sign(t, document(), other), authority.ErrSignature},
		"another cluster": {"other", document().Key, data, authority.ErrSignature},
		"another key":     {"example", "cluster/operator/y.json", data, authority.ErrSignature},
		"another version": {"example", document().Key, version, authority.ErrSignature},
		"other content":   {"example", document().Key, append([]byte(" "), data...), authority.ErrSignature},
		"no signature": {"example", document().Key,
			[]byte("{}\n\n// nstance-signature {\"version\":3,\"signatures\":[]}\n"), authority.ErrSignature},
		"too many signatures": {"example", document().Key, bytes.Replace(data, signature,
			bytes.Join([][]byte{signature, signature, signature, signature, signature}, []byte(",")), 1),
			authority.ErrSignature},
		"not its last line end": {"example", document().Key, data[:len(data)-1], authority.ErrSignature},
		"large": {"example", document().Key,
			[]byte("\n// nstance-signature " + strings.Repeat("x", 9<<10) + "\n"), authority.ErrSignature},
	} {
		got, err := authority.OpenDocument([]*x509.Certificate{ca.Certificate()}, c.cluster, c.key, c.data)
		if !errors.Is(err, c.want) || got.Content != nil {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	// A change of any byte must be detected.
	for i := range data {
		changed := bytes.Clone(data)
		changed[i] ^= 1
		if _, err := authority.OpenDocument([]*x509.Certificate{ca.Certificate()}, "example", document().Key,
			changed); err == nil {
			t.Errorf("byte %d may change", i)
		}
	}
}

// TestDocumentKeyKinds checks imported CAs with an ECDSA or RSA key. When such a CA signs a document twice, the results
// must be equal. A write with an unknown result can therefore be repeated.
func TestDocumentKeyKinds(t *testing.T) {
	for name, key := range map[string]crypto.Signer{
		"ECDSA": must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), cryptorand.Reader)),
		"RSA":   must[*rsa.PrivateKey](t)(rsa.GenerateKey(cryptorand.Reader, 2048)),
	} {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ours"},
			NotBefore: t0.Add(-time.Hour), NotAfter: t0.AddDate(1, 0, 0), KeyUsage: x509.KeyUsageCertSign,
			BasicConstraintsValid: true, IsCA: true}
		der := must[[]byte](t)(x509.CreateCertificate(cryptorand.Reader, template, template, key.Public(), key))
		keyDER := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(key))
		ca := must[authority.CA](t)(authority.ImportCA("example",
			pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), cryptorand.Reader, t0))
		if ca.SignsDocuments() {
			t.Errorf("%s: the certificate says that it signs documents", name)
		}
		data := sign(t, document(), ca)
		if !bytes.Equal(data, sign(t, document(), ca)) {
			t.Errorf("%s: two signatures of one document differ", name)
		}
		trusted := []*x509.Certificate{ca.Certificate()}
		if _, err := authority.OpenDocument(trusted, "example", document().Key, data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := authority.OpenDocument(trusted, "example", "x", data); !errors.Is(err, authority.ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzOpenDocument(f *testing.F) {
	ca := newCA(f)
	data := sign(f, document(), ca)
	trusted := []*x509.Certificate{ca.Certificate()}
	f.Add(data)
	f.Add([]byte("{}\n\n// nstance-signature {\"version\":3,\"signatures\":[]}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := authority.OpenDocument(trusted, "example", document().Key, in)
		if (err == nil) != bytes.Equal(in, data) {
			t.Fatalf("opened %q as %q: %v", in, got.Content, err)
		}
		if content, err := authority.UnverifiedContent(in); err == nil && !bytes.HasPrefix(in, content) {
			t.Fatalf("%q is not the beginning of %q", content, in)
		}
	})
}
