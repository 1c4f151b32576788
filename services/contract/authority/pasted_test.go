package authority_test

import (
	"bytes"
	"crypto/ed25519"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// ways returns a text as it arrives after people have carried it: by $(cat), by an editor on Windows, by a YAML block
// scalar, by a here-document.
func ways(text []byte) map[string][]byte {
	bare := bytes.TrimSpace(text)
	crlf := bytes.ReplaceAll(bare, []byte("\n"), []byte("\r\n"))
	return map[string][]byte{
		"unchanged":              text,
		"without its last line":  bare,
		"more lines":             slices.Concat([]byte("\n\n"), bare, []byte("\n\n\n")),
		"CRLF":                   slices.Concat(crlf, []byte("\r\n")),
		"CRLF, no last line end": crlf,
		"byte order mark":        slices.Concat([]byte("\ufeff"), text),
		"spaces at the ends":     slices.Concat([]byte("  \t"), bare, []byte(" \t ")),
		"spaces after each line": bytes.ReplaceAll(text, []byte("\n"), []byte(" \n")),
	}
}

// TestTextThatPeopleCarry reads every kind of text that people copy, with other white space at its ends and with other
// line ends.
func TestTextThatPeopleCarry(t *testing.T) {
	ca := newCA(t)
	certificate := authority.EncodeCertificate(ca.Certificate())
	bundle := sign(t, authority.Document{Cluster: "example", Key: "cluster/ca.crt", Version: 1, Content: certificate},
		ca)
	secret := must[[]byte](t)(ca.MarshalSecret())
	nonceKey := must[authority.NonceKey](t)(authority.CreateNonceKey(random(5)))
	nonce := must[[]byte](t)(nonceKey.MarshalSecret())
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	key := must[[]byte](t)(authority.EncodePrivateKey(private))
	for name, c := range map[string]struct {
		text []byte
		read func([]byte) error
	}{
		"signed CA bundle": {bundle, func(text []byte) error {
			certs, err := authority.ParseBundle(text)
			if err == nil && (len(certs) != 1 || !certs[0].Equal(ca.Certificate())) {
				t.Errorf("another bundle: %d certificates", len(certs))
			}
			return err
		}},
		"CA bundle": {certificate, func(text []byte) error { _, err := authority.ParseBundle(text); return err }},
		"certificate": {certificate, func(text []byte) error {
			_,
				err := authority.ParseCertificate(text)
			return err
		}},
		"CA": {secret, func(text []byte) error { _, err := authority.ParseCA(text); return err }},
		"imported CA": {secret[len(certificate):], func(text []byte) error {
			_, err := authority.ImportCA("example", ways(certificate)["CRLF, no last line end"], text, random(7), t0)
			return err
		}},
		"nonce key":   {nonce, func(text []byte) error { _, err := authority.ParseNonceKey(text); return err }},
		"private key": {key, func(text []byte) error { _, err := authority.ParsePrivateKey(text); return err }},
	} {
		for way, text := range ways(c.text) {
			if err := c.read(text); err != nil {
				t.Errorf("%s, %s: %v", name, way, err)
			}
		}
	}
	// One block means one block, without headers.
	withHeader := bytes.Replace(key, []byte("-----\n"), []byte("-----\nProc-Type: 4\n\n"), 1)
	for name, text := range map[string][]byte{
		"two blocks": slices.Concat(key, key), "text behind it": slices.Concat(key, []byte("x")),
		"text before it": slices.Concat([]byte("x\n"), key), "headers": withHeader,
	} {
		if _, err := authority.ParsePrivateKey(text); err == nil {
			t.Errorf("private key with %s: it is accepted", name)
		}
	}
	// Text inside or after the bundle is refused, and so is a damaged line of signatures.
	for name, text := range map[string]string{
		"text after the signatures": string(bundle) + "text\n",
		"damaged signatures":        strings.Replace(string(bundle), `"version"`, `"versioN"`, 1),
	} {
		if _, err := authority.ParseBundle([]byte(text)); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
}
