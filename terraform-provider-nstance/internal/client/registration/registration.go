// Package registration registers operators directly in the bucket, like `nstance-admin cluster register-operator`. It
// issues a certificate of the cluster's CA and writes the record that servers check.
//
// Invariants:
//   - A certificate is returned only after the operator's record contains its serial.
//   - A write never replaces a record that changed after it was read.
package registration

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// ErrRegistered means that the tenant already has an operator with the same public key.
var ErrRegistered = errors.New("the key is registered already")

// ErrRemoved means that the operator does not exist or was removed.
var ErrRemoved = errors.New("there is no such operator, or it was removed")

// maxTTL is the maximum lifetime of a certificate: ten years, like that of a CA.
const maxTTL = 10 * 365 * 24 * time.Hour

// Operator is a registered operator with its newly issued certificate.
type Operator struct {
	ID          ident.ID
	Certificate *x509.Certificate
	// Bundle holds the CA certificates that verify the servers' certificates.
	Bundle []*x509.Certificate
}

// Register registers a new operator of a tenant. writer is the prefix of the writer name in the record. Register
// returns [ErrRegistered] if the tenant already has an operator with the same key.
func Register(ctx context.Context, state *clusterstate.State, tenant string, key ed25519.PublicKey, ttl time.Duration,
	writer string) (Operator, error) {
	all, err := state.ListOperators(ctx, tenant)
	if err != nil {
		return Operator{}, err
	}
	for _, rec := range all {
		if bytes.Equal(rec.PublicKey, key) && !rec.Removed() {
			return Operator{}, fmt.Errorf("%w: as operator %s", ErrRegistered, rec.ID)
		}
	}
	now := time.Now().UTC()
	id, err := ident.NewID(ident.OperatorPrefix, now, rand.Reader)
	if err != nil {
		return Operator{}, err
	}
	return issue(ctx, state, record.Operator{ID: id, Tenant: tenant, PublicKey: key, CreatedAt: now}, "", ttl, writer)
}

// Renew issues a new certificate to an operator. It returns [ErrRemoved] if the operator does not exist.
func Renew(ctx context.Context, state *clusterstate.State, tenant string, id ident.ID, ttl time.Duration,
	writer string) (Operator, error) {
	rec, token, err := Find(ctx, state, tenant, id)
	if err != nil {
		return Operator{}, err
	}
	return issue(ctx, state, rec, token, ttl, writer)
}

// Find returns an operator's record and its version. It returns [ErrRemoved] if the operator does not exist.
func Find(ctx context.Context, state *clusterstate.State, tenant string, id ident.ID) (record.Operator, objstore.Token,
	error) {
	rec, token, err := state.GetOperator(ctx, tenant, id)
	return checkExisting(rec, token, err, tenant, id)
}

// FindUnverified is like [Find], but needs no encryption key, so that a plan can call it. It cannot check the record's
// signature, so anyone who can write to the bucket can choose the result.
func FindUnverified(ctx context.Context, state *clusterstate.State, tenant string, id ident.ID) (record.Operator,
	error) {
	rec, token, err := state.UnverifiedOperator(ctx, tenant, id)
	rec, _, err = checkExisting(rec, token, err, tenant, id)
	return rec, err
}

// checkExisting refuses a missing or removed operator.
func checkExisting(rec record.Operator, token objstore.Token, err error, tenant string, id ident.ID) (record.Operator,
	objstore.Token, error) {
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return record.Operator{}, "", fmt.Errorf("%w: %s of tenant %s", ErrRemoved, id, tenant)
	case err != nil:
		return record.Operator{}, "", err
	case rec.Removed():
		return record.Operator{}, "", fmt.Errorf("%w: %s was removed at %s", ErrRemoved, id,
			rec.RemovedAt.UTC().Format(time.RFC3339))
	}
	return rec, token, nil
}

func issue(ctx context.Context, state *clusterstate.State, rec record.Operator, token objstore.Token, ttl time.Duration,
	writer string) (Operator, error) {
	rec.Writer = incarnation(writer)
	cert, bundle, err := state.IssueOperator(ctx, rec, token, ttl)
	if err != nil {
		return Operator{}, err
	}
	return Operator{ID: rec.ID, Certificate: cert, Bundle: bundle}, nil
}

// Remove replaces an operator's record with a tombstone. Servers then refuse the operator. A server that has already
// read the record may accept the operator for some minutes. Remove returns nil if the operator does not exist.
func Remove(ctx context.Context, state *clusterstate.State, tenant string, id ident.ID, writer string) error {
	for conflicts := (objstore.Conflicts{}); ; {
		rec, token, err := Find(ctx, state, tenant, id)
		if errors.Is(err, ErrRemoved) {
			return nil
		}
		if err != nil {
			return err
		}
		rec.Revision++
		rec.Writer, rec.RemovedAt = incarnation(writer), time.Now().UTC()
		_, err = state.PutOperator(ctx, rec, token)
		if conflicts.Again(ctx, err) {
			continue // another client renewed the certificate
		}
		return err
	}
}

// incarnation adds a random suffix to a writer name, so that two writes never have the same bytes.
func incarnation(writer string) string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return writer + "-" + hex.EncodeToString(random[:])
}

// ParsePublicKey parses one PEM block with an Ed25519 key in PKIX form.
func ParsePublicKey(text string) (ed25519.PublicKey, error) {
	return authority.ParsePublicKeyPEM([]byte(text))
}

// ParseTTL parses the lifetime of a certificate. It accepts one minute to maxTTL.
func ParseTTL(text string) (time.Duration, error) {
	d, err := config.ParseDuration(text)
	switch {
	case err != nil:
		return 0, err
	case d.D() < time.Minute || d.D() > maxTTL:
		return 0, errors.New("it has to be between a minute and ten years")
	}
	return d.D(), nil
}
