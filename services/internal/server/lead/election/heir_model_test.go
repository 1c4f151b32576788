package election

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// model is the state of two electors, the store, and the messages and requests between them. The explorer tries every
// order of the following events up to a depth:
//
//   - Time advances to the next wake-up of an elector.
//   - An elector wakes up, or stays asleep because its process is paused.
//   - A message arrives once, twice, late, or never.
//   - A request reaches the store, and its answer arrives or is lost.
//   - A write takes effect after its sender has stopped waiting for it.
//   - A process crashes and restarts as another process.
//   - A link breaks.
//   - A leader is asked to stop.
//
// Unlike the random simulation, the explorer does not depend on luck, but the depth limits the length of a sequence. A
// model is comparable, so that the explorer visits each state only once.
type model struct {
	now     time.Duration
	procs   [2]modelProc
	lock    record.Lock
	token   objstore.Token // empty: there is no lock
	ledTerm uint64

	mail   [modelMail]letter
	late   [2]WriteLock // given up by their senders, but may still land
	births int
	budget budget
}

const modelMail = 3

// budget is how many more times each kind of event may happen.
type budget struct{ crashes, releases, breaks, twice, lost, late int }

type modelProc struct {
	e       Elector
	crashed bool
	wake    Instant
	request Action // on its way to the store; nil: none
	answer  Input  // on its way back from the store; nil: none
}

type letter struct {
	to      int
	message Input // nil: empty
}

// modelRates are the rates of the two clocks.
type modelRates [2]float64

type explorer struct {
	rates  modelRates
	opt    Options
	seed   maphash.Seed
	seen   map[uint64]int // the depth that was left, by hash of the state
	limit  int            // limit of states
	states int
	deep   bool // the limit was reached
	ended  int
	path   []string
}

func (r modelRates) clock(i int, now time.Duration) Instant {
	return Instant(float64(now)*r[i]) + Instant(i+1)*Instant(time.Hour)
}

func (r modelRates) trueTime(i int, t Instant) time.Duration {
	return time.Duration(float64(t-Instant(i+1)*Instant(time.Hour))/r[i]) + 1
}

var errInvariant = errors.New("invariant broken")

// give passes an input to a process and executes its actions.
func (x *explorer) give(m *model, i int, in Input) error {
	p := &m.procs[i]
	if p.crashed {
		return nil
	}
	next, decision := p.e.Next(x.rates.clock(i, m.now), in)
	p.e, p.wake = next, decision.Wake
	for _, action := range decision.Actions {
		switch a := action.(type) {
		case ReadLock, WriteLock:
			p.request = a
		case Send:
			if _, promises := a.Message.(Promise); promises && m.mayTakeOver(p) {
				return fmt.Errorf("%w: %s promises not to take over while its takeover may still succeed", errInvariant,
					p.e.self.ID)
			}
			m.post(a)
		case BecameLeader:
			if a.Term <= m.ledTerm {
				return fmt.Errorf("%w: term %d led after %d", errInvariant, a.Term, m.ledTerm)
			}
			m.ledTerm = a.Term
		case LostLeadership:
			if a.Reason != ReasonReleased {
				if err := x.give(m, i, LeaderStopped{}); err != nil {
					return err
				}
			}
		case Released:
			if m.token != "" && m.lock.Incarnation == p.e.self.Incarnation && m.lock.Term == p.e.term &&
				!m.lock.Released {
				return fmt.Errorf("%w: %s goes, and leaves its lock behind", errInvariant, p.e.self.ID)
			}
			p.crashed = true
		}
	}
	return x.check(m)
}

// mayTakeOver reports whether a process has a write in flight that would succeed now.
func (m *model) mayTakeOver(p *modelProc) bool {
	flying := m.late[:]
	if w, ok := p.request.(WriteLock); ok {
		flying = append(slices.Clone(flying), w)
	}
	return slices.ContainsFunc(flying, func(w WriteLock) bool {
		return w.Lock.Incarnation == p.e.self.Incarnation && w.Condition.Holds(m.token, m.token != "")
	})
}

// post queues a message for the process a.To. If the queue is full, the oldest message is lost.
func (m *model) post(a Send) {
	for i := range m.procs {
		if m.procs[i].crashed || m.procs[i].e.self.Peer() != a.To {
			continue
		}
		free := slices.IndexFunc(m.mail[:], func(l letter) bool { return l.message == nil })
		if free < 0 {
			copy(m.mail[:], m.mail[1:])
			free = len(m.mail) - 1
		}
		m.mail[free] = letter{to: i, message: a.Message}
		return
	}
}

