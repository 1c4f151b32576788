package clusterstate

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// ErrCALost means that the CA's key is missing although the cluster is in use. Causes are a wrong prefix, another
// secrets store and a lost secret. No second CA is made.
var ErrCALost = errors.New("the CA's key is missing although the cluster is in use")

// LoadCA reads the CA's key and certificate. It returns secretstore.ErrNotFound if the cluster has no CA yet.
func (s *State) LoadCA(ctx context.Context) (ca authority.CA, err error) {
	defer explain(&err, "load CA")
	if ca, err = loadSecret(ctx, s, secretstore.CAKey, authority.ParseCA); err != nil {
		return authority.CA{}, err
	}
	if err := ca.CheckCluster(s.options.ClusterID); err != nil {
		return authority.CA{}, fmt.Errorf("%w: %w", ErrForeign, err)
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
	ca, created, err := ensureSecret(ctx, s, secretstore.CAKey, s.LoadCA, func() (authority.CA, error) {
		if err := s.missingCA(ctx); err != nil {
			return authority.CA{}, err
		}
		return build()
	})
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
		err = s.missingCA(ctx)
	}
	if errors.Is(err, secretstore.ErrExists) {
		return nil
	}
	return err
}

// missingCA is called when the CA's key has not been found. It returns nil if a CA can be made. If the cluster is in
// use, it returns [ErrCALost], or secretstore.ErrExists if another program has made a CA since then.
func (s *State) missingCA(ctx context.Context) error {
	evidence, err := s.inUse(ctx)
	if err != nil || evidence == "" {
		return err
	}
	_, err = s.LoadCA(ctx)
	if errors.Is(err, secretstore.ErrNotFound) {
		return fmt.Errorf("%w: %s; check the storage prefix and the secrets store, or restore the secret %s", ErrCALost,
			evidence, secretstore.CAKey)
	}
	return cmp.Or(err, secretstore.ErrExists)
}

