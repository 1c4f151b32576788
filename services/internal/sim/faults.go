package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/mem"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/infra/mock"
)

// faults are the odds of each thing going wrong with one request, drawn once per world.
type faults struct {
	storeError, storeLost, storeLate, storeSlow, storeStale              float64
	providerError, providerLost, providerLate, providerSlow, providerLag float64
	throttle, capacity                                                   float64
}

func drawFaults(rng *rand.Rand) faults {
	odds := func(most float64) float64 {
		if rng.IntN(3) == 0 {
			return 0
		}
		return rng.Float64() * most
	}
	f := faults{storeError: odds(0.1), storeLost: odds(0.05), storeLate: odds(0.02), storeSlow: odds(0.05), storeStale: odds(0.3),
		providerError: odds(0.1), providerLost: odds(0.05), providerLate: odds(0.02), providerSlow: odds(0.1), providerLag: odds(0.1),
		throttle: odds(0.1), capacity: odds(0.2)}
	if rng.IntN(2) == 0 { // when both lists lie there is nothing left to know a record by
		f.storeStale = 0
	} else {
		f.providerLag = 0
	}
	return f
}

type outsideKey struct{}

// latency is the time that an edge takes, in the task that called it. The answer to who has stopped waiting is lost.
func (w *World) latency(ctx context.Context, d time.Duration) error { return w.sched.sleepIn(ctx, d) }

var errCut = errors.New("network unreachable")

// injectStore decides what becomes of a request to the bucket.
func (w *World) injectStore(ctx context.Context, r mem.Request) mem.Fault {
	if ctx.Value(outsideKey{}) != nil {
		return mem.Fault{}
	}
	s := w.caller()
	if r.Op == mem.Put {
		w.bucket.entered(s, r)
	}
	f := mem.Fault{Before: w.sched.between(time.Millisecond, 20*time.Millisecond), After: w.sched.between(time.Millisecond, 20*time.Millisecond)}
	if s != nil && s.cut {
		w.result.Faults++
		return mem.Fault{Before: 2 * time.Second, Err: ambiguous(r, errCut)}
	}
	if w.quiet {
		return f
	}
	odds := w.faults.storeError
	if r.Op == mem.Get || r.Op == mem.List {
		odds = odds * odds * odds // SDKs repeat reads by themselves, up to three times
	}
	writes := r.Op == mem.Put || r.Op == mem.Delete
	switch rng := w.sched; {
	case rng.chance(odds):
		f.Err = ambiguous(r, errors.New("503 slow down"))
	case writes && rng.chance(w.faults.storeLost):
		f.Lost = true
	case writes && rng.chance(w.faults.storeLate):
		f.Late = 1 + rng.rng.IntN(20)
	case r.Op == mem.List && rng.chance(w.faults.storeStale):
		f.Stale = 1 + rng.rng.IntN(20)
	case rng.chance(w.faults.storeSlow):
		f.After = rng.between(100*time.Millisecond, 3*time.Second)
		return f
	default:
		return f
	}
	w.result.Faults++
	return f
}

func ambiguous(r mem.Request, err error) error {
	if r.Op == mem.Put && r.Cond.Conditional() {
		return fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
	}
	return err
}

// injectProvider checks a call and decides what becomes of it.
func (w *World) injectProvider(ctx context.Context, call mock.Call) mock.Outcome {
	if ctx.Value(outsideKey{}) != nil {
		return mock.Outcome{}
	}
	out := mock.Outcome{Latency: w.sched.between(5*time.Millisecond, 100*time.Millisecond)}
	s := w.caller()
	mutates := true
	switch call.Kind {
	case mock.Create:
		w.checkCreate(s, call)
	case mock.Delete:
		w.checkDelete(s, call)
	case mock.Register, mock.Deregister, mock.Acquire, mock.Release:
		w.trace("%s %s %s", call.Kind, call.Name, call.ProviderID)
		w.checkMutation(s, call)
	default:
		mutates = false
	}
	if s != nil && s.cut {
		w.result.Faults++
		return mock.Outcome{Latency: 2 * time.Second, Err: infra.Errorf(infra.Indeterminate, string(call.Kind), "network unreachable")}
	}
	if w.quiet {
		return out
	}
	if call.Kind == mock.List && w.faults.storeStale > 0 {
		return out // what the bucket's list does not show only the provider's can tell
	}
	switch rng := w.sched; {
	case rng.chance(w.faults.providerError):
		out.Err = infra.Errorf(infra.Indeterminate, string(call.Kind), "internal error")
	case rng.chance(w.faults.throttle):
		out.Err = infra.Errorf(infra.Throttled, string(call.Kind), "slow down")
	case mutates && rng.chance(w.faults.providerLost):
		out.Lost = true
	case mutates && call.Kind != mock.Register && rng.chance(w.faults.providerLate): // nothing would tell of a VM registered after its end
		out.Late = rng.between(time.Second, 40*time.Second)
		rng.after(out.Latency+out.Late+time.Millisecond, func() { w.provider.Late() }) // what is due lands when somebody looks
	case !mutates && rng.chance(w.faults.providerLag):
		out.Lag = rng.between(time.Second, 45*time.Second)
	case call.Kind == mock.Create && call.Request.InstanceType == "small" && rng.chance(w.faults.capacity):
		out.Err = infra.Errorf(infra.Capacity, string(call.Kind), "no %s left", call.Request.InstanceType)
		delete(w.fleet.asked, call.Instance) // as definite as an answer can be
	case rng.chance(w.faults.providerSlow):
		out.Latency = rng.between(200*time.Millisecond, 8*time.Second)
		return out
	default:
		return out
	}
	w.result.Faults++
	return out
}

