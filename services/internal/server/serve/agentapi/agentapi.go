// Package agentapi serves the AgentService. It takes the reports of agents and the keys that they submit, and sends
// them their files.
//
// Invariant: a caller can act only for the instance in its certificate, and only while the record of that instance is
// alive and has the certificate's key. An instance has one connection: when a newer connection opens its first stream,
// the streams of the older one end. If two agents with the identity of one instance alternate, one of them is served. A
// slow agent delays no other agent and no action of the leader.
package agentapi

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// Records changes instance records by compare and swap. See execute.Executor.Update.
type Records interface {
	Update(ctx context.Context, id ident.ID, change func(*record.Instance)) (record.Instance, error)
}

// Store contains the durable log of issued certificates, and the public keys of the cluster's agents. See
// clusterstate.State.
type Store interface {
	AppendCertLog(ctx context.Context, entry record.CertLog) error
	// TakeKey returns a [*clusterstate.KeyTakenError] if the key belongs to another instance of the cluster.
	TakeKey(ctx context.Context, key ed25519.PublicKey, tenant string, id ident.ID) error
}

// Keys caches the public keys that agents submitted, across terms and restarts. See localdb.DB. If the cache is lost,
// the server requests the keys again.
type Keys interface {
	Keys(ctx context.Context, instance ident.ID) ([]localdb.Key, error)
	PutKeys(ctx context.Context, instance ident.ID, keys []localdb.Key) error
	DeleteKeys(ctx context.Context, instance ident.ID) error
}

// Leadership is what a leader of one term needs to serve agents.
type Leadership struct {
	// Context ends with the leadership.
	Context        context.Context
	Cluster, Shard string
	Term           uint64
	Incarnation    string
	State          *shardstate.State
	Records        Records
	Store          Store
	Issuer         transport.Issuer
	Files          *filegen.Generator
	// RecheckFiles means that CA certificates in the instances' files may be outdated. The server then makes the files
	// of each instance again, once in this term. It sends the files that have changed.
	RecheckFiles bool
	// Interval returns the configured time between two reports.
	Interval func() time.Duration
	// Endpoints returns the addresses of the leader's agent service, host:port separated by commas. Optional.
	Endpoints func() string
	// Addresses checks that agents call from their VMs. Optional.
	Addresses *vmaddress.Checker
	// RenewWithin is the period over which agents spread the renewals that a rotation of the CA requires. 0 means 5
	// min.
	RenewWithin time.Duration
}

func (l *Leadership) renewWithin() time.Duration { return cmp.Or(l.RenewWithin, 5*time.Minute) }

// session returns the content of a health stream's header.
func (l *Leadership) session() session {
	out := session{interval: l.Interval()}
	if l.Endpoints != nil {
		out.endpoints = l.Endpoints()
	}
	return out
}

// Service implements nstancev1.AgentServiceServer and execute.Files.
type Service struct {
	nstancev1.UnimplementedAgentServiceServer
	// Leader returns the current leadership: the same pointer as long as the leadership lasts. If another server leads,
	// it returns the status error that names that server.
	Leader func() (*Leadership, error)
	Keys   Keys
	Now    func() time.Time
	Log    *slog.Logger
	// Metrics counts reports, if it is set.
	Metrics *metrics.Server

	refusals    transport.RefusalLog
	sendTimeout time.Duration // if set, replaces the constant in tests

	mu    sync.Mutex
	board *board
}

var _ nstancev1.AgentServiceServer = (*Service)(nil)

// board holds the agents of one leadership.
type board struct {
	leader *Leadership

	mu     sync.Mutex
	agents map[ident.ID]*agent
}

// boardOf returns the board of a leadership. The board holds the agents. When the leadership ends, the service drops
// its reference to the board, so that the garbage collector can free the leader's State.
func (s *Service) boardOf(leader *Leadership) *board {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.board == nil || s.board.leader != leader {
		b := &board{leader: leader, agents: map[ident.ID]*agent{}}
		s.board = b
		context.AfterFunc(leader.Context, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.board == b {
				s.board = nil
			}
		})
	}
	return s.board
}

