package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
)

// ErrCALost means that the CA's key is not where it is looked for although the cluster is in use: a wrong prefix,
// another secrets store, or a lost secret. A second CA is not made.
var ErrCALost = errors.New("the CA's key is missing although the cluster is in use")

// LoadCA reads the CA's key and certificate. secretstore.ErrNotFound if there is none yet.
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

// EnsureCA returns the cluster's CA. It makes one, and says so, only in a cluster that has neither `ca.key` nor
// `ca.crt` nor any operator or instance record; of two that race, both return the winner's. Otherwise it returns
// [ErrCALost]. It writes `ca.crt` again if that is missing, and signs the documents of a former version. An object that
// cannot be read is an error.
func (s *State) EnsureCA(ctx context.Context) (ca authority.CA, created bool, err error) {
	ca, created, err = s.ensureCA(ctx, func() (authority.CA, error) {
		return authority.CreateCA(s.options.ClusterID, s.options.Rand, s.options.Now())
	})
	if err != nil {
		return authority.CA{}, false, fmt.Errorf("ensure CA: %w", err)
	}
	return ca, created, nil
}

// StoreCA makes an imported CA the cluster's, under the conditions of [State.EnsureCA]. That it is so already is no
// error; that the cluster has another matches objstore.ErrConflict.
func (s *State) StoreCA(ctx context.Context, ca authority.CA) (created bool, err error) {
	have, created, err := s.ensureCA(ctx, func() (authority.CA, error) {
		return ca, ca.CheckCluster(s.options.ClusterID)
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("store CA: %w", err)
	case !have.Certificate().Equal(ca.Certificate()):
		return false, fmt.Errorf("store CA: the cluster has another CA, %s: %w",
			authority.Fingerprint(have.Certificate()), objstore.ErrConflict)
	}
	return created, nil
}

func (s *State) ensureCA(ctx context.Context, build func() (authority.CA, error)) (ca authority.CA, created bool,
	err error) {
	ca, err = s.LoadCA(ctx)
	if errors.Is(err, secretstore.ErrNotFound) {
		ca, created, err = s.createCA(ctx, build)
	}
	if err != nil {
		return authority.CA{}, false, err
	}
	return ca, created, s.ensureBundle(ctx, ca)
}

func (s *State) createCA(ctx context.Context, build func() (authority.CA, error)) (authority.CA, bool, error) {
	evidence, err := s.inUse(ctx)
	if err != nil {
		return authority.CA{}, false, err
	}
	if evidence != "" {
		// Another program may have created it since.
		ca, err := s.LoadCA(ctx)
		if errors.Is(err, secretstore.ErrNotFound) {
			err = fmt.Errorf("%w: %s; check the storage prefix and the secrets store, or restore the secret %s",
				ErrCALost, evidence, secretstore.CAKey)
		}
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

// inUse names something that only a cluster which has a CA can have; "" if there is nothing.
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

// workloadNotice is the time between the making of a workload CA and its first certificate in a cluster in use. In it
// every instance gets the CA's certificate, and services on the instances load it. An upgrade of all shards, and of
// boot scripts that hold a CA, must fit too.
const workloadNotice = 30 * 24 * time.Hour

// newCluster is the age of the cluster's CA up to which no instance can rely on certificates of it.
const newCluster = time.Hour

// EnsureWorkloadCA returns the CA that signs the certificates in instances' files, and makes one if there is none; of
// two that race, both return the winner's. In a cluster with an older CA, the new one starts after a notice of 30 days,
// see [authority.CA.Starts]. Call [State.EnsureCA] first, which returns the cluster's CA.
func (s *State) EnsureWorkloadCA(ctx context.Context, cluster authority.CA) (ca authority.CA, created bool, err error) {
	fail := func(err error) (authority.CA, bool, error) {
		return authority.CA{}, false, fmt.Errorf("ensure workload CA: %w", err)
	}
	ca, err = s.loadWorkloadCA(ctx)
	if err == nil {
		return ca, false, nil
	}
	if !errors.Is(err, secretstore.ErrNotFound) {
		return fail(err)
	}
	start := s.options.Now()
	if start.Sub(cluster.Starts()) > newCluster {
		start = start.Add(workloadNotice)
	}
	if ca, err = authority.CreateWorkloadCA(s.options.ClusterID, s.options.Rand, start); err != nil {
		return fail(err)
	}
	secret, err := ca.MarshalSecret()
	if err != nil {
		return fail(err)
	}
	err = s.options.Secrets.Put(ctx, secretstore.WorkloadCAKey, secretstore.NewValue(secret), secretstore.IfAbsent)
	if errors.Is(err, secretstore.ErrExists) {
		if ca, err = s.loadWorkloadCA(ctx); err == nil {
			return ca, false, nil
		}
	}
	if err != nil {
		return fail(err)
	}
	return ca, true, nil
}

func (s *State) loadWorkloadCA(ctx context.Context) (authority.CA, error) {
	secret, err := s.options.Secrets.Get(ctx, secretstore.WorkloadCAKey)
	if err != nil {
		return authority.CA{}, err
	}
	ca, err := authority.ParseCA(secret.Value.Reveal())
	if err != nil {
		return authority.CA{}, err
	}
	if err := ca.CheckWorkload(s.options.ClusterID); err != nil {
		return authority.CA{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return ca, nil
}
