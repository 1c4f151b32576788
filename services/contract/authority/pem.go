package authority

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/pasted"
)

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY" // PKCS #8
	publicBlock      = "PUBLIC KEY"  // PKIX
	maxPEM           = 64 << 10
	maxBlocks        = 16
)

// parsePEM reads PEM blocks and nothing else: no text between them, no headers, and no malformed block that pem.Decode
// would skip.
func parsePEM(data []byte) ([]*pem.Block, error) {
	if len(data) > maxPEM {
		return nil, fmt.Errorf("%d bytes of PEM, at most %d are allowed", len(data), maxPEM)
	}
	var blocks []*pem.Block
	for rest := pasted.Clean(data); len(rest) > 0; {
		block, after := pem.Decode(rest)
		if block == nil {
			return nil, fmt.Errorf("PEM block %d is malformed", len(blocks)+1)
		}
		if len(block.Headers) > 0 {
			return nil, fmt.Errorf("PEM block %d has headers; an encrypted key must be decrypted first", len(blocks)+1)
		}
		if read := rest[:len(rest)-len(after)]; !bytes.Equal(squeeze(read), squeeze(pem.EncodeToMemory(block))) {
			return nil, fmt.Errorf("PEM block %d has other text before it, or is malformed", len(blocks)+1)
		}
		if blocks = append(blocks, block); len(blocks) > maxBlocks {
			return nil, fmt.Errorf("more than %d PEM blocks", maxBlocks)
		}
		rest = bytes.TrimSpace(after)
	}
	if len(blocks) == 0 {
		return nil, errors.New("no PEM block")
	}
	return blocks, nil
}

// squeeze removes all white space from the text of a PEM block, so that texts with lines of different lengths are
// equal.
func squeeze(text []byte) []byte {
	return bytes.Join(bytes.Fields(text), nil)
}

func parseKey(block *pem.Block) (crypto.Signer, error) {
	var key any
	var err error
	switch block.Type {
	case keyBlock:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "ENCRYPTED PRIVATE KEY":
		return nil, errors.New("the private key is encrypted; decrypt it first")
	default:
		return nil, fmt.Errorf("the PEM block %q is no private key", block.Type)
	}
	if err != nil {
		return nil, errors.New("the private key is malformed") // the parser's words may quote it
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the private key is of type %T, which cannot sign", key)
	}
	return signer, nil
}

// onePEM reads one PEM block of the given kind, without headers. Anything else in text is an error.
func onePEM(text []byte, kind string) (*pem.Block, error) {
	text = pasted.Clean(text)
	block, rest := pem.Decode(text)
	switch {
	case block == nil || !bytes.HasPrefix(text, []byte("-----BEGIN ")):
		return nil, errors.New("not PEM")
	case block.Type != kind:
		return nil, fmt.Errorf("its PEM block is not a %q", kind)
	case len(block.Headers) > 0 || len(rest) > 0:
		return nil, errors.New("want one PEM block without headers, and nothing else")
	}
	return block, nil
}

// ParseCertificate reads one PEM certificate and nothing else.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	block, err := onePEM(text, certificateBlock)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(block.Bytes)
}

// ParsePublicKeyPEM reads one PEM block with an Ed25519 key in PKIX form.
func ParsePublicKeyPEM(text []byte) (ed25519.PublicKey, error) {
	return parseEd25519[ed25519.PublicKey](text, publicBlock, "PKIX public key", x509.ParsePKIXPublicKey)
}

// ParsePrivateKey reads one PEM block with an Ed25519 key in PKCS #8 form. Errors do not quote the key.
func ParsePrivateKey(text []byte) (ed25519.PrivateKey, error) {
	return parseEd25519[ed25519.PrivateKey](text, keyBlock, "PKCS #8 private key", x509.ParsePKCS8PrivateKey)
}

func parseEd25519[K any](text []byte, kind, form string, parse func([]byte) (any, error)) (key K, err error) {
	block, err := onePEM(text, kind)
	if err != nil {
		return key, err
	}
	parsed, err := parse(block.Bytes)
	if err != nil {
		return key, fmt.Errorf("not a %s", form) // the parser's error may quote it
	}
	key, ok := parsed.(K)
	if !ok {
		return key, fmt.Errorf("it is a %T, want an Ed25519 key", parsed)
	}
	return key, nil
}

// EncodePrivateKey returns a private key as PEM in PKCS #8 form.
func EncodePrivateKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.New("encode private key")
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

// NewPool returns a pool of certificates.
func NewPool(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool
}

// RenewAt returns the time at which a client certificate is due for renewal, at two thirds of its life.
func RenewAt(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore) - Skew
	return cert.NotAfter.Add(-life / 3)
}
