package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// wallSkew is the largest error of a server's time of day.
const wallSkew = 2 * time.Second

// server is one machine that runs nstance-server: the real elector, and the real leader while it leads.
type server struct {
	world   *World
	name    string
	process *process
	lives   int
	elector election.Elector
	manager *shardconfig.Manager
	config  gate // serializes the use of the manager
	// inbox holds the inputs that arrived while the process was paused.
	inbox []election.Input
	wake  int
	// skew is the offset of this machine's lease clock from true time. rate is the speed of the lease clock. wall is
	// the error of the machine's time of day.
	skew     time.Duration
	rate     float64
	wall     time.Duration
	bootedAt time.Duration
	// cut counts the active network faults by kind.
	cut      map[Kind]int
	deaf     time.Time // agents cannot reach it until then
	stopping bool
	// still is how long the server's clock has stood still since the server's last start. stillFrom is when the clock
	// stopped last. fooled means that the clock has stopped since the server's last write of the lock. The server may
	// then wrongly believe that its lease still runs.
	still       time.Duration
	stillFrom   time.Duration // elapsed; 0: its clock runs
	fooled      bool
	thawedAt    time.Time
	slowAt      time.Time // when it was last paused, or waited long for an answer
	pausedUntil time.Time // when its last pause ends or ended
	// requests are the recent requests for the lock. disturbedAt is when something other than latency last disturbed
	// the election of this server. holds is the lock that it knew to hold while it led, and writes is the lock that it
	// sent last.
	requests      []lockRequest
	disturbedAt   time.Time
	holds, writes record.Lock
	asked         map[uint64]int // number of requests by object
	copied        *mem.Store     // the copy of the bucket that it uses; nil: it uses the bucket
	// index is the server's position among the servers. options configure its election.
	index   int
	options election.Options
	// Connections between servers: the peer that this server follows or tries to follow, its link to that peer, and the
	// links of its own followers.
	follows  election.Peer
	turn     int // counts changes of follows
	link     *link
	incoming []*link
	// State for the checks of promises.
	vow      vow
	beats    [beats]election.Instant     // when each heartbeat was sent
	promises map[string]election.Instant // promises to it, by process: when the answered heartbeat was sent
	flying   []objstore.Condition        // conditions of lock writes that may still take effect
	crashAt  uint64                      // the provider call after which it crashes
	lurking  []lurking
	backIn   time.Duration // how long it stays down

	term     *term
	confirms uint64
	waiting  []confirmation
}

type confirmation struct {
	seq   uint64
	asked time.Duration
	done  func(ok bool)
}

// start starts a new process of the server, without any state of the previous process.
func (s *server) start() {
	w := s.world
	s.lives++
	s.process = &process{name: fmt.Sprintf("%s/%d", s.name, s.lives), server: s}
	s.process.rand, s.process.net, s.process.hash = w.dice("process "+s.process.name),
		w.dice("links of "+s.process.name), hashText(s.process.name)
	s.follows, s.link, s.incoming, s.vow, s.flying, s.promises = election.Peer{}, nil, nil, vow{}, nil,
		map[string]election.Instant{}
	s.inbox, s.term, s.waiting, s.confirms, s.stopping, s.config = nil, nil, nil, 0, false, gate{}
	s.requests = nil
	s.bootedAt, s.still, s.stillFrom, s.fooled, s.crashAt = w.sched.elapsed, 0, 0, false, 0
	s.asked = map[uint64]int{}
	s.manager = s.newManager()
	w.trace("%s starts", s.process.name)
	identity := election.Identity{ID: s.name, Incarnation: s.process.name, Machine: s.machine()}
	w.provider.SetMachine(identity.Machine, infra.Running)
	s.elector = election.New(identity, s.options)
	s.stand()
}

// machine returns the provider's ID of the machine on which the server's present process runs.
func (s *server) machine() string { return "machine-" + s.process.name }

// kill ends the process as kill -9 does. The machine keeps running unless terminated is true.
func (s *server) kill(terminated bool) {
	s.world.trace("%s is killed", s.process.name)
	if terminated {
		s.world.provider.SetMachine(s.machine(), infra.Deleted)
	}
	s.stopLeading()
	s.world.sched.kill(s.process)
	s.disconnect(terminated)
	s.wake++
}

