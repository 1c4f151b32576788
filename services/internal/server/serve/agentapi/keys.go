package agentapi

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
)

// KeyGenRequests requests public keys from an agent: those that the files of its instance need and that the agent has
// not submitted.
func (s *Service) KeyGenRequests(req *nstancev1.KeyGenRequestsRequest,
	stream grpc.ServerStreamingServer[nstancev1.KeyGenRequestsResponse]) error {
	requestKeys := func(c *call) error { return c.agent.requestKeys(stream.Send) }
	return s.serveStream(stream.Context(), keysStream, instanceOf(req), func(c *call) error {
		s.findMissingKeys(stream.Context(), c)
		return requestKeys(c)
	}, requestKeys)
}

// findMissingKeys compares the keys that the caller's group needs with the keys that the agent has submitted. It adds
// the missing keys to the wanted keys.
func (s *Service) findMissingKeys(ctx context.Context, c *call) {
	s.loadKeys(ctx, c.agent)
	needed := s.keysOfGroup(c)
	c.agent.mu.Lock()
	defer c.agent.mu.Unlock()
	for _, request := range needed {
		if filegen.CheckKey(c.agent.keys[request.Name], request.Algorithm) != nil &&
			!slices.Contains(c.agent.wantedKeys, request) {
			c.agent.wantedKeys = append(c.agent.wantedKeys, request)
		}
	}
}

// requestKeys sends the wanted keys, if there are any, to the agent.
func (a *agent) requestKeys(send func(*nstancev1.KeyGenRequestsResponse) error) error {
	a.mu.Lock()
	wanted := a.wantedKeys
	a.wantedKeys = nil
	a.mu.Unlock()
	if len(wanted) == 0 {
		return nil
	}
	message := &nstancev1.KeyGenRequestsResponse{}
	for _, request := range wanted {
		message.Keys = append(message.Keys, &nstancev1.KeyRequest{Name: request.Name,
			Algorithm: algorithm(request.Algorithm)})
	}
	return send(message)
}

func algorithm(name string) nstancev1.KeyAlgorithm {
	if name == filegen.ECDSAP256 {
		return nstancev1.KeyAlgorithm_KEY_ALGORITHM_ECDSA_P256
	}
	return nstancev1.KeyAlgorithm_KEY_ALGORITHM_ED25519
}

// keysOfGroup returns the keys that the files of the caller's group need.
func (s *Service) keysOfGroup(c *call) []filegen.KeyRequest {
	group, ok := c.leader.State.Group(c.group)
	if !ok || group.RuntimeHash == "" {
		return nil
	}
	keys, err := c.leader.Files.Keys(group)
	if err != nil {
		s.Log.Error("keys of a group cannot be determined", "tenant", c.group.Tenant, "group", c.group.Group, "error",
			err)
	}
	return keys
}

