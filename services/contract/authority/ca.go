// Package authority owns the cluster's certificate authority (CA): its key, the certificates that it issues, and the
// identities in them. The package also owns the registration nonces, which agents and operators exchange for
// certificates.
//
// Every function depends only on its arguments: a specification, a source of randomness and the time.
//
// Invariant: only certificates from IssueClient and IssueServer carry a SPIFFE ID, and ParseIdentity accepts no other
// certificates. A certificate from IssueInstance therefore never passes for that of an agent, an operator or a server.
package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/url"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/pasted"
)

const (
	// CAYears is how long a new CA lasts.
	CAYears = 10
	// Skew is subtracted from the time of issue to get the start of validity of a certificate or nonce. So a new VM
	// with a slow clock can use it immediately.
	Skew = 5 * time.Minute
)

// CA is a certificate authority with its key. It is immutable and safe for concurrent use. Its key is never printed.
// The zero CA cannot issue certificates.
type CA struct {
	cert   *x509.Certificate
	signer func() crypto.Signer // a function: see envelope.Key
}

// CreateCA makes a self-signed Ed25519 CA for a cluster, with path length 0.
func CreateCA(cluster string, rand io.Reader, now time.Time) (CA, error) {
	if err := ident.ValidateClusterName(cluster); err != nil {
		return CA{}, fmt.Errorf("create CA: cluster: %w", err)
	}
	return createCA(&x509.Certificate{
		Subject: pkix.Name{CommonName: cluster},
		// X509-SVID, section 3.1: a signing certificate's SPIFFE ID is the trust domain alone.
		URIs:     []*url.URL{{Scheme: scheme, Host: cluster}},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}, rand, now)
}

// CreateWorkloadCA makes the CA that issues the certificates of a cluster's workloads from the time "start" on. Unlike
// a CA of [CreateCA], it has neither the SPIFFE ID of the cluster nor the right to sign documents.
func CreateWorkloadCA(cluster string, rand io.Reader, start time.Time) (CA, error) {
	if err := ident.ValidateClusterName(cluster); err != nil {
		return CA{}, fmt.Errorf("create CA: cluster: %w", err)
	}
	return createCA(&x509.Certificate{
		// The name differs from that of the cluster's CA, because some verifiers confuse two CAs of the same name.
		Subject:  pkix.Name{CommonName: workloadCAName(cluster)},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}, rand, start)
}

// CheckWorkload returns an error unless the CA is a workload CA of the cluster.
func (ca CA) CheckWorkload(cluster string) error {
	if have, want := ca.cert.Subject.CommonName, workloadCAName(cluster); have != want {
		return fmt.Errorf("the CA is %q, not %q", have, want)
	}
	return nil
}

func workloadCAName(cluster string) string { return cluster + " workloads" }

// Starts returns the time from which the CA may issue certificates.
func (ca CA) Starts() time.Time { return ca.cert.NotBefore.Add(Skew) }

// createCA completes a template and signs it with a new key. The CA may issue certificates from the time "start" on.
func createCA(template *x509.Certificate, rand io.Reader, start time.Time) (CA, error) {
	key, err := newKey(rand)
	if err != nil {
		return CA{}, fmt.Errorf("create CA: %w", err)
	}
	if template.SerialNumber, err = newSerial(rand); err != nil {
		return CA{}, fmt.Errorf("create CA: %w", err)
	}
	start = start.UTC().Truncate(time.Second)
	template.NotBefore, template.NotAfter = start.Add(-Skew), start.AddDate(CAYears, 0, 0)
	template.BasicConstraintsValid, template.IsCA, template.MaxPathLenZero = true, true, true
	template.SubjectKeyId = keyID(key.Public().(ed25519.PublicKey))
	cert, err := sign(template, template, key.Public(), key, rand)
	if err != nil {
		return CA{}, fmt.Errorf("create CA: %w", err)
	}
	return newCA(cert, key)
}

