// Package registerapi serves the RegistrationService. A client exchanges a nonce and a public key for a client
// certificate.
//
// Invariant: one conditional write consumes a nonce and binds it to the public key in the client's request. An agent's
// nonce is consumed by the write that makes its record registered. An operator's nonce is consumed by the creation of
// its record. Everything in an answer is durable before the answer is sent.
package registerapi

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Records changes instance records by compare-and-swap. See execute.Executor.Update.
type Records interface {
	Update(ctx context.Context, id ident.ID, change func(*record.Instance)) (record.Instance, error)
}

// Store reads and writes the durable records of the cluster. See clusterstate.State.
type Store interface {
	GetInstance(ctx context.Context, tenant string, id ident.ID) (record.Instance, objstore.Token, error)
	GetOperator(ctx context.Context, tenant string, id ident.ID) (record.Operator, objstore.Token, error)
	// PutOperator with an empty token writes only if there is no record yet. A failed condition matches
	// objstore.ErrConflict.
	PutOperator(ctx context.Context, rec record.Operator, token objstore.Token) (objstore.Token, error)
	AppendCertLog(ctx context.Context, entry record.CertLog) error
	// TakeKey returns a [*clusterstate.KeyTakenError] if the key belongs to another instance of the cluster.
	TakeKey(ctx context.Context, key ed25519.PublicKey, tenant string, id ident.ID) error
}

// Registrar holds what the leader of one term needs to register clients.
type Registrar struct {
	// Context ends with the leadership.
	Context        context.Context
	Cluster, Shard string
	Term           uint64
	Incarnation    string
	State          *shardstate.State
	Records        Records
	Store          Store
	// NonceKeys verify nonces.
	NonceKeys []ed25519.PublicKey
	Issuer    transport.Issuer
	// Addresses checks that a registration comes from an address of the instance's VM.
	Addresses *vmaddress.Checker
	// Attest checks an agent's proof that it runs on a VM. It succeeds if the configuration requires no proof. It fails
	// with [infra.Denied] if the proof is wrong. After any other error, the agent tries again, because the proof could
	// not be checked. If Attest is nil, no proof is checked.
	Attest func(ctx context.Context, proof []byte, vm infra.VM) error
	// Attested reports whether the configuration requires proofs. Only then are the nonces of batches valid. If it is
	// nil, no proof is required.
	Attested func() bool
	// Record adds an event to the journal: that a registration was refused, or that an operator was registered.
	Record func(record.Event)
}

// Service implements nstancev1.RegistrationServiceServer.
type Service struct {
	nstancev1.UnimplementedRegistrationServiceServer
	// Leader returns the current leadership, or the status error that names the actual leader.
	Leader func() (*Registrar, error)
	Now    func() time.Time
	Log    *slog.Logger
	// Metrics counts registrations by status code. Optional.
	Metrics *metrics.Server

	refusals transport.RefusalLog
}

var _ nstancev1.RegistrationServiceServer = (*Service)(nil)

// RegisterAgent issues a client certificate to an instance's agent. It ignores the host name and the addresses in the
// request: the record gets those that the provider reports.
func (s *Service) RegisterAgent(ctx context.Context, req *nstancev1.RegisterAgentRequest) (
	*nstancev1.RegisterAgentResponse, error) {
	cert, err := s.serve(ctx, req.GetNonce(), req.GetPublicKey(), authority.RoleAgent,
		func(c *call) (certificate, error) {
			return c.agent(req.GetAttestation(), req.GetInstanceId())
		})
	if err != nil {
		return nil, err
	}
	return &nstancev1.RegisterAgentResponse{Certificate: cert.pem, NotAfter: timestamppb.New(cert.notAfter),
		CaBundle: cert.bundle}, nil
}

