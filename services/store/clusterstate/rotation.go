package clusterstate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
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

func (s *State) readRotation(ctx context.Context) (rotation, error) {
	fail := func(err error) (rotation, error) { return rotation{}, fmt.Errorf("read rotation of the CA: %w", err) }
	next, err := s.loadNextKeys(ctx)
	if err != nil && !errors.Is(err, secretstore.ErrNotFound) {
		return fail(err)
	}
	// Read the next CA before the current one: between the reads, the next CA may become the current one, but never the
	// reverse.
	ca, err := s.LoadCA(ctx)
	if err != nil {
		return fail(err)
	}
	t, err := s.readBundle(ctx, ca)
	if err != nil {
		return fail(err)
	}
	if len(t.bundle) > 2 {
		return fail(fmt.Errorf("%s holds %d CAs, at most two are expected", keys.ClusterCA(), len(t.bundle)))
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
		return fail(fmt.Errorf("%s holds another CA than %s: %w", keys.ClusterCA(), secretstore.NextCAKey, ErrForeign))
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
func (s *State) AnnounceCA(ctx context.Context) (Rotation, error) {
	fail := func(err error) (Rotation, error) { return Rotation{}, fmt.Errorf("announce the new CA: %w", err) }
	if _, _, err := s.EnsureCA(ctx); err != nil { // it signs the documents of a former version
		return fail(err)
	}
	for conflicts := (objstore.Conflicts{}); ; {
		r, err := s.readRotation(ctx)
		if err != nil {
			return fail(err)
		}
		switch r.Step {
		case RotationNone:
			if err = s.makeNextKeys(ctx, r); errors.Is(err, secretstore.ErrExists) {
				err = fmt.Errorf("%w: %w", objstore.ErrConflict, err)
			}
		case RotationPrepared:
			if err = s.announceNonceKey(ctx, r.next.Nonce); err == nil {
				err = s.writeBundle(ctx, r.trust, []authority.CA{r.trust.ca, r.next.CA},
					[]*x509.Certificate{r.next.CA.Certificate(), r.Current})
			}
		default:
			return r.Rotation, nil
		}
		if err != nil && !conflicts.Again(ctx, err) {
			return fail(err)
		}
	}
}

func (s *State) loadNextKeys(ctx context.Context) (authority.NextKeys, error) {
	secret, err := s.options.Secrets.Get(ctx, secretstore.NextCAKey)
	if err != nil {
		return authority.NextKeys{}, fmt.Errorf("load the next CA: %w", err)
	}
	next, err := authority.ParseNextKeys(secret.Value.Reveal())
	if err != nil {
		return authority.NextKeys{}, fmt.Errorf("load the next CA: %w", err)
	}
	if err := next.CA.CheckCluster(s.options.ClusterID); err != nil {
		return authority.NextKeys{}, fmt.Errorf("load the next CA: %w: %w", ErrForeign, err)
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
	secret, err := next.MarshalSecret()
	if err != nil {
		return err
	}
	return s.options.Secrets.Put(ctx, secretstore.NextCAKey, secretstore.NewValue(secret), secretstore.IfAbsent)
}

// IssueFromNewCA lets the new CA issue certificates and sign the cluster's documents, and the new key sign nonces. Call
// it when every client trusts the new CA. Clients that trust only the old CA will refuse the servers' certificates. If
// an earlier call has done this, IssueFromNewCA changes nothing.
func (s *State) IssueFromNewCA(ctx context.Context) (Rotation, error) {
	fail := func(err error) (Rotation, error) { return Rotation{}, fmt.Errorf("issue from the new CA: %w", err) }
	r, err := s.readRotation(ctx)
	if err != nil {
		return fail(err)
	}
	switch r.Step {
	case RotationAnnounced:
		if err := s.signNoncesWith(ctx, r.next.Nonce); err != nil {
			return fail(err)
		}
		secret, err := r.next.CA.MarshalSecret()
		if err != nil {
			return fail(err)
		}
		if err := s.options.Secrets.Put(ctx, secretstore.CAKey, secretstore.NewValue(secret),
			secretstore.Any); err != nil {
			return fail(err)
		}
		if r, err = s.readRotation(ctx); err != nil {
			return fail(err)
		}
	case RotationIssued:
	default:
		return fail(fmt.Errorf("the rotation is at step %s: announce the new CA first", r.Step))
	}
	if err := s.SignDocuments(ctx); err != nil {
		return fail(err)
	}
	if err := s.options.Secrets.Delete(ctx, secretstore.NextCAKey); err != nil {
		return fail(err)
	}
	return r.Rotation, nil
}

// RemoveOldCA ends a rotation: nonces of the old key are refused, and the old CA leaves the bundle. Do not call it
// while certificates of the old CA are in use, because those certificates are refused afterwards. It changes nothing if
// no rotation is under way.
func (s *State) RemoveOldCA(ctx context.Context) (Rotation, error) {
	fail := func(err error) (Rotation, error) { return Rotation{}, fmt.Errorf("remove the old CA: %w", err) }
	r, err := s.readRotation(ctx)
	switch {
	case err != nil:
		return fail(err)
	case r.Step == RotationNone:
		return r.Rotation, nil
	case r.Step != RotationIssued:
		return fail(fmt.Errorf("the rotation is at step %s: the old CA still issues certificates", r.Step))
	}
	if err := s.SignDocuments(ctx); err != nil { // a leader may have signed with the old CA since the last time
		return fail(err)
	}
	if err := s.options.Secrets.Delete(ctx, secretstore.NextCAKey); err != nil {
		return fail(err)
	}
	if err := s.refuseOldNonces(ctx); err != nil {
		return fail(err)
	}
	if err := s.writeBundle(ctx, r.trust, []authority.CA{r.trust.ca}, []*x509.Certificate{r.Current}); err != nil {
		return fail(err)
	}
	return s.CARotation(ctx)
}

// Shards lists the shards that have a configuration in the bucket, sorted.
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
	slices.Sort(shards)
	return shards, nil
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
