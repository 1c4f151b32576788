package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
)

// registerTimeout is for one shard's answer, connecting included.
const registerTimeout = 10 * time.Second

// register asks one shard after the other for a certificate, until one gives it. It is stored when register returns.
func (k *Keeper) register(ctx context.Context, key ed25519.PrivateKey, roots *trust, shards map[string]string,
	reason error) (*Identity, error) {
	nonce, err := k.nonce(ctx, reason)
	if err != nil {
		return nil, err
	}
	k.Log.Info("The operator registers", "reason", reason.Error())
	var problems []error
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		answer, err := k.ask(ctx, shard, shards[shard], key, nonce)
		if err != nil {
			k.Log.Warn("A shard did not register the operator", "shard", shard, "error", err)
			problems = append(problems, fmt.Errorf("shard %s: %w", shard, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		identity, err := k.accept(key, roots, answer.GetCertificate())
		if err != nil {
			problems = append(problems, fmt.Errorf("shard %s: its certificate for us: %w", shard, err))
			continue
		}
		k.notice(roots, answer.GetCaBundle())
		if err := k.store(ctx, key, identity); err != nil {
			return nil, err
		}
		k.Log.Info("The operator is registered", "shard", shard, "operator", identity.Who.ID.String(), "expires",
			identity.Leaf.NotAfter)
		return identity, nil
	}
	return nil, fmt.Errorf("no shard has registered the operator: %w", errors.Join(problems...))
}

// nonce reads the registration nonce.
func (k *Keeper) nonce(ctx context.Context, reason error) (string, error) {
	const hint = "make one with nstance-admin cluster nonce"
	secret, err := k.secret(ctx, k.NonceSecret)
	if err != nil {
		return "", err
	}
	if secret == nil {
		return "",
			fmt.Errorf("the operator has to register (%w), but Secret %s with a registration nonce is missing: %s",
				reason, k.named(k.NonceSecret), hint)
	}
	text := bytes.TrimSpace(secret.Data[NonceKey])
	switch {
	case len(text) == 0:
		return "", fmt.Errorf("the operator has to register (%w), but Secret %s has no key %s: %s", reason,
			k.named(k.NonceSecret), NonceKey, hint)
	case len(text) > authority.MaxNonce:
		return "", fmt.Errorf("secret %s, key %s: %d bytes are too many for a nonce", k.named(k.NonceSecret), NonceKey,
			len(text))
	}
	return string(text), nil
}

// ask registers with one shard: at its address, then once at that of the leader if another server answers.
func (k *Keeper) ask(ctx context.Context, shard, addr string, key ed25519.PrivateKey,
	nonce string) (*nstancev1.RegisterOperatorResponse, error) {
	var answer *nstancev1.RegisterOperatorResponse
	err := notleader.Follow(addr, (*nstancev1.NotLeader).GetRegistrationAddr, func(addr string) (err error) {
		answer, err = k.askAt(ctx, shard, addr, key, nonce)
		return err
	})
	return answer, err
}

func (k *Keeper) askAt(ctx context.Context, shard, addr string, key ed25519.PrivateKey,
	nonce string) (answer *nstancev1.RegisterOperatorResponse, err error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(&transport{keeper: k,
		shard: shard}), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed already
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	return nstancev1.NewRegistrationServiceClient(conn).RegisterOperator(ctx,
		&nstancev1.RegisterOperatorRequest{Nonce: nonce, PublicKey: key.Public().(ed25519.PublicKey)})
}

// notice tells people of a CA that servers hand out and we do not trust: which CAs are trusted is theirs to say.
func (k *Keeper) notice(roots *trust, bundle []byte) {
	if roots.lacks(bundle) {
		k.Log.Warn(
			"The cluster has a CA that the operator does not trust; add it to the ConfigMap before servers use it",
			"configmap", k.CAConfigMap, "key", CAKey)
	}
}
