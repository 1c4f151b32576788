package sim

import (
	"container/heap"
	"context"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/nstance-kit/nstance/services/internal/tasks"
)

// scheduler runs events in order of simulated time, and blocking straight-line code as coroutines between them. Exactly one piece of code
// runs at a time, and what runs next follows from the seed alone.
type scheduler struct {
	now     time.Time
	rng     *rand.Rand
	queue   events
	seq     uint64
	current *task
	steps   uint64
	// log receives one line per event when a seed is looked at; nil otherwise.
	log func(format string, args ...any)
}

type event struct {
	at  time.Time
	seq uint64
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].seq < q[j].seq
	}
	return q[i].at.Before(q[j].at)
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return last
}

func newScheduler(seed uint64) *scheduler {
	return &scheduler{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

// after runs do when d of simulated time has passed.
func (s *scheduler) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, event{at: s.now.Add(max(d, 0)), seq: s.seq, do: do})
}

// runUntil runs events until the given time, or until stop says so after one of them.
func (s *scheduler) runUntil(end time.Time, stop func() bool) {
	for len(s.queue) > 0 && !s.queue[0].at.After(end) {
		next := heap.Pop(&s.queue).(event)
		s.now = next.at
		s.steps++
		next.do()
		if stop != nil && stop() {
			return
		}
	}
	s.now = end
}

func (s *scheduler) chance(p float64) bool { return p > 0 && s.rng.Float64() < p }

// between returns a duration in [low, high).
func (s *scheduler) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(s.rng.Int64N(int64(high-low)))
}

// process is what can be killed and paused: a server's incarnation, or the simulator itself.
type process struct {
	name   string
	dead   bool
	paused bool
	// held are tasks to resume when the pause ends, in the order in which they became ready.
	held  []*task
	tasks map[*task]struct{}
}

// task is one coroutine. It belongs to a process and ends with it.
type task struct {
	name    string
	process *process
	resume  func() (struct{}, bool)
	cancel  func()
	yield   func(struct{}) bool
	done    bool
}

// killed unwinds the stack of a task whose process died.
type killed struct{}

// spawn starts fn as a coroutine of p, in its own event at the present time.
func (s *scheduler) spawn(p *process, name string, fn func()) {
	if p.dead {
		return
	}
	t := &task{name: name, process: p}
	t.resume, t.cancel = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			t.done = true
			if r := recover(); r != nil {
				if _, ok := r.(killed); !ok {
					panic(r)
				}
			}
		}()
		t.yield = yield
		fn()
	})
	if p.tasks == nil {
		p.tasks = map[*task]struct{}{}
	}
	p.tasks[t] = struct{}{}
	s.after(0, func() { s.run(t) })
}

// run resumes a task until it waits again or ends.
func (s *scheduler) run(t *task) {
	if t.done || t.process.dead {
		return
	}
	if t.process.paused {
		t.process.held = append(t.process.held, t)
		return
	}
	outer := s.current
	s.current = t
	t.resume()
	s.current = outer
	if t.done {
		delete(t.process.tasks, t)
	}
}

// wait suspends the current task; register is handed the function that makes it go on. A task of a dead process never goes on.
func (s *scheduler) wait(register func(wake func())) {
	t := s.current
	if t == nil {
		panic("sim: something outside a task waits")
	}
	if t.process.dead {
		panic(killed{})
	}
	woken := false
	register(func() {
		if !woken {
			woken = true
			s.run(t)
		}
	})
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
}

// sleep suspends the current task for d of simulated time.
func (s *scheduler) sleep(d time.Duration) {
	s.wait(func(wake func()) { s.after(d, wake) })
}

// kill ends a process: none of its tasks takes another step.
func (s *scheduler) kill(p *process) {
	p.dead = true
	for t := range p.tasks {
		if t != s.current {
			t.cancel()
		}
	}
	p.tasks, p.held = nil, nil
}

// pause stops a process for d, as SIGSTOP does: time goes on without it.
func (s *scheduler) pause(p *process, d time.Duration, then func()) {
	p.paused = true
	s.after(d, func() {
		if p.dead {
			return
		}
		p.paused = false
		held := p.held
		p.held = nil
		for _, t := range held {
			s.run(t)
		}
		if then != nil {
			then()
		}
	})
}

// env gives the tasks of p the clock and the tasks of this world.
func (s *scheduler) env(p *process) tasks.Env {
	return tasks.Env{
		Now: func() time.Time { return s.now },
		Sleep: func(ctx context.Context, d time.Duration) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			s.sleep(d)
			return ctx.Err()
		},
		Go: func(name string, fn func()) { s.spawn(p, name, fn) },
		ForEach: func(ctx context.Context, n, limit int, fn func(context.Context, int) error) error {
			return s.forEach(ctx, p, n, limit, fn)
		},
		Rand: randReader{s.rng},
	}
}

func (s *scheduler) forEach(ctx context.Context, p *process, n, limit int, fn func(context.Context, int) error) error {
	if n == 0 {
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first error
	next, running := 0, 0
	s.wait(func(wake func()) {
		var worker func()
		worker = func() {
			for next < n && ctx.Err() == nil {
				i := next
				next++
				if err := fn(ctx, i); err != nil && first == nil {
					first = err
					cancel()
				}
			}
			if running--; running == 0 {
				s.after(0, wake)
			}
		}
		for range min(limit, n) {
			running++
			s.spawn(p, "for each", worker)
		}
	})
	if first != nil {
		return first
	}
	return ctx.Err()
}

// randReader reads bytes from the world's own randomness.
type randReader struct{ rng *rand.Rand }

func (r randReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.rng.Uint32())
	}
	return len(p), nil
}