// ensureSecret loads a secret, and builds and stores it if there is none. If another program has stored it since, or if
// build returns secretstore.ErrExists, ensureSecret loads that program's secret.
func ensureSecret[T interface{ MarshalSecret() ([]byte, error) }](ctx context.Context, s *State, name string,
	load func(context.Context) (T, error), build func() (T, error)) (value T, created bool, err error) {
	if value, err = load(ctx); !errors.Is(err, secretstore.ErrNotFound) {
		return value, false, err
	}
	if value, err = build(); err == nil {
		err = s.putSecret(ctx, name, value, secretstore.IfAbsent)
	}
	if errors.Is(err, secretstore.ErrExists) {
		value, err = load(ctx)
		return value, false, err
	}
	return value, err == nil, err
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

// LoadNonceKey reads the key that signs registration nonces. It returns secretstore.ErrNotFound if there is none yet.
func (s *State) LoadNonceKey(ctx context.Context) (key authority.NonceKey, err error) {
	defer explain(&err, "load nonce key")
	return loadSecret(ctx, s, secretstore.NonceKey, authority.ParseNonceKey)
}

// EnsureNonceKey returns the key that signs registration nonces, and makes one if there is none. Two concurrent callers
// get the same key. Call [State.EnsureCA] first, because EnsureCA notices a wrong prefix.
func (s *State) EnsureNonceKey(ctx context.Context) (key authority.NonceKey, created bool, err error) {
	defer explain(&err, "ensure nonce key")
	return ensureSecret(ctx, s, secretstore.NonceKey, s.LoadNonceKey, func() (authority.NonceKey, error) {
		return authority.CreateNonceKey(s.options.Rand)
	})
}

// The functions below take the three steps of a rotation of the nonce key. A leader that notices a change of the CA
// reads the nonce key too. So each step of the nonce key must be written before the corresponding step of the CA.

// useNonceKey lets leaders accept nonces of the new key, as well as those of the old one. If signs is true, the new key
// also signs nonces. The new key is zero if an older version of Nstance began the rotation. Then the nonce key does not
// change.
func (s *State) useNonceKey(ctx context.Context, next authority.NonceKey, signs bool) error {
	key, _, err := s.EnsureNonceKey(ctx)
	if err != nil || next.IsZero() || next.Public().Equal(key.Public()) {
		return err
	}
	if signs {
		key, next = next, key
	}
	return s.putSecret(ctx, secretstore.NonceKey, key.Accepting(next), secretstore.Any)
}

// refuseOldNonces lets leaders accept only nonces of the key that signs them.
func (s *State) refuseOldNonces(ctx context.Context) error {
	key, _, err := s.EnsureNonceKey(ctx)
	if err != nil || len(key.Accepted()) == 1 {
		return err
	}
	return s.putSecret(ctx, secretstore.NonceKey, key.Accepting(authority.NonceKey{}), secretstore.Any)
}

// WorkloadNotice is how long a workload CA exists before it signs its first certificate, unless the cluster is new.
// During this time every instance receives the CA's certificate, and services on the instances must load it. Within
// this time, the people who run the cluster must upgrade all shards, and all boot scripts that contain a CA.
const WorkloadNotice = 30 * 24 * time.Hour

// newCluster is the maximum age of the CA of a new cluster. In a new cluster, no instance depends yet on a file with a
// certificate of the cluster's CA.
const newCluster = time.Hour

// EnsureWorkloadCA returns the CAs that sign the certificates in instances' files, and makes one if there is none. Two
// concurrent callers get the same CAs. If the cluster's CA is more than an hour old, the workload CA starts only after
// [WorkloadNotice], see [authority.CA.Starts]. Call [State.EnsureCA] first, which returns the cluster's CA.
func (s *State) EnsureWorkloadCA(ctx context.Context, cluster authority.CA) (cas authority.WorkloadCAs, created bool,
	err error) {
	defer explain(&err, "ensure workload CA")
	build := func() (authority.WorkloadCAs, error) {
		start := s.options.Now()
		if start.Sub(cluster.Starts()) > newCluster {
			start = start.Add(WorkloadNotice)
		}
		ca, err := authority.CreateWorkloadCA(s.options.ClusterID, s.options.Rand, start)
		return authority.WorkloadCAs{ca}, err
	}
	return ensureSecret(ctx, s, secretstore.WorkloadCAKey, s.LoadWorkloadCAs, build)
}

// LoadWorkloadCAs reads the CAs that sign the certificates in instances' files. It returns secretstore.ErrNotFound if
// there are none yet.
func (s *State) LoadWorkloadCAs(ctx context.Context) (authority.WorkloadCAs, error) {
	secret, err := s.options.Secrets.Get(ctx, secretstore.WorkloadCAKey)
	if err != nil {
		return nil, fmt.Errorf("load workload CA: %w", err)
	}
	return authority.ParseWorkloadCAs(secret.Value.Reveal(), s.options.ClusterID, ErrForeign)
}

// ErrWorkloadCANew is returned for a rotation of a workload CA that has not started to issue.
var ErrWorkloadCANew = errors.New("the workload CA has not started to issue yet")

// WorkloadCAEnd returns the time when all certificates of the old workload CA have expired. It is zero if there is only
// one workload CA.
func WorkloadCAEnd(cas authority.WorkloadCAs) time.Time {
	if len(cas) < 2 {
		return time.Time{}
	}
	return cas[1].Starts().Add(config.MaxCertificateTTL)
}

// RotateWorkloadCA takes the next step of a workload CA rotation, if that is possible now, and returns the CAs. Without
// a rotation under way it makes a new CA, which issues certificates when the duration "notice" has passed. When the
// last certificate of the old CA has expired, see [WorkloadCAEnd], RotateWorkloadCA removes the old CA. Both CAs are in
// one secret, so each step is one write.
func (s *State) RotateWorkloadCA(ctx context.Context, notice time.Duration) (cas authority.WorkloadCAs, err error) {
	defer explain(&err, "rotate the workload CA")
	if cas, err = s.LoadWorkloadCAs(ctx); err != nil {
		return nil, err
	}
	now := s.options.Now()
	switch {
	case len(cas) == 2 && now.Before(WorkloadCAEnd(cas)):
		return cas, nil
	case len(cas) == 2:
		cas = cas[1:]
	case now.Before(cas[0].Starts()):
		return nil, fmt.Errorf("%w: it starts at %s", ErrWorkloadCANew, cas[0].Starts().UTC().Format(time.RFC3339))
	default:
		next, err := authority.CreateWorkloadCA(s.options.ClusterID, s.options.Rand, now.Add(notice))
		if err != nil {
			return nil, err
		}
		cas = append(cas, next)
	}
	if err := s.putSecret(ctx, secretstore.WorkloadCAKey, cas, secretstore.Any); err != nil {
		return nil, err
	}
	return cas, nil
}
