package clusterstate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// Followers checks which leaders, instances and operators have followed a CA rotation. They have followed it if they
// use the CAs of its present step. Followers remembers the result, so that repeated checks read only what changed. It
// is not safe for concurrent use.
type Followers struct {
	state *State
	trust string // Rotation.Trust of the present step
	// old is the CA that the next step removes, nil if the next step removes none.
	old *x509.Certificate
	// followed maps the key of an instance record to the version in which the instance used the CAs of the present
	// step.
	followed map[string]objstore.Token
	// led maps a shard to the time at which its leader was first seen to trust both CAs of the rotation.
	led map[string]time.Time
}

// Following is the result of [Followers.Check].
type Following struct {
	Shards []ShardFollowing `json:"shards"`
	// Operators are the operators that do not use the CAs of the present step yet.
	Operators []OperatorName `json:"operators"`
	// FilesUntil is the latest possible expiry of the certificates in instances' files that the old CA signed. It is
	// zero if no such certificate is left, or if the next step does not remove the old CA.
	FilesUntil time.Time `json:"files_until,omitzero"`
}

// ShardFollowing reports which parts of a shard use the CAs of the present step of a rotation.
type ShardFollowing struct {
	Shard string `json:"shard"`
	// Leader reports whether the shard's leader uses the CAs of the present step.
	Leader bool `json:"leader"`
	// Instances counts the instances that have a valid certificate or may still register. Behind lists those of them
	// that do not use the CAs of the present step yet.
	Instances int        `json:"instances"`
	Behind    []ident.ID `json:"behind"`
}

// OperatorName names an operator.
type OperatorName struct {
	ID     ident.ID `json:"operator_id"`
	Tenant string   `json:"tenant"`
}

// Done reports whether the rotation can take its next step. All leaders, instances and operators must use the CAs of
// the present step, and FilesUntil must be zero.
func (f Following) Done() bool {
	for _, shard := range f.Shards {
		if !shard.Leader || len(shard.Behind) > 0 {
			return false
		}
	}
	return len(f.Operators) == 0 && f.FilesUntil.IsZero()
}

// Followers returns a Followers that checks the present step of a rotation.
func (s *State) Followers(r Rotation) *Followers {
	f := &Followers{state: s, trust: r.Trust, followed: map[string]objstore.Token{}, led: map[string]time.Time{}}
	if r.Step == RotationIssued {
		f.old = r.Other
	}
	return f
}

// Check reads the bucket. It ignores shards without a configuration, shards that never had a leader, and expired
// certificates.
func (f *Followers) Check(ctx context.Context) (Following, error) {
	fail := func(err error) (Following, error) {
		return Following{}, fmt.Errorf("check who has followed the rotation: %w", err)
	}
	shards, err := f.state.Shards(ctx)
	if err != nil {
		return fail(err)
	}
	out := Following{Shards: []ShardFollowing{}, Operators: []OperatorName{}}
	for _, shard := range shards {
		followed, ok, err := f.checkShard(ctx, shard)
		if err != nil {
			return fail(fmt.Errorf("shard %s: %w", shard, err))
		}
		if ok {
			out.Shards = append(out.Shards, followed)
		}
	}
	// Check operators after leaders. A leader that still uses the CAs of the earlier step may renew an operator's
	// certificate. It then records the earlier trust value in the operator's record.
	if out.Operators, err = f.checkOperators(ctx); err != nil {
		return fail(err)
	}
	if out.FilesUntil, err = f.checkFiles(ctx); err != nil {
		return fail(err)
	}
	return out, nil
}

