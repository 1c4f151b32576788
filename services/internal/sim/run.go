package sim

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/observe"
)

// Run plays the world: faults, then calm, then rest, and says what it saw. The error names the first invariant that broke, with the seed.
func (w *World) Run() (Result, error) {
	defer w.end()
	start := w.sched.now
	for _, s := range w.servers {
		w.sched.after(w.sched.between(0, 5*time.Second), s.start)
	}
	w.every(time.Second, w.tickAgents)
	w.every(5*time.Second, func() { w.checkSizes(); w.checkForeigners() })
	w.every(3*time.Minute, w.poll)
	w.sched.after(w.sched.between(0, time.Minute), w.disturb)
	broken := func() bool { return w.err != nil }

	w.sched.runUntil(start.Add(w.opts.Faulty), broken)
	w.calm()
	w.sched.runUntil(w.sched.now.Add(w.opts.Quiet), broken)
	if w.err == nil {
		w.checkRest()
		w.restAt = w.sched.now
		w.sched.runUntil(w.sched.now.Add(settled), broken)
	}
	if w.err == nil {
		w.checkRest()
	}
	w.result.Simulated, w.result.Steps = w.sched.now.Sub(start), w.sched.steps
	return w.result, w.err
}

// end lets every coroutine go.
func (w *World) end() {
	for _, s := range w.servers {
		if s.process != nil {
			s.stopLeading()
			w.sched.kill(s.process)
		}
	}
	w.sched.kill(w.outside)
}

func (w *World) every(d time.Duration, fn func()) {
	w.sched.after(d, func() {
		fn()
		w.every(d, fn)
	})
}

// calm ends all faults: servers run, networks carry, agents speak, and what was sent arrives.
func (w *World) calm() {
	w.trace("calm")
	w.quiet = true
	w.store.Land()
	for _, s := range w.servers {
		s.cut = false
		if !s.alive() {
			s.start()
		}
	}
	for _, a := range w.agents {
		a.mute = time.Time{}
	}
}

// disturb does one of the things that go wrong in the life of a shard, and goes on to the next.
func (w *World) disturb() {
	if w.quiet {
		return
	}
	rng := w.sched.rng
	s := w.servers[rng.IntN(len(w.servers))]
	switch rng.IntN(12) {
	case 0:
		w.restart(s, rng.IntN(4) == 0)
	case 1:
		s.pause(w.sched.between(100*time.Millisecond, 40*time.Second))
	case 2:
		w.cut(s)
	case 3:
		w.trace("every server is killed")
		for _, s := range w.servers {
			w.restart(s, false)
		}
	case 4, 5:
		w.loseVMs(1 + rng.IntN(2))
	case 6:
		w.loseVMs(100)
	case 7:
		w.muteAgents(rng.IntN(3) == 0)
	case 8:
		w.announce()
	case 9, 10:
		w.reconfigure()
	case 11:
		if a := w.acting(); a != nil {
			w.restart(a, rng.IntN(2) == 0)
		}
	}
	w.sched.after(w.sched.between(time.Second, 3*time.Minute), w.disturb)
}

func (w *World) restart(s *server, terminated bool) {
	w.result.Faults++
	if s.alive() {
		s.kill(terminated)
	}
	life := s.lives
	w.sched.after(w.sched.between(100*time.Millisecond, time.Minute), func() {
		if !s.alive() && s.lives == life {
			s.start()
		}
	})
}

func (w *World) cut(s *server) {
	w.trace("%s is cut off", s.name)
	w.result.Faults++
	s.cut = true
	w.sched.after(w.sched.between(time.Second, 2*time.Minute), func() { s.cut = false })
}

func (w *World) loseVMs(n int) {
	vms := w.ours()
	for range min(n, len(vms)) {
		at := w.sched.rng.IntN(len(vms))
		vm := vms[at]
		vms = append(vms[:at], vms[at+1:]...)
		w.trace("VM %s of %s is lost", vm.ProviderID, vm.Tags.Instance)
		w.result.Faults++
		lose := w.provider.Terminate
		if w.sched.rng.IntN(2) == 0 {
			lose = w.provider.Kill
		}
		if err := lose(vm.ProviderID); err != nil {
			panic(err)
		}
	}
}

// muteAgents cuts agents off from the servers: their machines run, and nobody hears them.
func (w *World) muteAgents(all bool) {
	until := w.sched.now.Add(w.sched.between(10*time.Second, 5*time.Minute))
	for _, vm := range w.ours() {
		if a := w.agents[vm.Tags.Instance]; a != nil && (all || w.sched.rng.IntN(5) == 0) {
			w.trace("agent of %s is mute", vm.Tags.Instance)
			w.result.Faults++
			a.mute = until
			w.hangUp(vm.Tags.Instance, a)
		}
	}
}

// announce lets the cloud or the machine itself say that a VM will go, and then takes it.
func (w *World) announce() {
	vms := w.ours()
	if len(vms) == 0 {
		return
	}
	vm := vms[w.sched.rng.IntN(len(vms))]
	a := w.agents[vm.Tags.Instance]
	if a == nil {
		return
	}
	w.result.Faults++
	if w.sched.rng.IntN(2) == 0 {
		a.notice = true
	} else {
		a.powerOff = true
	}
	a.next = w.sched.now
	w.trace("%s is announced to go (notice %t)", vm.Tags.Instance, a.notice)
	w.sched.after(w.sched.between(5*time.Second, 2*time.Minute), func() { _ = w.provider.Kill(vm.ProviderID) })
}