func (x *explorer) check(m *model) error {
	var leads [2]bool
	for i, p := range m.procs {
		until, _ := p.e.ActUntil()
		leads[i] = !p.crashed && until > x.rates.clock(i, m.now)
	}
	if leads[0] && leads[1] {
		return fmt.Errorf("%w: two have authority", errInvariant)
	}
	return nil
}

// apply executes one conditional put in the store.
func (m *model) apply(w WriteLock) (Input, error) {
	if !w.Condition.Holds(m.token, m.token != "") {
		return WriteConflict{}, nil
	}
	if m.token != "" && (w.Lock.Term < m.lock.Term || w.Lock.Revision <= m.lock.Revision) {
		return nil, fmt.Errorf("%w: the lock goes back", errInvariant)
	}
	m.lock = w.Lock
	m.token = objstore.Token(fmt.Sprintf("%s/%d", w.Lock.Incarnation, w.Lock.Revision))
	return LockWritten{Token: m.token}, nil
}

// reach delivers a request to the store.
func (m *model) reach(i int) (err error) {
	p := &m.procs[i]
	switch a := p.request.(type) {
	case ReadLock:
		p.answer = LockAbsent{HighestTerm: m.ledTerm}
		if m.token != "" {
			p.answer = LockRead{Lock: m.lock, Token: m.token}
		}
	case WriteLock:
		p.answer, err = m.apply(a)
	}
	p.request = nil
	return err
}

// step is one possible event.
type step struct {
	name string
	do   func(x *explorer, m *model) error
}

// steps returns all possible events in a state.
func (x *explorer) steps(m *model) []step {
	var all []step
	add := func(name string, do func(x *explorer, m *model) error) { all = append(all, step{name, do}) }
	for i := range m.procs {
		p := &m.procs[i]
		if p.crashed {
			continue
		}
		name := p.e.self.Incarnation
		if at := p.wake; at != Never {
			if when := x.rates.trueTime(i, at); when > m.now {
				add(fmt.Sprintf("time goes on to %v", when), func(x *explorer, m *model) error {
					m.now = when
					return x.check(m)
				})
			} else {
				add(name+" wakes", func(x *explorer, m *model) error { return x.give(m, i, Tick{}) })
			}
		}
		if p.request != nil {
			add(fmt.Sprintf("%T of %s reaches the store", p.request, name), func(_ *explorer, m *model) error {
				return m.reach(i)
			})
			if write, ok := p.request.(WriteLock); ok && m.budget.late > 0 && m.late[1] == (WriteLock{}) {
				add(name+"'s write hangs and is given up", func(x *explorer, m *model) error {
					m.budget.late--
					m.late[1], m.late[0] = m.late[0], write
					m.procs[i].request = nil
					return x.give(m, i, WriteUnknown{})
				})
			}
		}
		if answer := p.answer; answer != nil {
			add(fmt.Sprintf("%T reaches %s", answer, name), func(x *explorer, m *model) error {
				m.procs[i].answer = nil
				return x.give(m, i, answer)
			})
			if m.budget.lost > 0 {
				add("answer to "+name+" is lost", func(x *explorer, m *model) error {
					m.budget.lost--
					m.procs[i].answer = nil
					switch answer.(type) {
					case LockWritten, WriteConflict:
						return x.give(m, i, WriteUnknown{})
					}
					return x.give(m, i, ReadFailed{})
				})
			}
		}
		if m.budget.crashes > 0 {
			add(name+" crashes", func(x *explorer, m *model) error { return x.crash(m, i) })
		}
		if m.budget.releases > 0 && p.e.role == Leader {
			add(name+" receives a stop", func(x *explorer, m *model) error {
				m.budget.releases--
				return x.give(m, i, Release{})
			})
		}
		other := m.procs[1-i].e.self.Peer()
		if l := p.e.findLink(other); m.budget.breaks > 0 && l != nil && l.up {
			add(name+" loses its link", func(x *explorer, m *model) error {
				m.budget.breaks--
				return x.give(m, i, LinkDown{Peer: other})
			})
		}
	}
	for j := range m.mail {
		sent := m.mail[j]
		if sent.message == nil {
			continue
		}
		add(fmt.Sprintf("%T arrives", sent.message), func(x *explorer, m *model) error {
			m.mail[j] = letter{}
			return x.give(m, sent.to, sent.message)
		})
		if m.budget.twice > 0 {
			add(fmt.Sprintf("%T arrives, and will again", sent.message), func(x *explorer, m *model) error {
				m.budget.twice--
				return x.give(m, sent.to, sent.message)
			})
		}
	}
	for j := range m.late {
		if write := m.late[j]; write != (WriteLock{}) {
			add("a write lands late", func(_ *explorer, m *model) error {
				m.late[j] = WriteLock{}
				_, err := m.apply(write)
				return err
			})
		}
	}
	return all
}

