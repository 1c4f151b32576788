package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

type outsideKey struct{}

// latency suspends the calling task for d of simulated time, or until ctx ends. If ctx ends first, the answer is lost.
func (w *World) latency(ctx context.Context, d time.Duration) error { return w.sched.sleepIn(ctx, d) }

var errCut = errors.New("network unreachable")

// befalls draws at most one fault for a request. The function `can` reports which kinds are possible. befalls draws a
// random number for one kind after the other until a fault occurs. Kinds that never occur in this World get a number,
// too.
func (w *World) befalls(d *dice, occasion uint64, can func(Kind) bool) (Kind, bool) {
	for _, o := range ofRequests {
		if u := d.Float64(); u >= w.rates.of[o.kind] || !can(o.kind) {
			continue
		}
		return o.kind, w.faults.admit(occasion, o.kind)
	}
	return "", false
}

// injectStore checks a request to the bucket and decides its fault.
func (w *World) injectStore(ctx context.Context, r mem.Request) mem.Fault {
	s := w.caller()
	if ctx.Value(outsideKey{}) != nil || s == nil {
		return mem.Fault{}
	}
	if r.Op == mem.Put {
		w.bucket.entered(s, r)
		if r.Key == groupsKey {
			w.checkChoice(s, r.Body)
		}
	}
	f := w.storeFault(s, r)
	if r.Key == lockKey {
		s.delayed(f.Before + f.After)
		if f.Err != nil || f.Lost || f.Late > 0 {
			s.disturbed()
		}
	}
	if r.Op == mem.Put && (f.Err != nil || f.Lost || f.Late > 0) {
		w.bucket.doubt(r.Key, r.Body)
		if r.Key == groupsKey {
			w.doubted = w.sched.now
		}
	}
	return f
}

func (w *World) storeFault(s *server, r mem.Request) mem.Fault {
	occasion := s.occasion(string(r.Op), r.Key)
	d := dice{occasion}
	f := mem.Fault{Before: d.between(time.Millisecond, 20*time.Millisecond),
		After: d.between(time.Millisecond, 20*time.Millisecond)}
	slow := w.bucketLatency(&d)
	f.Before, f.After = f.Before+slow/2, f.After+slow/2
	switch {
	case s.cut[cutBoth]+s.cut[cutBucket] > 0:
		return mem.Fault{Before: 2 * time.Second, Err: ambiguous(r, errCut)}
	case s.cut[cutAnswers] > 0 && (r.Op == mem.Put || r.Op == mem.Delete):
		return mem.Fault{Before: f.Before, After: 2 * time.Second, Lost: true}
	case s.cut[cutAnswers] > 0:
		return mem.Fault{Before: 2 * time.Second, Err: errCut}
	}
	reads := r.Op == mem.Get || r.Op == mem.List
	step := r.Op == mem.Put && strings.HasPrefix(r.Key, recordPrefix)
	again := d.Float64() // SDKs repeat reads, up to three times
	what, befallen := w.befalls(&d, occasion, func(k Kind) bool {
		switch k {
		case bucketRefused:
			return !reads || again < w.rates.of[k]*w.rates.of[k]
		case bucketLost, bucketLate:
			return !reads
		case lockLate:
			return r.Op == mem.Put && r.Key == lockKey
		case bucketStale:
			return r.Op == mem.List
		case crashBefore, crashAfter, pauseAtCall:
			return step || again < 0.1 // most requests are renewals of the lock or reads that change nothing
		case bucketSlow:
			return true
		}
		return false
	})
	if !befallen {
		return f
	}
	w.faults.about("%s of %s by %s", r.Op, r.Key, s.process.name)
	switch what {
	case bucketRefused:
		f.Err = ambiguous(r, errors.New("503 slow down"))
	case bucketLost:
		f.Lost = true
	case bucketLate, lockLate:
		f.Late = 1 + d.IntN(20)
	case bucketStale:
		f.Stale = 1 + d.IntN(20)
	case bucketSlow:
		f.After = d.between(100*time.Millisecond, 6*time.Second)
	case crashBefore:
		w.crash(s, f.Before/2, &d)
	case crashAfter:
		w.crash(s, f.Before+f.After/2, &d)
	case pauseAtCall:
		s.pause(d.between(w.lease/2, 3*w.lease), false)
	}
	return f
}

func ambiguous(r mem.Request, err error) error {
	if r.Op == mem.Put && r.Cond.Conditional() {
		return fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err)
	}
	return err
}

// crash kills a server after the duration "in", and later starts it again.
func (w *World) crash(s *server, in time.Duration, d *dice) {
	life := s.lives
	back := d.between(100*time.Millisecond, time.Minute)
	w.sched.after(in, func() {
		if s.lives == life && s.alive() {
			s.kill(false)
			w.startLater(s, back)
		}
	})
}

var changesVMs = []mock.Kind{mock.Create, mock.CreateBatch, mock.Delete, mock.Register, mock.Deregister, mock.Acquire,
	mock.Release, mock.Sleep, mock.Wake}

