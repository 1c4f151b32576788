package clusterstate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// PutOperator writes one version of an operator record. The conditions and the errors are those of [State.PutInstance].
// The first write (token "") consumes the nonce whose jti is the operator's ID. If another registration has consumed
// the nonce already, the error contains the existing record.
func (s *State) PutOperator(ctx context.Context, rec record.Operator, token objstore.Token) (objstore.Token, error) {
	fail := func(err error) (objstore.Token, error) {
		return "", fmt.Errorf("write operator %s: %w", rec.ID, err)
	}
	if err := belongs("cluster", rec.Cluster, s.options.ClusterID); err != nil {
		return fail(err)
	}
	body, err := rec.Encode()
	if err != nil {
		return fail(err)
	}
	key := keys.ClusterOperator(rec.Tenant, rec.ID.Storage())
	if body, err = s.signDocument(ctx, key, rec.Revision, body); err != nil {
		return fail(err)
	}
	newToken, err := putRecord(ctx, s, s.options.Cluster, key, rec.ID, body, token, func() (record.Operator,
		objstore.Token, error) {
		return s.GetOperator(ctx, rec.Tenant, rec.ID)
	})
	if err != nil {
		return fail(err)
	}
	s.noteWritten(key, body, rec.Revision)
	return newToken, nil
}

// IssueOperator issues a certificate to an operator, and notes it in the operator's record, of which rec is the present
// version, with the given token; "" means that the operator is new. It returns the certificate, and the CA certificates
// that verify servers.
func (s *State) IssueOperator(ctx context.Context, rec record.Operator, token objstore.Token, ttl time.Duration) (
	cert *x509.Certificate, bundle []*x509.Certificate, err error) {
	ca, bundle, err := s.ReadCA(ctx)
	if err != nil {
		return nil, nil, err
	}
	who := authority.Identity{Role: authority.RoleOperator, Cluster: s.options.ClusterID, Tenant: rec.Tenant,
		ID: rec.ID}
	cert, err = ca.IssueClient(authority.ClientSpec{Identity: who, PublicKey: rec.PublicKey, TTL: ttl}, s.options.Rand,
		s.options.Now())
	if err != nil {
		return nil, nil, err
	}
	rec.Schema, rec.Cluster = record.OperatorSchema, s.options.ClusterID
	rec.Revision++
	rec.Certificate = record.CertificateRef{Serial: authority.Serial(cert), NotAfter: cert.NotAfter.UTC(),
		Trust: s.Trust()}
	if _, err := s.PutOperator(ctx, rec, token); err != nil {
		return nil, nil, err
	}
	return cert, bundle, nil
}

// GetOperator reads one record, which may be a tombstone. It returns objstore.ErrNotFound if there is none. If no CA of
// the cluster signed the record, the error matches authority.ErrUnsigned or authority.ErrSignature.
func (s *State) GetOperator(ctx context.Context, tenant string, id ident.ID) (record.Operator, objstore.Token, error) {
	key := keys.ClusterOperator(tenant, id.Storage())
	before := s.options.Marks.Highest(key)
	object, err := s.options.Cluster.Get(ctx, key)
	var doc authority.Document
	if err == nil {
		doc, err = s.openDocument(ctx, key, object.Body, before)
	}
	var rec record.Operator
	if err == nil {
		rec, err = record.DecodeOperator(doc.Content)
	}
	if err == nil {
		err = errors.Join(belongs("cluster", rec.Cluster, s.options.ClusterID), belongs("tenant", rec.Tenant, tenant),
			belongs("id", rec.ID.String(), id.String()))
	}
	if err != nil {
		return record.Operator{}, "", fmt.Errorf("read operator %s: %w", id, err)
	}
	return rec, object.Token, nil
}

// UnverifiedOperator is [State.GetOperator] for a program without the CA's key. Anyone who can write to the bucket can
// forge the result.
func (s *State) UnverifiedOperator(ctx context.Context, tenant string, id ident.ID) (record.Operator, objstore.Token,
	error) {
	object, err := s.options.Cluster.Get(ctx, keys.ClusterOperator(tenant, id.Storage()))
	if err != nil {
		return record.Operator{}, "", fmt.Errorf("read operator %s: %w", id, err)
	}
	content, err := authority.UnverifiedContent(object.Body)
	var rec record.Operator
	if err == nil {
		rec, err = record.DecodeOperator(content)
	}
	if err != nil {
		return record.Operator{}, "", fmt.Errorf("read operator %s: %w", id, damaged(err))
	}
	return rec, object.Token, nil
}

// ListOperators reads the records of a tenant's operators, tombstones included, sorted by tenant and age. An empty
// tenant selects the operators of all tenants.
func (s *State) ListOperators(ctx context.Context, tenant string) ([]record.Operator, error) {
	prefix := keys.OperatorPrefix()
	if tenant != "" {
		prefix = keys.OperatorTenantPrefix(tenant)
	}
	entries, err := s.options.Cluster.List(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list operators: %w", err)
	}
	all, err := load(ctx, s, len(entries), func(ctx context.Context, i int) (record.Operator, error) {
		key, err := keys.Parse(entries[i].Key)
		if err != nil {
			return record.Operator{}, err
		}
		id, err := ident.ParseStorageID(key.ID)
		if err != nil {
			return record.Operator{}, err
		}
		rec, _, err := s.GetOperator(ctx, key.Tenant, id)
		return rec, err
	})
	if err != nil {
		return nil, fmt.Errorf("list operators: %w", err)
	}
	return all, nil
}

// DeleteOperator removes a tombstone whose retention is over. It is no error if there is none. Nothing but a tombstone
// may be removed.
func (s *State) DeleteOperator(ctx context.Context, tenant string, id ident.ID) error {
	if err := s.options.Cluster.Delete(ctx, keys.ClusterOperator(tenant, id.Storage())); err != nil {
		return fmt.Errorf("delete operator %s: %w", id, err)
	}
	return nil
}
