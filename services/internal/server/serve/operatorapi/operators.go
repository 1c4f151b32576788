package operatorapi

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

const (
	// If an operator was admitted, its record is read again after operatorFresh. If it was refused, its record is read
	// again after refusalMemory. While the cluster's bucket cannot be read, an admitted operator stays admitted for
	// operatorMemory after the last read: the bucket may be in another cloud, and the operator is then needed most.
	operatorFresh  = 4 * time.Minute
	operatorMemory = time.Hour
	refusalMemory  = 10 * time.Second
	// maxOperators is the largest number of operators that are remembered. A tenant has only a few operators.
	maxOperators = 4096
)

// admission identifies an operator and the key that it presented. A renewal changes the key.
type admission struct {
	operator ident.ID
	key      [ed25519.PublicKeySize]byte
}

func (c *call) admission() admission {
	a := admission{operator: c.operator}
	copy(a.key[:], c.peer.PublicKey)
	return a
}

// checked is the result of the last read of an operator's record.
type checked struct {
	at      time.Time
	refused error
	// mustRenew means that the operator's certificate was issued before the current step of a CA rotation.
	mustRenew bool
	name      string
	role      record.OperatorRole
}

// admit checks that the operator is registered and not removed. If not, it returns PermissionDenied. If the operator's
// record could not be read for longer than operatorMemory, it returns another error.
func (c *call) admit() error {
	now := c.Now()
	c.mu.Lock()
	known, ok := c.operators[c.admission()]
	c.mu.Unlock()
	fresh := operatorFresh
	if known.refused != nil {
		fresh = refusalMemory
	}
	age := now.Sub(known.at)
	c.name, c.role = known.name, known.role
	if ok && age >= 0 && age < fresh {
		return known.refused
	}
	rec, _, err := c.record()
	if err == nil {
		c.name, c.role = rec.Name, rec.Role
	}
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

// record reads the operator's record and remembers the result. It refuses an operator that has no record, was removed,
// or has another key. It also refuses a record that was forged or rolled back.
func (c *call) record() (record.Operator, objstore.Token, error) {
	rec, token, err := c.Store.GetOperator(c, c.tenant, c.operator)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		err = status.Errorf(codes.PermissionDenied, "operator %s: %v", c.operator, errNotRegistered)
	case errors.Is(err, authority.ErrUnsigned), errors.Is(err, authority.ErrSignature),
		errors.Is(err, highwater.ErrRolledBack):
		c.Log.Error("operator's record was forged or rolled back", "tenant", c.tenant, "operator",
			c.operator.String(), "error", err)
		err = status.Errorf(codes.PermissionDenied, "operator %s: its record was not written by this cluster",
			c.operator)
	case err != nil:
		return record.Operator{}, "", err
	case rec.Removed():
		err = status.Errorf(codes.PermissionDenied, "operator %s was removed", c.operator)
	case bytes.Equal(rec.PreviousKey, c.peer.PublicKey) && c.renews(rec.PublicKey):
		// An earlier renewal replaced the key, but the operator may not have received the answer. It may repeat that
		// renewal with its old key. Do not remember that the old key was admitted, because all other calls with it must
		// be refused.
		return rec, token, nil
	case !bytes.Equal(rec.PublicKey, c.peer.PublicKey):
		err = status.Errorf(codes.PermissionDenied, "operator %s is registered with another key", c.operator)
	}
	if err == nil && len(rec.PreviousKey) > 0 {
		rec, token, err = c.forgetPreviousKey(rec, token)
		if err != nil {
			return record.Operator{}, "", err
		}
	}
	c.remember(checked{refused: err, mustRenew: err == nil && c.mustRenew(rec.Certificate), name: rec.Name,
		role: rec.Role})
	return rec, token, err
}

// RenewHeader is a response header with the value "now". It asks an operator to renew its certificate early, because
// the CA is being rotated.
const RenewHeader = "nstance-renew-certificate"

// mustRenew reports whether a certificate was issued in an earlier step of the CA rotation in progress. It returns
// false while there is no rotation. The end of a rotation does not count as a step. If it did, each shard would ask for
// one more renewal, because the shards notice the end at different times.
func (c *call) mustRenew(ref record.CertificateRef) bool {
	return c.Issuer.Trust != "" && ref.Trust != c.Issuer.Trust
}

// requestRenewal adds RenewHeader to the response if the operator must renew its certificate.
func (c *call) requestRenewal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.operators[c.admission()].mustRenew {
		// Ignore the error: SetHeader fails only if the response has already begun. The next response to the operator
		// then has the header.
		_ = grpc.SetHeader(c.client, metadata.Pairs(RenewHeader, "now"))
	}
}

// renews reports whether the call is a renewal that asks for the given key.
func (c *call) renews(key []byte) bool { return len(c.next) > 0 && bytes.Equal(c.next, key) }

// forgetPreviousKey removes the previous key from the record, because the operator has used the key of its last
// renewal.
func (c *call) forgetPreviousKey(rec record.Operator, token objstore.Token) (record.Operator, objstore.Token, error) {
	rec.Revision++
	rec.Writer, rec.PreviousKey = c.Incarnation, nil
	token, err := c.Store.PutOperator(c, rec, token)
	return rec, token, err
}

func (c *call) remember(result checked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	result.at = c.Now()
	if c.operators == nil || len(c.operators) >= maxOperators {
		c.operators = map[admission]checked{}
	}
	c.operators[c.admission()] = result
}

// RenewCertificate issues a new certificate for the same operator and its next key. The client must present a
// certificate that is still valid.
func (c *call) RenewCertificate(context.Context, *nstancev1.OperatorServiceRenewCertificateRequest) (
	*nstancev1.OperatorServiceRenewCertificateResponse, error) {
	for {
		rec, token, err := c.record()
		if err != nil {
			return nil, err
		}
		identity := authority.Identity{Role: authority.RoleOperator, Cluster: c.Cluster, Tenant: c.tenant,
			ID: c.operator}
		// An earlier renewal has succeeded if the client's present certificate is not the recorded one, or if the
		// client wants a certificate for the recorded key. The answer of that renewal may have been lost, so issue the
		// recorded certificate again.
		if !rec.Certificate.NotAfter.Equal(c.peer.NotAfter) || c.renews(rec.PublicKey) {
			if cert, ok := c.Issuer.Reissue(identity, ed25519.PublicKey(rec.PublicKey), rec.Certificate); ok &&
				!cert.NotBefore.After(c.Now()) {
				return renewed(authority.EncodeCertificate(cert), cert.NotAfter, c.Issuer.Bundle), nil
			}
		}
		key := c.peer.PublicKey
		if len(c.next) > 0 {
			key = c.next
		}
		cert, ref, err := c.Issuer.Issue(identity, key)
		if err != nil {
			c.Log.Error("certificate not issued", "operator", c.operator.String(), "error", err)
			return nil, status.Error(codes.Internal, "the certificate cannot be issued")
		}
		rec.Revision++
		if !bytes.Equal(rec.PublicKey, key) {
			rec.PreviousKey, rec.PublicKey = rec.PublicKey, key
		}
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
