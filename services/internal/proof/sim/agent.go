package sim

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// agent simulates nstance-agent on one VM: it registers, connects, reports health and receives files.
type agent struct {
	world      *World
	public     ed25519.PublicKey
	registered bool // as far as the agent knows
	refused    bool // another key consumed its nonce
	wasHealthy bool // a leader has received a healthy report from it
	broken     bool // never registers
	hash       string
	role       plan.Role // "": unknown
	stream     uint64
	leader     *leader.Leader // the leader at the other end of the stream
	busy       bool
	tries      int    // consecutive failed attempts to reach a leader
	turn       uint64 // counts scheduled calls of speak: only the latest one runs

	mute, mutedAt time.Time // no server receives its messages until mute
	sick          time.Time // it reports unhealthy until then
	ready         time.Time // its health check has neither passed nor failed before
	failing       time.Time // its health check fails until then
	// failsSince is when the agent's present leader first learned that the agent's health check fails.
	failsSince time.Time
	// hooked and hookEnded mean that the VM's drain hook has begun and ended, and hookReported that a leader knows of
	// its end.
	hooked, hookEnded, hookReported bool

	powerOff bool
	notice   bool
	// recommended means that the cloud recommends replacing the VM. maintenance is when the VM's maintenance begins;
	// zero: none.
	recommended bool
	maintenance time.Time
	reboot      bool
	rebootAt    time.Time // when it last announced a reboot
	// It reports no numbers until numberless, and the same lie until lying.
	numberless, lying time.Time
	lie               float32
}

// drawReportInterval returns the interval at which the agents of this World report.
func (w *World) drawReportInterval() time.Duration {
	d := w.dice("report interval")
	return []time.Duration{5 * time.Second, 15 * time.Second}[d.IntN(2)]
}

// pause returns the agent's pause before its next attempt. The pause doubles with each call, up to reconnect.MaxPause.
func (a *agent) pause(d *dice) time.Duration {
	longest := reconnect.Backoff(500*time.Millisecond, reconnect.MaxPause, a.tries+1)
	a.tries++
	return d.between(longest/2, longest)
}

// boot starts the agent of a VM that has just begun to run.
func (f *fleet) boot(m *machine) {
	w := f.world
	m.agent.public = make(ed25519.PublicKey, ed25519.PublicKeySize)
	_, _ = m.dice.Read(m.agent.public)
	if l := w.acting(); l != nil {
		group, _ := l.term.leader.State.Group(m.key)
		m.agent.hash = group.RuntimeHash
	}
	m.agent.broken = f.befalls(m, agentBroken) || f.world.people.isBad(m.id)
	f.startVerdict(m)
	m.agent.ready = w.sched.now.Add(m.dice.between(0, 20*time.Second))
	switch d := f.versionDice(m); {
	case d == nil:
	case d.chance(0.5):
		m.agent.broken = true
	default: // the version fails after some minutes
		w.sched.after(m.dice.between(minute, 10*minute), func() {
			switch until := w.sched.now.Add(24 * time.Hour); {
			case w.quiet:
			case d.chance(0.5):
				m.agent.failing = until
			default:
				m.agent.sick = until
			}
		})
	}
	f.speakAfter(m, m.dice.between(time.Second, 10*time.Second))
}

// speakAfter schedules the agent's next call of speak after d. It replaces a call that was scheduled before.
func (f *fleet) speakAfter(m *machine, d time.Duration) {
	m.agent.turn++
	turn := m.agent.turn
	f.world.sched.after(d, func() {
		if m.agent.turn == turn {
			f.speak(m)
		}
	})
}

// hangUp closes the agent's stream. The leader notices shortly afterwards.
func (f *fleet) hangUp(m *machine) {
	a := &m.agent
	if a.stream == 0 {
		return
	}
	stream, leader, id := a.stream, a.leader, m.id
	a.stream, a.leader, a.failsSince = 0, nil, time.Time{}
	f.world.sched.after(m.dice.between(time.Millisecond, 2*time.Second), func() {
		leader.State.Disconnected(id, stream, "closed")
	})
	f.speakAfter(m, m.dice.between(0, 3*time.Second))
}

// dropped closes the streams that agents have to a leader that has lost its leadership.
func (f *fleet) dropped(leader *leader.Leader) {
	for _, m := range f.order {
		if m.agent.leader == leader {
			m.agent.stream, m.agent.leader, m.agent.failsSince = 0, nil, time.Time{}
			f.speakAfter(m, m.dice.between(0, 3*time.Second))
		}
	}
}

