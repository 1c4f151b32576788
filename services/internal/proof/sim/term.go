package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// term is one leadership of a server: the real leader, under the authority that the elector grants.
type term struct {
	server *server
	number uint64
	scope  *scope
	env    tasks.Env
	leader *leader.Leader
	ready  bool

	tasks int    // tasks that have not ended
	ended func() // called after the last task has ended, once the term is over

	passing  bool
	wakePass int

	// State for the checks.
	began    time.Time
	listed   time.Time                        // when the provider had answered all lists of the takeover
	version  int                              // of the configuration in force
	groups   map[config.GroupKey]config.Group // in force
	before   map[config.GroupKey]config.Group // in force until beforeAt
	beforeAt time.Time
	// rolloutAt is when the leader last began a new rollout of a group in this term.
	rolloutAt map[config.GroupKey]time.Time
	marked    map[ident.ID]uint64 // revision of each deletion that it has decided
	deleting  map[ident.ID]int    // number of unanswered delete requests for each instance
	learnt    map[ident.ID]lesson // deletions that the bucket has shown it
	// announcedAt is when it announced each drain, and watched when the operator watched it.
	announcedAt map[ident.ID]time.Time
	watched     []watched
	serving     time.Time // when operators could first connect
	deafSince   time.Time
	reported    bool              // an agent has connected to it
	provedAt    time.Time         // when it asked for its latest proof of leadership
	confirmed   map[string]bool   // orphans that a person has confirmed for deletion
	called      map[ident.ID]bool // instances with a create call that it has sent
	// recovering holds the instances that the leader must give time to recover.
	recovering map[ident.ID]recovery
	// finishes names the instance that each new one replaces because it was silent or unhealthy.
	finishes map[ident.ID]ident.ID
	image    string // the image that the leader found; "": none yet
}

var errLost = errors.New("leadership was lost")

// Term implements execute.Authority.
func (t *term) Term() uint64 { return t.number }

// Remaining implements execute.Authority.
func (t *term) Remaining() time.Duration {
	until, number := t.server.elector.ActUntil()
	if number != t.number || t.scope.err != nil || t.server.term != t {
		return 0
	}
	return until.Sub(t.server.clock())
}

// Confirm implements execute.Authority.
func (t *term) Confirm(ctx context.Context) error {
	if t.Remaining() <= 0 || ctx.Err() != nil {
		return errLost
	}
	s := t.server
	s.confirms++
	began, seq, confirmed := s.world.sched.now, s.confirms, false
	s.world.sched.wait(func(task *task) {
		s.waiting = append(s.waiting, confirmation{seq: seq, asked: s.world.sched.elapsed, done: func(ok bool) {
			confirmed = ok
			s.world.sched.wakeAfter(0, task)
		}})
		s.world.sched.after(0, func() { s.give(election.Confirm{Seq: seq}) })
	})
	if !confirmed || ctx.Err() != nil {
		return errLost
	}
	if began.After(t.provedAt) {
		t.provedAt = began
	}
	return nil
}

// Refuse implements execute.Authority.
func (t *term) Refuse(higher uint64) {
	if higher > t.number && t.server.term == t {
		t.server.give(election.TermSeen{Term: higher})
	}
}

// lead starts the real leader under the authority of a term.
func (s *server) lead(number uint64) {
	w := s.world
	w.trace("%s leads in term %d", s.process.name, number)
	if s.copied != nil {
		w.fail(ruleHome, "%s leads in a copy of the bucket", s.process.name)
		return
	}
	w.checkTerm(s, number)
	t := &term{server: s, number: number, began: w.sched.now, scope: newScope(context.Background()),
		marked:    map[ident.ID]uint64{},
		rolloutAt: map[config.GroupKey]time.Time{},
		confirmed: map[string]bool{}, deleting: map[ident.ID]int{}, learnt: map[ident.ID]lesson{},
		announcedAt: map[ident.ID]time.Time{},
		called:      map[ident.ID]bool{}, recovering: map[ident.ID]recovery{}, finishes: map[ident.ID]ident.ID{}}
	s.term = t
	t.env = w.sched.env(s.process, s.wallSkew, func() { t.tasks++ }, t.taskEnded)
	state := s.state(t.env)
	t.leader = leader.NewLeader(&execute.Executor{
		Owner: ours, Incarnation: s.process.name, Authority: t, Provider: cloud{w.provider, w}, Renderer: renderer{t},
		Files: t, Groups: t, Env: t.env, Log: slog.New(tracer{w, s.process.name}),
		Batches: w.batches,
		Entered: func(after time.Duration) { w.sched.current.decided = w.sched.now.Add(-after) },
	}, records{state, w}, events{w, t}, t.wakeLoop)
	t.leader.Loop.CreateEvery = func() time.Duration { return s.manager.Shard().Server.CreateRateLimit.D() }
	t.env.Go("lead", t.takeOver)
}

