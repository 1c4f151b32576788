package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

// defaults and withHeir are the settings of docs/concepts/election.md: defaults for a shard without an heir, and
// withHeir for a shard with an heir.
var (
	defaults = election.Options{Lease: 10 * time.Second, Renew: 5 * time.Second}
	withHeir = election.Options{Lease: 10 * time.Second, Renew: 5 * time.Second, PeerLease: time.Second,
		PeerInterval: 250 * time.Millisecond}
)

// hub connects servers. Each message takes a millisecond.
type hub struct {
	mu      sync.Mutex
	members map[election.Peer]*member
}

// member is the link of one server to the hub.
type member struct {
	hub     *hub
	self    election.Peer
	wire    chan election.Input
	follows election.Peer
	cut     bool
}

func (h *hub) join(s *server) *member {
	m := &member{hub: h, self: s.cfg.Self.Peer(), wire: make(chan election.Input, 10_000)}
	h.members[m.self] = m
	s.cfg.Links = m
	s.cfg.Options = withHeir
	return m
}

func (m *member) Events(ctx context.Context) <-chan election.Input {
	events := make(chan election.Input)
	go func() {
		for {
			select {
			case in := <-m.wire:
				timer := time.NewTimer(time.Millisecond)
				<-timer.C
				select {
				case events <- in:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return events
}

// deliver queues an input. The caller must hold mu.
func (m *member) deliver(to election.Peer, in election.Input) {
	other := m.hub.members[to]
	if other != nil && !m.cut && !other.cut {
		other.wire <- in
	}
}

func (m *member) Send(to election.Peer, message election.Message) {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	if other := m.hub.members[to]; other != nil && (m.follows == to || other.follows == m.self) {
		m.deliver(to, message)
	}
}

func (m *member) Follow(holder record.Lock) {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	m.deliver(m.follows, election.LinkDown{Peer: m.self})
	m.follows = election.Peer{ID: holder.LeaderID, Incarnation: holder.Incarnation}
	m.deliver(m.follows, election.LinkUp{Peer: m.self})
}

func (m *member) setCut(cut bool) {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	m.cut = cut
}

// heirPair returns two servers: a is the leader, and b is its heir.
func heirPair(t *testing.T) (s *shard, a, b *server, authority *Authority, leader *member) {
	t.Helper()
	s = newShard(t)
	s.counted = objstoretest.NewCounted(s.store)
	h := &hub{members: map[election.Peer]*member{}}
	a, b = s.server("a"), s.server("b")
	a.cfg.Marks, b.cfg.Marks = &highwater.Marks{}, &highwater.Marks{}
	a.store.Store, b.store.Store = s.counted, s.counted
	leader = h.join(a)
	h.join(b)
	a.run()
	authority = <-a.leads
	b.run()
	pass(30 * time.Second)
	if heir := s.lock().Heir; heir != b.cfg.Self.Peer() || len(s.ledBy) != 1 {
		t.Fatalf("the lock's heir is %+v, led by %v", heir, s.ledBy)
	}
	return s, a, b, authority, leader
}

func TestRunHeirTakesOverFromALeaderThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, b, authority, leader := heirPair(t)
		if left := authority.Remaining(); left > time.Second {
			t.Errorf("%v remain without another promise", left)
		}
		if err := authority.Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		a.store.off.Store(true)
		leader.setCut(true)
		began := time.Now()
		if cause := <-a.lost; !errors.Is(cause, ErrLost) {
			t.Error(cause)
		}
		within(t, "the leader's end", time.Since(began), 690*time.Millisecond, 960*time.Millisecond)
		if term := (<-b.leads).Term(); term != 2 {
			t.Errorf("second term is %d", term)
		}
		within(t, "fail-over", time.Since(began), 850*time.Millisecond, 1200*time.Millisecond)

		a.store.off.Store(false) // a follows and becomes b's heir after a while
		leader.setCut(false)
		pass(30 * time.Second)
		if heir := s.lock().Heir; heir != a.cfg.Self.Peer() {
			t.Errorf("then the heir is %+v", heir)
		}
		for _, v := range []*server{a, b} {
			if err := v.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRunHeirIsHandedTheLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, b, _, _ := heirPair(t)
		before := s.counted.Counts()
		began := time.Now()
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		authority := <-b.leads
		within(t, "hand-over", time.Since(began), 0, 50*time.Millisecond)
		if made := s.counted.Counts().Sub(before); made.Total() != 1 || made.Put != 1 {
			t.Errorf("it took %+v, want the heir's write alone", made)
		}
		if lock := s.lock(); lock.LeaderID != "b" || lock.Term != 2 || authority.Term() != 2 {
			t.Errorf("the lock is %+v", lock)
		}
		if err := b.stop(); err != nil { // no follower to hand over to
			t.Error(err)
		}
		if lock := s.lock(); !lock.Released {
			t.Errorf("the lock is %+v", lock)
		}
	})
}

// TestRunHeirLearnsMarks checks that the heir learns the marks in the lock (the highest seen version of each object)
// from heartbeats, because it does not read the lock.
func TestRunHeirLearnsMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, b, _, leader := heirPair(t)
		a.cfg.Marks.Raise("secret", 7)
		pass(31 * time.Second) // a renewal with an heir comes every 30 s
		a.store.off.Store(true)
		leader.setCut(true)
		<-a.lost
		<-b.leads
		if got := s.marks().Highest("secret"); got != 7 {
			t.Errorf("the mark in the heir's lock is %d", got)
		}
		a.store.off.Store(false)
		for _, v := range []*server{a, b} {
			if err := v.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRunHeirCostsFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, b, _, _ := heirPair(t)
		before := s.counted.Counts()
		pass(time.Hour)
		if made := s.counted.Counts().Sub(before); made.Put != 120 || made.Total() != 120 {
			t.Errorf("an idle hour costs %+v", made)
		}
		if err := b.stop(); err != nil { // the leader keeps its leadership when its heir stops
			t.Error(err)
		}
		pass(time.Minute)
		if len(a.lost) != 0 {
			t.Error("the leader was lost with its heir")
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}
