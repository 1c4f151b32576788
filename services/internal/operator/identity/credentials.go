package identity

import (
	"crypto/tls"
	"errors"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
)

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
	config.Certificates = []tls.Certificate{*identity.load()}
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