// loadKeys reads from the cache the keys that the agent submitted before this leadership began. It does so once per
// leadership.
func (s *Service) loadKeys(ctx context.Context, a *agent) {
	a.mu.Lock()
	loaded := a.keys != nil
	a.mu.Unlock()
	if loaded {
		return
	}
	stored, err := s.Keys.Keys(ctx, a.id)
	if err != nil {
		s.Log.Warn("public keys not read from the cache", "instance", a.name, "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keys == nil {
		a.keys = map[string][]byte{}
	}
	for _, key := range stored {
		if a.keys[key.Name] == nil {
			a.keys[key.Name] = key.PKIX
		}
	}
}

// SubmitPublicKeys takes public keys that the server requested.
func (s *Service) SubmitPublicKeys(ctx context.Context, req *nstancev1.SubmitPublicKeysRequest) (
	_ *nstancev1.SubmitPublicKeysResponse, err error) {
	defer func() { s.logRefusal(ctx, "SubmitPublicKeys", err) }()
	c, err := s.authorize(ctx, instanceOf(req))
	if err != nil {
		return nil, err
	}
	if n := len(req.GetKeys()); n == 0 || n > maxKeys {
		return nil, status.Errorf(codes.InvalidArgument, "keys: %d of them, want 1 to %d", n, maxKeys)
	}
	wanted := s.keysOfGroup(c)
	keys := make([]localdb.Key, len(req.GetKeys()))
	for i, key := range req.GetKeys() {
		at := slices.IndexFunc(wanted, func(r filegen.KeyRequest) bool { return r.Name == key.GetName() })
		if at < 0 {
			return nil, status.Errorf(codes.InvalidArgument, "keys[%d].name: no file of the instance needs such a key",
				i)
		}
		if err := filegen.CheckKey(key.GetPkix(), wanted[at].Algorithm); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "keys[%d].pkix: %v", i, err)
		}
		keys[i] = localdb.Key{Name: key.GetName(), PKIX: key.GetPkix()}
	}
	s.loadKeys(ctx, c.agent)
	a := c.agent
	a.mu.Lock()
	for _, key := range keys {
		a.keys[key.Name] = key.PKIX
		a.wantedKeys = slices.DeleteFunc(a.wantedKeys, func(r filegen.KeyRequest) bool { return r.Name == key.Name })
	}
	a.wakeStream(filesStream)
	a.mu.Unlock()
	if err := s.Keys.PutKeys(ctx, a.id, keys); err != nil {
		s.Log.Warn("public keys not written to the cache", "instance", a.name, "error", err)
	}
	return &nstancev1.SubmitPublicKeysResponse{}, nil
}

// RenewCertificate issues a new client certificate to an agent. The certificate is for the key in the request. Without
// a key in the request, it is for the agent's present key. RenewCertificate refuses an instance that is being deleted.
func (s *Service) RenewCertificate(ctx context.Context, req *nstancev1.AgentServiceRenewCertificateRequest) (
	_ *nstancev1.AgentServiceRenewCertificateResponse, err error) {
	defer func() { s.logRefusal(ctx, "RenewCertificate", err) }()
	next := ed25519.PublicKey(req.GetPublicKey())
	if len(next) > 0 {
		if err := transport.CheckPublicKey(next); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "public_key: %v", err)
		}
	}
	mayRenew := func(peer *transport.Peer, r *record.Instance) error {
		as := *r
		if repeatsRenewal(peer, r, next) {
			as.PublicKey = r.PreviousKey
		}
		return cmp.Or(speaksFor(peer, &as), mayBeCertified(r), s.inGrace(peer))
	}
	c, rec, err := s.authorizeWith(ctx, instanceOf(req), mayRenew)
	if err != nil {
		return nil, err
	}
	if c.peer.Expired {
		if err := checkRunning(c); err != nil {
			return nil, err
		}
	}
	issuer := c.leader.Issuer
	answer := func(pem []byte, notAfter *timestamppb.Timestamp) *nstancev1.AgentServiceRenewCertificateResponse {
		return &nstancev1.AgentServiceRenewCertificateResponse{Certificate: pem, NotAfter: notAfter,
			CaBundle: issuer.Bundle}
	}
	// An agent that did not receive the answer to its last renewal gets the same certificate again. Repeated calls
	// write nothing.
	if ref := rec.Certificate; ref != nil {
		if cert, ok := issuer.Reissue(c.peer.Identity, ed25519.PublicKey(rec.PublicKey), *ref); ok {
			return answer(authority.EncodeCertificate(cert), timestamppb.New(cert.NotAfter)), nil
		}
	}
	if len(next) == 0 {
		next = c.peer.PublicKey
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.leader.Context, cancel)()
	if err := c.leader.Store.TakeKey(inner, next, rec.Tenant, c.agent.id); err != nil {
		if taken, ok := errors.AsType[*clusterstate.KeyTakenError](err); ok {
			return nil, status.Errorf(codes.AlreadyExists, "public_key: %v", taken)
		}
		return nil, s.errNotRecorded(ctx, c, err)
	}
	cert, ref, err := issuer.Issue(c.peer.Identity, next)
	if err != nil {
		s.Log.Error("certificate not issued", "instance", c.agent.name, "error", err)
		return nil, status.Error(codes.Internal, "the certificate cannot be issued")
	}
	err = c.leader.Store.AppendCertLog(inner, record.CertLog{
		Schema: record.CertLogSchema, Cluster: c.leader.Cluster, Shard: c.leader.Shard, Tenant: rec.Tenant,
		Instance: c.agent.id, Term: c.leader.Term,
		Writer: c.leader.Incarnation, IssuedAt: s.Now().UTC(), Issued: []record.Issued{{Name: record.CertAgent,
			Kind: record.CertAgent, Serial: ref.Serial, NotAfter: ref.NotAfter}},
	})
	if err != nil {
		return nil, s.errNotRecorded(ctx, c, err)
	}
	// After authorize checked the record, the instance may have been deleted, or registered with another key. So check
	// the record again.
	var refusal error
	_, err = c.leader.Records.Update(inner, c.agent.id, func(r *record.Instance) {
		if refusal = mayRenew(c.peer, r); refusal != nil {
			return
		}
		if !next.Equal(ed25519.PublicKey(r.PublicKey)) {
			r.PreviousKey, r.PublicKey = r.PublicKey, next
		}
		r.Certificate = &ref
	})
	switch {
	case refusal != nil:
		return nil, refusal
	case errors.Is(err, execute.ErrGone):
		return nil, errDeleted(c.agent.id)
	case err != nil:
		return nil, s.errNotRecorded(ctx, c, err)
	}
	return answer(authority.EncodeCertificate(cert), timestamppb.New(cert.NotAfter)), nil
}