// crash ends a process. The messages that it has sent stay in flight, and so does its unanswered write. The process
// restarts with another incarnation, and the two processes of the model connect again.
func (x *explorer) crash(m *model, i int) error {
	m.budget.crashes--
	if write, ok := m.procs[i].request.(WriteLock); ok && m.late[1] == (WriteLock{}) {
		m.late[1], m.late[0] = m.late[0], write
	}
	before := m.procs[i].e.self.Peer()
	for j := range m.mail {
		if m.mail[j].to == i {
			m.mail[j] = letter{}
		}
	}
	m.births++
	m.procs[i] = modelProc{e: New(Identity{ID: before.ID, Incarnation: fmt.Sprintf("%s%d", before.ID, m.births)},
		x.opt)}
	if err := x.give(m, 1-i, LinkDown{Peer: before}); err != nil {
		return err
	}
	if err := x.give(m, 1-i, LinkUp{Peer: m.procs[i].e.self.Peer()}); err != nil {
		return err
	}
	return x.give(m, i, Tick{})
}

// explore tries every sequence of at most depth steps from a state.
func (x *explorer) explore(m *model, depth int) error {
	key := maphash.Comparable(x.seed, *m)
	if left, ok := x.seen[key]; ok && left >= depth {
		return nil
	}
	if x.states >= x.limit {
		x.deep = true
		return nil
	}
	x.seen[key] = depth
	x.states++
	if x.states%997 == 0 {
		if err := x.settle(*m); err != nil {
			return err
		}
	}
	if depth == 0 {
		return nil
	}
	for _, s := range x.steps(m) {
		next := *m
		x.path = append(x.path, s.name)
		err := s.do(x, &next)
		if err == nil {
			err = x.explore(&next, depth-1)
		}
		if err != nil {
			return err
		}
		x.path = x.path[:len(x.path)-1]
	}
	return nil
}

