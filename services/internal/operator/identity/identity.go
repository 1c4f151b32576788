// Package identity manages the operator's identity: its key and certificate in Secrets, the cluster CA that it trusts,
// its registration and the renewal of its certificate.
//
// Invariant: the operator stores a key before it requests a certificate for the key, and checks each new value before
// it overwrites the stored value. An interrupted registration continues after a restart, because the server issues a
// certificate again for the same key and nonce.
package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
)

var errOtherKey = errors.New("the certificate is for another key")

// Identity is the operator's identity. It is immutable.
type Identity struct {
	Who  authority.Identity
	Leaf *x509.Certificate
	// key returns the private key. It is a function, so printing an Identity does not print the key.
	key func() ed25519.PrivateKey
}

// RenewAt returns the time at which the certificate is due for renewal, at two thirds of its life.
func (i *Identity) RenewAt() time.Time {
	return authority.RenewAt(i.Leaf)
}

// String returns the URI in the certificate.
func (i *Identity) String() string { return i.Who.URI() }

// parseCertificate checks that a PEM certificate is for this operator and this key, and was signed by a CA in roots.
func (k *Keeper) parseCertificate(key ed25519.PrivateKey, roots *trustBundle, text []byte) (*Identity, error) {
	leaf, err := authority.ParseCertificate(text)
	if err != nil {
		return nil, err
	}
	public, ok := leaf.PublicKey.(ed25519.PublicKey)
	if !ok || !public.Equal(key.Public()) {
		return nil, errOtherKey
	}
	who, err := authority.ParseIdentity(leaf)
	switch {
	case err != nil:
		return nil, err
	case who.Role != authority.RoleOperator:
		return nil, fmt.Errorf("the certificate has role %s, want %s", who.Role, authority.RoleOperator)
	case who.Cluster != k.Cluster || who.Tenant != k.Tenant:
		return nil, fmt.Errorf(
			"the certificate is for cluster %s, tenant %s; the operator is configured for cluster %s, tenant %s",
			who.Cluster, who.Tenant, k.Cluster, k.Tenant)
	}
	// Verify the signature as of the certificate's start time, because the clocks of operator and server may differ.
	// The callers check the expiry.
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots.pool, CurrentTime: leaf.NotBefore,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, err
	}
	return &Identity{Who: who, Leaf: leaf, key: func() ed25519.PrivateKey { return key }}, nil
}

// trustBundle is the cluster's CA bundle.
type trustBundle struct {
	text  []byte
	certs []*x509.Certificate
	pool  *x509.CertPool
}

func parseTrust(text []byte) (*trustBundle, error) {
	certs, err := authority.ParseBundle(text)
	if err != nil {
		return nil, err
	}
	return &trustBundle{text: text, certs: certs, pool: authority.NewPool(certs)}, nil
}

// with returns a bundle with the CAs of t and those of another bundle. An invalid or empty bundle adds none.
func (t *trustBundle) with(bundle []byte) *trustBundle {
	other, err := authority.ParseBundle(bundle)
	if err != nil {
		return t
	}
	certs := slices.Clone(t.certs)
	for _, cert := range other {
		if !slices.ContainsFunc(certs, cert.Equal) {
			certs = append(certs, cert)
		}
	}
	if len(certs) == len(t.certs) {
		return t
	}
	return &trustBundle{text: authority.EncodeBundle(certs...), certs: certs, pool: authority.NewPool(certs)}
}

// encodeKey encodes a key as PEM: PKCS #8 for the private part and PKIX for the public part.
func encodeKey(key ed25519.PrivateKey) (private, public []byte) {
	private, err := authority.EncodePrivateKey(key)
	der, publicErr := x509.MarshalPKIXPublicKey(key.Public())
	if err := errors.Join(err, publicErr); err != nil {
		panic("identity: " + err.Error()) // not reached: every Ed25519 key can be encoded
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// renewHeader is the response header with which a server asks for an early renewal.
const renewHeader = "nstance-renew-certificate"

// renewalRequests looks in the response headers of servers for a request to renew the certificate early. It implements
// stats.Handler.
type renewalRequests struct{ *Keeper }

// RenewalRequests returns a handler for connections to servers. If a server asks for an early renewal, [Keeper.Run]
// renews the certificate within a minute.
func (k *Keeper) RenewalRequests() stats.Handler { return renewalRequests{k} }

// TagRPC implements stats.Handler.
func (renewalRequests) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (r renewalRequests) HandleRPC(_ context.Context, event stats.RPCStats) {
	if header, ok := event.(*stats.InHeader); ok && len(header.Header.Get(renewHeader)) > 0 {
		r.renewEarly.Store(true)
	}
}

// TagConn implements stats.Handler.
func (renewalRequests) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (renewalRequests) HandleConn(context.Context, stats.ConnStats) {}

// ErrNone is returned while the operator has no certificate.
var ErrNone = errors.New("the operator is not registered yet")

// TLS returns the configuration of a handshake with a server of a shard. It has the current certificate and CA, so a
// renewal needs no restart. The peer must be a server of this cluster and shard, and its certificate must contain the
// dialled name.
func (k *Keeper) TLS(shard string) (*tls.Config, error) {
	config, err := k.anonymousTLS(shard)
	if err != nil {
		return nil, err
	}
	identity := k.current.Load()
	if identity == nil {
		return nil, ErrNone
	}
	if k.Now().After(identity.Leaf.NotAfter) {
		return nil, &operatorclient.ExpiredError{At: identity.Leaf.NotAfter}
	}
	config.Certificates = []tls.Certificate{{Certificate: [][]byte{identity.Leaf.Raw}, PrivateKey: identity.key(),
		Leaf: identity.Leaf}}
	return config, nil
}

// anonymousTLS returns the configuration of a handshake without a certificate, for the registration.
func (k *Keeper) anonymousTLS(shard string) (*tls.Config, error) {
	roots := k.roots.Load()
	if roots == nil {
		return nil, ErrNone
	}
	return operatorclient.ServerConfig(k.Cluster, shard, roots.pool, k.Now), nil
}

// use makes an identity the current one. Connections with another identity are closed, because servers refuse a
// replaced key.
func (k *Keeper) use(identity *Identity) {
	if before := k.current.Swap(identity); before != nil && k.Replaced != nil {
		k.Replaced()
	}
}