// speak does the agent's next step: it registers, connects or reports.
func (f *fleet) speak(m *machine) {
	w, a := f.world, &m.agent
	if m.state.Alive() && a.public == nil || a.broken || a.refused || m.state != "running" {
		return
	}
	now := w.sched.now
	if now.Before(a.mute) {
		f.speakAfter(m, a.mute.Sub(now))
		return
	}
	s := w.acting()
	if s == nil || now.Before(s.deaf) {
		f.speakAfter(m, a.pause(m.dice))
		return
	}
	if !a.registered {
		f.tryRegister(s, m)
		f.speakAfter(m, m.dice.between(2*time.Second, 6*time.Second))
		return
	}
	leader := s.term.leader
	if a.stream == 0 {
		stream, ok := leader.State.Connected(m.id)
		if !ok {
			f.speakAfter(m, 5*time.Second)
			return
		}
		a.stream, a.leader, s.term.reported, a.tries = stream, leader, true, 0
	}
	if view, ok := leader.State.Instance(m.id); ok && view.Plan.Announced {
		f.startHook(m)
	}
	f.takeRole(s.term, m)
	report := shardstate.Report{HookEnded: a.hookEnded, Role: a.role, Healthy: !now.Before(a.sick), RuntimeHash: a.hash,
		Files:  []shardstate.FileState{},
		Checks: []shardstate.CheckState{a.check(w)}, ChecksVersion: a.hash, Metrics: w.numbers(m)}
	if a.notice {
		report.Notice, report.NoticeDeadline = true, now.Add(2*time.Minute)
	}
	report.Recommendation, report.Maintenance = &a.recommended, &plan.Maintenance{}
	if !a.maintenance.IsZero() {
		*report.Maintenance = plan.Maintenance{Kind: "system-reboot", Begins: a.maintenance}
	}
	switch {
	case a.powerOff:
		report.Stopping = plan.PowerOff
	case a.reboot:
		report.Stopping = plan.Reboot
	}
	if !leader.State.Reported(m.id, a.stream, report) {
		a.stream, a.leader, a.failsSince = 0, nil, time.Time{}
		f.speakAfter(m, time.Second)
		return
	}
	a.hookReported = a.hookEnded
	status := report.Checks[0].Status
	group, _ := leader.State.Group(m.key)
	a.wasHealthy = a.wasHealthy || report.Healthy && status == shardstate.CheckPassing && a.hash == group.RuntimeHash
	switch {
	case status != shardstate.CheckFailing:
		a.failsSince = time.Time{}
	case a.failsSince.IsZero():
		a.failsSince = now
	}
	if a.reboot {
		a.reboot, a.rebootAt = false, now
		a.mute, a.mutedAt = now.Add(m.dice.between(5*time.Second, 2*time.Minute)), now
		f.hangUp(m)
		return
	}
	f.speakAfter(m, w.reportInterval)
}

// check returns the state of the agent's health check. Each agent has only one.
func (a *agent) check(w *World) shardstate.CheckState {
	state := shardstate.CheckState{Name: "web", Status: shardstate.CheckPassing}
	switch now := w.sched.now; {
	case now.Before(a.failing) || now.Before(w.checksDown):
		state.Status, state.Reason = shardstate.CheckFailing, "connection refused"
	case now.Before(a.ready):
		state.Status = shardstate.CheckStarting
	}
	return state
}

// tryRegister registers the agent with its nonce. With the fault "thief", a second key competes for the nonce.
func (f *fleet) tryRegister(s *server, m *machine) {
	w, a := f.world, &m.agent
	if a.busy {
		return
	}
	a.busy = true
	w.sched.after(5*time.Second, func() { a.busy = false }) // a server that died does not answer
	l := s.term
	l.env.Go("register", func() {
		key, err := w.register(l.scope, l.leader, m.id, a.public)
		switch {
		case err != nil || f.befalls(m, answerGone):
		case string(key) == string(a.public):
			a.registered = true
			f.speakAfter(m, 0)
		default:
			w.trace("the nonce of %s was consumed by another key", m.id)
			a.refused = true
		}
		a.busy = false
	})
	if f.befalls(m, thief) {
		other := make(ed25519.PublicKey, ed25519.PublicKeySize)
		_, _ = m.dice.Read(other)
		l.env.Go("steal a nonce", func() { _, _ = w.register(l.scope, l.leader, m.id, other) })
	}
}

// befalls reports whether the fault k occurs for this agent now.
func (f *fleet) befalls(m *machine, k Kind) bool {
	m.asked++
	d := f.world.roll(string(k), hashText(m.id.String()), uint64(m.asked))
	if !d.chance(f.world.rates.of[k]) || !f.world.faults.admit(d.state, k) {
		return false
	}
	f.world.faults.about("%s", m.id)
	return true
}