// stop ends the server as SIGTERM does: the leader's code ends, then the server releases the lock.
func (s *server) stop() {
	s.world.trace("%s receives a stop", s.process.name)
	s.stopping = true
	if s.term == nil {
		s.give(election.Release{})
		return
	}
	t := s.term
	s.stopLeading()
	t.whenEnded(func() { s.give(election.Release{}) })
}

func (s *server) alive() bool { return s.process != nil && !s.process.dead }

// serving reports whether the server leads and has loaded its shard.
func (s *server) serving() bool { return s.term != nil && s.term.ready && s.term.Remaining() > 0 }

// clock returns the time of this machine's lease clock.
func (s *server) clock() election.Instant {
	now := s.world.sched.elapsed
	if s.stillFrom != 0 {
		now = s.stillFrom
	}
	return election.Instant(float64(now-s.bootedAt-s.still)*s.rate) + election.Instant(s.skew)
}

func (s *server) wallSkew() time.Duration { return s.wall }

func (s *server) until(t election.Instant) time.Duration {
	return time.Duration(float64(t.Sub(s.clock())) / s.rate)
}

// give hands one input to the elector and carries out the elector's decisions.
func (s *server) give(in election.Input) {
	if !s.alive() {
		return
	}
	if s.process.paused {
		s.inbox = append(s.inbox, in)
		return
	}
	s.hears(in)
	if s.elector.Role() == election.Leader {
		s.holds, _ = s.elector.Holder()
	}
	next, decision := s.elector.Next(s.clock(), in)
	s.elector = next
	for _, action := range decision.Actions {
		s.perform(action)
	}
	if !s.alive() {
		return
	}
	s.connectHolder()
	s.wake++
	if wake := s.wake; decision.Wake != election.Never {
		s.world.sched.after(s.until(decision.Wake)+s.lateness(), func() {
			if s.wake == wake {
				s.give(election.Tick{})
			}
		})
	}
	s.world.checkAuthority()
	s.world.checkPromise(s)
}

// lateness returns the delay of a timer. Timers of Go are not exact, and those of a busy machine fire late.
func (s *server) lateness() time.Duration {
	w := s.world
	if rate := w.rates.of[timerLate]; rate > 0 {
		occasion := s.occasion("timer", "")
		if s.options.PeerLease > 0 {
			rate *= float64(s.options.PeerInterval) / float64(s.options.Renew) // it has more timers
		}
		if d := (dice{occasion}); d.chance(rate) && w.faults.admit(occasion, timerLate) {
			s.disturbed()
			return d.between(time.Millisecond, w.lease/20)
		}
	}
	return time.Microsecond
}

// pause stops the process for d, as SIGSTOP or a suspended machine would. If freeze is set, the server's clock stops
// too, as it may when a machine moves to another host.
func (s *server) pause(d time.Duration, freeze bool) {
	if !s.alive() || s.process.paused {
		return
	}
	process := s.process
	s.slowAt, s.pausedUntil = s.world.sched.now, s.world.sched.now.Add(d)
	s.disturbedAt = s.pausedUntil
	if freeze {
		s.stillFrom, s.fooled = s.world.sched.elapsed, true
	}
	s.world.sched.pause(process, d, func() {
		if s.process != process {
			return
		}
		s.slowAt, s.pausedUntil = s.world.sched.now, s.world.sched.now
		if freeze {
			s.still += s.world.sched.elapsed - s.stillFrom
			s.stillFrom, s.thawedAt = 0, s.world.sched.now
		}
		inbox := s.inbox
		s.inbox = nil
		s.give(election.Tick{})
		for _, in := range inbox {
			s.give(in)
		}
	})
}

// deafen makes this server unreachable for all agents for the duration d. It also closes their streams.
func (s *server) deafen(d time.Duration) {
	w := s.world
	s.deaf = w.sched.now.Add(d)
	if s.term != nil {
		s.term.deafSince = w.sched.now
		for _, m := range w.fleet.order {
			if m.agent.leader == s.term.leader {
				w.fleet.hangUp(m)
			}
		}
	}
}

