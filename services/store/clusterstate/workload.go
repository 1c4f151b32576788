package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

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
	fail := func(err error) (authority.WorkloadCAs, bool, error) {
		return nil, false, fmt.Errorf("ensure workload CA: %w", err)
	}
	cas, err = s.LoadWorkloadCAs(ctx)
	if err == nil {
		return cas, false, nil
	}
	if !errors.Is(err, secretstore.ErrNotFound) {
		return fail(err)
	}
	start := s.options.Now()
	if start.Sub(cluster.Starts()) > newCluster {
		start = start.Add(WorkloadNotice)
	}
	ca, err := authority.CreateWorkloadCA(s.options.ClusterID, s.options.Rand, start)
	if err != nil {
		return fail(err)
	}
	cas = authority.WorkloadCAs{ca}
	err = s.putWorkloadCAs(ctx, cas, secretstore.IfAbsent)
	if errors.Is(err, secretstore.ErrExists) {
		if cas, err = s.LoadWorkloadCAs(ctx); err == nil {
			return cas, false, nil
		}
	}
	if err != nil {
		return fail(err)
	}
	return cas, true, nil
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

func (s *State) putWorkloadCAs(ctx context.Context, cas authority.WorkloadCAs, cond secretstore.Condition) error {
	secret, err := cas.MarshalSecret()
	if err != nil {
		return err
	}
	return s.options.Secrets.Put(ctx, secretstore.WorkloadCAKey, secretstore.NewValue(secret), cond)
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
func (s *State) RotateWorkloadCA(ctx context.Context, notice time.Duration) (authority.WorkloadCAs, error) {
	fail := func(err error) (authority.WorkloadCAs, error) {
		return nil, fmt.Errorf("rotate the workload CA: %w", err)
	}
	cas, err := s.LoadWorkloadCAs(ctx)
	if err != nil {
		return fail(err)
	}
	now := s.options.Now()
	switch {
	case len(cas) == 2 && now.Before(WorkloadCAEnd(cas)):
		return cas, nil
	case len(cas) == 2:
		cas = cas[1:]
	case now.Before(cas[0].Starts()):
		return fail(fmt.Errorf("%w: it starts at %s", ErrWorkloadCANew, cas[0].Starts().UTC().Format(time.RFC3339)))
	default:
		next, err := authority.CreateWorkloadCA(s.options.ClusterID, s.options.Rand, now.Add(notice))
		if err != nil {
			return fail(err)
		}
		cas = append(cas, next)
	}
	if err := s.putWorkloadCAs(ctx, cas, secretstore.Any); err != nil {
		return fail(err)
	}
	return cas, nil
}
