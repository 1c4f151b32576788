package keypair

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/pasted"
)

const (
	privateType = "PRIVATE KEY" // PKCS#8, RFC 7468 section 10
	publicType  = "PUBLIC KEY"  // PKIX, RFC 7468 section 13
)

// ParsePrivate reads the output of [authority.EncodePrivateKey]. The text must be one PEM block without headers. Errors
// do not quote the input.
func ParsePrivate(text []byte) (crypto.Signer, error) {
	text = pasted.Clean(text)
	block, rest := pem.Decode(text)
	switch {
	case block == nil:
		return nil, errors.New("private key: not PEM")
	case block.Type != privateType:
		return nil, fmt.Errorf("private key: want a PEM block %q", privateType)
	case len(block.Headers) > 0 || len(rest) > 0 || !bytes.HasPrefix(text, []byte("-----BEGIN")):
		return nil, errors.New("private key: want one PEM block without headers and nothing else")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("private key: not PKCS#8")
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("private key: %T cannot sign", parsed)
	}
	return key, nil
}

// public returns a public key in PKIX form, as DER and as PEM.
func public(key crypto.Signer) (der, text []byte, err error) {
	der, err = x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode public key: %w", err)
	}
	return der, pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der}), nil
}
