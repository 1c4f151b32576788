package authority

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY" // PKCS #8
	maxPEM           = 64 << 10
	maxBlocks        = 16
)

// parsePEM reads PEM blocks and nothing else: no text between them, no headers, none that the decoder would skip.
func parsePEM(data []byte) ([]*pem.Block, error) {
	if len(data) > maxPEM {
		return nil, fmt.Errorf("%d bytes of PEM, at most %d are allowed", len(data), maxPEM)
	}
	var blocks []*pem.Block
	for rest := bytes.TrimSpace(data); len(rest) > 0; {
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

// squeeze removes all white space: the length of lines is free.
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