// inGrace checks that the caller's certificate has not been expired for longer than RenewalGrace.
func (s *Service) inGrace(peer *transport.Peer) error {
	if s.Now().After(peer.NotAfter.Add(transport.RenewalGrace)) {
		return status.Errorf(codes.Unauthenticated, "the certificate of the agent expired at %s and can be renewed "+
			"for %d days only: replace the instance, or correct the clock of the server",
			peer.NotAfter.Format(time.RFC3339), transport.RenewalGrace/(24*time.Hour))
	}
	return nil
}

// forgetPreviousKey removes the previous key from the record when the agent has used the key of its last renewal. If
// the write fails, the agent's next health stream causes another attempt.
func (s *Service) forgetPreviousKey(c *call) {
	rec, _, ok := c.leader.State.Record(c.agent.id)
	if !ok || len(rec.PreviousKey) == 0 || !c.peer.PublicKey.Equal(ed25519.PublicKey(rec.PublicKey)) {
		return
	}
	_, err := c.leader.Records.Update(c.leader.Context, c.agent.id, func(r *record.Instance) {
		if c.peer.PublicKey.Equal(ed25519.PublicKey(r.PublicKey)) {
			r.PreviousKey = nil
		}
	})
	if err != nil && c.leader.Context.Err() == nil && !errors.Is(err, execute.ErrGone) {
		s.Log.Warn("previous key not removed from the record", "instance", c.agent.name, "error", err)
	}
}

// checkRunning checks that an agent with an expired certificate may renew it. The provider must have answered that the
// agent's VM runs.
func checkRunning(c *call) error {
	view, ok := c.leader.State.Instance(c.agent.id)
	switch {
	case ok && view.Plan.Provider.Value == plan.ProviderRunning:
		return nil
	case ok && view.Plan.Provider.Value == plan.ProviderUnknown:
		return status.Errorf(codes.Unavailable,
			"instance %s: the provider has not answered yet whether it runs, try again",
			c.agent.id)
	}
	return status.Errorf(codes.PermissionDenied, "instance %s does not run according to the provider", c.agent.id)
}

// errNotRecorded returns the status of a renewal that could not be written to the bucket.
func (s *Service) errNotRecorded(ctx context.Context, c *call, err error) error {
	if c.leader.Context.Err() != nil {
		return s.errLeadershipLost()
	}
	if ctx.Err() == nil {
		s.Log.Warn("certificate not renewed", "instance", c.agent.name, "error", err)
	}
	return status.Error(codes.Unavailable, "the renewal cannot be recorded now, try again")
}