// RegisterOperator issues a client certificate to an operator.
func (s *Service) RegisterOperator(ctx context.Context, req *nstancev1.RegisterOperatorRequest) (
	*nstancev1.RegisterOperatorResponse, error) {
	cert, err := s.serve(ctx, req.GetNonce(), req.GetPublicKey(), authority.RoleOperator, (*call).operator)
	if err != nil {
		return nil, err
	}
	return &nstancev1.RegisterOperatorResponse{Certificate: cert.pem, NotAfter: timestamppb.New(cert.notAfter),
		CaBundle:   cert.bundle,
		OperatorId: cert.id.String()}, nil
}

// certificate is the content of the answer to a client: the client's certificate and the CA bundle.
type certificate struct {
	pem, bundle []byte
	notAfter    time.Time
	id          ident.ID
}

// call is one registration.
type call struct {
	*Service
	ctx    context.Context
	leader *Registrar
	key    ed25519.PublicKey
	// claims are zero until the nonce is verified.
	claims authority.NonceClaims
	// expired means that the nonce has expired. An expired nonce is valid only with the key that consumed it.
	expired bool
	// unproven means that the agent sent no proof of its VM, although the configuration requires one.
	unproven bool
	now      time.Time
}

// serve runs a registration, counts its status code, and logs the client's address.
func (s *Service) serve(ctx context.Context, nonce string, key []byte, role authority.Role,
	register func(*call) (certificate, error)) (certificate, error) {
	c := &call{Service: s, ctx: ctx, key: key, now: s.Now().UTC()}
	cert, err := c.try(nonce, role, register)
	if s.Metrics != nil {
		s.Metrics.Registrations.WithLabelValues(status.Code(err).String()).Inc()
	}
	attrs := []any{"role", string(role), "source", transport.PeerAddress(ctx).String()}
	if !c.claims.ID.IsZero() {
		attrs = append(attrs, "tenant", c.claims.Tenant, "client", c.claims.ID.String())
	}
	c.tellState(ctx, err)
	if err == nil {
		s.Log.Info("registered", append(attrs, "expires", cert.notAfter)...)
	} else if s.refusals.Admits(err) || c.unproven && s.refusals.Allows() {
		s.Log.Warn("registration refused", append(attrs, "error", status.Convert(err).Message())...)
		c.recordRefusal(err)
	}
	return cert, err
}

// tellState tells the State whether the registration of an agent with a verified nonce was refused, and why. It is the
// reason that the leader gives if the agent does not register in time.
func (c *call) tellState(ctx context.Context, err error) {
	switch {
	case c.leader == nil || c.claims.ID.IsZero() || c.claims.Role != authority.RoleAgent:
	case err == nil:
		c.leader.State.Refused(c.claims.ID, "")
	case ctx.Err() == nil: // else the client hung up
		c.leader.State.Refused(c.claims.ID, fmt.Sprintf("%s, from %s", status.Convert(err).Message(),
			transport.PeerAddress(ctx)))
	}
}

// recordRefusal adds a refused registration to the journal if its nonce is verified. Refusals without one are only
// counted and logged, because anybody can cause them and so displace the other events.
func (c *call) recordRefusal(err error) {
	if c.leader == nil || c.claims.ID.IsZero() {
		return
	}
	event := record.Event{Kind: record.EventRegistrationRefused, Actor: transport.PeerAddress(c.ctx).String(),
		Message: status.Convert(err).Message()}
	event.Tenant = c.claims.Tenant
	if c.claims.Role == authority.RoleAgent {
		event.Instance = c.claims.ID.String()
	}
	c.leader.Record(event)
}