// ImportCA reads an existing CA: one certificate, and its unencrypted key (PKCS #8, SEC 1 or PKCS #1), both in PEM.
// Ed25519, ECDSA and RSA from 2048 bits are accepted. ImportCA refuses a CA that is not valid now. It also issues one
// test certificate of each role, and refuses the CA unless all of them verify.
func ImportCA(cluster string, certPEM, keyPEM []byte, rand io.Reader, now time.Time) (CA, error) {
	certs, err := ParseBundle(certPEM)
	if err != nil {
		return CA{}, fmt.Errorf("import CA: %w", err)
	}
	if len(certs) != 1 {
		return CA{}, fmt.Errorf("import CA: %d certificates, want exactly one", len(certs))
	}
	blocks, err := parsePEM(keyPEM)
	if err != nil {
		return CA{}, fmt.Errorf("import CA: key: %w", err)
	}
	if len(blocks) != 1 {
		return CA{}, fmt.Errorf("import CA: key: %d PEM blocks, want exactly one", len(blocks))
	}
	key, err := parseKey(blocks[0])
	if err != nil {
		return CA{}, fmt.Errorf("import CA: %w", err)
	}
	ca, err := newCA(certs[0], key)
	if err != nil {
		return CA{}, fmt.Errorf("import CA: %w", err)
	}
	if err := ca.verifyIssuing(cluster, rand, now); err != nil {
		return CA{}, fmt.Errorf("import CA: %w", err)
	}
	return ca, nil
}

// verifyIssuing issues one certificate of each role and verifies it. An unsuitable CA (name constraint, wrong key
// usage, expired) must fail when it is imported, not when it issues the first certificate for a VM.
func (ca CA) verifyIssuing(cluster string, rand io.Reader, now time.Time) error {
	key, err := newKey(rand)
	if err != nil {
		return err
	}
	id, err := ident.NewID(ident.OperatorPrefix, now, rand)
	if err != nil {
		return err
	}
	client, err := ca.IssueClient(ClientSpec{
		Identity:  Identity{Role: RoleOperator, Cluster: cluster, Tenant: ident.DefaultTenant, ID: id},
		PublicKey: key.Public().(ed25519.PublicKey),
	}, rand, now)
	if err != nil {
		return err
	}
	server, err := ca.IssueServer(ServerSpec{
		Identity:  Identity{Role: RoleServer, Cluster: cluster, Shard: "shard", Server: "server"},
		PublicKey: key.Public(), Hosts: []string{"server.internal", "10.0.0.1"},
	}, rand, now)
	if err != nil {
		return err
	}
	for _, use := range []struct {
		leaf *x509.Certificate
		as   x509.ExtKeyUsage
	}{{client, x509.ExtKeyUsageClientAuth}, {server, x509.ExtKeyUsageClientAuth},
		{server, x509.ExtKeyUsageServerAuth}} {
		if _, err := use.leaf.Verify(x509.VerifyOptions{Roots: NewPool([]*x509.Certificate{ca.cert}), CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{use.as}}); err != nil {
			return fmt.Errorf("a certificate that it issues does not verify: %w", err)
		}
	}
	return nil
}

// newCA returns a CA if the certificate and the key belong together and may issue certificates.
func newCA(cert *x509.Certificate, key crypto.Signer) (CA, error) {
	if err := checkCA(cert); err != nil {
		return CA{}, err
	}
	public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return CA{}, errors.New("the CA's certificate is not for this key")
	}
	switch k := key.(type) {
	case ed25519.PrivateKey, *ecdsa.PrivateKey:
	case *rsa.PrivateKey:
		if bits := k.N.BitLen(); bits < 2048 {
			return CA{}, fmt.Errorf("the CA's RSA key has %d bits, at least 2048 are needed", bits)
		}
	default:
		return CA{}, fmt.Errorf("the CA's key is of unsupported type %T", key)
	}
	return CA{cert: cert, signer: func() crypto.Signer { return key }}, nil
}

func checkCA(cert *x509.Certificate) error {
	switch {
	case !cert.BasicConstraintsValid || !cert.IsCA:
		return fmt.Errorf("the certificate of %q is no CA's", cert.Subject.CommonName)
	case cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("the CA certificate of %q may not sign certificates", cert.Subject.CommonName)
	case len(cert.UnhandledCriticalExtensions) > 0:
		return fmt.Errorf("the CA certificate of %q has a critical extension that is not understood: %v",
			cert.Subject.CommonName, cert.UnhandledCriticalExtensions[0])
	}
	return nil
}

