package authority

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/pasted"
)

// Role is the kind of program that a certificate identifies.
type Role string

// Roles of the programs that have certificates.
const (
	RoleAgent    Role = "agent"
	RoleOperator Role = "operator"
	RoleServer   Role = "server"
)

const scheme = "spiffe"

// Identity is the program that a certificate identifies. Agents and operators have Tenant and ID, servers have Shard
// and Server. Values are comparable.
type Identity struct {
	Role    Role
	Cluster string
	Tenant  string
	ID      ident.ID
	Shard   string
	Server  string // a server's --id
}

// URI is the identity's SPIFFE ID: `spiffe://{cluster}/tenant/{tenant}/{role}/{id}` or
// `spiffe://{cluster}/shard/{shard}/server/{id}`.
func (i Identity) URI() string {
	if i.Role == RoleServer {
		return fmt.Sprintf("%s://%s/shard/%s/server/%s", scheme, i.Cluster, i.Shard, i.Server)
	}
	return fmt.Sprintf("%s://%s/tenant/%s/%s/%s", scheme, i.Cluster, i.Tenant, i.Role, i.ID)
}

// name is the certificate's CN.
func (i Identity) name() string {
	if i.Role == RoleServer {
		return i.Server
	}
	return i.ID.String()
}

// serverPattern matches a server's ID: 1 to 64 characters of a SPIFFE path segment (SPIFFE-ID, section 2.2), without a
// leading dot. 64 characters are the limit of a CN.
var serverPattern = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$`)

// ValidateServerID checks a server's --id: 1 to 64 of [A-Za-z0-9._-], not beginning with a dot.
func ValidateServerID(id string) error {
	if !serverPattern.MatchString(id) {
		return errors.New("server ID must be 1 to 64 of [A-Za-z0-9._-], not beginning with a dot")
	}
	return nil
}

// Validate says what is wrong with the identity.
func (i Identity) Validate() error {
	if err := ident.ValidateClusterName(i.Cluster); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	switch i.Role {
	case RoleServer:
		if i.Tenant != "" || !i.ID.IsZero() {
			return errors.New("a server identity has no tenant and no ID")
		}
		if err := ident.ValidateName(i.Shard); err != nil {
			return fmt.Errorf("shard: %w", err)
		}
		return ValidateServerID(i.Server)
	case RoleAgent, RoleOperator:
		if i.Shard != "" || i.Server != "" {
			return fmt.Errorf("role %s has neither shard nor server", i.Role)
		}
		if err := ident.ValidateTenantName(i.Tenant); err != nil {
			return fmt.Errorf("tenant: %w", err)
		}
		if i.ID.IsZero() {
			return errors.New("id: is empty")
		}
		if (i.Role == RoleOperator) != (i.ID.Prefix() == ident.OperatorPrefix) {
			return fmt.Errorf("id: prefix %q does not fit the role %s", i.ID.Prefix(), i.Role)
		}
		return nil
	}
	return fmt.Errorf("role %q is unknown", i.Role)
}

// ParseIdentity reads the identity in a certificate. The role comes from the only URI SAN. The subject, the key usages
// and the kinds of the other SANs must be those that [CA.IssueClient] or [CA.IssueServer] gives a certificate. TLS
// verifies the chain and the times. The caller must compare the identity's Cluster (and Shard) with the expected one.
func ParseIdentity(cert *x509.Certificate) (Identity, error) {
	identity, err := parseIdentity(cert)
	if err != nil {
		return Identity{}, fmt.Errorf("certificate identity: %w", err)
	}
	return identity, nil
}

func parseIdentity(cert *x509.Certificate) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("%d URIs, want exactly one", len(cert.URIs))
	}
	uri := cert.URIs[0].String()
	i, err := parseURI(uri)
	if err != nil {
		return Identity{}, err
	}
	if err := i.Validate(); err != nil {
		return Identity{}, err
	}
	if i.URI() != uri {
		return Identity{}, errors.New("the URI is not in canonical form")
	}
	if cert.Subject.CommonName != i.name() {
		return Identity{}, errors.New("CN and URI do not agree")
	}
	names, organization := 1, []string(nil)
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if i.Role != RoleServer {
		names, organization = 2, []string{i.Tenant}
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if len(cert.DNSNames)+len(cert.IPAddresses) > 0 {
			return Identity{}, errors.New("a client has names or addresses")
		}
	}
	switch {
	case !slices.Equal(cert.Subject.Organization, organization):
		return Identity{}, errors.New("subject O and URI do not agree")
	case len(cert.Subject.Names) != names:
		return Identity{}, errors.New("the subject has other attributes")
	case len(cert.EmailAddresses) > 0:
		return Identity{}, errors.New("it has e-mail addresses")
	case cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature:
		return Identity{}, errors.New("its key usage is not digital signature alone")
	case !slices.Equal(cert.ExtKeyUsage, usages) || len(cert.UnknownExtKeyUsage) > 0:
		return Identity{}, fmt.Errorf("its extended key usage does not fit the role %s", i.Role)
	case len(cert.UnhandledCriticalExtensions) > 0:
		return Identity{}, errors.New("it has a critical extension that is not understood")
	}
	return i, nil
}

func parseURI(uri string) (Identity, error) {
	rest, ok := strings.CutPrefix(uri, scheme+"://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 {
		return Identity{}, errors.New("the URI is not a SPIFFE ID of this system")
	}
	i := Identity{Cluster: parts[0], Role: Role(parts[3])}
	switch {
	case parts[1] == "shard" && i.Role == RoleServer:
		i.Shard, i.Server = parts[2], parts[4]
		return i, nil
	case parts[1] == "tenant" && (i.Role == RoleAgent || i.Role == RoleOperator):
		id, err := ident.ParseID(parts[4])
		i.Tenant, i.ID = parts[2], id
		return i, err
	}
	return Identity{}, errors.New("the URI is not a SPIFFE ID of this system")
}

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
	return parseKeyPEM[ed25519.PublicKey](text, publicBlock, "PKIX public key", x509.ParsePKIXPublicKey)
}

// ParsePrivateKey reads one PEM block with an Ed25519 key in PKCS #8 form. Errors do not quote the key.
func ParsePrivateKey(text []byte) (ed25519.PrivateKey, error) {
	return parseKeyPEM[ed25519.PrivateKey](text, keyBlock, "PKCS #8 private key", x509.ParsePKCS8PrivateKey)
}

// ParseSigner is like [ParsePrivateKey], for keys of any algorithm.
func ParseSigner(text []byte) (crypto.Signer, error) {
	return parseKeyPEM[crypto.Signer](text, keyBlock, "PKCS #8 private key", x509.ParsePKCS8PrivateKey)
}

func parseKeyPEM[K any](text []byte, kind, form string, parse func([]byte) (any, error)) (key K, err error) {
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
		return key, fmt.Errorf("it is a %T, want a key of type %s", parsed, reflect.TypeFor[K]())
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

// EncodePublicKey returns a public key as PEM in PKIX form.
func EncodePublicKey(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicBlock, Bytes: der}), nil
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
