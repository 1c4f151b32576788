package clusterstate

import (
	"context"
	"crypto/x509"
	"errors"
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
func (s *State) PutOperator(ctx context.Context, rec record.Operator, token objstore.Token) (newToken objstore.Token,
	err error) {
	defer explain(&err, "write operator %s", rec.ID)
	if err := belongs("cluster", rec.Cluster, s.options.ClusterID); err != nil {
		return "", err
	}
	body, err := rec.Encode()
	if err != nil {
		return "", err
	}
	key := keys.ClusterOperator(rec.Tenant, rec.ID.Storage())
	newToken, err = s.putSigned(ctx, s.options.Cluster, key, rec.Revision, body, token)
	return newToken, superseded(err, rec.ID, func() (record.Operator, objstore.Token, error) {
		return s.GetOperator(ctx, rec.Tenant, rec.ID)
	})
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
func (s *State) GetOperator(ctx context.Context, tenant string, id ident.ID) (rec record.Operator,
	token objstore.Token, err error) {
	defer explain(&err, "read operator %s", id)
	return readSigned(ctx, s, s.options.Cluster, keys.ClusterOperator(tenant, id.Storage()),
		checked(record.Decode[record.Operator], func(rec record.Operator) error {
			return errors.Join(belongs("cluster", rec.Cluster, s.options.ClusterID),
				belongs("tenant", rec.Tenant, tenant), belongs("id", rec.ID.String(), id.String()))
		}))
}

// UnverifiedOperator is [State.GetOperator] for a program without the CA's key. Anyone who can write to the bucket can
// forge the result.
func (s *State) UnverifiedOperator(ctx context.Context, tenant string, id ident.ID) (rec record.Operator,
	token objstore.Token, err error) {
	defer explain(&err, "read operator %s", id)
	return read(ctx, s.options.Cluster, keys.ClusterOperator(tenant, id.Storage()),
		orDamaged(unverified(record.Decode[record.Operator])))
}

// ListOperators reads the records of a tenant's operators, tombstones included, sorted by tenant and age. An empty
// tenant selects the operators of all tenants.
func (s *State) ListOperators(ctx context.Context, tenant string) (_ []record.Operator, err error) {
	defer explain(&err, "list operators")
	prefix := keys.OperatorPrefix()
	if tenant != "" {
		prefix = keys.OperatorTenantPrefix(tenant)
	}
	entries, err := s.options.Cluster.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	return load(ctx, s, len(entries), func(ctx context.Context, i int) (record.Operator, error) {
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
}

// DeleteOperator removes a tombstone whose retention is over. It is no error if there is none. Nothing but a tombstone
// may be removed.
func (s *State) DeleteOperator(ctx context.Context, tenant string, id ident.ID) (err error) {
	defer explain(&err, "delete operator %s", id)
	return s.options.Cluster.Delete(ctx, keys.ClusterOperator(tenant, id.Storage()))
}
