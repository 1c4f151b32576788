package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// registerTimeout limits the registration with one shard, including the search for the leader.
const registerTimeout = 10 * time.Second

// register asks the shards for a certificate, one after the other, and stores the first one that it gets.
func (k *Keeper) register(ctx context.Context, key ed25519.PrivateKey, roots *trustBundle, shards map[string]string,
	reason error) (*Identity, error) {
	nonce, err := k.readNonce(ctx, reason)
	if err != nil {
		return nil, err
	}
	k.Log.Info("registering the operator", "reason", reason.Error())
	var problems []error
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		answer, err := k.registerWithShard(ctx, shard, shards[shard], key, nonce)
		if err != nil {
			k.Log.Warn("shard did not register the operator", "shard", shard, "error", err)
			problems = append(problems, fmt.Errorf("shard %s: %w", shard, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		roots := roots.with(answer.GetCaBundle())
		identity, err := k.parseCertificate(key, roots, answer.GetCertificate())
		if err != nil {
			problems = append(problems, fmt.Errorf("shard %s: unusable certificate: %w", shard, err))
			continue
		}
		if err := k.storeCertificate(ctx, key, identity, answer.GetCaBundle()); err != nil {
			return nil, err
		}
		k.roots.Store(roots)
		k.Log.Info("registered the operator", "shard", shard, "operator", identity.Who.ID.String(), "expires",
			identity.Leaf.NotAfter)
		return identity, nil
	}
	return nil, fmt.Errorf("no shard has registered the operator: %w", errors.Join(problems...))
}

// readNonce reads the registration nonce. reason says why the operator must register.
func (k *Keeper) readNonce(ctx context.Context, reason error) (string, error) {
	const hint = "create one with nstance-admin cluster nonce"
	secret, err := k.readSecret(ctx, k.NonceSecret)
	if err != nil {
		return "", err
	}
	if secret == nil {
		return "",
			fmt.Errorf("the operator must register (%w), but Secret %s with a registration nonce is missing: %s",
				reason, k.objectKey(k.NonceSecret), hint)
	}
	text := pasted.Clean(secret.Data[NonceKey])
	switch {
	case len(text) == 0:
		return "", fmt.Errorf("the operator must register (%w), but Secret %s has no key %s: %s", reason,
			k.objectKey(k.NonceSecret), NonceKey, hint)
	case len(text) > authority.MaxNonce:
		return "", fmt.Errorf("secret %s, key %s: the nonce has %d bytes, more than allowed",
			k.objectKey(k.NonceSecret),
			NonceKey,
			len(text))
	}
	return string(text), nil
}

// registerWithShard registers with the leader of one shard. addr is the address of any of its servers.
func (k *Keeper) registerWithShard(ctx context.Context, shard, addr string, key ed25519.PrivateKey,
	nonce string) (answer *nstancev1.RegisterOperatorResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	client := operatorclient.New(operatorclient.Options{Addresses: []string{addr}, Proxy: true,
		LeaderAddr: (*nstancev1.NotLeader).GetRegistrationAddr,
		TLS:        func() (*tls.Config, error) { return k.anonymousTLS(shard) }})
	defer client.Close()
	err = client.Call(ctx, func(ctx context.Context, to *grpc.ClientConn) (err error) {
		answer, err = nstancev1.NewRegistrationServiceClient(to).RegisterOperator(ctx,
			&nstancev1.RegisterOperatorRequest{Nonce: nonce, PublicKey: key.Public().(ed25519.PublicKey)})
		return err
	})
	return answer, err
}

const (
	// checkInterval is the time between two checks of the identity. A check reads the ConfigMap and the Secrets, and
	// finds out whether the certificate is due for renewal.
	checkInterval = 20 * time.Second
	// firstWait and lastWait are the shortest and the longest time between two attempts to get an identity.
	firstWait, lastWait = 2 * time.Second, 15 * time.Second
)

// ErrExpired is returned by [Keeper.Run] when the certificate has expired. The operator must register again.
var ErrExpired = errors.New("no shard has renewed the operator's certificate")

// Await calls Ensure until the operator has an identity, or until ctx ends. It reports each failure in Problems. shards
// returns the registration addresses in the present configuration.
func (k *Keeper) Await(ctx context.Context, shards func() map[string]string) error {
	failures, last := 0, ""
	for {
		err := k.Ensure(ctx, shards())
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.report(identitySource, err)
		if err == nil {
			return nil
		}
		if err.Error() != last {
			last, failures = err.Error(), 0
			k.Log.Error("the operator has no identity; trying again", "error", err)
		}
		failures++
		_ = tasks.Sleep(ctx, reconnect.Backoff(firstWait, lastWait, failures)) // Ensure fails when ctx has ended
	}
}

// Renewer requests from a shard a new certificate for a key.
type Renewer func(ctx context.Context, key ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse,
	error)

// Run maintains the identity until ctx ends, then returns nil. It renews the certificate after two thirds of its life,
// or earlier when a server asks for that. It also reloads the CA bundle and restores deleted and changed Secrets. Run
// logs and reports failures, and tries again with the next check. If the certificate expires, Run returns [ErrExpired].
func (k *Keeper) Run(ctx context.Context, renew Renewer) error {
	last := ""
	for tasks.Sleep(ctx, checkInterval) == nil {
		k.refreshTrust(ctx)
		if err := k.checkSecrets(ctx); ctx.Err() == nil {
			k.report(identitySource, err)
		}
		now, identity := k.Now(), k.current.Load()
		if !now.Before(identity.Leaf.NotAfter) {
			return fmt.Errorf("%w: it expired at %s", ErrExpired,
				identity.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		if now.Before(identity.RenewAt()) && !k.renewEarly.Load() {
			k.report(renewalSource, nil) // a newer certificate may come from the Secret
			continue
		}
		// Clear the server's request for an early renewal before the renewal. As soon as the renewal has ended, a
		// server may request another one.
		early := k.renewEarly.Swap(false)
		err := k.Renew(ctx, renew)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of the program is no failure of the renewal
		}
		if err != nil {
			if early {
				k.renewEarly.Store(true)
			}
			err = fmt.Errorf("the operator's certificate, which expires at %s, is not renewed; trying again: %w",
				identity.Leaf.NotAfter.UTC().Format(time.RFC3339), err)
			if err.Error() != last {
				last = err.Error()
				k.Log.Error("failed to renew the operator's certificate", "error", err)
			}
		}
		k.report(renewalSource, err)
	}
	return nil
}

// refreshTrust reads the CA bundle again. If that fails, the current bundle stays in use.
func (k *Keeper) refreshTrust(ctx context.Context) {
	roots, err := k.readTrust(ctx)
	if ctx.Err() != nil {
		return
	}
	k.report(caSource, err)
	switch {
	case err != nil:
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
	key := now.key()
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
	k.use(identity)
	if err := k.replaceKey(ctx, secret, key); err != nil {
		k.Log.Warn("the next start completes the renewal", "error", err)
	}
	k.Log.Info("renewed the operator's certificate", "expires", identity.Leaf.NotAfter)
	return nil
}
