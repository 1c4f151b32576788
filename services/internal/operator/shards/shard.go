package shards

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	// grace: with a server that is silent, pingAfter and pingTimeout come before it, 17 s in all.
	grace = 4 * time.Second
	// settled is how long a session must have lasted for the next delay to be the shortest again.
	settled = 5 * time.Second
)

var (
	errNotConnected = errors.New("not connected yet")
	errStopped      = errors.New("it is connected no more")
)

// shard is one shard: the one connection to its leader, and its mirror.
type shard struct {
	*mirror
	set *Set
	log *slog.Logger

	mu    sync.Mutex
	addr  string
	state State
	// conn is the connection to a leader; nil while there is none. lost is why.
	conn *grpc.ClientConn
	lost error
	// cut ends the session that is, so that another begins.
	cut context.CancelFunc
	// doubt makes the shard unreachable once its grace is over.
	doubt *time.Timer
	// removed ends run for good.
	removed chan struct{}
}

var _ Shard = (*shard)(nil)

func newShard(id, addr string, set *Set) *shard {
	return &shard{mirror: newMirror(id, set.options.Now), set: set, log: set.options.Log.With("shard", id), addr: addr,
		lost:  errNotConnected,
		state: State{Since: set.options.Now(), Err: errNotConnected.Error()}, removed: make(chan struct{})}
}

func (s *shard) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// readdress makes the next session begin at another address, at once.
func (s *shard) readdress(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = addr
	if s.cut != nil {
		s.cut()
	}
}

func (s *shard) remove() { close(s.removed) }

// run keeps a session with the shard's leader until ctx ends or the shard is removed.
func (s *shard) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.stopped()
	go func() {
		select {
		case <-s.removed:
			cancel()
		case <-ctx.Done():
		}
	}()
	delays := &backoff.ExponentialBackOff{InitialInterval: 300 * time.Millisecond, RandomizationFactor: 0.5,
		Multiplier: 2, MaxInterval: 5 * time.Second}
	delays.Reset()
	said, hint := "", ""
	for ctx.Err() == nil {
		addr, followed := s.address(), hint != ""
		if followed {
			addr = hint
		}
		began := s.now()
		met, err := s.once(ctx, addr)
		if ctx.Err() != nil {
			return
		}
		s.offline(err, s.set.grace)
		if err.Error() != said {
			said = err.Error()
			s.log.Warn("No session with the shard's leader; trying again", "address", addr, "error", err)
		}
		// A server that is not the leader names it: that one is tried at once, and after that the configured address
		// again.
		hint = notleader.FromError(err).GetOperatorAddr()
		if hint != "" && hint != addr && !followed {
			continue
		}
		hint = ""
		lasted := s.now().Sub(began) >= settled
		if met && lasted {
			said = ""
			delays.Reset()
		}
		if met && lasted || errors.Is(err, errAddress) {
			continue // at once: most often somebody else leads already
		}
		pause(ctx, delays.NextBackOff())
	}
}

// errAddress ends a session because the configuration file has another address.
var errAddress = errors.New("the shard's address has changed")

// once holds one session. met is whether a leader answered; the error is never nil.
func (s *shard) once(ctx context.Context, addr string) (met bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.cut = func() { cancel(errAddress) }
	s.mu.Unlock()
	met, err = s.session(ctx, addr)
	if cause := context.Cause(ctx); cause != nil && errors.Is(cause, errAddress) {
		err = cause
	}
	return met, err
}

// online says that a leader answers on a connection.
func (s *shard) online(conn *grpc.ClientConn) {
	s.mu.Lock()
	if s.doubt != nil {
		s.doubt.Stop()
		s.doubt = nil
	}
	s.conn, s.lost = conn, nil
	changed := !s.state.Reachable
	if changed {
		s.state.Reachable, s.state.Since, s.state.Err = true, s.now(), ""
	}
	s.mu.Unlock()
	if changed {
		s.log.Info("The shard is reachable", "address", conn.Target())
		s.set.tell(Change{Shard: s.id, Kind: ShardState})
	}
}

// stopped says that there will be no session any more: the shard was removed, or the operator stops.
func (s *shard) stopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.lost = nil, errStopped
	s.state.Reachable, s.state.Err = false, errStopped.Error()
	if s.doubt != nil {
		s.doubt.Stop()
	}
}

// offline says that there is no session, why, and that the shard is unreachable if there is none again within a time.
func (s *shard) offline(err error, within time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.lost = nil, err
	switch {
	case !s.state.Reachable:
		s.state.Err = reason(err)
	case s.doubt == nil:
		s.doubt = time.AfterFunc(within, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.conn == nil && s.state.Reachable {
				s.unreachable()
			}
		})
	}
}

// unreachable is called with mu held.
func (s *shard) unreachable() {
	s.state.Reachable, s.state.Since, s.state.Err = false, s.now(), reason(s.lost)
	s.doubt = nil
	s.log.Warn("The shard is unreachable", "error", s.lost)
	go s.set.tell(Change{Shard: s.id, Kind: ShardState}) // mu is held
}

// reason is an error in words.
func reason(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

func (s *shard) synced() {
	s.mu.Lock()
	changed := !s.state.Synced
	s.state.Synced = true
	s.mu.Unlock()
	if changed {
		s.set.tell(Change{Shard: s.id, Kind: ShardState})
	}
}

// ID implements [Shard].
func (s *shard) ID() string { return s.id }

// State implements [Shard].
func (s *shard) State() State {
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	state.Zone, state.Region = s.place()
	return state
}

// Group implements [Shard].
func (s *shard) Group(name string) (*nstancev1.GroupStatus, bool) { return s.group(name) }

// Groups implements [Shard].
func (s *shard) Groups() []*nstancev1.GroupStatus { return s.allGroups() }

// Instance implements [Shard].
func (s *shard) Instance(id string) (*nstancev1.InstanceStatus, bool) { return s.mirror.instance(id) }

// Instances implements [Shard].
func (s *shard) Instances(group string) []*nstancev1.InstanceStatus { return s.allInstances(group) }

// Drains implements [Shard].
func (s *shard) Drains() []Drain { return s.allDrains() }

// API implements [Shard].
func (s *shard) API() nstancev1.OperatorServiceClient {
	return nstancev1.NewOperatorServiceClient(caller{s})
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