// injectProvider checks a call to the provider and decides its fault.
func (w *World) injectProvider(ctx context.Context, call mock.Call) mock.Outcome {
	if ctx.Value(outsideKey{}) != nil {
		return mock.Outcome{}
	}
	s := w.caller()
	mutates := slices.Contains(changesVMs, call.Kind)
	switch {
	case ctx.Value(againKey{}) != nil:
	case call.Kind == mock.Create:
		w.checkCreate(s, call)
	case call.Kind == mock.CreateBatch:
		w.result.Batches++
		for _, one := range single(*call.Batch) {
			member := call
			member.Instance, member.Request = one.Tags.Instance, &one
			w.checkCreate(s, member)
		}
	case call.Kind == mock.Delete:
		w.checkDelete(s, call)
	case call.Kind == mock.Sleep || call.Kind == mock.Wake:
		w.checkSleep(s, call)
	case mutates:
		if w.tracing() {
			w.trace("%s %s %s", call.Kind, call.Name, call.ProviderID)
		}
		w.checkMutation(s, call)
	}
	if s == nil {
		return mock.Outcome{}
	}
	about := call.ProviderID
	request := call.Request
	if !call.Instance.IsZero() {
		about = call.Instance.String()
	}
	if call.Batch != nil {
		about, request = call.Batch.Batch.String(), &call.Batch.VM
	}
	occasion := s.occasion(string(call.Kind), about)
	d := dice{occasion}
	out := mock.Outcome{Latency: d.between(5*time.Millisecond, 100*time.Millisecond)}
	switch {
	case s.cut[cutBoth]+s.cut[cutCloud] > 0:
		return mock.Outcome{Latency: 2 * time.Second, Err: infra.Errorf(infra.Indeterminate, string(call.Kind),
			"network unreachable")}
	case s.cut[cutAnswers] > 0:
		return mock.Outcome{Latency: 2 * time.Second, Lost: true}
	}
	again := d.Float64()
	what, befallen := w.befalls(&d, occasion, func(k Kind) bool {
		switch k {
		case cloudFails, cloudThrottles, cloudLag:
			// If the bucket's list omits a record, the record can only be found through its VM. So do not disturb the
			// provider's list in a World in which the bucket's lists are incomplete.
			return (call.Kind != mock.List || w.rates.of[bucketStale] == 0) &&
				(k != cloudLag || !mutates && call.Kind != mock.MachineState)
		case cloudLost:
			return mutates
		case cloudLate:
			return mutates && call.Kind != mock.Register // no later check finds a VM registered after its end
		case cloudFull:
			return request != nil && request.InstanceType == "small"
		case crashBefore, crashAfter, pauseAtCall:
			return mutates || again < 0.1
		case cloudSlow:
			return true
		}
		return false
	})
	if !befallen {
		if request != nil && request.Tags.Spot && w.sched.now.Before(w.scarceUntil) && !w.quiet {
			out.Err = infra.Errorf(infra.Capacity, string(call.Kind), "no spot capacity")
		}
		if err := w.refuses(call); err != nil {
			out.Err = err
		}
		return out
	}
	w.faults.about("%s %s by %s", call.Kind, about, s.process.name)
	switch what {
	case cloudFails:
		out.Err = infra.Errorf(infra.Indeterminate, string(call.Kind), "internal error")
	case cloudThrottles:
		out.Err = infra.Errorf(infra.Throttled, string(call.Kind), "slow down")
	case cloudLost:
		out.Lost = true
	case cloudLate:
		out.Late = d.between(time.Second, 40*time.Second)
		// The provider applies a late call only when it receives another call, or when Land is called. Call Land when
		// the late call is due.
		w.sched.after(out.Latency+out.Late+time.Millisecond, w.provider.Land)
	case cloudLag:
		out.Lag = d.between(time.Second, 45*time.Second)
	case cloudFull:
		out.Err = infra.Errorf(infra.Capacity, string(call.Kind), "no %s left", request.InstanceType)
	case cloudSlow:
		slow := d.between(200*time.Millisecond, 8*time.Second)
		if d.IntN(2) == 0 {
			out.Latency = slow
		} else {
			s.slowAt = w.sched.now.Add(5 * slow) // what comes after the call waits for its answer
			w.slowAnswers[call.Seq] = 5 * slow
		}
	case crashBefore:
		w.crash(s, out.Latency/2, &d)
	case crashAfter:
		s.crashAt, s.backIn = call.Seq, d.between(100*time.Millisecond, time.Minute)
	case pauseAtCall:
		s.pause(d.between(w.lease/2, 3*w.lease), false)
	}
	return out
}

// yield may crash or delay a server after its call has taken effect, before the server gets the answer.
func (w *World) yield(ctx context.Context, call mock.Call) {
	s := w.caller()
	if slow, ok := w.slowAnswers[call.Seq]; ok {
		delete(w.slowAnswers, call.Seq)
		_ = w.sched.sleepIn(ctx, slow)
		return
	}
	if s == nil || s.crashAt != call.Seq || !s.alive() {
		return
	}
	s.kill(false)
	w.startLater(s, s.backIn)
	panic(killed{})
}