// batches makes the leaders of every other World create instances in batches of two or more.
func (w *World) batches() int {
	if w.opts.Seed%2 == 0 {
		return 2
	}
	return 0
}

// takeOver does what the main package of the server does at the start of a term.
func (t *term) takeOver() {
	s, w := t.server, t.server.world
	retry := func(do func() error) bool {
		for t.scope.err == nil {
			err := do()
			if err == nil {
				return true
			}
			w.trace("%s cannot begin term %d yet: %v", s.process.name, t.number, err)
			if t.env.Sleep(t.scope, time.Second) != nil {
				break
			}
		}
		return false
	}
	configured := retry(func() error {
		if _, err := s.state(t.env).ClaimHome(t.scope, s.here()); err != nil {
			return err
		}
		return t.configure(t.scope)
	})
	if configured && t.Remaining() > 0 { // with its lease over, it does nothing more, and no recorded term is needed
		w.checkRecordedTerm(s, t.number)
	}
	if !configured || !retry(func() error { return t.leader.TakeOver(t.scope) }) || t.scope.err != nil {
		return
	}
	t.ready, t.serving = true, t.server.world.sched.now
	t.leader.State.Serving()
	t.wakeLoop()
	t.env.Go("collect", func() { t.leader.Collect(t.scope) })
	t.env.Go("look up images", t.lookUpImages)
	if w.scales() {
		t.env.Go("scale", t.scale)
		t.env.Go("end holds", t.endHolds)
	}
	t.env.Go("follow load balancers", func() { t.leader.FollowBalancers(t.scope) })
	t.env.Go("recheck", func() { t.leader.Recheck(t.scope) })
	t.env.Go("hold the address", func() {
		t.leader.HoldAddress(t.scope, cloud{w.provider, w}, s.machine(), leader.AddressCheck)
	})
	for t.env.Sleep(t.scope, 3*time.Minute) == nil {
		t.refresh()
	}
}

func (t *term) taskEnded() {
	t.tasks--
	if t.tasks == 0 && t.ended != nil {
		t.server.world.sched.after(0, t.ended)
	}
}

// whenEnded calls fn, in a separate event, after the last task of the ended term.
func (t *term) whenEnded(fn func()) {
	process := t.server.process
	t.ended = func() {
		if t.server.process == process {
			t.server.manager.Follow()
			fn()
		}
	}
	if t.tasks == 0 {
		t.server.world.sched.after(0, t.ended)
	}
}

// stopLeading ends the term: its context first, then its streams.
func (s *server) stopLeading() {
	if s.term == nil {
		return
	}
	t := s.term
	s.term = nil
	t.ready = false
	t.scope.cancel()
	for _, c := range s.waiting {
		c.done(false)
	}
	s.waiting = nil
	s.world.fleet.dropped(t.leader)
}

// wakeLoop schedules a pass of the leader's loop in one millisecond.
func (t *term) wakeLoop() {
	if t.passing || !t.ready {
		return
	}
	t.passing = true
	t.server.world.sched.after(time.Millisecond, t.pass)
}

func (t *term) pass() {
	s := t.server
	if !s.alive() || s.term != t {
		return
	}
	if s.process.paused {
		s.world.sched.after(time.Second, t.pass)
		return
	}
	t.passing = false
	next := t.leader.Loop.Pass(t.scope)
	t.wakePass++
	if wake := t.wakePass; !next.IsZero() {
		s.world.sched.after(next.Sub(t.env.Now())+time.Millisecond, func() {
			if t.wakePass == wake {
				t.wakeLoop()
			}
		})
	}
}

func (s *server) state(env tasks.Env) *clusterstate.State {
	return clusterstate.New(clusterstate.Options{Cluster: s.edge(), Shard: s.edge(), ClusterID: clusterName,
		ShardID: shardName,
		Secrets: secretstore.NewObjects(secretstore.Options{Bucket: mem.New()}), // without a CA nothing is signed
		Now:     env.Now, Rand: env.Rand, Sleep: env.Sleep, ForEach: env.ForEach})
}