// calm ends all faults: servers run, networks carry, agents speak, the configuration is sound, and what was sent arrives.
func (w *World) calm() {
	w.trace("calm")
	w.quiet = true
	w.store.Land()
	for _, s := range w.servers {
		s.cut, s.deaf = false, time.Time{}
		if !s.alive() {
			s.start()
		}
	}
	for _, m := range w.fleet.order {
		m.agent.mute, m.agent.sick = time.Time{}, time.Time{}
	}
	w.people.settle()
	w.every(time.Minute, w.people.confirm)
}

// disturb does one of the things that go wrong in the life of a shard, and goes on to the next.
func (w *World) disturb() {
	if w.quiet {
		return
	}
	rng := w.sched.rng
	s := w.servers[rng.IntN(len(w.servers))]
	leader := w.acting()
	switch rng.IntN(24) {
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
	case 4, 5, 6:
		w.loseVMs(1 + rng.IntN(2))
	case 7:
		w.loseVMs(100)
	case 8, 9:
		w.muteAgents(rng.IntN(3) == 0)
	case 10, 11:
		w.announce()
	case 12:
		if leader != nil {
			w.restart(leader, rng.IntN(2) == 0)
		}
	case 13:
		if leader != nil {
			leader.pause(w.sched.between(100*time.Millisecond, 40*time.Second))
		}
	case 14:
		if leader != nil {
			w.stop(leader)
		}
	case 15:
		if leader != nil {
			w.trace("no agent reaches %s", leader.name)
			w.result.Faults++
			leader.deafen(w.sched.between(10*time.Second, 3*time.Minute))
		}
	case 16:
		w.strangers()
		if w.sched.chance(0.5) {
			w.trace("somebody takes the address away")
			if err := w.provider.Acquire(w.outside, "elsewhere"); err != nil {
				panic(err)
			}
		}
	case 17:
		if rng.IntN(3) == 0 {
			w.trace("everything is deleted at once: every process, every cache, every VM")
			for _, s := range w.servers {
				w.restart(s, true)
			}
			w.loseVMs(100)
		}
	default:
		w.people.act()
	}
	w.sched.after(w.sched.between(time.Second, 3*time.Minute), w.disturb)
}

func (w *World) restart(s *server, terminated bool) {
	w.result.Faults++
	if s.alive() {
		s.kill(terminated)
	}
	w.startLater(s)
}

// stop ends a server as SIGTERM does, and starts it again later.
func (w *World) stop(s *server) {
	w.result.Faults++
	s.stop()
	w.startLater(s)
}

func (w *World) startLater(s *server) {
	life := s.lives
	w.sched.after(w.sched.between(100*time.Millisecond, time.Minute), func() {
		if s.lives != life {
			return
		}
		if s.alive() {
			s.kill(false) // it took too long to stop
		}
		s.start()
	})
}

func (w *World) cut(s *server) {
	w.trace("%s is cut off", s.name)
	w.result.Faults++
	s.cut = true
	w.sched.after(w.sched.between(time.Second, 2*time.Minute), func() { s.cut = false })
}

// loseVMs takes VMs away without a word.
func (w *World) loseVMs(n int) {
	vms := append([]*machine(nil), w.fleet.order...)
	for range min(n, len(vms)) {
		at := w.sched.rng.IntN(len(vms))
		m := vms[at]
		vms = append(vms[:at], vms[at+1:]...)
		w.trace("VM %s of %s is lost", m.providerID, m.id)
		w.result.Faults++
		lose := w.provider.Terminate
		if w.sched.rng.IntN(2) == 0 {
			lose = w.provider.Kill
		}
		w.fleet.lose(m, lose)
	}
}

// muteAgents cuts agents off from the servers: their machines run, and nobody hears them. Some are well and say the opposite for a while.
func (w *World) muteAgents(all bool) {
	until := w.sched.now.Add(w.sched.between(10*time.Second, 5*time.Minute))
	sick := w.sched.rng.IntN(4) == 0
	for _, m := range w.fleet.order {
		if !all && w.sched.rng.IntN(5) != 0 {
			continue
		}
		w.result.Faults++
		if sick {
			w.trace("agent of %s says that it is not well", m.id)
			m.agent.sick = until
			continue
		}
		w.trace("agent of %s is mute", m.id)
		m.agent.mute, m.agent.mutedAt = until, w.sched.now
		w.fleet.hangUp(m)
	}
}

// announce lets the cloud or the machine itself say that a VM will go, and then takes it; or the machine only starts anew.
func (w *World) announce() {
	m := w.fleet.any()
	if m == nil {
		return
	}
	w.result.Faults++
	a := &m.agent
	switch w.sched.rng.IntN(3) {
	case 0:
		a.notice = true
	case 1:
		a.powerOff = true
	default:
		a.reboot = true
	}
	w.trace("%s: notice %t, power off %t, reboot %t", m.id, a.notice, a.powerOff, a.reboot)
	w.fleet.speakAfter(m, 0)
	if a.notice || a.powerOff {
		w.sched.after(w.sched.between(5*time.Second, 2*time.Minute), func() { w.fleet.lose(m, w.provider.Kill) })
	}
}

// strangers lets VMs appear that have our tags and no record: one, as after a create that landed later than its tombstone was kept, or many, as
// after a bucket was restored.
func (w *World) strangers() {
	n := 1
	if w.sched.rng.IntN(4) == 0 {
		n = 4
	}
	for range n {
		w.result.Faults++
		w.fleet.planted++
		group := w.people.groups[w.sched.rng.IntN(len(w.people.groups))]
		id := w.freshID()
		w.trace("a VM appears for %s, of which there is no record", id)
		w.plant(fmt.Sprintf("orphan-%d", w.fleet.planted), ours, id, group.key)
	}
}