// Certificate returns the CA's certificate, which is shared: do not change it.
func (ca CA) Certificate() *x509.Certificate { return ca.cert }

// IsZero reports whether there is no CA.
func (ca CA) IsZero() bool { return ca.cert == nil }

// CheckCluster refuses a CA that was made for another cluster. An imported CA that names no cluster passes.
func (ca CA) CheckCluster(cluster string) error { return CheckCluster(ca.cert, cluster) }

// CheckCluster is [CA.CheckCluster] for the certificate of a CA.
func CheckCluster(cert *x509.Certificate, cluster string) error {
	for _, u := range cert.URIs {
		if u.Scheme == scheme && u.Host != cluster {
			return fmt.Errorf("the CA is of cluster %q, not of %q", u.Host, cluster)
		}
	}
	return nil
}

// MarshalSecret writes certificate and private key as one PEM text, the content of the secret `ca.key`. [ParseCA] reads
// it.
func (ca CA) MarshalSecret() ([]byte, error) {
	if ca.IsZero() {
		return nil, errors.New("marshal CA: there is none")
	}
	key, err := EncodePrivateKey(ca.signer())
	if err != nil {
		return nil, fmt.Errorf("marshal CA: %w", err)
	}
	return append(EncodeCertificate(ca.cert), key...), nil
}

// ParseCA reads what [CA.MarshalSecret] wrote: a certificate, then its key.
func ParseCA(secret []byte) (CA, error) {
	blocks, err := parsePEM(secret)
	var ca CA
	if err == nil {
		ca, err = parseCABlocks(blocks)
	}
	if err != nil {
		return CA{}, fmt.Errorf("parse CA: %w", err)
	}
	return ca, nil
}

func parseCABlocks(blocks []*pem.Block) (CA, error) {
	if len(blocks) != 2 || blocks[0].Type != certificateBlock || blocks[1].Type != keyBlock {
		return CA{}, fmt.Errorf("want one %s block and one %s block, in this order", certificateBlock, keyBlock)
	}
	cert, err := x509.ParseCertificate(blocks[0].Bytes)
	if err != nil {
		return CA{}, err
	}
	key, err := parseKey(blocks[1])
	if err != nil {
		return CA{}, err
	}
	return newCA(cert, key)
}

// NextKeys are the new CA and the new nonce key of a rotation. If an older version of Nstance began the rotation, the
// nonce key is zero.
type NextKeys struct {
	CA    CA
	Nonce NonceKey
}

// MarshalSecret writes the keys as one PEM text, the content of the secret `ca-next.key`. [ParseNextKeys] reads it.
func (k NextKeys) MarshalSecret() ([]byte, error) {
	ca, err := k.CA.MarshalSecret()
	if err != nil || k.Nonce.IsZero() {
		return ca, err
	}
	nonce, err := k.Nonce.MarshalSecret()
	return append(ca, nonce...), err
}

// ParseNextKeys reads what [NextKeys.MarshalSecret] wrote.
func ParseNextKeys(secret []byte) (k NextKeys, err error) {
	blocks, err := parsePEM(secret)
	if err == nil && len(blocks) == 3 {
		k.Nonce, err = parseNonceBlock(blocks[2])
		blocks = blocks[:2]
	}
	if err == nil {
		k.CA, err = parseCABlocks(blocks)
	}
	if err != nil {
		return NextKeys{}, fmt.Errorf("parse the next CA and nonce key: %w", err)
	}
	return k, nil
}

func (ca CA) String() string {
	if ca.IsZero() {
		return "no CA"
	}
	return fmt.Sprintf("CA %s %s", ca.cert.Subject.CommonName, Fingerprint(ca.cert))
}

// GoString prints the CA without its key.
func (ca CA) GoString() string { return ca.String() }

// LogValue logs the CA without its key.
func (ca CA) LogValue() slog.Value { return slog.StringValue(ca.String()) }

