package clusterstate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// ErrCALost means that the CA's key is missing although the cluster is in use. Causes are a wrong prefix, another
// secrets store and a lost secret. No second CA is made.
var ErrCALost = errors.New("the CA's key is missing although the cluster is in use")

// LoadCA reads the CA's key and certificate. It returns secretstore.ErrNotFound if the cluster has no CA yet.
func (s *State) LoadCA(ctx context.Context) (authority.CA, error) {
	secret, err := s.options.Secrets.Get(ctx, secretstore.CAKey)
	if err != nil {
		return authority.CA{}, fmt.Errorf("load CA: %w", err)
	}
	ca, err := authority.ParseCA(secret.Value.Reveal())
	if err != nil {
		return authority.CA{}, fmt.Errorf("load CA: %w", err)
	}
	if err := ca.CheckCluster(s.options.ClusterID); err != nil {
		return authority.CA{}, fmt.Errorf("load CA: %w: %w", ErrForeign, err)
	}
	return ca, nil
}

// EnsureCA returns the cluster's CA. If the cluster has no `ca.key`, no `ca.crt` and no operator or instance record,
// EnsureCA makes a CA and returns created as true. If `ca.key` is missing but any of the other objects exists, the
// error is [ErrCALost]. Two concurrent callers get the same CA. EnsureCA writes a missing `ca.crt`, and signs the
// documents that an older version of Nstance left unsigned. It fails if an object cannot be read, because that object
// may exist.
func (s *State) EnsureCA(ctx context.Context) (ca authority.CA, created bool, err error) {
	ca, _, created, err = s.EnsureTrust(ctx)
	return ca, created, err
}

// EnsureTrust does the same as [State.EnsureCA] and also returns the certificates in `ca.crt`, newest first.
func (s *State) EnsureTrust(ctx context.Context) (ca authority.CA, bundle []*x509.Certificate, created bool,
	err error) {
	t, created, err := s.ensureCA(ctx, func() (authority.CA, error) {
		return authority.CreateCA(s.options.ClusterID, s.options.Rand, s.options.Now())
	})
	if err != nil {
		return authority.CA{}, nil, false, fmt.Errorf("ensure CA: %w", err)
	}
	return t.ca, t.bundle, created, nil
}

// StoreCA makes an imported CA the cluster's CA, under the conditions of [State.EnsureCA]. It is no error if the
// cluster has this CA already. If it has another CA, the error matches objstore.ErrConflict.
func (s *State) StoreCA(ctx context.Context, ca authority.CA) (created bool, err error) {
	t, created, err := s.ensureCA(ctx, func() (authority.CA, error) {
		return ca, ca.CheckCluster(s.options.ClusterID)
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("store CA: %w", err)
	case !t.ca.Certificate().Equal(ca.Certificate()):
		return false, fmt.Errorf("store CA: the cluster has another CA, %s: %w",
			authority.Fingerprint(t.ca.Certificate()), objstore.ErrConflict)
	}
	return created, nil
}

func (s *State) ensureCA(ctx context.Context, build func() (authority.CA, error)) (t trust, created bool, err error) {
	ca, err := s.LoadCA(ctx)
	if errors.Is(err, secretstore.ErrNotFound) {
		ca, created, err = s.createCA(ctx, build)
	}
	if err != nil {
		return trust{}, false, err
	}
	t, err = s.ensureBundle(ctx, ca)
	return t, created, err
}

// CheckCA returns the error that [State.EnsureCA] would return for a missing CA, or for one that cannot be read. It
// writes nothing.
func (s *State) CheckCA(ctx context.Context) error {
	_, err := s.LoadCA(ctx)
	if errors.Is(err, secretstore.ErrNotFound) {
		_, _, err = s.missingCA(ctx)
	}
	return err
}

// missingCA is called when the CA's key has not been found. If the cluster is in use, missingCA returns the CA that
// another program may have made since then, or [ErrCALost]. Otherwise inUse is false, and a CA can be made.
func (s *State) missingCA(ctx context.Context) (ca authority.CA, inUse bool, err error) {
	evidence, err := s.inUse(ctx)
	if err != nil || evidence == "" {
		return authority.CA{}, false, err
	}
	ca, err = s.LoadCA(ctx)
	if errors.Is(err, secretstore.ErrNotFound) {
		err = fmt.Errorf("%w: %s; check the storage prefix and the secrets store, or restore the secret %s", ErrCALost,
			evidence, secretstore.CAKey)
	}
	return ca, true, err
}

func (s *State) createCA(ctx context.Context, build func() (authority.CA, error)) (authority.CA, bool, error) {
	if ca, inUse, err := s.missingCA(ctx); inUse || err != nil {
		return ca, false, err
	}
	ca, err := build()
	if err != nil {
		return authority.CA{}, false, err
	}
	secret, err := ca.MarshalSecret()
	if err != nil {
		return authority.CA{}, false, err
	}
	err = s.options.Secrets.Put(ctx, secretstore.CAKey, secretstore.NewValue(secret), secretstore.IfAbsent)
	if errors.Is(err, secretstore.ErrExists) {
		ca, err = s.LoadCA(ctx)
		return ca, false, err
	}
	return ca, err == nil, err
}

// inUse looks for an object that only a cluster with a CA can have. It returns a text that names the object, or "" if
// there is none.
func (s *State) inUse(ctx context.Context) (string, error) {
	_, err := s.options.Cluster.Get(ctx, keys.ClusterCA())
	switch {
	case err == nil:
		return "there is " + keys.ClusterCA(), nil
	case !errors.Is(err, objstore.ErrNotFound):
		return "", err
	}
	operators, err := s.options.Cluster.List(ctx, keys.OperatorPrefix())
	if err != nil {
		return "", err
	}
	if len(operators) > 0 {
		return "there is " + operators[0].Key, nil
	}
	instances, err := s.ListAllInstances(ctx)
	if err != nil {
		return "", err
	}
	if len(instances) > 0 {
		return fmt.Sprintf("there is instance %s in shard %s", instances[0].ID, instances[0].Shard), nil
	}
	return "", nil
}
