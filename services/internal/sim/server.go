package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/execute"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/lease"
	"github.com/nstance-kit/nstance/services/internal/reconcile"
)

// server is one machine that runs nstance-server: the real elector, and while it leads the real leader.
type server struct {
	world   *World
	name    string
	process *process
	lives   int
	elector lease.Elector
	// inbox holds what reached a paused process.
	inbox []lease.Input
	wake  int
	// skew is how far this machine's lease clock is from true time, rate how fast it runs.
	skew time.Duration
	rate float64
	cut  bool // the bucket and the provider cannot be reached

	leader    *reconcile.Leader
	authority *authority
	confirms  uint64
	waiting   []confirmation
	passing   bool
	passAgain bool
	wakePass  int
	bootedAt  time.Time
}

type confirmation struct {
	seq  uint64
	done func(ok bool)
}

// authority is the right to act of one term, as the elector grants it.
type authority struct {
	server *server
	term   uint64
	ctx    context.Context
	cancel context.CancelFunc
}

var errLost = errors.New("leadership was lost")

func (a *authority) Term() uint64 { return a.term }

func (a *authority) Remaining() time.Duration {
	until, term := a.server.elector.ActUntil()
	if term != a.term || a.ctx.Err() != nil {
		return 0
	}
	return until.Sub(a.server.clock())
}

func (a *authority) Confirm(ctx context.Context) error {
	if a.Remaining() <= 0 || ctx.Err() != nil {
		return errLost
	}
	s := a.server
	s.confirms++
	seq, confirmed := s.confirms, false
	s.world.sched.wait(func(wake func()) {
		s.waiting = append(s.waiting, confirmation{seq: seq, done: func(ok bool) {
			confirmed = ok
			s.world.sched.after(0, wake)
		}})
		s.world.sched.after(0, func() { s.give(lease.Confirm{Seq: seq}) })
	})
	if !confirmed || ctx.Err() != nil {
		return errLost
	}
	return nil
}

func (a *authority) Refuse(term uint64) {
	s := a.server
	s.world.sched.after(0, func() { s.give(lease.TermMet{Term: term}) })
}

// start begins a new life of the server: nothing of the one before is known to it.
func (s *server) start() {
	s.lives++
	s.process = &process{name: fmt.Sprintf("%s/%d", s.name, s.lives)}
	s.inbox, s.leader, s.authority, s.waiting, s.passing, s.confirms = nil, nil, nil, nil, false, 0
	s.bootedAt = s.world.sched.now
	identity := lease.Identity{ID: s.name, Incarnation: s.process.name, Machine: "machine-" + s.process.name}
	s.world.provider.SetMachine(identity.Machine, infra.Running)
	s.elector = lease.New(identity, lease.Options{Lease: s.world.lease, Renew: s.world.lease / 2})
	s.world.sched.after(0, func() { s.give(lease.Tick{}) })
}

// kill ends the process as kill -9 does; the machine stays unless terminated says otherwise.
func (s *server) kill(terminated bool) {
	s.world.trace("%s is killed", s.process.name)
	if terminated {
		s.world.provider.SetMachine("machine-"+s.process.name, infra.Deleted)
	}
	s.stopLeading()
	s.world.sched.kill(s.process)
	s.wake++
}

func (s *server) alive() bool { return s.process != nil && !s.process.dead }

// clock reads this machine's lease clock.
func (s *server) clock() lease.Instant {
	elapsed := s.world.sched.now.Sub(s.bootedAt)
	return lease.Instant(float64(elapsed)*s.rate) + lease.Instant(s.skew)
}

func (s *server) until(t lease.Instant) time.Duration {
	return time.Duration(float64(t.Sub(s.clock())) / s.rate)
}

// give hands one input to the elector and carries out what it decides.
func (s *server) give(in lease.Input) {
	if !s.alive() {
		return
	}
	if s.process.paused {
		s.inbox = append(s.inbox, in)
		return
	}
	next, decision := s.elector.Next(s.clock(), in)
	s.elector = next
	for _, action := range decision.Actions {
		s.perform(action)
	}
	if !s.alive() {
		return
	}
	s.wake++
	if wake := s.wake; decision.Wake != lease.Never {
		s.world.sched.after(s.until(decision.Wake)+time.Microsecond, func() {
			if s.wake == wake {
				s.give(lease.Tick{})
			}
		})
	}
	s.world.checkAuthority()
}

// pause stops the process for d, as SIGSTOP or a suspended machine would.
func (s *server) pause(d time.Duration) {
	if !s.alive() || s.process.paused {
		return
	}
	s.world.trace("%s is paused for %v", s.process.name, d)
	s.world.sched.pause(s.process, d, func() {
		inbox := s.inbox
		s.inbox = nil
		s.give(lease.Tick{})
		for _, in := range inbox {
			s.give(in)
		}
	})
}

