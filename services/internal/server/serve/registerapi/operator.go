package registerapi

import (
	"bytes"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// operator registers an operator. The nonce contains the operator's ID (its jti). Creating the record under that ID
// consumes the nonce.
func (c *call) operator() (certificate, error) {
	if !c.expired {
		cert, ref, err := c.issue()
		if err != nil {
			return certificate{}, err
		}
		_, err = c.leader.Store.PutOperator(c.ctx, record.Operator{
			Schema: record.OperatorSchema, Revision: 1, ID: c.claims.ID, Cluster: c.leader.Cluster,
			Tenant: c.claims.Tenant, Writer: c.leader.Incarnation,
			PublicKey: c.key, Certificate: ref, CreatedAt: c.now, NonceExpires: c.claims.ExpiresAt,
			Role: c.claims.OperatorRole,
		}, "")
		if err == nil {
			c.leader.Record(record.Event{Kind: record.EventOperatorRegistered, Tenant: c.claims.Tenant,
				Actor: c.claims.ID.String(), Message: "from " + transport.PeerAddress(c.ctx).String()})
			return cert, nil
		}
		if !errors.Is(err, objstore.ErrConflict) {
			return certificate{}, c.failed("operator record", err)
		}
	}
	return c.operatorAgain()
}

// operatorAgain answers a registration whose nonce is consumed or expired.
func (c *call) operatorAgain() (certificate, error) {
	for conflicts := (objstore.Conflicts{}); ; {
		rec, token, err := c.leader.Store.GetOperator(c.ctx, c.claims.Tenant, c.claims.ID)
		switch {
		case errors.Is(err, objstore.ErrNotFound) && c.expired:
			return certificate{}, c.errExpired()
		case errors.Is(err, objstore.ErrNotFound):
			return certificate{}, status.Errorf(codes.PermissionDenied, "operator %s was removed", c.claims.ID)
		case err != nil:
			return certificate{}, c.failed("operator record", err)
		case rec.Removed():
			return certificate{}, status.Errorf(codes.PermissionDenied, "operator %s was removed", c.claims.ID)
		case !bytes.Equal(rec.PublicKey, c.key):
			return certificate{}, status.Errorf(codes.PermissionDenied,
				"nonce: was used with another key by operator %s", c.claims.ID)
		}
		if err := c.checkConsumed(rec.Certificate.NotAfter); err != nil {
			return certificate{}, err
		}
		if cert, ok := c.again(rec.Certificate); ok {
			return cert, nil
		}
		cert, ref, err := c.issue()
		if err != nil {
			return certificate{}, err
		}
		rec.Revision++
		rec.Writer, rec.Certificate = c.leader.Incarnation, ref
		_, err = c.leader.Store.PutOperator(c.ctx, rec, token)
		if err == nil {
			return cert, nil
		}
		if !conflicts.Again(c.ctx, err) {
			return certificate{}, c.failed("operator record", err)
		}
	}
}
