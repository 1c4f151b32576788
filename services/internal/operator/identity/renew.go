package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// look is how often the CA bundle is read again, and whether the certificate is due looked at.
const look = time.Minute

// Renewer asks a shard for a new certificate.
type Renewer func(ctx context.Context) (*nstancev1.OperatorServiceRenewCertificateResponse, error)

// Run keeps the identity until ctx ends, and returns nil then: the certificate is renewed at two thirds of its life,
// and the CA bundle follows its ConfigMap. Failures are logged and tried again. The error says that the certificate has
// ended: it takes a registration to get another, which is what a new process begins with.
func (k *Keeper) Run(ctx context.Context, renew Renewer) error {
	delays := &backoff.ExponentialBackOff{InitialInterval: 10 * time.Second, RandomizationFactor: 0.5, Multiplier: 2,
		MaxInterval: 10 * time.Minute}
	delays.Reset()
	var retry time.Time
	for {
		timer := time.NewTimer(look)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		k.follow(ctx)
		now, identity := k.Now(), k.current.Load()
		if !now.Before(identity.Leaf.NotAfter) {
			return fmt.Errorf("the operator's certificate ended at %s, and no shard has renewed it",
				identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		if now.Before(identity.RenewAt()) || now.Before(retry) {
			continue
		}
		if err := k.Renew(ctx, renew); err != nil {
			delay := delays.NextBackOff()
			retry = now.Add(delay)
			if ctx.Err() == nil {
				k.Log.Error("The operator's certificate is not renewed; trying again", "error", err, "expires",
					identity.Leaf.NotAfter, "duration", delay)
			}
			continue
		}
		delays.Reset()
	}
}

// follow reads the CA bundle again. One that cannot be read changes nothing.
func (k *Keeper) follow(ctx context.Context) {
	roots, err := k.readTrust(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		k.Log.Warn("The cluster CA is not read; the one before stays in force", "error", err)
	case err == nil && !bytes.Equal(roots.text, k.roots.Load().text):
		k.roots.Store(roots)
		k.Log.Info("The cluster CA has changed", "configmap", k.CAConfigMap)
	}
}

// Renew gets a new certificate for the same key. It is stored, and used for every later connection, when Renew returns
// without error.
func (k *Keeper) Renew(ctx context.Context, renew Renewer) error {
	answer, err := renew(ctx)
	if err != nil {
		return err
	}
	now := k.current.Load()
	key, ok := now.load().PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return errors.New("the operator's key is not Ed25519")
	}
	roots := k.roots.Load()
	identity, err := k.accept(key, roots, answer.GetCertificate())
	if err != nil {
		return fmt.Errorf("the server's certificate for us: %w", err)
	}
	if !identity.Leaf.NotAfter.After(now.Leaf.NotAfter) {
		return fmt.Errorf("the server's certificate for us ends at %s, no later than the one before",
			identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	k.notice(roots, answer.GetCaBundle())
	secret, err := k.secret(ctx, k.KeySecret)
	if err != nil {
		return err
	}
	if secret == nil { // somebody removed it; the next start needs it
		if _, err := k.makeKey(ctx, &corev1.Secret{Data: map[string][]byte{
			corev1.TLSPrivateKeyKey: encoded(key)}}); err != nil {
			return err
		}
	}
	if err := k.store(ctx, key, identity); err != nil {
		return err
	}
	k.current.Store(identity)
	k.Log.Info("The operator's certificate is renewed", "expires", identity.Leaf.NotAfter)
	return nil
}

func encoded(key ed25519.PrivateKey) []byte {
	private, _, err := encodeKey(key)
	if err != nil {
		return nil
	}
	return private
}
