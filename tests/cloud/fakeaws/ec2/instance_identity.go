package ec2

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/smallstep/pkcs7"
)

// identitySigner signs instance identity documents, as the region's RSA-2048 key does on AWS. It makes its key before
// the first signature.
type identitySigner struct {
	once sync.Once
	key  *rsa.PrivateKey
	cert *x509.Certificate
}

func (s *identitySigner) init() {
	s.once.Do(func() {
		var err error
		if s.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			panic(err) // crypto/rand never fails
		}
		name := pkix.Name{Country: []string{"US"}, Organization: []string{"Amazon Web Services LLC"}}
		template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: name, Issuer: name,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(179, 0, 0)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, s.key.Public(), s.key)
		if err != nil {
			panic(err) // the template is constant
		}
		if s.cert, err = x509.ParseCertificate(der); err != nil {
			panic(err)
		}
	})
}

// sign returns a signed document in the form of the metadata service: PKCS #7 with the document inside, in base64 lines
// of 64 characters.
func (s *identitySigner) sign(document string) string {
	s.init()
	signed, err := pkcs7.NewSignedData([]byte(document))
	if err != nil {
		panic(err) // the document is a byte string
	}
	signed.SetDigestAlgorithm(pkcs7.OIDDigestAlgorithmSHA256)
	if err := signed.AddSigner(s.cert, s.key, pkcs7.SignerInfoConfig{}); err != nil {
		panic(err) // the key is the certificate's
	}
	der, err := signed.Finish()
	if err != nil {
		panic(err)
	}
	text := base64.StdEncoding.EncodeToString(der)
	var lines []string
	for ; len(text) > 64; text = text[64:] {
		lines = append(lines, text[:64])
	}
	return strings.Join(append(lines, text), "\n")
}

// IdentityCertificate returns the certificate that signs instance identity documents, in PEM.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/regions-certs.html
func (s *Service) IdentityCertificate() string {
	s.signer.init()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.signer.cert.Raw}))
}
