package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Errors of [OpenDocument]. The error messages have more details.
var (
	// ErrUnsigned means that a document has no signature.
	ErrUnsigned = errors.New("it is not signed")
	// ErrSignature means that no trusted CA signed the document for this cluster and object key, or that the document
	// was altered.
	ErrSignature = errors.New("no CA of the cluster signed it")
)

const (
	// signatureMark begins the last line of a signed document. That line is a comment in JSONC. In PEM, it is text
	// outside the blocks.
	signatureMark = "// nstance-signature "
	// maxSignatureLine is the maximum size in bytes of the line with the signatures.
	maxSignatureLine = 8 << 10
	// maxSigners is the maximum number of CAs that sign one document.
	maxSigners = 4
	// documentContext begins the signed bytes. The signed bytes of certificates begin with an ASN.1 sequence instead,
	// so a document's signature is never valid for a certificate, or the other way round.
	documentContext = "nstance signed document 1\x00"
)

// Document is an object of the bucket that is signed by the cluster's CA. A signed document consists of its content and
// one more line with the signatures, so a person can read the content in the bucket.
type Document struct {
	// Cluster and Key are the cluster and the object's key in the bucket. They are signed but not stored, so a copy of
	// the document under another key or in another cluster is refused.
	Cluster, Key string
	// Version rises with each write of the object.
	Version uint64
	Content []byte
}

// signatures is the JSON of a document's last line.
type signatures struct {
	Version    uint64      `json:"version"`
	Signatures []signature `json:"signatures"`
}

type signature struct {
	// CA is the fingerprint of the certificate that belongs to the signing key.
	CA        string `json:"ca"`
	Signature []byte `json:"signature"`
}

// SignDocument returns the signed document. Each of the CAs signs it, and one trusted signature is enough to open it.
// The same document and CAs give the same bytes.
func SignDocument(doc Document, cas ...CA) ([]byte, error) {
	if len(cas) == 0 || len(cas) > maxSigners || doc.Version == 0 {
		return nil, fmt.Errorf("sign %s: version %d, %d CAs; want a version and 1 to %d CAs", doc.Key, doc.Version,
			len(cas), maxSigners)
	}
	line := signatures{Version: doc.Version}
	for _, ca := range cas {
		if ca.IsZero() {
			return nil, fmt.Errorf("sign %s: there is no CA", doc.Key)
		}
		signed, err := ca.signBytes(doc.signedBytes())
		if err != nil {
			return nil, fmt.Errorf("sign %s: %w", doc.Key, err)
		}
		line.Signatures = append(line.Signatures, signature{Fingerprint(ca.cert), signed})
	}
	text, err := json.Marshal(line)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", doc.Key, err)
	}
	return slices.Concat(doc.Content, []byte("\n"+signatureMark), text, []byte("\n")), nil
}

// OpenDocument returns the document in data if one of the trusted CAs signed it for this cluster and key.
func OpenDocument(trusted []*x509.Certificate, cluster, key string, data []byte) (Document, error) {
	content, line, err := splitDocument(data)
	if err == nil && line == nil {
		err = ErrUnsigned
	}
	if err != nil {
		return Document{}, fmt.Errorf("open %s: %w", key, err)
	}
	doc := Document{Cluster: cluster, Key: key, Version: line.Version, Content: content}
	var signers []string
	for _, s := range line.Signatures {
		i := slices.IndexFunc(trusted, func(cert *x509.Certificate) bool { return Fingerprint(cert) == s.CA })
		if i >= 0 && verifyBytes(trusted[i], doc.signedBytes(), s.Signature) {
			return doc, nil
		}
		signers = append(signers, s.CA)
	}
	return Document{}, fmt.Errorf("open %s: %w: it names %s", key, ErrSignature, strings.Join(signers, ", "))
}

// UnverifiedContent returns the content of a document, signed or not, without a check of its signatures. It is for
// programs without a trusted certificate, and for texts that only people read.
func UnverifiedContent(data []byte) ([]byte, error) {
	content, _, err := splitDocument(data)
	return content, err
}

// IsSigned reports whether a document has signatures. It does not check them.
func IsSigned(data []byte) bool {
	_, line, err := splitDocument(data)
	return err == nil && line != nil
}

// splitDocument returns a document's content and its signatures, which are nil if there are none.
func splitDocument(data []byte) ([]byte, *signatures, error) {
	i := bytes.LastIndex(data, []byte("\n"+signatureMark))
	if i < 0 {
		return data, nil, nil
	}
	text := data[i+1+len(signatureMark):]
	if n := bytes.IndexByte(text, '\n'); n >= 0 && n != len(text)-1 {
		return data, nil, nil // a copied line inside the content
	}
	if len(text) > maxSignatureLine {
		return nil, nil, fmt.Errorf("%w: the line of signatures has %d bytes, at most %d are allowed", ErrSignature,
			len(text), maxSignatureLine)
	}
	line := &signatures{}
	if err := json.Unmarshal(text, line); err != nil {
		return nil, nil, fmt.Errorf("%w: the line of signatures is malformed: %w", ErrSignature, err)
	}
	if len(line.Signatures) == 0 || len(line.Signatures) > maxSigners || line.Version == 0 {
		return nil, nil, fmt.Errorf("%w: the line of signatures has version %d and %d signatures", ErrSignature,
			line.Version, len(line.Signatures))
	}
	// Only the form that SignDocument writes is accepted: no other fields, order or white space.
	if form, err := json.Marshal(line); err != nil || string(form)+"\n" != string(text) {
		return nil, nil, fmt.Errorf("%w: the line of signatures is malformed", ErrSignature)
	}
	return bytes.Clone(data[:i]), line, nil
}

// signedBytes returns different bytes for every different document.
func (d Document) signedBytes() []byte {
	out := []byte(documentContext)
	for _, part := range []string{d.Cluster, d.Key} {
		out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
		out = append(out, part...)
	}
	out = binary.BigEndian.AppendUint64(out, d.Version)
	return append(out, d.Content...)
}

// signBytes signs with the CA's key. The signature depends on nothing but the key and the message, because a nil source
// of randomness makes ECDSA deterministic (RFC 6979).
func (ca CA) signBytes(message []byte) ([]byte, error) {
	signer := ca.signer()
	if _, ok := signer.(ed25519.PrivateKey); ok {
		return signer.Sign(nil, message, crypto.Hash(0))
	}
	sum := sha256.Sum256(message)
	return signer.Sign(nil, sum[:], crypto.SHA256)
}

func verifyBytes(cert *x509.Certificate, message, signature []byte) bool {
	sum := sha256.Sum256(message)
	switch key := cert.PublicKey.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(key, message, signature)
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, sum[:], signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature) == nil
	}
	return false
}

// SignsDocuments reports whether every document of the CA's cluster is signed, so that an unsigned document is a
// forgery. This is so if the CA's certificate has the key usage digitalSignature, which permits signatures on data
// other than certificates and revocation lists (RFC 5280, section 4.2.1.3). A CA that was imported, or made by an older
// version of Nstance, may lack digitalSignature.
func (ca CA) SignsDocuments() bool { return ca.cert.KeyUsage&x509.KeyUsageDigitalSignature != 0 }
