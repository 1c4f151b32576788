package clusterstate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// RotationStep is the step that a rotation of the CA has reached.
type RotationStep int

// The steps of a rotation, in their order. After RotationIssued, the rotation ends with RotationNone.
const (
	// RotationNone: the bundle holds only the CA in `ca.key`.
	RotationNone RotationStep = iota
	// RotationPrepared: the new CA is in `ca-next.key`, and is not trusted yet.
	RotationPrepared
	// RotationAnnounced: the bundle holds both CAs. The old one issues until every client trusts the new one.
	RotationAnnounced
	// RotationIssued: the new CA issues. The old one is trusted until none of its certificates is left.
	RotationIssued
)

func (s RotationStep) String() string {
	return [...]string{"none", "prepared", "announced", "issued"}[s]
}

// Rotation is the state of a rotation of the CA and the nonce key. It is derived from `ca.key`, `ca-next.key` and
// `ca.crt`, so any program can continue a rotation that another one left unfinished.
type Rotation struct {
	Step RotationStep
	// Current is the CA that issues certificates: the one in `ca.key`.
	Current *x509.Certificate
	// Other is the new CA until that CA issues certificates, and then the old CA. It is nil for RotationNone.
	Other *x509.Certificate
	// Trust is the result of authority.Trust for Current and the bundle. A leader that reports this value trusts both
	// CAs. So does the holder of a certificate that was issued with this value.
	Trust string
}

// rotation is a Rotation with the CAs and keys that are needed to continue it.
type rotation struct {
	Rotation
	trust trust
	next  authority.NextKeys // in ca-next.key; zero if there are none
}

// CARotation returns the present state of a rotation of the CA. It changes nothing.
func (s *State) CARotation(ctx context.Context) (Rotation, error) {
	r, err := s.readRotation(ctx)
	return r.Rotation, err
}

func (s *State) readRotation(ctx context.Context) (_ rotation, err error) {
	defer explain(&err, "read rotation of the CA")
	next, err := s.loadNextKeys(ctx)
	if err != nil && !errors.Is(err, secretstore.ErrNotFound) {
		return rotation{}, err
	}
	// Read the next CA before the current one: between the reads, the next CA may become the current one, but never the
	// reverse.
	ca, err := s.LoadCA(ctx)
	if err != nil {
		return rotation{}, err
	}
	t, err := s.readBundle(ctx, ca)
	if err != nil {
		return rotation{}, err
	}
	if len(t.bundle) > 2 {
		return rotation{}, fmt.Errorf("%s holds %d CAs, at most two are expected", keys.ClusterCA(), len(t.bundle))
	}
	r := rotation{Rotation{Current: ca.Certificate(), Trust: authority.Trust(ca.Certificate(), t.bundle)}, t, next}
	for _, cert := range t.bundle {
		if !cert.Equal(ca.Certificate()) {
			r.Other = cert
		}
	}
	switch pending := !next.CA.IsZero() && !next.CA.Certificate().Equal(ca.Certificate()); {
	case pending && r.Other == nil:
		r.Step, r.Other = RotationPrepared, next.CA.Certificate()
	case pending && !next.CA.Certificate().Equal(r.Other):
		return rotation{}, fmt.Errorf("%s holds another CA than %s: %w", keys.ClusterCA(), secretstore.NextCAKey,
			ErrForeign)
	case pending:
		r.Step = RotationAnnounced
	case r.Other != nil:
		// If ca-next.key is lost before the new CA issues anything, Other is the new CA here. The next step removes
		// Other from the bundle in any case.
		r.Step = RotationIssued
	}
	return r, nil
}

// AnnounceCA begins a rotation of the CA, or continues one. It makes a new CA and a new nonce key, lets leaders accept
// nonces of the new key, and adds the new CA to the bundle. If an earlier call has done this, AnnounceCA changes
// nothing. When every client trusts the new CA (see [Followers]), the next step is [State.IssueFromNewCA].
func (s *State) AnnounceCA(ctx context.Context) (_ Rotation, err error) {
	defer explain(&err, "announce the new CA")
	if _, _, err := s.EnsureCA(ctx); err != nil { // it signs the documents of a former version
		return Rotation{}, err
	}
	for conflicts := (objstore.Conflicts{}); ; {
		r, err := s.readRotation(ctx)
		if err != nil {
			return Rotation{}, err
		}
		switch r.Step {
		case RotationNone:
			if err = s.makeNextKeys(ctx, r); errors.Is(err, secretstore.ErrExists) {
				err = fmt.Errorf("%w: %w", objstore.ErrConflict, err)
			}
		case RotationPrepared:
			if err = s.useNonceKey(ctx, r.next.Nonce, false); err == nil {
				err = s.writeBundle(ctx, r.trust, []authority.CA{r.trust.ca, r.next.CA},
					[]*x509.Certificate{r.next.CA.Certificate(), r.Current})
			}
		default:
			return r.Rotation, nil
		}
		if err != nil && !conflicts.Again(ctx, err) {
			return Rotation{}, err
		}
	}
}