// agent returns the agent of an instance, and creates it on the first call.
func (b *board) agent(id ident.ID) *agent {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.agents[id]
	if a == nil {
		a = &agent{id: id, name: id.String()}
		b.agents[id] = a
	}
	return a
}

// list returns all agents.
func (b *board) list() []*agent {
	b.mu.Lock()
	defer b.mu.Unlock()
	agents := make([]*agent, 0, len(b.agents))
	for _, a := range b.agents {
		agents = append(agents, a)
	}
	return agents
}

// Deleted ends the streams of a deleted instance's agent and drops all data about the agent.
func (s *Service) Deleted(ctx context.Context, id ident.ID) {
	s.mu.Lock()
	b := s.board
	s.mu.Unlock()
	if b != nil {
		b.mu.Lock()
		a := b.agents[id]
		delete(b.agents, id)
		b.mu.Unlock()
		if a != nil {
			a.endStreams(errDeleted(id))
		}
	}
	if err := s.Keys.DeleteKeys(ctx, id); err != nil {
		s.Log.Warn("public keys not removed from the cache", "instance", id.String(), "error", err)
	}
}

// Configured puts a changed configuration in force for the agents. It ends the health streams whose headers contain an
// outdated report interval or outdated addresses of the leader, so that the agents connect again and receive the
// current values. It tells agents which numbers they must read now.
func (s *Service) Configured() {
	s.mu.Lock()
	b := s.board
	s.mu.Unlock()
	if b == nil {
		return
	}
	now := b.leader.session()
	numbers := map[config.GroupKey][]uint64{}
	want := func(key config.GroupKey) []uint64 {
		if _, known := numbers[key]; !known {
			group, _ := b.leader.State.Group(key)
			numbers[key] = idsOf(group.VMNumbers())
		}
		return numbers[key]
	}
	for _, a := range b.list() {
		a.endOutdatedReports(now)
		a.askForNumbers(want)
	}
}

// Outdated returns the number of agents whose health stream was ended by Configured and that have not opened a new one.
func (s *Service) Outdated() (n int) {
	s.mu.Lock()
	b := s.board
	s.mu.Unlock()
	if b == nil {
		return 0
	}
	for _, a := range b.list() {
		a.mu.Lock()
		if a.outdated {
			n++
		}
		a.mu.Unlock()
	}
	return n
}

// call is one authorized call of an agent.
type call struct {
	leader *Leadership
	peer   *transport.Peer
	agent  *agent
	group  config.GroupKey
	stream *stream // nil for a unary call
	// noticed means that the agent has reported a termination notice on this stream.
	noticed bool
	caller  caller
}

// authorize checks that the caller may speak for the instance that its message names. It calls instanceID with the
// instance ID in the caller's certificate. instanceID returns the instance ID in the message.
func (s *Service) authorize(ctx context.Context, instanceID func(own string) string) (*call, error) {
	c, _, err := s.authorizeWith(ctx, instanceID, speaksFor)
	return c, err
}

// authorizeWith is like authorize, but calls the function `check` instead of speaksFor. authorizeWith also returns the
// instance's record.
func (s *Service) authorizeWith(ctx context.Context, instanceID func(own string) string,
	check func(*transport.Peer, *record.Instance) error) (*call, record.Instance, error) {
	fail := func(err error) (*call, record.Instance, error) { return nil, record.Instance{}, err }
	peer, err := transport.PeerOf(ctx)
	if err != nil {
		return fail(status.Error(codes.Unauthenticated, err.Error()))
	}
	leader, err := s.Leader()
	if err != nil {
		return fail(err)
	}
	id := peer.Identity.ID
	rec, _, ok := leader.State.Record(id)
	if !ok {
		if _, dead := leader.State.Tombstone(id); dead {
			return fail(errDeleted(id))
		}
		return fail(status.Errorf(codes.NotFound, "there is no instance %s", id))
	}
	if err := check(peer, &rec); err != nil {
		return fail(err)
	}
	c := &call{leader: leader, peer: peer, agent: s.boardOf(leader).agent(id),
		group: config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}, caller: callerOf(ctx)}
	if instanceID(c.agent.name) != c.agent.name {
		return fail(errForeign(id))
	}
	if err := s.checkCaller(ctx, c); err != nil {
		return fail(err)
	}
	return c, rec, nil
}