// reconfigure changes a size or a template, as a second apply would.
func (w *World) reconfigure() {
	g := &w.groups[w.sched.rng.IntN(len(w.groups))]
	switch w.sched.rng.IntN(4) {
	case 0:
		g.InfraHash = fmt.Sprintf("i%d", w.sched.rng.IntN(100))
	case 1:
		g.RuntimeHash = fmt.Sprintf("r%d", w.sched.rng.IntN(100))
	default:
		g.Size = w.sched.rng.IntN(7)
	}
	w.trace("group %s: size %d, hashes %s %s", g.GroupKey, g.Size, g.InfraHash, g.RuntimeHash)
	w.noteSizes()
	if w.sched.chance(0.5) {
		w.poll() // somebody said RefreshConfig
	}
}

// poll lets the leader look for a newer configuration.
func (w *World) poll() {
	if s := w.acting(); s != nil {
		s.leader.World.Configure(w.shard, w.merged())
	}
}

// tickAgents lets every VM's agent do what is due.
func (w *World) tickAgents() {
	s := w.acting()
	for _, vm := range w.provider.VMs() {
		if (vm.Tags.Owner != infra.Owner{Cluster: clusterName, Shard: shardName}) {
			continue
		}
		id := vm.Tags.Instance
		a := w.agents[id]
		if a == nil {
			if vm.State != infra.Running {
				continue
			}
			public := make(ed25519.PublicKey, ed25519.PublicKeySize)
			_, _ = randReader{w.sched.rng}.Read(public)
			a = &agent{public: public, next: w.sched.now.Add(w.sched.between(time.Second, 10*time.Second))}
			if group := w.group(vm.Tags.Tenant, vm.Tags.Group); group != nil {
				a.hash = group.RuntimeHash
			}
			a.broken = !w.quiet && w.sched.chance(0.03)
			w.agents[id] = a
		}
		a.vm = vm
		switch {
		case vm.State != infra.Running:
			w.hangUp(id, a)
		case s == nil || s.leader != a.leader && a.stream != 0:
			a.stream, a.leader, a.next = 0, nil, minTime(a.next, w.sched.now.Add(w.sched.between(0, 3*time.Second)))
		case a.busy || a.broken || w.sched.now.Before(a.mute) || w.sched.now.Before(a.next):
		default:
			w.speak(s, id, a)
		}
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (w *World) group(tenant, name string) *config.Group {
	for i := range w.groups {
		if w.groups[i].GroupKey == (config.GroupKey{Tenant: tenant, Group: name}) {
			return &w.groups[i]
		}
	}
	return nil
}

// hangUp closes the agent's stream; the leader notices a little later.
func (w *World) hangUp(id ident.ID, a *agent) {
	if a.stream == 0 {
		return
	}
	stream, s := a.stream, w.acting()
	a.stream = 0
	if s != nil && s.leader == a.leader {
		leader := s.leader
		w.sched.after(w.sched.between(time.Millisecond, 2*time.Second), func() { leader.World.Disconnected(id, stream, "closed") })
	}
}

// speak registers, connects or reports, whichever is next.
func (w *World) speak(s *server, id ident.ID, a *agent) {
	leader := s.leader
	if !a.registered {
		a.busy = true
		ctx := s.authority.ctx
		w.sched.spawn(s.process, "register", func() { w.register(ctx, s, id, a) })
		w.sched.after(5*time.Second, func() { a.busy = false })
		a.next = w.sched.now.Add(5 * time.Second)
		return
	}
	if a.stream == 0 {
		stream, ok := leader.World.Connected(id)
		if !ok {
			a.next = w.sched.now.Add(5 * time.Second)
			return
		}
		a.stream, a.leader = stream, leader
	}
	report := observe.Report{Healthy: true, RuntimeHash: a.hash}
	if a.notice {
		report.Notice, report.NoticeDeadline = true, w.sched.now.Add(2*time.Minute)
	}
	if a.powerOff {
		report.Stopping = observe.PowerOff
	}
	if !leader.World.Reported(id, a.stream, report) {
		a.stream = 0
	}
	a.next = w.sched.now.Add(15 * time.Second)
}

// register spends the agent's nonce the way the registration service does: by the conditional write that makes its record registered.
func (w *World) register(ctx context.Context, s *server, id ident.ID, a *agent) {
	leader := s.leader
	if leader == nil {
		return
	}
	rec, _, ok := leader.World.Record(id)
	if !ok || rec.State == record.Deleting || rec.State == record.Deleted {
		return
	}
	vm, _ := leader.World.VM(id)
	if rec.ProviderID == "" && vm.ProviderID == "" {
		return
	}
	now := w.sched.now
	rec, err := leader.Executor.Update(ctx, id, func(r *record.Instance) {
		if len(r.PublicKey) > 0 || r.State == record.Deleting || r.State == record.Deleted {
			return
		}
		r.State, r.PublicKey, r.RegisteredAt, r.NonceID = record.Registered, a.public, now, "nonce-"+id.String()
		r.Certificate = &record.CertificateRef{Serial: fmt.Sprintf("%032x", uint64(now.UnixNano())), NotAfter: now.Add(7 * 24 * time.Hour)}
		if r.ProviderID == "" {
			r.ProviderID = vm.ProviderID
		}
	})
	if err == nil && string(rec.PublicKey) == string(a.public) {
		a.registered = true
		a.next = w.sched.now
	}
	a.busy = false
}
