package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki is a certificate authority for one cluster.
type pki struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // PEM of the certificate.
}

// pair is a certificate and its key, both in PEM.
type pair struct{ cert, key []byte }

func newPKI() (*pki, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-test-ca"},
		IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign |
			x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &pki{cert: cert, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// server issues a certificate for a server on the loopback address.
func (p *pki) server(name string) (pair, error) {
	return p.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1),
			net.IPv4(10, 0, 0, 1)}})
}

// client issues a certificate for a user. Kubernetes takes the user name from CN and the groups from O.
func (p *pki) client(user string, groups ...string) (pair, error) {
	return p.issue(&x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

func (p *pki) issue(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return pair{}, err
	}
	template.SerialNumber, template.KeyUsage = serial, x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = p.cert.NotBefore, p.cert.NotAfter
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		return pair{}, err
	}
	private, err := encodeKey(key)
	return pair{encode("CERTIFICATE", der), private}, err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// encodeKey encodes the key as SEC 1. It is the only encoding of an EC private key from which kube-apiserver also reads
// the public key.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode("EC PRIVATE KEY", der), nil
}

// write writes the pair to {dir}/{name}.crt and {dir}/{name}.key.
func (p pair) write(dir, name string) (cert, key string, err error) {
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for path, content := range map[string][]byte{cert: p.cert, key: p.key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return "", "", fmt.Errorf("write certificate of %s: %w", name, err)
		}
	}
	return cert, key, nil
}
