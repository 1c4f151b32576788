package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// checkInterval is the time between two reads of the CA bundle and checks of the certificate.
const checkInterval = time.Minute

// Renewer requests a new certificate from a shard.
type Renewer func(ctx context.Context) (*nstancev1.OperatorServiceRenewCertificateResponse, error)

// Run maintains the identity until ctx ends, then returns nil. It renews the certificate at two thirds of its life and
// follows changes of the CA bundle. Failures are logged and retried. If the certificate expires, Run returns an error:
// the process must restart to register again.
func (k *Keeper) Run(ctx context.Context, renew Renewer) error {
	delays := &backoff.ExponentialBackOff{InitialInterval: 10 * time.Second, RandomizationFactor: 0.5, Multiplier: 2,
		MaxInterval: 10 * time.Minute}
	delays.Reset()
	var retry time.Time
	for {
		timer := time.NewTimer(checkInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		k.refreshTrust(ctx)
		now, identity := k.Now(), k.current.Load()
		if !now.Before(identity.Leaf.NotAfter) {
			return fmt.Errorf("the operator's certificate expired at %s, and no shard has renewed it",
				identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		if now.Before(identity.RenewAt()) || now.Before(retry) {
			continue
		}
		if err := k.Renew(ctx, renew); err != nil {
			delay := delays.NextBackOff()
			retry = now.Add(delay)
			if ctx.Err() == nil {
				k.Log.Error("failed to renew the operator's certificate; trying again", "error", err, "expires",
					identity.Leaf.NotAfter, "duration", delay)
			}
			continue
		}
		delays.Reset()
	}
}

// refreshTrust reads the CA bundle again. If that fails, the current bundle stays in use.
func (k *Keeper) refreshTrust(ctx context.Context) {
	roots, err := k.readTrust(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		k.Log.Warn("failed to read the cluster CA; the current one stays in use", "error", err)
	case err == nil && !bytes.Equal(roots.text, k.roots.Load().text):
		k.roots.Store(roots)
		k.Log.Info("the cluster CA changed", "configmap", k.CAConfigMap)
	}
}

// Renew requests a new certificate for the current key, stores it and uses it for all later connections.
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
	identity, err := k.parseCertificate(key, roots, answer.GetCertificate())
	if err != nil {
		return fmt.Errorf("unusable certificate from the server: %w", err)
	}
	if !identity.Leaf.NotAfter.After(now.Leaf.NotAfter) {
		return fmt.Errorf("the new certificate expires at %s, no later than the current one",
			identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	k.warnOfUnknownCA(roots, answer.GetCaBundle())
	secret, err := k.readSecret(ctx, k.KeySecret)
	if err != nil {
		return err
	}
	if secret == nil { // a user deleted it, and the next start needs it
		if _, err := k.createKey(ctx, key); err != nil {
			return err
		}
	}
	if err := k.storeCertificate(ctx, key, identity); err != nil {
		return err
	}
	k.current.Store(identity)
	k.Log.Info("renewed the operator's certificate", "expires", identity.Leaf.NotAfter)
	return nil
}
