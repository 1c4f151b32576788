package authority

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Default lifetimes of certificates.
const (
	AgentTTL    = 7 * 24 * time.Hour
	OperatorTTL = 30 * 24 * time.Hour
	ServerTTL   = 24 * time.Hour
)

// ErrCAValidity means that the CA's certificate is not valid at the time of issuing.
var ErrCAValidity = errors.New("the CA's certificate is not valid now")

// ClientSpec describes the certificate of an agent or an operator.
type ClientSpec struct {
	Identity  Identity
	PublicKey ed25519.PublicKey
	TTL       time.Duration // 0: AgentTTL or OperatorTTL
}

// IssueClient makes a certificate for client authentication only. Its CN is the ID, its O is the tenant, and its only
// SAN is the SPIFFE ID. Like all certificates of a [CA], it is valid from [Skew] before now and does not outlive the
// CA.
func (ca CA) IssueClient(spec ClientSpec, rand io.Reader, now time.Time) (*x509.Certificate, error) {
	i := spec.Identity
	if i.Role != RoleAgent && i.Role != RoleOperator {
		return nil, fmt.Errorf("issue client certificate: role %q is no client's", i.Role)
	}
	if len(spec.PublicKey) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("issue client certificate: public key of %d bytes, want %d", len(spec.PublicKey),
			ed25519.PublicKeySize)
	}
	ttl := cmp.Or(spec.TTL, map[Role]time.Duration{RoleAgent: AgentTTL, RoleOperator: OperatorTTL}[i.Role])
	cert, err := ca.issueIdentity(i, &x509.Certificate{
		Subject:     pkix.Name{CommonName: i.name(), Organization: []string{i.Tenant}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, spec.PublicKey, ttl, rand, now)
	if err != nil {
		return nil, fmt.Errorf("issue client certificate: %w", err)
	}
	return cert, nil
}

// ServerSpec asks for a server's certificate.
type ServerSpec struct {
	Identity  Identity
	PublicKey crypto.PublicKey // Ed25519 or ECDSA P-256
	Hosts     []string         // DNS names and IP addresses under which it is reached
	TTL       time.Duration    // 0: ServerTTL
}

// IssueServer makes a server's certificate. The server may use it both as a TLS server and as a TLS client, because the
// servers of a shard call each other.
func (ca CA) IssueServer(spec ServerSpec, rand io.Reader, now time.Time) (*x509.Certificate, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: spec.Identity.name()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if spec.Identity.Role != RoleServer {
		return nil, fmt.Errorf("issue server certificate: role %q is no server's", spec.Identity.Role)
	}
	if err := checkPublicKey(spec.PublicKey); err != nil {
		return nil, fmt.Errorf("issue server certificate: %w", err)
	}
	for _, host := range spec.Hosts {
		var err error
		if addr, perr := netip.ParseAddr(host); perr == nil {
			template.IPAddresses, err = appendIP(template.IPAddresses, addr.String())
		} else {
			template.DNSNames, err = appendDNS(template.DNSNames, host)
		}
		if err != nil {
			return nil, fmt.Errorf("issue server certificate: %w", err)
		}
	}
	cert, err := ca.issueIdentity(spec.Identity, template, spec.PublicKey, cmp.Or(spec.TTL, ServerTTL), rand, now)
	if err != nil {
		return nil, fmt.Errorf("issue server certificate: %w", err)
	}
	return cert, nil
}

func (ca CA) issueIdentity(i Identity, template *x509.Certificate, public crypto.PublicKey, ttl time.Duration,
	rand io.Reader, now time.Time) (*x509.Certificate, error) {
	if err := i.Validate(); err != nil {
		return nil, err
	}
	uri, err := url.Parse(i.URI())
	if err != nil {
		return nil, err
	}
	template.URIs = []*url.URL{uri}
	cert, err := ca.issue(template, public, ttl, rand, now)
	if err != nil {
		return nil, err
	}
	if _, err := ParseIdentity(cert); err != nil {
		return nil, err
	}
	return cert, nil
}

// Kinds of instance certificates.
const (
	KindClient = "client"
	KindServer = "server"
)

// InstanceSpec describes a certificate that an instance uses for its own purposes. Its fields come from a rendered
// certificate template. Empty strings in lists are left out, because a missing IPv6 address is rendered as "". Fields
// must not be longer than RFC 5280 allows.
type InstanceSpec struct {
	Kind         string // KindClient or KindServer: the one extended key usage
	CommonName   string
	Organization []string
	Country      []string
	Province     []string
	Locality     []string
	Street       []string
	PostalCode   []string
	DNS          []string
	IP           []string
	URI          []string // any scheme but spiffe, which says who is an agent, an operator or a server
	TTL          time.Duration
	PublicKey    crypto.PublicKey // Ed25519 or ECDSA P-256: see ParsePublicKey
}

// IssueInstance makes the certificate that an [InstanceSpec] describes.
func (ca CA) IssueInstance(spec InstanceSpec, rand io.Reader, now time.Time) (*x509.Certificate, error) {
	template, err := spec.template()
	if err != nil {
		return nil, fmt.Errorf("issue instance certificate: %w", err)
	}
	cert, err := ca.issue(template, spec.PublicKey, spec.TTL, rand, now)
	if err != nil {
		return nil, fmt.Errorf("issue instance certificate: %w", err)
	}
	return cert, nil
}

func (spec InstanceSpec) template() (*x509.Certificate, error) {
	template := new(x509.Certificate)
	switch spec.Kind {
	case KindClient:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	case KindServer:
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	default:
		return nil, fmt.Errorf("kind %q, want %s or %s", spec.Kind, KindClient, KindServer)
	}
	if err := checkPublicKey(spec.PublicKey); err != nil {
		return nil, err
	}
	subject := &template.Subject
	subject.CommonName = spec.CommonName
	if err := checkText("cn", spec.CommonName, 64); err != nil {
		return nil, err
	}
	for _, attribute := range []struct {
		name   string
		values []string
		to     *[]string
		limit  int
	}{
		{"organization", spec.Organization, &subject.Organization, 64},
		{"country", spec.Country, &subject.Country, 2},
		{"province", spec.Province, &subject.Province, 128},
		{"locality", spec.Locality, &subject.Locality, 128},
		{"street", spec.Street, &subject.StreetAddress, 128},
		{"postal_code", spec.PostalCode, &subject.PostalCode, 40},
	} {
		for _, value := range nonEmpty(attribute.values) {
			if err := checkText(attribute.name, value, attribute.limit); err != nil {
				return nil, err
			}
			*attribute.to = append(*attribute.to, value)
		}
	}
	var err error
	for _, name := range nonEmpty(spec.DNS) {
		if template.DNSNames, err = appendDNS(template.DNSNames, name); err != nil {
			return nil, err
		}
	}
	for _, addr := range nonEmpty(spec.IP) {
		if template.IPAddresses, err = appendIP(template.IPAddresses, addr); err != nil {
			return nil, err
		}
	}
	for _, uri := range nonEmpty(spec.URI) {
		u, err := url.Parse(uri)
		switch {
		case err != nil || !u.IsAbs() || strings.ContainsFunc(uri, func(r rune) bool { return r <= ' ' || r > '~' }):
			return nil, fmt.Errorf("uri %q is not an absolute URI in ASCII", uri)
		case strings.EqualFold(u.Scheme, scheme):
			return nil, fmt.Errorf("uri %q: the scheme %s is reserved for identities", uri, scheme)
		}
		template.URIs = append(template.URIs, u)
	}
	if spec.CommonName == "" && len(template.DNSNames)+len(template.IPAddresses)+len(template.URIs) == 0 {
		return nil, errors.New("it would have neither a cn nor any other name")
	}
	return template, nil
}

// issue adds to a template what all certificates have in common, and signs the certificate.
func (ca CA) issue(template *x509.Certificate, public crypto.PublicKey, ttl time.Duration, rand io.Reader,
	now time.Time) (*x509.Certificate, error) {
	if ca.IsZero() {
		return nil, errors.New("there is no CA")
	}
	now = now.UTC().Truncate(time.Second)
	if now.Before(ca.cert.NotBefore) || now.After(ca.cert.NotAfter) {
		return nil, fmt.Errorf("%w: it is from %s to %s", ErrCAValidity, ca.cert.NotBefore.Format(time.RFC3339),
			ca.cert.NotAfter.Format(time.RFC3339))
	}
	if ttl < time.Second {
		return nil, fmt.Errorf("ttl %s is too short", ttl)
	}
	serial, err := newSerial(rand)
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-Skew), now.Add(ttl)
	if template.NotBefore.Before(ca.cert.NotBefore) {
		template.NotBefore = ca.cert.NotBefore
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	return sign(template, ca.cert, public, ca.signer(), rand)
}

// ParsePublicKey reads a public key in PKIX DER: Ed25519, or ECDSA on P-256.
func ParsePublicKey(der []byte) (crypto.PublicKey, error) {
	if len(der) > 1024 {
		return nil, fmt.Errorf("parse public key: %d bytes are too many", len(der))
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("parse public key: %w", err)
	}
	if err := checkPublicKey(key); err != nil {
		return nil, fmt.Errorf("parse public key: %w", err)
	}
	return key, nil
}

func checkPublicKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case ed25519.PublicKey:
		if len(k) == ed25519.PublicKeySize {
			return nil
		}
	case *ecdsa.PublicKey:
		if k != nil && k.Curve == elliptic.P256() {
			return nil
		}
	}
	return errors.New("public key is neither Ed25519 nor ECDSA P-256")
}

func nonEmpty(values []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(s string) bool { return s == "" })
}

// checkText limits the length, in characters, of one part of a certificate's subject (RFC 5280, appendix A.1).
func checkText(name, value string, limit int) error {
	if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s %q holds control characters or is not UTF-8", name, value)
	}
	if n := utf8.RuneCountInString(value); n > limit {
		return fmt.Errorf("%s %q has %d characters, at most %d are allowed", name, value, n, limit)
	}
	return nil
}

func appendDNS(names []string, name string) ([]string, error) {
	if !ident.IsDNSName(name) {
		return nil, fmt.Errorf("%q is no DNS name", name)
	}
	if slices.Contains(names, name) {
		return names, nil
	}
	return append(names, name), nil
}

func appendIP(addrs []net.IP, text string) ([]net.IP, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return nil, fmt.Errorf("%q is no IP address", text)
	}
	ip := net.IP(addr.Unmap().AsSlice())
	if slices.ContainsFunc(addrs, ip.Equal) {
		return addrs, nil
	}
	return append(addrs, ip), nil
}