// newManager returns a configuration manager for a new process of the server.
func (s *server) newManager() *shardconfig.Manager {
	none := func() {}
	env := s.world.sched.env(s.process, s.wallSkew, none, none)
	return shardconfig.New(s.state(env), shardName, slog.New(tracer{s.world, s.process.name}))
}

// renderer returns machines with only the data that the simulation needs. Other tests check the templates.
type renderer struct{ term *term }

func (r renderer) Images() map[string]string {
	return map[string]string{"image": cmp.Or(r.term.image, "image-fallback")}
}

func (r renderer) Render(_ context.Context, group config.Group, rec record.Instance) (filegen.Machine, error) {
	return filegen.Machine{Args: group.Args, Userdata: []byte("nonce for " + rec.ID.String()),
		Hostname: rec.ID.String(), Image: cmp.Or(group.Images["image"], r.term.image, "image-fallback")}, nil
}

// RenderBatch implements execute.BatchRenderer.
func (r renderer) RenderBatch(ctx context.Context, group config.Group, rec record.Instance, batch ident.Batch) (
	filegen.Machine, bool, error) {
	machine, err := r.Render(ctx, group, rec)
	machine.Userdata, machine.Hostname = []byte("nonce for "+batch.String()), ""
	return machine, true, err
}

// records is the leader's access to the bucket.
type records struct {
	*clusterstate.State
	world *World
}

// LoadUnseen implements leader.Records.
func (r records) LoadUnseen(ctx context.Context, seen func(ident.ID, objstore.Token) bool,
	take func(record.Instance, objstore.Token)) error {
	r.world.caller().spring(loadUnseen)
	return r.State.LoadUnseen(ctx, seen, take)
}

// events checks the events that a leader publishes.
type events struct {
	world *World
	term  *term
}

func (e events) Instance(event shardstate.InstanceEvent) {
	w := e.world
	if w.tracing() {
		w.trace("event %s %s/%s %s %s", event.Type, event.Tenant, event.Group, event.Instance, event.Reason)
	}
	switch {
	case (event.Type == shardstate.EventCreating || event.Type == shardstate.EventPromoted) && !event.Replaces.IsZero():
		w.result.Replaced++
		if e.term != nil && event.Cause != plan.CauseDrift && event.Cause != plan.CauseExpired &&
			event.Cause != plan.CauseReturnToSpot && event.Cause != plan.CauseGone && !event.Cause.Advised() {
			e.term.finishes[event.Instance] = event.Replaces
		}
		if why := whyOf(event.Reason); why == silence || why == unfit {
			w.checkOutage(e.term, event.Replaces, "replaced")
		}
		w.checkRecovers(e.term, event.Replaces, event.Reason, w.sched.current.decided)
		key := config.GroupKey{Tenant: event.Tenant, Group: event.Group}
		w.checkProtected(e.term, key, event.Replaces, event.Reason)
		w.checkAdvised(e.term, key, event.Replaces, event.Reason, true, w.sched.current.decided)
		if strings.HasPrefix(event.Reason, oldImage) {
			w.checkImage(e.term, event)
		}
		if strings.HasPrefix(event.Reason, "its infra configuration is out of date") ||
			strings.HasPrefix(event.Reason, oldImage) {
			decided := w.sched.current.decided
			w.checkRollout(e.term, key, event.Replaces, w.people.waveOf(key, decided), decided)
		}
	case event.Type == shardstate.EventPendingDeletion:
		w.checkAnnounced(event)
		if event.Drain {
			w.operate.hear(e.term, event.Instance)
		}
	}
}

// Group implements shardstate.Events.
func (events) Group(config.GroupKey) {}

// Error implements shardstate.Events.
func (e events) Error(event shardstate.ErrorEvent) {
	if e.world.tracing() {
		e.world.trace("error %s %s/%s %s resolved=%t: %s", event.Kind, event.Tenant, event.Group, event.Instance,
			event.Resolved, event.Message)
	}
}

// tracer adds the log of the code under test to the log of a run.
type tracer struct {
	world *World
	name  string
}

func (t tracer) Enabled(context.Context, slog.Level) bool { return t.world.tracing() }

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