// settle continues a sequence of events without further faults. A process must lead in bounded time, and a process that
// was asked to stop must have stopped.
func (x *explorer) settle(m model) error {
	x.ended++
	m.budget = budget{}
	end := m.now + time.Duration(float64(takeoverWait(x.opt.HeirLease))*1.1) + 10*time.Second
	for range 100_000 {
		if m.now > end {
			break
		}
		if m.procs[0].crashed && m.procs[1].crashed {
			return nil
		}
		if err := x.easiest(&m); err != nil {
			return err
		}
		for i, p := range m.procs {
			if until, _ := p.e.ActUntil(); !p.crashed && until > x.rates.clock(i, m.now) && m.now > end-5*time.Second {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: no leader after peace: %v and %v", errInvariant, m.procs[0].e.role, m.procs[1].e.role)
}

// beginning returns a model in which the first process leads and the second is connected to it. It runs without faults
// until ready returns true.
func (x *explorer) beginning(ready func(m *model) bool) (model, error) {
	m := model{}
	for i, id := range []string{"a", "b"} {
		m.procs[i] = modelProc{e: New(Identity{ID: id, Incarnation: id}, x.opt)}
	}
	for i := range m.procs {
		if err := x.give(&m, i, Tick{}); err != nil {
			return m, err
		}
		for m.procs[i].request != nil || m.procs[i].answer != nil {
			if err := x.easiest(&m); err != nil {
				return m, err
			}
		}
		if err := x.give(&m, 1-i, LinkUp{Peer: m.procs[i].e.self.Peer()}); err != nil {
			return m, err
		}
	}
	return m, x.until(&m, ready, func(*model) {})
}

// until executes steps of the model until ready returns true. Before each step it calls hurt, which may cause a fault.
// The steps themselves cause no faults.
func (x *explorer) until(m *model, ready func(m *model) bool, hurt func(m *model)) error {
	for range 10_000 {
		if hurt(m); ready(m) {
			return nil
		}
		if err := x.easiest(m); err != nil {
			return err
		}
	}
	return errors.New("the beginning does not come")
}

// easiest executes the next step of a run without faults. Everything in flight arrives before time advances, and time
// advances as little as possible.
func (x *explorer) easiest(m *model) error {
	all := x.steps(m)
	best, at := -1, time.Duration(0)
	for k, s := range all {
		if !strings.HasPrefix(s.name, "time") {
			best = k
			break
		}
		after := *m
		if err := s.do(x, &after); err != nil {
			return err
		}
		if best < 0 || after.now < at {
			best, at = k, after.now
		}
	}
	if best < 0 {
		return errors.New("nothing can happen any more")
	}
	return all[best].do(x, m)
}

func writes(p *modelProc, heir bool) bool {
	w, ok := p.request.(WriteLock)
	return ok && (w.Lock.Heir != Peer{}) == heir
}

// modelBeginnings are the initial states: situations in which the order of the next events matters.
var modelBeginnings = map[string]func(x *explorer) (model, error){
	"an heir": func(x *explorer) (model, error) {
		return x.beginning(func(m *model) bool {
			return m.procs[0].e.heir != (Peer{}) && m.procs[0].e.heartbeats.last%4 == 0
		})
	},
	"an heir is being named": func(x *explorer) (model, error) {
		return x.beginning(func(m *model) bool { return writes(&m.procs[0], true) })
	},
	"a renewal with heir": func(x *explorer) (model, error) {
		return x.beginning(func(m *model) bool { return writes(&m.procs[0], true) && m.lock.Heir != (Peer{}) })
	},
	"a promise that is late": func(x *explorer) (model, error) {
		m, err := x.beginning(func(m *model) bool { return m.procs[0].e.heir != (Peer{}) && m.mail[0].message == nil })
		if err == nil {
			err = x.until(&m, func(m *model) bool { _, ok := m.mail[0].message.(Promise); return ok }, func(*model) {})
		}
		m.now += 600 * time.Millisecond
		return m, err
	},
	"a paused leader, whose heir takes over": func(x *explorer) (model, error) {
		m, err := x.beginning(func(m *model) bool { return m.procs[0].e.heir != (Peer{}) })
		if err != nil {
			return m, err
		}
		err = x.until(&m, func(m *model) bool {
			return writes(&m.procs[1], false)
		}, func(m *model) { m.procs[0].wake, m.mail = Never, [modelMail]letter{} })
		m.procs[0].wake = x.rates.clock(0, 0)
		return m, err
	},
	"cut off from each other": func(x *explorer) (model, error) {
		m, err := x.beginning(func(m *model) bool { return m.procs[0].e.heir != (Peer{}) })
		if err == nil {
			err = x.until(&m, func(m *model) bool {
				return writes(&m.procs[0], false)
			}, func(m *model) { m.mail = [modelMail]letter{} })
		}
		return m, err
	},
	"cut off from each other, and the leader from the store": func(x *explorer) (model, error) {
		m, err := x.beginning(func(m *model) bool { return m.procs[0].e.heir != (Peer{}) })
		var write Action
		if err == nil {
			err = x.until(&m, func(m *model) bool { return writes(&m.procs[1], false) }, func(m *model) {
				m.mail = [modelMail]letter{}
				if writes(&m.procs[0], false) {
					write, m.procs[0].request = m.procs[0].request, nil
				}
			})
		}
		m.procs[0].request = write
		return m, err
	},
	"a farewell": func(x *explorer) (model, error) {
		m, err := x.beginning(func(m *model) bool { return m.procs[0].e.heir != (Peer{}) })
		if err == nil {
			err = x.give(&m, 0, Release{})
		}
		return m, err
	},
}

// TestHeirModel tries all sequences of events up to a depth, from several initial states. It does so twice: with the
// first process's clock fast and the second's slow, and the other way round.
func TestHeirModel(t *testing.T) {
	opt := Options{Lease: 4 * time.Second, Renew: 2 * time.Second, HeirLease: 12 * time.Second,
		HeirRenew: 6 * time.Second, HeirProbation: time.Second,
		PeerLease: time.Second, PeerInterval: 500 * time.Millisecond}
	limit := *stateCount
	if testing.Short() {
		limit /= 10
	}
	b := budget{crashes: 1, releases: 1, breaks: 1, twice: 1, late: 1, lost: 1}
	for name, begin := range modelBeginnings {
		for _, rates := range []modelRates{{0.95, 1.05}, {1.05, 0.95}} {
			x := &explorer{rates: rates, opt: opt, seed: maphash.MakeSeed(), limit: limit}
			start, err := begin(x)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			start.budget = b
			depth, states := 0, 0
			for !x.deep { // increase the depth as far as the limit allows
				depth++
				states, x.seen, x.states, x.path = x.states, map[uint64]int{}, 0, nil
				if err := x.explore(&start, depth); err != nil {
					t.Fatalf("%s, clocks %v: %v, after\n%s", name, rates, err, strings.Join(x.path, "\n"))
				}
			}
			t.Logf("%s, clocks %v: all stories of %d steps, %d states; %d played to the end", name, rates, depth-1,
				states, x.ended)
		}
	}
}
