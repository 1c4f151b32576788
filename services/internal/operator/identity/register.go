package identity

import (
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