func (s *State) loadNextKeys(ctx context.Context) (next authority.NextKeys, err error) {
	defer explain(&err, "load the next CA")
	if next, err = loadSecret(ctx, s, secretstore.NextCAKey, authority.ParseNextKeys); err != nil {
		return authority.NextKeys{}, err
	}
	if err := next.CA.CheckCluster(s.options.ClusterID); err != nil {
		return authority.NextKeys{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return next, nil
}

// makeNextKeys makes the new CA and the new nonce key. Of two programs that race, one gets secretstore.ErrExists.
func (s *State) makeNextKeys(ctx context.Context, r rotation) error {
	if !r.next.CA.IsZero() { // left over from a rotation that ended
		if err := s.options.Secrets.Delete(ctx, secretstore.NextCAKey); err != nil {
			return err
		}
	}
	var next authority.NextKeys
	var err error
	if next.CA, err = authority.CreateCA(s.options.ClusterID, s.options.Rand, s.options.Now()); err != nil {
		return err
	}
	if next.Nonce, err = authority.CreateNonceKey(s.options.Rand); err != nil {
		return err
	}
	return s.putSecret(ctx, secretstore.NextCAKey, next, secretstore.IfAbsent)
}

// IssueFromNewCA lets the new CA issue certificates and sign the cluster's documents, and the new key sign nonces. Call
// it when every client trusts the new CA. Clients that trust only the old CA will refuse the servers' certificates. If
// an earlier call has done this, IssueFromNewCA changes nothing.
func (s *State) IssueFromNewCA(ctx context.Context) (_ Rotation, err error) {
	defer explain(&err, "issue from the new CA")
	r, err := s.readRotation(ctx)
	if err != nil {
		return Rotation{}, err
	}
	switch r.Step {
	case RotationAnnounced:
		if err := s.useNonceKey(ctx, r.next.Nonce, true); err != nil {
			return Rotation{}, err
		}
		if err := s.putSecret(ctx, secretstore.CAKey, r.next.CA, secretstore.Any); err != nil {
			return Rotation{}, err
		}
		if r, err = s.readRotation(ctx); err != nil {
			return Rotation{}, err
		}
	case RotationIssued:
	default:
		return Rotation{}, fmt.Errorf("the rotation is at step %s: announce the new CA first", r.Step)
	}
	if err := s.SignDocuments(ctx); err != nil {
		return Rotation{}, err
	}
	return r.Rotation, s.options.Secrets.Delete(ctx, secretstore.NextCAKey)
}

// RemoveOldCA ends a rotation: nonces of the old key are refused, and the old CA leaves the bundle. Do not call it
// while certificates of the old CA are in use, because those certificates are refused afterwards. It changes nothing if
// no rotation is under way.
func (s *State) RemoveOldCA(ctx context.Context) (_ Rotation, err error) {
	defer explain(&err, "remove the old CA")
	r, err := s.readRotation(ctx)
	switch {
	case err != nil:
		return Rotation{}, err
	case r.Step == RotationNone:
		return r.Rotation, nil
	case r.Step != RotationIssued:
		return Rotation{}, fmt.Errorf("the rotation is at step %s: the old CA still issues certificates", r.Step)
	}
	// A leader may have signed with the old CA since the last time.
	if err = s.SignDocuments(ctx); err == nil {
		err = s.options.Secrets.Delete(ctx, secretstore.NextCAKey)
	}
	if err == nil {
		err = s.refuseOldNonces(ctx)
	}
	if err == nil {
		err = s.writeBundle(ctx, r.trust, []authority.CA{r.trust.ca}, []*x509.Certificate{r.Current})
	}
	if err != nil {
		return Rotation{}, err
	}
	return s.CARotation(ctx)
}

// Shards lists the shards that have a configuration in the bucket, and those of Options.Elsewhere, sorted.
func (s *State) Shards(ctx context.Context) ([]string, error) {
	entries, err := s.options.Shard.List(ctx, keys.ConfigPrefix())
	if err != nil {
		return nil, err
	}
	var shards []string
	for _, entry := range entries {
		if key, err := keys.Parse(entry.Key); err == nil && key.Kind == keys.KindConfig {
			shards = append(shards, key.Shard)
		}
	}
	shards = slices.AppendSeq(shards, maps.Keys(s.options.Elsewhere))
	slices.Sort(shards)
	return slices.Compact(shards), nil
}

// InShard returns a State of another shard of the cluster.
func (s *State) InShard(shard string) *State {
	options := s.options
	options.ShardID = shard
	if store, ok := s.options.Elsewhere[shard]; ok {
		options.Shard = store
	}
	of := New(options)
	of.known.Store(s.known.Load())
	return of
}

// RotateCA begins a rotation of the CA, or continues one. It calls [State.AnnounceCA] immediately. It calls the
// function "wait" before each later step. wait returns true when the present step is done (see [Following.Done]). If
// wait returns false, RotateCA returns the step that the rotation has reached. Call RotateCA again to continue.
func (s *State) RotateCA(ctx context.Context, wait func(context.Context, Rotation, *Followers) (bool, error)) (Rotation,
	error) {
	r, err := s.AnnounceCA(ctx)
	for err == nil && r.Step != RotationNone {
		var ready bool
		if ready, err = wait(ctx, r, s.Followers(r)); err != nil || !ready {
			return r, err
		}
		if r.Step == RotationAnnounced {
			r, err = s.IssueFromNewCA(ctx)
		} else {
			r, err = s.RemoveOldCA(ctx)
		}
	}
	return r, err
}

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
func (f *Followers) Check(ctx context.Context) (_ Following, err error) {
	defer explain(&err, "check who has followed the rotation")
	shards, err := f.state.Shards(ctx)
	if err != nil {
		return Following{}, err
	}
	out := Following{Shards: []ShardFollowing{}, Operators: []OperatorName{}}
	for _, shard := range shards {
		followed, ok, err := f.checkShard(ctx, shard)
		if err != nil {
			return Following{}, fmt.Errorf("shard %s: %w", shard, err)
		}
		if ok {
			out.Shards = append(out.Shards, followed)
		}
	}
	// Check operators after leaders. A leader that still uses the CAs of the earlier step may renew an operator's
	// certificate. It then records the earlier trust value in the operator's record.
	if out.Operators, err = f.checkOperators(ctx); err != nil {
		return Following{}, err
	}
	out.FilesUntil, err = f.checkFiles(ctx)
	return out, err
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
	of := s.InShard(shard)
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
