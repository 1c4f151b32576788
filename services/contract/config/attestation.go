package config

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/pasted"
)

// Signers parses Certificates and returns at least one certificate. It fails if Certificates contains anything else.
func (a Attestation) Signers() (signers []*x509.Certificate, err error) {
	text := []byte(pasted.Clean(a.Certificates))
	for len(text) > 0 {
		block, rest := pem.Decode(text)
		if block == nil || block.Type != "CERTIFICATE" || !bytes.HasPrefix(text,
			[]byte("-----BEGIN CERTIFICATE-----")) {
			return nil, errors.New("is not a list of PEM certificates")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(signers)+1, err)
		}
		signers, text = append(signers, cert), bytes.TrimSpace(rest)
	}
	if len(signers) == 0 {
		return nil, errors.New("has no certificate")
	}
	return signers, nil
}
