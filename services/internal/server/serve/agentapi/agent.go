package agentapi

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
)

// The kinds of streams. An agent has at most one stream of each kind.
const (
	healthStream = iota
	filesStream
	keysStream
	streamKinds
)

// agent is what the leader of one term knows about an instance's agent: the agent's streams, and what was sent to the
// agent. All other data about the instance are in the leader's State.
type agent struct {
	id   ident.ID
	name string // of id

	mu sync.Mutex
	// connection is the number of the connection to which the agent's open streams belong.
	connection uint64
	streams    [streamKinds]*stream
	// pending marks each kind of stream that has work to do but is not open.
	pending [streamKinds]bool
	// outdated means that the server ended the health stream because the stream's header was out of date. The agent has
	// not opened a new one yet.
	outdated bool
	// keys maps names to the public keys that the agent submitted. It is nil until the keys are read from the cache.
	keys map[string][]byte
	// wantedKeys are the keys that the server must still request from the agent.
	wantedKeys []filegen.KeyRequest
	// sent maps names to the files that this leader sent. They belong to the runtime configuration with the hash
	// sentHash.
	sent     map[string]*sentFile
	sentHash string
	sentAt   time.Time // of the last batch
	files    plan.FilesState
	// claimsMissing means that the last batch was made before the agent's first report. If the first report claims a
	// host name or an address, the server makes the files again.
	claimsMissing bool
	callers       callers
	// replaced means that the connection has replaced an older one with an open health stream.
	replaced bool
}

// sentFile is a file as the server sent it. It is unconfirmed until the agent's next report with a list of files. Maps
// hold pointers to sentFiles to save memory, because even a small map allocates room for eight values.
type sentFile struct {
	filegen.Have
	unconfirmed bool
}

// stream is one open stream.
type stream struct {
	// wake has an element if the stream has work to do, or if the stream must return err. Its capacity is 1.
	wake chan struct{}
	err  error
	// header is what the server told the agent in a health stream's header.
	header session
	// asked are the numbers that the agent reads for its group, if it reads numbers. For a stream of files.
	asked *askedNumbers
}

// askedNumbers are the IDs of the numbers that an agent of a group reads.
type askedNumbers struct {
	group config.GroupKey
	ids   []uint64
}

// end ends a stream, and reports whether the stream was still open. The caller must hold the agent's mu.
func (s *stream) end(err error) (first bool) {
	if s == nil || s.err != nil {
		return false
	}
	s.err = err
	s.signal()
	return true
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// openStream opens a stream that belongs to the peer's connection. It ends an older stream of the same kind, and all
// streams of an older connection.
func (a *agent) openStream(kind int, peer *transport.Peer) (*stream, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	replaced := status.Error(codes.Aborted, "replaced by a newer connection or stream of this instance")
	if peer.Number < a.connection {
		return nil, replaced
	}
	for other := range a.streams {
		if other == kind || peer.Number > a.connection {
			if a.streams[other].end(replaced) && other == healthStream {
				a.replaced = true
			}
			a.streams[other] = nil
		}
	}
	a.connection = peer.Number
	s := &stream{wake: make(chan struct{}, 1)}
	a.streams[kind] = s
	if a.pending[kind] {
		a.pending[kind] = false
		s.signal()
	}
	return s, nil
}

// closeStream forgets a stream, unless another stream has replaced it.
func (a *agent) closeStream(kind int, s *stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams[kind] == s {
		a.streams[kind] = nil
	}
}

func (a *agent) endStreams(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for kind := range a.streams {
		a.streams[kind].end(err)
	}
}

// endStream locks mu and calls stream.end.
func (a *agent) endStream(s *stream, err error) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return s.end(err)
}

// session is what the header of a health stream tells the agent: the time between two reports, and the addresses of the
// leader.
type session struct {
	interval  time.Duration
	endpoints string
}

// endOutdatedReports ends the health stream if the interval or the addresses in its header differ from those in `now`.
// The agent then connects again.
func (a *agent) endOutdatedReports(now session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.streams[healthStream]
	switch {
	case s == nil:
	case s.header.interval != now.interval:
		a.outdated = true
		s.end(status.Error(codes.Aborted, "the report interval has changed: connect again"))
	case s.header.endpoints != now.endpoints:
		a.outdated = true
		s.end(status.Error(codes.Aborted, "the leader's addresses have changed: connect again"))
	}
}

// noteNumbers notes the numbers that the agent must read, and reports whether they differ from those that it reads.
// reads are those that it read when it opened its stream of files.
func (a *agent) noteNumbers(files *stream, group config.GroupKey, reads, want []uint64) (differ bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if files.asked == nil {
		files.asked = &askedNumbers{group, reads}
	}
	differ = !slices.Equal(files.asked.ids, want)
	files.asked.ids = want
	return differ
}

// askForNumbers wakes the stream of files if the agent must read other numbers. want returns those of a group.
func (a *agent) askForNumbers(want func(config.GroupKey) []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.streams[filesStream]; s != nil && s.asked != nil && !slices.Equal(s.asked.ids, want(s.asked.group)) {
		s.signal()
	}
}

// wakeStream makes the stream of a kind do its work. If the stream is not open, it does its work when it opens. The
// caller must hold mu.
func (a *agent) wakeStream(kind int) {
	if a.streams[kind] != nil {
		a.streams[kind].signal()
	} else {
		a.pending[kind] = true
	}
}

// streamNames has the RPC of each kind of stream.
var streamNames = [streamKinds]string{"ReportHealth", "ReceiveFiles", "KeyGenRequests"}

// serveStream serves one stream of an agent. It calls the function `start` once, and the function `work` whenever the
// stream is woken. It returns when the stream ends. The error says why it ended.
func (s *Service) serveStream(ctx context.Context, kind int, instanceID func(own string) string, start,
	work func(*call) error) (err error) {
	defer func() { s.logRefusal(ctx, streamNames[kind], err) }()
	c, err := s.authorize(ctx, instanceID)
	if err != nil {
		return err
	}
	if c.stream, err = c.agent.openStream(kind, c.peer); err != nil {
		return err
	}
	defer c.agent.closeStream(kind, c.stream)
	for err = start(c); err == nil; {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-c.leader.Context.Done():
			return s.errLeadershipLost()
		case <-c.stream.wake:
		}
		c.agent.mu.Lock()
		err = c.stream.err
		c.agent.mu.Unlock()
		if err == nil {
			err = work(c)
		}
	}
	return err
}
