package aws

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/smallstep/pkcs7"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// maxProof bounds a signed identity document in bytes. EC2's documents have about 1,500 bytes.
const maxProof = 8 << 10

// maxNesting bounds the depth of the objects in a proof. EC2's proofs have a depth of about 10.
const maxNesting = 32

// identityDocument holds those parts of an instance identity document that the provider checks.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html
type identityDocument struct {
	AccountID  string `json:"accountId"`
	InstanceID string `json:"instanceId"`
	Region     string `json:"region"`
}

// parseIdentity verifies a signed identity document as the metadata service gives it under instance-identity/rsa2048:
// PKCS #7 in base64, with the document inside. Only the given certificates may have signed it.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-rsa2048.html
func parseIdentity(proof []byte, signers []*x509.Certificate) (doc identityDocument, err error) {
	if len(proof) > maxProof {
		return doc, fmt.Errorf("the proof has %d bytes, at most %d are allowed", len(proof), maxProof)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(string(bytes.ReplaceAll(proof, []byte("\n"), nil)))
	if err != nil {
		return doc, fmt.Errorf("the proof is not base64: %w", err)
	}
	_, err = berSize(raw, 0)
	var signed *pkcs7.PKCS7
	if err == nil {
		signed, err = pkcs7.Parse(raw)
	}
	if err != nil {
		return doc, fmt.Errorf("the proof is not PKCS #7: %w", err)
	}
	if len(signed.Signers) != 1 || !signed.Signers[0].DigestAlgorithm.Algorithm.Equal(pkcs7.OIDDigestAlgorithmSHA256) {
		return doc, errors.New("the proof must have one signature with SHA-256")
	}
	signed.Certificates = signers // the proof's own certificates prove nothing
	if err := signed.Verify(); err != nil {
		return doc, fmt.Errorf("verify the signature: %w", err)
	}
	if err := json.Unmarshal(signed.Content, &doc); err != nil {
		return doc, fmt.Errorf("parse the identity document: %w", err)
	}
	return doc, nil
}

var errBER = errors.New("malformed BER")

// berSize returns the size in bytes of the BER object at the start of ber. It refuses an object that extends beyond the
// end of its parent object. pkcs7.Parse would read such an object several times, which takes exponential time.
func berSize(ber []byte, depth int) (int, error) {
	if depth > maxNesting || len(ber) < 2 || ber[0]&0x1f == 0x1f { // PKCS #7 has no tags of several bytes
		return 0, errBER
	}
	constructed, length, at := ber[0]&0x20 != 0, int(ber[1]), 2
	if length == 0x80 { // until two zeros
		for constructed {
			size, err := berSize(ber[at:], depth+1)
			if err != nil {
				return 0, err
			}
			at += size
			if bytes.HasPrefix(ber[at:], []byte{0, 0}) {
				return at + 2, nil
			}
		}
		return 0, errBER
	}
	if long := length & 0x7f; length > 0x80 {
		if long > 4 || long > len(ber)-at {
			return 0, errBER
		}
		length = 0
		for range long {
			length, at = length<<8|int(ber[at]), at+1
		}
	}
	if length < 0 || length > len(ber)-at {
		return 0, errBER
	}
	end := at + length
	for constructed && at < end {
		size, err := berSize(ber[at:end], depth+1)
		if err != nil {
			return 0, err
		}
		at += size
	}
	return end, nil
}

// Attest implements infra.Attestor with the instance identity document.
func (p *Provider) Attest(_ context.Context, proof []byte, vm infra.VM) error {
	what := "attest " + vm.ProviderID
	p.mu.Lock()
	signers, region := p.signers, p.region
	p.mu.Unlock()
	if vm.ProviderID == "" || vm.Account == "" {
		return infra.Errorf(infra.NotFound, what, "the VM is not known yet")
	}
	if len(proof) == 0 {
		return infra.Errorf(infra.Denied, what, "the agent sent no %s", contract.Attestation)
	}
	doc, err := parseIdentity(proof, signers)
	if err != nil {
		return infra.Wrap(infra.Denied, what, err)
	}
	for _, fact := range []struct{ name, got, want string }{{"instance", doc.InstanceID, vm.ProviderID},
		{"account", doc.AccountID, vm.Account}, {"region", doc.Region, region}} {
		if fact.got != fact.want || fact.got == "" {
			return infra.Errorf(infra.Denied, what, "the proof is for %s %.100q, not %q", fact.name, fact.got,
				fact.want)
		}
	}
	return nil
}