// versionDice returns a stream of random numbers for the fault versionBad, or nil if the fault does not occur. All
// instances with the infra configuration of m share one stream.
func (f *fleet) versionDice(m *machine) *dice {
	rec := f.world.bucket.byID[m.id]
	if rec == nil || f.world.people.trial != nil && f.world.people.trial.group.key == m.key {
		return nil
	}
	d := f.world.roll(string(versionBad), hashText(rec.InfraHash))
	if !d.chance(f.world.rates.of[versionBad]) || !f.world.faults.admit(d.state, versionBad) {
		return nil
	}
	f.world.faults.about("%s", m.id)
	return &d
}

// register does what the registration service does: one conditional write marks a record as registered, with the first
// key that arrives. It returns the key in the record.
func (w *World) register(ctx context.Context, leader *leader.Leader, id ident.ID, public ed25519.PublicKey) ([]byte,
	error) {
	rec, _, ok := leader.State.Record(id)
	if !ok {
		return nil, fmt.Errorf("there is no instance %s", id)
	}
	refuse := func(r *record.Instance) bool {
		vm, _ := leader.State.VM(id)
		return r.State == record.Deleting || r.State == record.Deleted || r.State == record.Reserved &&
			vm.ProviderID == ""
	}
	if refuse(&rec) {
		return nil, fmt.Errorf("instance %s cannot register", id)
	}
	now := w.sched.now
	rec, err := leader.Executor.Update(ctx, id, func(r *record.Instance) {
		if refuse(r) || r.State == record.Registered {
			return
		}
		if r.State == record.Reserved {
			vm, _ := leader.State.VM(id)
			r.ProviderID, r.LaunchedAt = vm.ProviderID, vm.LaunchedAt
		}
		r.State, r.PublicKey, r.RegisteredAt, r.NonceID = record.Registered, public, now, "nonce-"+id.String()
		r.Certificate = &record.CertificateRef{Serial: fmt.Sprintf("%032x", uint64(now.UnixNano())),
			NotAfter: now.Add(7 * 24 * time.Hour)}
	})
	if err != nil {
		return nil, err
	}
	if len(rec.PublicKey) == 0 {
		return nil, fmt.Errorf("instance %s cannot register", id)
	}
	if have := w.bucket.byID[id]; have == nil || string(have.PublicKey) != string(rec.PublicKey) {
		w.fail(ruleAcked, "the registration of %s is answered, but not recorded", id)
	}
	return rec.PublicKey, nil
}

// Drain implements execute.Files. The agent hears of the drain if it is connected.
func (t *term) Drain(id ident.ID) {
	w := t.server.world
	if m := w.fleet.byInstance[id]; m != nil && m.agent.leader == t.leader {
		w.sched.after(m.dice.between(time.Millisecond, time.Second), func() {
			if m.agent.leader == t.leader {
				w.fleet.startHook(m)
			}
		})
	}
}

// Role implements execute.Files. The agent hears of its role if it is connected.
func (t *term) Role(id ident.ID) {
	w := t.server.world
	if m := w.fleet.byInstance[id]; m != nil && m.agent.leader == t.leader {
		w.sched.after(m.dice.between(time.Millisecond, time.Second), func() {
			if m.agent.leader == t.leader {
				w.fleet.takeRole(t, m)
			}
		})
	}
}

// startHook runs the drain hook of a VM, if its group has one and the hook has not begun. Some hooks never end.
func (f *fleet) startHook(m *machine) {
	a, g := &m.agent, f.world.people.spec(m.key)
	if a.hooked || g == nil || !g.hooked {
		return
	}
	a.hooked = true
	if d := f.world.dice("hook", hashText(m.id.String())); d.IntN(4) != 0 {
		f.world.sched.after(d.between(time.Second, 30*time.Second), func() {
			if a.hookEnded = true; a.stream != 0 {
				f.speakAfter(m, 0)
			}
		})
	}
}

// awaitsHook reports whether the drain of a VM must wait for its hook: no leader knows yet that the hook has ended.
func (f *fleet) awaitsHook(m *machine) bool {
	g := f.world.people.spec(m.key)
	return g != nil && g.hooked && !m.agent.hookReported && m.agent.registered
}

// Push implements execute.Files. The agent has its files shortly afterwards.
func (t *term) Push(_ context.Context, id ident.ID) error {
	w := t.server.world
	m := w.fleet.byInstance[id]
	view, ok := t.leader.State.Instance(id)
	if m == nil || !ok {
		return nil
	}
	group, _ := t.leader.State.Group(config.GroupKey{Tenant: view.Record.Tenant, Group: view.Record.Group})
	t.leader.State.FilesSent(id, group.RuntimeHash)
	if m.agent.stream == 0 {
		return nil // the stream broke while the files were in transit
	}
	w.sched.after(m.dice.between(10*time.Millisecond, time.Second), func() {
		m.agent.hash = group.RuntimeHash
		f := &w.fleet
		if m.agent.stream != 0 {
			f.speakAfter(m, 0)
		}
	})
	return nil
}
