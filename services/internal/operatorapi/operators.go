package operatorapi

import (
	"bytes"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

const (
	// An operator's record is read again after operatorFresh, or after refusalMemory if the operator was refused. If
	// the bucket cannot be read then, an operator that was admitted stays admitted until its record is operatorMemory
	// old.
	operatorFresh  = 4 * time.Minute
	operatorMemory = 5 * time.Minute
	refusalMemory  = 10 * time.Second
	// maxOperators is the limit of remembered operators. A tenant has a few.
	maxOperators = 4096
)

// checked is the result of the last read of an operator's record.
type checked struct {
	at      time.Time
	refused error
}

// admit checks that the operator is registered and not removed. It returns an error with code PermissionDenied if not,
// and another one if the operator's record could not be read for operatorMemory.
func (c *call) admit() error {
	now := c.Now()
	c.mu.Lock()
	known, ok := c.operators[c.operator]
	c.mu.Unlock()
	fresh := operatorFresh
	if known.refused != nil {
		fresh = refusalMemory
	}
	age := now.Sub(known.at)
	if ok && age >= 0 && age < fresh {
		return known.refused
	}
	_, _, err := c.record()
	if err == nil || status.Code(err) == codes.PermissionDenied || c.Context.Err() != nil {
		return err
	}
	admitted := ok && known.refused == nil && age >= 0 && age < operatorMemory
	c.Log.Warn("operator's record not read", "tenant", c.tenant, "operator", c.operator.String(),
		"admitted", admitted, "error", err)
	if admitted {
		return nil
	}
	return err
}

// record reads the operator's record and remembers the result. It refuses an operator without a record, with a
// tombstone, or with another key.
func (c *call) record() (record.Operator, objstore.Token, error) {
	rec, token, err := c.Store.GetOperator(c, c.tenant, c.operator)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		err = status.Errorf(codes.PermissionDenied, "operator %s: %v", c.operator, errNotRegistered)
	case err != nil:
		return record.Operator{}, "", err
	case rec.Removed():
		err = status.Errorf(codes.PermissionDenied, "operator %s was removed", c.operator)
	case !bytes.Equal(rec.PublicKey, c.peer.PublicKey):
		err = status.Errorf(codes.PermissionDenied, "operator %s is registered with another key", c.operator)
	}
	c.remember(err)
	return rec, token, err
}

func (c *call) remember(refused error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.operators == nil || len(c.operators) >= maxOperators {
		c.operators = map[ident.ID]checked{}
	}
	c.operators[c.operator] = checked{at: c.Now(), refused: refused}
}

// RenewCertificate issues a new certificate for the same operator and key. The client must present a certificate that
// is still valid.
func (s *Service) RenewCertificate(ctx context.Context, req *nstancev1.OperatorServiceRenewCertificateRequest) (
	*nstancev1.OperatorServiceRenewCertificateResponse, error) {
	return unary(s, ctx, "renew the certificate", req, (*call).renew)
}

func (c *call) renew(*nstancev1.OperatorServiceRenewCertificateRequest) (
	*nstancev1.OperatorServiceRenewCertificateResponse, error) {
	for {
		rec, token, err := c.record()
		if err != nil {
			return nil, err
		}
		identity := authority.Identity{Role: authority.RoleOperator, Cluster: c.Cluster, Tenant: c.tenant,
			ID: c.operator}
		// If the record names another certificate than the presented one, a renewal already happened. Its answer may
		// have been lost, so the same certificate is issued again.
		if !rec.Certificate.NotAfter.Equal(c.peer.NotAfter) {
			if cert, ok := c.Issuer.Reissue(identity, c.peer.PublicKey, rec.Certificate); ok &&
				!cert.NotBefore.After(c.Now()) {
				return renewed(authority.EncodeCertificate(cert), cert.NotAfter, c.Issuer.Bundle), nil
			}
		}
		cert, ref, err := c.Issuer.Issue(identity, c.peer.PublicKey)
		if err != nil {
			c.Log.Error("certificate not issued", "operator", c.operator.String(), "error", err)
			return nil, status.Error(codes.Internal, "the certificate cannot be issued")
		}
		rec.Revision++
		rec.Writer, rec.Certificate = c.Incarnation, ref
		_, err = c.Store.PutOperator(c, rec, token)
		if err == nil {
			return renewed(authority.EncodeCertificate(cert), cert.NotAfter, c.Issuer.Bundle), nil
		}
		if !errors.Is(err, objstore.ErrConflict) || c.Err() != nil {
			return nil, err
		}
	}
}

func renewed(cert []byte, notAfter time.Time, bundle []byte) *nstancev1.OperatorServiceRenewCertificateResponse {
	return &nstancev1.OperatorServiceRenewCertificateResponse{Certificate: cert, NotAfter: timestamppb.New(notAfter),
		CaBundle: bundle}
}