func (c *call) try(nonce string, role authority.Role, register func(*call) (certificate, error)) (certificate, error) {
	leader, err := c.Leader()
	if err != nil {
		return certificate{}, err
	}
	c.leader = leader
	if nonce == "" {
		return certificate{}, status.Error(codes.InvalidArgument, "nonce: is empty")
	}
	if err := transport.CheckPublicKey(c.key); err != nil {
		return certificate{}, status.Errorf(codes.InvalidArgument, "public_key: %v", err)
	}
	if c.claims, err = authority.ParseNonce(leader.NonceKeys, leader.Cluster, nonce, c.now, true); err != nil {
		return certificate{}, nonceError(err)
	}
	if c.claims.Role != role {
		return certificate{}, status.Errorf(codes.PermissionDenied, "nonce: is for the role %s, not %s", c.claims.Role,
			role)
	}
	c.expired = !c.now.Before(c.claims.ExpiresAt)

	client := c.ctx
	inner, cancel := context.WithCancel(client)
	defer cancel()
	defer context.AfterFunc(leader.Context, cancel)()
	c.ctx = inner
	cert, err := register(c)
	if err != nil && client.Err() == nil && leader.Context.Err() != nil {
		if _, err := c.Leader(); err != nil {
			return certificate{}, err
		}
		return certificate{}, status.Error(codes.Unavailable, "leadership changed: try again")
	}
	return cert, err
}

// nonceError converts an error of a nonce to a status error. The client may retry only if the nonce is not valid yet:
// the clocks of two servers may differ.
func nonceError(err error) error {
	code := codes.InvalidArgument
	switch {
	case errors.Is(err, authority.ErrNonceSignature), errors.Is(err, authority.ErrNonceExpired):
		code = codes.Unauthenticated
	case errors.Is(err, authority.ErrNonceCluster):
		code = codes.PermissionDenied
	case errors.Is(err, authority.ErrNonceEarly):
		code = codes.Unavailable
	}
	return status.Errorf(code, "nonce: %v", err)
}

func (c *call) errExpired() error {
	return status.Errorf(codes.Unauthenticated, "nonce: expired at %s", c.claims.ExpiresAt.Format(time.RFC3339))
}

// checkConsumed refuses a consumed nonce once the client's last certificate has been expired for longer than
// RenewalGrace. From then on, a stolen nonce and key are of no use.
func (c *call) checkConsumed(notAfter time.Time) error {
	if c.now.After(notAfter.Add(transport.RenewalGrace)) {
		return status.Errorf(codes.Unauthenticated, "nonce: is consumed, and its certificate expired at %s",
			notAfter.Format(time.RFC3339))
	}
	return nil
}

// failed logs why a registration could not be made durable, and returns an error that asks the client to retry.
func (c *call) failed(what string, err error) error {
	if c.ctx.Err() == nil {
		c.Log.Warn("registration failed", "tenant", c.claims.Tenant, "client", c.claims.ID.String(), "step", what,
			"error", err)
	}
	return status.Errorf(codes.Unavailable, "%s: cannot be done now, try again", what)
}

func (c *call) identity() authority.Identity {
	return authority.Identity{Role: c.claims.Role, Cluster: c.leader.Cluster, Tenant: c.claims.Tenant, ID: c.claims.ID}
}

// again returns the certificate in the record, for a client that did not get the answer to its registration. It writes
// nothing. ok is false if the client needs a new certificate.
func (c *call) again(ref record.CertificateRef) (certificate, bool) {
	cert, ok := c.leader.Issuer.Reissue(c.identity(), c.key, ref)
	if !ok {
		return certificate{}, false
	}
	return certificate{pem: authority.EncodeCertificate(cert), bundle: c.leader.Issuer.Bundle, notAfter: cert.NotAfter,
		id: c.claims.ID}, true
}

// issue issues a new certificate. The certificate must not be sent before its record is durable.
func (c *call) issue() (certificate, record.CertificateRef, error) {
	cert, ref, err := c.leader.Issuer.Issue(c.identity(), c.key)
	if err != nil {
		c.Log.Error("certificate not issued", "tenant", c.claims.Tenant, "client", c.claims.ID.String(), "error", err)
		return certificate{}, ref, status.Error(codes.Internal, "the certificate cannot be issued")
	}
	return certificate{pem: authority.EncodeCertificate(cert), bundle: c.leader.Issuer.Bundle, notAfter: cert.NotAfter,
		id: c.claims.ID}, ref, nil
}
