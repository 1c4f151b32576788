package transport

import (
	"container/list"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

const (
	// maxUnproven is how many connections may be before the end of their handshake, if the process may have enough
	// files. One more costs the oldest: an honest client is through in a moment, so that the oldest is the least likely
	// to be one.
	maxUnproven = 16384
	// maxHandshakes is how many of them may be in the handshake itself, which is what takes memory. The others wait. A
	// source has an eighth.
	maxHandshakes = 1024
	// regain is when one handshake in vain of a source is forgotten: twenty such a second are 2 % of a core.
	regain = 50 * time.Millisecond
	// wasteWeight is how many of its turns a handshake in vain keeps from a source: turns are for what takes memory,
	// and it has taken processor time. Of 128, 32 of them leave none.
	wasteWeight = 4
	// pressed is how long a handshake may take while more than half of what there is, or of what its source may have,
	// is taken.
	pressed = 3 * time.Second
)

// unprovenLimit leaves half of the process's files to those who have shown who they are, and to the bucket.
func unprovenLimit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return maxUnproven / 8
	}
	return int(min(maxUnproven, max(64, files.Cur/2)))
}

// gate bounds what connections to all ports cost before it is known whose they are. A source address that has half of
// the places makes room for its own next, and none has more than an eighth of the turns: however many one opens, there
// is room for those from elsewhere. A handshake in vain keeps turns from the source for a while; one that succeeds
// costs nothing, so that thousands of agents from one address get in as fast as it goes. What handshakes take of the
// processors is the desk's to bound.
type gate struct {
	limit, share int
	turns        *turns

	desk *desk

	mu       sync.Mutex
	unproven arrivals[netip.Addr] // which have not shown yet whose they are, by where they come from
}

func newGate(limit, handshakes, processors int) *gate {
	return &gate{limit: limit, share: max(limit/2, 1), turns: newTurns(handshakes, max(handshakes/8, 1)),
		desk: newDesk(max(processors/2, 1)), unproven: newArrivals[netip.Addr]()}
}

// enter takes a connection in, at the cost of an older one if there are too many.
func (g *gate) enter(conn net.Conn) (leave func()) {
	from := sourceOf(conn.RemoteAddr())
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.unproven.len() < g.limit:
	case g.unproven.count(from) >= g.share:
		g.unproven.evictOf(from)
	default:
		g.unproven.evict()
	}
	n := g.unproven.add(from, conn)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.unproven.remove(n)
	}
}

// turn waits for a connection's turn at the handshake. done gives it back, and says whether it was in vain.
func (g *gate) turn(conn *peeked) (done func(vain bool), err error) {
	from := sourceOf(conn.RemoteAddr())
	busy, ok := g.turns.take(from, handshakeTimeout)
	if !ok {
		return nil, errCrowded
	}
	if busy {
		if err := conn.SetDeadline(time.Now().Add(pressed)); err != nil {
			g.turns.giveBack(from, false)
			return nil, err
		}
	}
	conn.desk, conn.from = g.desk, from
	return func(vain bool) {
		conn.rest()
		conn.desk = nil
		vain = vain && from.IsValid() && !local(from)
		g.turns.giveBack(from, vain)
		g.desk.judge(from, conn.paid, vain)
	}, nil
}

// errCrowded is no fault of the client's.
var errCrowded = errors.New("too many handshakes at once")

// turns are taken in the order of asking, but no source has more than its share of them, and those of several sources
// alternate. Where so many wait, at a source that has wasted its share, that the last would have no more patience when
// it is their turn, it is anybody's: the honest among them try again.
type turns struct {
	size, share int

	mu      sync.Mutex
	free    int
	sources map[netip.Addr]*queue
	ready   *list.List // of *queue in which somebody waits and whose share is not used up; empty when turns are free
}

type queue struct {
	held    int
	wasted  int           // handshakes in vain, not forgotten yet
	waiting *list.List    // of chan struct{}, closed when it is its turn
	ready   *list.Element // in turns.ready
}

func newTurns(size, share int) *turns {
	return &turns{size: size, share: share, free: size, sources: map[netip.Addr]*queue{}, ready: list.New()}
}

// take waits for a turn. busy: there are few left.
func (t *turns) take(from netip.Addr, patience time.Duration) (busy, ok bool) {
	t.mu.Lock()
	q := t.sources[from]
	if q == nil {
		q = &queue{waiting: list.New()}
		t.sources[from] = q
	}
	turn := make(chan struct{})
	place := q.waiting.PushBack(turn)
	t.serve(from, q)
	t.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-turn:
		ok = true
	case <-timer.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok {
		select {
		case <-turn: // in the last moment
			ok = true
		default:
			q.waiting.Remove(place)
			t.serve(from, q)
		}
	}
	return t.size-t.free > t.size/2 || q.taken() > t.share/2, ok
}

// taken is how many turns a source cannot have.
func (q *queue) taken() int { return q.held + wasteWeight*q.wasted }

// giveBack ends a turn. One that was wasted costs its source more, if never so much that it were out for more than some
// seconds.
func (t *turns) giveBack(from netip.Addr, wasted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.sources[from]
	q.held--
	t.free++
	if wasted && q.wasted < t.share/2 {
		if q.wasted++; q.wasted == 1 {
			time.AfterFunc(regain, func() { t.regain(from, q) })
		}
	}
	t.serve(from, q)
}

func (t *turns) regain(from netip.Addr, q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.wasted--; q.wasted > 0 {
		time.AfterFunc(regain, func() { t.regain(from, q) })
	}
	t.serve(from, q)
}

// serve puts a source, in which something has changed, where it belongs, and gives turns to whoever may have them. It
// needs mu.
func (t *turns) serve(from netip.Addr, q *queue) {
	t.place(q)
	for t.free > 0 && t.ready.Len() > 0 {
		next := t.ready.Remove(t.ready.Front()).(*queue)
		next.ready = nil
		t.free--
		next.held++
		first := next.waiting.Front()
		if n := next.waiting.Len(); wasteWeight*next.wasted > t.share/2 && n > int(handshakeTimeout/regain)/2 {
			for range rand.IntN(n) {
				first = first.Next()
			}
		}
		close(next.waiting.Remove(first).(chan struct{}))
		t.place(next)
	}
	if q.held == 0 && q.wasted == 0 && q.waiting.Len() == 0 {
		delete(t.sources, from)
	}
}

// place needs mu.
func (t *turns) place(q *queue) {
	switch may := q.waiting.Len() > 0 && q.taken() < t.share; {
	case may && q.ready == nil:
		q.ready = t.ready.PushBack(q)
	case !may && q.ready != nil:
		t.ready.Remove(q.ready)
		q.ready = nil
	}
}