// io runs one request of the election and gives the result to the elector. It gives nothing if the server restarts
// first. If the request takes longer than limit on the server's clock, the elector gets the input `given` instead of
// the result. The request may still take effect. The function request may call `answered` to stop the time limit. It
// does so when the bucket has answered and only other work is left.
func (s *server) io(name string, limit time.Duration, given election.Input,
	request func(answered func()) election.Input) {
	life, over := s.lives, false
	s.world.sched.spawn(s.process, name, func() {
		in := request(func() { over = true })
		s.world.sched.after(0, func() {
			if s.lives == life && given != nil {
				given = nil
				s.give(in)
			}
		})
	})
	s.world.sched.after(fraction(limit, 1/s.rate), func() {
		if in := given; s.lives == life && in != nil && !over {
			given = nil
			s.give(in)
		}
	})
}

func (s *server) perform(action election.Action) {
	switch a := action.(type) {
	case election.ReadLock:
		s.requested(0)
		s.io("read lock", s.elector.RequestTimeout(s.clock()), election.ReadFailed{}, s.readLock)
	case election.WriteLock:
		s.flies(a)
		s.writes = a.Lock
		s.requested(a.Lock.Revision)
		s.io("write lock", s.elector.RequestTimeout(s.clock()), election.WriteUnknown{}, func(func()) election.Input {
			return s.writeLock(a)
		})
	case election.AskMachine:
		s.io("ask machine", s.options.Lease, election.MachineAnswer{}, func(func()) election.Input {
			return s.askMachine(a.Machine)
		})
	case election.BecameLeader:
		s.vow = vow{}
		s.lead(a.Term)
	case election.Send:
		s.send(a)
	case election.LostLeadership:
		s.world.trace("%s lost term %d: %s", s.process.name, a.Term, a.Reason)
		s.checkExpired(a.Reason)
		if t := s.term; t != nil {
			s.stopLeading()
			t.whenEnded(func() { s.give(election.LeaderStopped{}) })
		}
	case election.Confirmed:
		kept := s.waiting[:0]
		for _, c := range s.waiting {
			if c.seq <= a.Seq {
				s.world.checkProof(s, c.asked)
				c.done(true)
			} else {
				kept = append(kept, c)
			}
		}
		s.waiting = kept
	case election.Released:
		s.world.trace("%s has stopped", s.process.name)
		s.world.sched.after(0, func() {
			if s.alive() {
				s.world.sched.kill(s.process)
				s.disconnect(false)
				s.wake++
			}
		})
	}
}

func (s *server) askMachine(machine string) election.Input {
	state, err := s.world.provider.MachineState(context.Background(), machine)
	switch {
	case err != nil:
		return election.MachineAnswer{State: election.MachineUnknown}
	case state == infra.Deleted:
		return election.MachineAnswer{State: election.MachineTerminated}
	default:
		return election.MachineAnswer{State: election.MachineRunning}
	}
}

var lockKey = keys.Leader(shardName)

func (s *server) readLock(answered func()) election.Input {
	object, err := s.edge().Get(context.Background(), lockKey)
	if errors.Is(err, objstore.ErrNotFound) {
		if s.elector.Role() == election.Leader {
			return election.LockAbsent{}
		}
		none := func() {}
		answered()
		highest, err := s.state(s.world.sched.env(s.process, s.wallSkew, none, none)).HighestTerm(context.Background())
		if err != nil {
			return election.ReadFailed{}
		}
		return election.LockAbsent{HighestTerm: highest}
	}
	if err != nil {
		return election.ReadFailed{}
	}
	lock, err := record.DecodeLock(object.Body)
	if err != nil {
		return election.LockUnreadable{Token: object.Token}
	}
	return election.LockRead{Lock: lock, Token: object.Token}
}

func (s *server) writeLock(a election.WriteLock) election.Input {
	body, err := record.EncodeLock(a.Lock)
	if err != nil {
		panic(err)
	}
	began := s.world.sched.now
	token, err := s.edge().Put(context.Background(), lockKey, body, a.Condition)
	switch {
	case err == nil:
		if token != tokenOf(body) {
			s.world.fail(ruleSimulator, "the bucket makes tokens in another way than the checks believe")
		}
		// After the server's clock runs again, the server may rely on an outdated promise of its heir for the length of
		// one promise. So `fooled` stays true during that time.
		if s.stillFrom == 0 && !began.Before(s.thawedAt.Add(s.options.PeerLease)) {
			s.fooled = false
		}
		return election.LockWritten{Token: token}
	case errors.Is(err, objstore.ErrConflict):
		return election.WriteConflict{}
	default:
		return election.WriteUnknown{}
	}
}
