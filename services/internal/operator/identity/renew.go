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

// checkInterval is the time between two checks of the identity. A check reads the CA bundle and finds out whether the
// certificate is due for renewal.
const checkInterval = time.Minute

// Renewer requests from a shard a new certificate for a key.
type Renewer func(ctx context.Context, key ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse,
	error)

// Run maintains the identity until ctx ends, then returns nil. It renews the certificate after two thirds of its life,
// or earlier when a server asks for that. It also reloads the CA bundle and restores deleted Secrets. Run logs and
// retries failures. If the certificate expires, Run returns an error: the process must restart to register again.
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
		k.restoreSecrets(ctx) // before refreshTrust, which reads one of them
		k.refreshTrust(ctx)
		now, identity := k.Now(), k.current.Load()
		if !now.Before(identity.Leaf.NotAfter) {
			return fmt.Errorf("the operator's certificate expired at %s, and no shard has renewed it",
				identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		if now.Before(identity.RenewAt()) && !k.renewEarly.Load() || now.Before(retry) {
			continue
		}
		// Clear the server's request for an early renewal before the renewal. As soon as the renewal has ended, a
		// server may request another one.
		early := k.renewEarly.Swap(false)
		if err := k.Renew(ctx, renew); err != nil {
			if early {
				k.renewEarly.Store(true)
			}
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

// Renew requests a certificate for a new key, stores certificate and key, and uses them for all later connections. It
// closes the present connections, because servers refuse the replaced key.
func (k *Keeper) Renew(ctx context.Context, renew Renewer) error {
	now := k.current.Load()
	key, ok := now.load().PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return errors.New("the operator's key is not Ed25519")
	}
	secret, err := k.readSecret(ctx, k.KeySecret)
	if err != nil {
		return err
	}
	if secret == nil { // a user deleted it, and the next start needs it
		if _, err := k.createKey(ctx, key); err != nil {
			return err
		}
		if secret, err = k.readSecret(ctx, k.KeySecret); err != nil || secret == nil {
			return errors.Join(errors.New("read the operator's key again"), err)
		}
	}
	next, err := k.nextKey(ctx, secret)
	if err != nil {
		return err
	}
	answer, err := renew(ctx, next.Public().(ed25519.PublicKey))
	if err != nil {
		return err
	}
	roots := k.roots.Load().with(answer.GetCaBundle())
	identity, err := k.parseCertificate(next, roots, answer.GetCertificate())
	if errors.Is(err, errOtherKey) { // of a server that does not replace keys
		identity, err = k.parseCertificate(key, roots, answer.GetCertificate())
	} else {
		key = next
	}
	if err != nil {
		return fmt.Errorf("unusable certificate from the server: %w", err)
	}
	// Accept a certificate that expires at the same time as the current one. Near the end of a CA's life, all its
	// certificates expire together with the CA.
	if identity.Leaf.NotAfter.Before(now.Leaf.NotAfter) {
		return fmt.Errorf("the new certificate expires at %s, earlier than the current one",
			identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if err := k.storeCertificate(ctx, key, identity, answer.GetCaBundle()); err != nil {
		return err
	}
	k.roots.Store(roots)
	k.current.Store(identity)
	k.closeOthers(identity)
	if err := k.replaceKey(ctx, secret, key); err != nil {
		k.Log.Warn("the next start completes the renewal", "error", err)
	}
	k.Log.Info("renewed the operator's certificate", "expires", identity.Leaf.NotAfter)
	return nil
}