// instanceOf returns a function for [Service.authorize]. The function returns the instance ID in the message m.
func instanceOf(m interface{ GetInstanceId() string }) func(string) string {
	return func(string) string { return m.GetInstanceId() }
}

// speaksFor checks a certificate against the record of its instance.
func speaksFor(peer *transport.Peer, rec *record.Instance) error {
	switch {
	case rec.Tenant != peer.Identity.Tenant:
		return status.Errorf(codes.PermissionDenied, "instance %s is not of tenant %s", rec.ID, peer.Identity.Tenant)
	case rec.State != record.Registered && rec.State != record.Deleting:
		return status.Errorf(codes.PermissionDenied, "instance %s is not registered", rec.ID)
	case !peer.PublicKey.Equal(ed25519.PublicKey(rec.PublicKey)):
		return status.Errorf(codes.PermissionDenied, "instance %s is registered with another key", rec.ID)
	}
	return nil
}

// repeatsRenewal reports whether the caller repeats a renewal because the answer was lost. Such a caller still has the
// record's previous key, and requests a certificate for the record's present key.
func repeatsRenewal(peer *transport.Peer, rec *record.Instance, next ed25519.PublicKey) bool {
	return len(next) > 0 && next.Equal(ed25519.PublicKey(rec.PublicKey)) &&
		peer.PublicKey.Equal(ed25519.PublicKey(rec.PreviousKey))
}

// mayBeCertified checks that an instance may get certificates. An instance that is being deleted may only report.
func mayBeCertified(rec *record.Instance) error {
	if rec.State != record.Registered {
		return status.Errorf(codes.PermissionDenied, "instance %s is being deleted: it gets no new certificates",
			rec.ID)
	}
	return nil
}

// logRefusal logs the error with which the server refused a call of an agent, and tells it to the State. It ignores
// other errors.
func (s *Service) logRefusal(ctx context.Context, rpc string, err error) {
	peer, peerErr := transport.PeerOf(ctx)
	if peerErr != nil {
		return
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		if leader, leadErr := s.Leader(); leadErr == nil {
			leader.State.Refused(peer.Identity.ID, fmt.Sprintf("%s, from %s", status.Convert(err).Message(),
				transport.PeerAddress(ctx)))
		}
	}
	if s.refusals.Admits(err) {
		s.Log.Warn("agent refused", "tenant", peer.Identity.Tenant, "instance", peer.Identity.ID.String(), "call", rpc,
			"source", transport.PeerAddress(ctx).String(), "error", status.Convert(err).Message())
	}
}

// errForeign is the answer to a message that names an instance other than the caller's. id is the instance in the
// caller's certificate. The error does not repeat the ID in the message, which is untrusted text.
func errForeign(id ident.ID) error {
	return status.Errorf(codes.PermissionDenied, "instance_id: is not the one in the client certificate, %s", id)
}

// errDeleted tells an agent that its instance is deleted for good. The agent then retries at its longest interval.
func errDeleted(id ident.ID) error {
	return status.Errorf(codes.NotFound, "instance %s is deleted", id)
}

// errLeadershipLost is returned to calls that were in flight when leadership ended.
func (s *Service) errLeadershipLost() error {
	if _, err := s.Leader(); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "leadership changed: connect again")
}
