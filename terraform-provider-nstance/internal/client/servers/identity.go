package servers

import (
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
)

// loadIdentity reads and checks an identity. Its errors never contain the key.
func loadIdentity(s Settings) (identity operatorclient.Identity, err error) {
	ca, cert, key := []byte(s.CA), []byte(s.Certificate), []byte(s.PrivateKey)
	if s.IdentityDir != "" {
		if ca, cert, key, err = operatorclient.ReadFiles(s.IdentityDir); err != nil {
			return identity, fmt.Errorf("%w: %w", ErrIdentity, err)
		}
	}
	if len(ca)+len(cert)+len(key) == 0 {
		return identity, ErrNoIdentity
	}
	if identity, err = operatorclient.ParseIdentity(ca, cert, key); err != nil {
		return identity, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	if time.Now().After(identity.Leaf.NotAfter) {
		return identity, fmt.Errorf("%w: the certificate ended at %s", ErrIdentity,
			identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return identity, nil
}