// MarshalText writes the CA without its key. encoding/json uses MarshalText too. The CA cannot be read back from the
// text.
func (ca CA) MarshalText() ([]byte, error) { return []byte(ca.String()), nil }

// ParseBundle reads the PEM bundle `ca.crt` and returns its CA certificates, sorted by the start of their validity,
// newest first. It fails if the bundle contains anything but CA certificates. It does not check the signatures of a
// signed bundle; [OpenDocument] does. People copy the bundle, so its line ends and the white space at its ends may
// differ from those in the bucket.
func ParseBundle(data []byte) ([]*x509.Certificate, error) {
	content, err := UnverifiedContent(slices.Concat(pasted.Clean(data), []byte("\n")))
	if err != nil {
		return nil, fmt.Errorf("parse CA bundle: %w", err)
	}
	blocks, err := parsePEM(content)
	if err != nil {
		return nil, fmt.Errorf("parse CA bundle: %w", err)
	}
	var certs []*x509.Certificate
	for _, block := range blocks {
		if block.Type != certificateBlock {
			return nil, fmt.Errorf("parse CA bundle: a PEM block is %q, want %q only", block.Type, certificateBlock)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse CA bundle: %w", err)
		}
		if err := checkCA(cert); err != nil {
			return nil, fmt.Errorf("parse CA bundle: %w", err)
		}
		if slices.ContainsFunc(certs, cert.Equal) {
			return nil, fmt.Errorf("parse CA bundle: the certificate %s is there twice", Fingerprint(cert))
		}
		certs = append(certs, cert)
	}
	slices.SortStableFunc(certs, func(a, b *x509.Certificate) int { return b.NotBefore.Compare(a.NotBefore) })
	return certs, nil
}

// EncodeBundle writes CA certificates as `ca.crt`, newest first.
func EncodeBundle(certs ...*x509.Certificate) []byte {
	sorted := slices.Clone(certs)
	slices.SortStableFunc(sorted, func(a, b *x509.Certificate) int { return b.NotBefore.Compare(a.NotBefore) })
	var out []byte
	for _, cert := range sorted {
		out = append(out, EncodeCertificate(cert)...)
	}
	return out
}

// EncodeCertificate writes one certificate in PEM.
func EncodeCertificate(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: cert.Raw})
}

// Fingerprint is the SHA-256 of the certificate in hexadecimal, 64 characters.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// Trust returns 16 hexadecimal characters that identify the issuing CA together with the trust bundle. The result is
// empty if the bundle contains only that CA, as it does while no rotation is under way.
func Trust(ca *x509.Certificate, bundle []*x509.Certificate) string {
	if len(bundle) == 1 && bundle[0].Equal(ca) {
		return ""
	}
	sum := sha256.Sum256(append(EncodeCertificate(ca), EncodeBundle(bundle...)...))
	return hex.EncodeToString(sum[:8])
}

// Serial is the certificate's serial number in hexadecimal. It has 32 characters if a [CA] issued the certificate.
func Serial(cert *x509.Certificate) string { return fmt.Sprintf("%032x", cert.SerialNumber) }

// keyID returns a key identifier by RFC 7093, section 2, method 1.
func keyID(key ed25519.PublicKey) []byte {
	sum := sha256.Sum256(key)
	return sum[:20]
}

// newKey makes a key from a seed that it reads from rand, so that the key depends on rand alone.
func newKey(rand io.Reader) (ed25519.PrivateKey, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(rand, seed); err != nil {
		return nil, fmt.Errorf("read random bytes: %w", err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// newSerial makes a positive number of 128 random bits (RFC 5280, section 4.1.2.2, allows 159).
func newSerial(rand io.Reader) (*big.Int, error) {
	var b [16]byte
	if _, err := io.ReadFull(rand, b[:]); err != nil {
		return nil, fmt.Errorf("read random bytes: %w", err)
	}
	serial := new(big.Int).SetBytes(b[:])
	if serial.Sign() == 0 {
		return nil, errors.New("the random source gives zeros")
	}
	return serial, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer,
	rand io.Reader) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