func (s *server) perform(action lease.Action) {
	life := s.lives
	io := func(name string, fn func() lease.Input) {
		s.world.sched.spawn(s.process, name, func() {
			in := fn()
			s.world.sched.after(0, func() {
				if s.lives == life {
					s.give(in)
				}
			})
		})
	}
	switch a := action.(type) {
	case lease.ReadLock:
		io("read lock", s.readLock)
	case lease.WriteLock:
		io("write lock", func() lease.Input { return s.writeLock(a) })
	case lease.AskMachine:
		io("ask machine", func() lease.Input {
			state, err := s.world.provider.MachineState(context.Background(), a.Machine)
			switch {
			case err != nil:
				return lease.MachineAnswer{State: lease.MachineUnknown}
			case state == infra.Deleted:
				return lease.MachineAnswer{State: lease.MachineTerminated}
			default:
				return lease.MachineAnswer{State: lease.MachineRunning}
			}
		})
	case lease.BecameLeader:
		s.lead(a.Term)
	case lease.LostLeadership:
		s.world.trace("%s lost term %d: %s", s.process.name, a.Term, a.Reason)
		s.stopLeading()
		s.world.sched.after(0, func() {
			if s.lives == life {
				s.give(lease.LeaderStopped{})
			}
		})
	case lease.Confirmed:
		kept := s.waiting[:0]
		for _, c := range s.waiting {
			if c.seq <= a.Seq {
				c.done(true)
			} else {
				kept = append(kept, c)
			}
		}
		s.waiting = kept
	case lease.Released:
	}
}

func (s *server) readLock() lease.Input {
	object, err := s.world.store.Get(s.world.background, keys.Leader(shardName))
	if errors.Is(err, objstore.ErrNotFound) {
		return lease.LockAbsent{HighestTerm: s.world.highestTerm}
	}
	if err != nil {
		return lease.ReadFailed{}
	}
	lock, err := record.DecodeLock(object.Body)
	if err != nil {
		return lease.LockUnreadable{Token: object.Token}
	}
	return lease.LockRead{Lock: lock, Token: object.Token}
}

func (s *server) writeLock(a lease.WriteLock) lease.Input {
	body, err := record.EncodeLock(a.Lock)
	if err != nil {
		panic(err)
	}
	token, err := s.world.store.Put(s.world.background, keys.Leader(shardName), body, a.Condition)
	switch {
	case err == nil:
		return lease.LockWritten{Token: token}
	case errors.Is(err, objstore.ErrConflict):
		return lease.WriteConflict{}
	default:
		return lease.WriteUnknown{}
	}
}

// lead starts the real leader under the authority of a term.
func (s *server) lead(term uint64) {
	w := s.world
	w.trace("%s leads in term %d", s.process.name, term)
	w.checkTerm(term)
	a := &authority{server: s, term: term}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	s.authority = a
	env := w.sched.env(s.process)
	owner := infra.Owner{Cluster: clusterName, Shard: shardName}
	state := clusterstate.New(clusterstate.Options{Cluster: w.store, Shard: w.store, ClusterID: clusterName, ShardID: shardName, Now: env.Now,
		Rand: env.Rand, Sleep: env.Sleep, ForEach: env.ForEach})
	leader := reconcile.NewLeader(reconcile.Parts{
		Owner: owner, Incarnation: s.process.name, Authority: a, Records: state, Provider: w.provider, Renderer: renderer{}, Files: w,
		Groups: noGroups{}, Env: env, Events: w, Log: slog.New(tracer{w, s.process.name}),
		Wake: func() { s.wakeLoop(a) },
	})
	w.sched.spawn(s.process, "lead", func() {
		// The configuration is read anew by every leader: what an earlier one applied is never undone.
		if err := env.Sleep(a.ctx, w.sched.between(time.Millisecond, 50*time.Millisecond)); err != nil {
			return
		}
		leader.World.Configure(w.shard, w.merged())
		for leader.TakeOver(a.ctx) != nil {
			if env.Sleep(a.ctx, time.Second) != nil {
				return
			}
		}
		if a.ctx.Err() != nil {
			return
		}
		s.leader = leader
		s.wakeLoop(a)
		env.Go("collect", func() { leader.Collect(a.ctx) })
	})
}

func (s *server) stopLeading() {
	if s.authority != nil {
		s.authority.cancel()
	}
	s.leader, s.authority = nil, nil
	for _, c := range s.waiting {
		c.done(false)
	}
	s.waiting = nil
	s.wakePass++
}

// wakeLoop lets the leader's loop pass soon.
func (s *server) wakeLoop(a *authority) {
	if s.passing || s.leader == nil || s.authority != a {
		return
	}
	s.passing = true
	s.world.sched.after(time.Millisecond, func() { s.pass(a) })
}

func (s *server) pass(a *authority) {
	if !s.alive() || s.authority != a || s.leader == nil {
		s.passing = false
		return
	}
	if s.process.paused {
		s.world.sched.after(time.Second, func() { s.pass(a) })
		return
	}
	s.passing = false
	next := s.leader.Loop.Pass(a.ctx)
	s.wakePass++
	if wake := s.wakePass; !next.IsZero() {
		s.world.sched.after(next.Sub(s.world.sched.now)+time.Millisecond, func() {
			if s.wakePass == wake {
				s.wakeLoop(a)
			}
		})
	}
}

// renderer makes the least machine that a provider takes: templates have tests of their own.
type renderer struct{}

func (renderer) Render(_ context.Context, group config.Group, rec record.Instance) (execute.Machine, error) {
	return execute.Machine{Args: group.Args, Userdata: []byte("nonce for " + rec.ID.String()), Hostname: rec.ID.String()}, nil
}

type noGroups struct{}

func (noGroups) Forget(context.Context, config.GroupKey) error { return nil }

// tracer shows what the leader logs in the story of a seed.
type tracer struct {
	world *World
	name  string
}

func (t tracer) Enabled(context.Context, slog.Level) bool { return t.world.opts.Log != nil }

func (t tracer) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	t.world.trace("%s: %s", t.name, line)
	return nil
}

func (t tracer) WithAttrs([]slog.Attr) slog.Handler { return t }
func (t tracer) WithGroup(string) slog.Handler      { return t }