// checkFiles returns the latest possible expiry of the certificates in instances' files that the old CA signed. It
// returns zero if no such certificate is left. The cluster's CA signs the certificates in files until the workload CA
// starts to sign them.
func (f *Followers) checkFiles(ctx context.Context) (time.Time, error) {
	if f.old == nil {
		return time.Time{}, nil
	}
	cas, err := f.state.LoadWorkloadCAs(ctx)
	if errors.Is(err, secretstore.ErrNotFound) {
		return time.Time{}, nil // no leader has issued certificates yet
	}
	if err != nil {
		return time.Time{}, err
	}
	workload := cas[0]
	age := workload.Starts().Sub(f.old.NotBefore.Add(authority.Skew)) // of the old CA when the workload CA started
	until := workload.Starts().Add(config.MaxCertificateTTL)
	if age <= newCluster || !f.state.options.Now().Before(until) {
		return time.Time{}, nil
	}
	return until, nil
}

// checkShard checks the leader before the instances. A leader with the CAs of the earlier step issues certificates with
// the earlier trust value.
func (f *Followers) checkShard(ctx context.Context, shard string) (_ ShardFollowing, ok bool, err error) {
	s := f.state
	options := s.options
	options.ShardID = shard
	of := New(options)
	of.known.Store(s.known.Load())
	applied, err := of.ReadApplied(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		return ShardFollowing{}, false, nil
	}
	if err != nil {
		return ShardFollowing{}, false, err
	}
	out := ShardFollowing{Shard: shard, Leader: applied.Trust == f.trust, Behind: []ident.ID{}}
	now := s.options.Now()
	if _, seen := f.led[shard]; out.Leader && !seen {
		f.led[shard] = now
	}
	key := func(tenant string, id ident.ID) string { return keys.Instance(shard, tenant, id.Storage()) }
	all, err := of.ListInstances(ctx)
	if err != nil {
		return ShardFollowing{}, false, err
	}
	tokens := make(map[ident.ID]string, len(all))
	for _, one := range all {
		at := key(one.Tenant, one.ID)
		tokens[one.ID] = at
		if f.followed[at] == one.Token {
			out.Instances++
		}
	}
	seen := func(id ident.ID, token objstore.Token) bool { return f.followed[tokens[id]] == token }
	err = of.LoadUnseen(ctx, seen, func(rec record.Instance, token objstore.Token) {
		switch matters, followed := f.instance(&rec, applied.Term, now); {
		case matters && followed:
			out.Instances++
			f.followed[key(rec.Tenant, rec.ID)] = token
		case matters:
			out.Instances++
			out.Behind = append(out.Behind, rec.ID)
		}
	})
	return out, true, err
}

// instance reports in "matters" whether the next step must wait until an instance uses the CAs of the present step. It
// reports in "followed" whether the instance uses them already. term is the term of the leader that last applied the
// shard's configuration.
func (f *Followers) instance(rec *record.Instance, term uint64, now time.Time) (matters, followed bool) {
	switch {
	case rec.State == record.Deleted, rec.State == record.Deleting && rec.Certificate == nil:
		return false, false
	case rec.Certificate != nil:
		return now.Before(rec.Certificate.NotAfter), f.has(*rec.Certificate, rec.PreviousKey)
	case rec.State == record.Reserved:
		// A leader of an earlier term may have created a VM for this reservation. The rotation waits while the present
		// leader looks for such a VM.
		return rec.ReservedTerm < term, false
	}
	// The boot script of an instance that has not registered holds the bundle that the leader knew when it created the
	// VM.
	led, ok := f.led[rec.Shard]
	return !ok || rec.CreatedAt.Before(led.Add(authority.Skew)), false
}

// has reports whether a certificate meets two conditions: it was issued with the rotation's trust value, and its holder
// has used the certificate's key.
func (f *Followers) has(ref record.CertificateRef, previousKey []byte) bool {
	return ref.Trust == f.trust && len(previousKey) == 0
}

func (f *Followers) checkOperators(ctx context.Context) ([]OperatorName, error) {
	all, err := f.state.ListOperators(ctx, "")
	if err != nil {
		return nil, err
	}
	behind := []OperatorName{}
	for _, rec := range all {
		if !rec.Removed() && f.state.options.Now().Before(rec.Certificate.NotAfter) &&
			!f.has(rec.Certificate, rec.PreviousKey) {
			behind = append(behind, OperatorName{rec.ID, rec.Tenant})
		}
	}
	return behind, nil
}
