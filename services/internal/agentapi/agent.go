package agentapi

import (
	"context"
	"crypto/ed25519"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/filegen"
	"github.com/nstance-kit/nstance/services/internal/transport"
)

// The streams of an agent. It has one of each.
const (
	healthStream = iota
	filesStream
	keysStream
	streams
)

// agent is what one leadership knows of an instance's agent beyond the World: its streams, and what was sent to it.
type agent struct {
	id   ident.ID
	name string // of id

	mu sync.Mutex
	// connection is the number of the connection that the streams are of.
	connection uint64
	open       [streams]*slot
	// missed: there was something to do for a stream that was not open.
	missed [streams]bool
	// waiting are those who want to know how the next batch went.
	waiting []chan<- error
	// keys are the public keys handed in, by name; nil before they were read from the cache.
	keys map[string][]byte
	ask  []filegen.KeyRequest
	// sent are the files that this leadership sent, by name; of the configuration with the hash want.
	sent map[string]*sentFile
	want string
	// renewAt is when the first certificate is due; zero: not known.
	renewAt time.Time
	// needy: the last look found that something is missing. It is sent again, ever more seldom.
	needy    bool
	failures int
	retryAt  time.Time
}

// sentFile is a file as it was sent. pending: the agent has not said since what it has. (Pointers to it, because a map
// has room for eight.)
type sentFile struct {
	filegen.Have
	pending bool
}

// slot is one open stream.
type slot struct {
	// wake says that there is something to do, or err to return. Capacity 1.
	wake chan struct{}
	err  error // why the stream is to end
	// interval that a health stream was told.
	interval time.Duration
}

// finish ends a stream, unless it has ended already. Call with the agent's mu held.
func (s *slot) finish(err error) (first bool) {
	if s == nil || s.err != nil {
		return false
	}
	s.err = err
	s.signal()
	return true
}

func (s *slot) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take opens a stream of a connection. An older stream of the kind ends, and so do all those of an older connection.
func (a *agent) take(kind int, peer *transport.Peer) (*slot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	replaced := status.Error(codes.Aborted, "replaced by a newer connection or stream of this instance")
	if peer.Number < a.connection {
		return nil, replaced
	}
	for other := range a.open {
		if other == kind || peer.Number > a.connection {
			a.open[other].finish(replaced)
			a.open[other] = nil
		}
	}
	a.connection = peer.Number
	s := &slot{wake: make(chan struct{}, 1)}
	a.open[kind] = s
	if a.missed[kind] {
		a.missed[kind] = false
		s.signal()
	}
	return s, nil
}

// leave closes a stream, unless another took its place.
func (a *agent) leave(kind int, s *slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[kind] == s {
		a.open[kind] = nil
	}
}

func (a *agent) endAll(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for kind := range a.open {
		a.open[kind].finish(err)
	}
}

func (a *agent) endReports(interval time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.open[healthStream]; s != nil && s.interval != interval {
		s.finish(status.Error(codes.Aborted, "the report interval has changed: connect again"))
	}
}

// nudge has a stream look at what there is to do, now or once it is open. Call with mu held.
func (a *agent) nudge(kind int) {
	if a.open[kind] != nil {
		a.open[kind].signal()
	} else {
		a.missed[kind] = true
	}
}

// finish is slot.finish with mu taken.
func (a *agent) finish(s *slot, err error) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return s.finish(err)
}

// hold keeps an agent's stream open: start when it opens, then work whenever there is something to do. It returns why
// it ended.
func (s *Service) hold(ctx context.Context, kind int, instanceID func(own string) string, start,
	work func(*call) error) error {
	c, err := s.enter(ctx, kind, instanceID)
	if err != nil {
		return err
	}
	defer c.agent.leave(kind, c.slot)
	if err := start(c); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-c.leader.Context.Done():
			return s.lost()
		case <-c.slot.wake:
		}
		c.agent.mu.Lock()
		err := c.slot.err
		c.agent.mu.Unlock()
		if err == nil {
			err = work(c)
		}
		if err != nil {
			return err
		}
	}
}

// enter opens a stream of the caller's.
func (s *Service) enter(ctx context.Context, kind int, instanceID func(own string) string) (*call, error) {
	c, err := s.authorize(ctx, instanceID)
	if err != nil {
		return nil, err
	}
	c.slot, err = c.agent.take(kind, c.peer)
	return c, err
}

func keyOf(rec *record.Instance) ed25519.PublicKey { return rec.PublicKey }
