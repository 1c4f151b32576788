package sim

import (
	"container/heap"
	"context"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// epoch is the time at which every run begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// scheduler runs events in the order of simulated time. Between the events, blocking code runs as coroutines. Exactly
// one piece of code runs at a time, and the seed alone determines which one runs next.
type scheduler struct {
	now     time.Time
	elapsed time.Duration // since epoch
	queue   eventHeap
	seq     uint64
	current *task
	steps   uint64
	crashed func(why string) // receives the panics of the code under test
}

func newScheduler(crashed func(why string)) *scheduler {
	return &scheduler{now: epoch, crashed: crashed}
}

// event occurs at one instant. Exactly one of its fields `do` and `wakes` is set. The field wakes resumes a task
// without a closure.
type event struct {
	at    time.Duration
	seq   uint64
	do    func()
	wakes *task
	visit uint64 // of the task to wake: a task that has continued since is not woken
}

// eventHeap is a heap.Interface, ordered by time, then by order of scheduling.
type eventHeap []*event

func (q eventHeap) Len() int { return len(q) }
func (q eventHeap) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q eventHeap) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventHeap) Push(e any)   { *q = append(*q, e.(*event)) }
func (q *eventHeap) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// after schedules the function `do`: it runs when a simulated time of d has passed.
func (s *scheduler) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, &event{at: s.elapsed + max(d, 0), seq: s.seq, do: do})
}

// wakeAfter resumes a waiting task after d, unless another event resumes the task before.
func (s *scheduler) wakeAfter(d time.Duration, t *task) {
	s.seq++
	heap.Push(&s.queue, &event{at: s.elapsed + max(d, 0), seq: s.seq, wakes: t, visit: t.visit})
}

// runUntil runs events until the given time, or until the function `stop` returns true after one of them.
func (s *scheduler) runUntil(end time.Time, stop func() bool) {
	last := end.Sub(epoch)
	for len(s.queue) > 0 && s.queue[0].at <= last {
		next := heap.Pop(&s.queue).(*event)
		s.set(next.at)
		s.steps++
		switch {
		case next.do != nil:
			next.do()
		case next.wakes.visit == next.visit:
			s.run(next.wakes)
		}
		if stop != nil && stop() {
			return
		}
	}
	s.set(last)
}

func (s *scheduler) set(elapsed time.Duration) {
	if elapsed != s.elapsed {
		s.elapsed, s.now = elapsed, epoch.Add(elapsed)
	}
}

// process is one incarnation of a server. It can be killed and paused.
type process struct {
	name   string
	server *server
	dead   bool
	paused bool
	// held are the tasks that resume when the pause ends, in the order in which they became ready.
	held    []*task
	tasks   []*task // those that have not ended, in the order in which they were started
	resume  func()  // ends a pause
	pauseID uint64
	rand    *dice
	net     *dice // for its connections
	hash    uint64
}

// task is one coroutine. It belongs to a process and ends with it.
type task struct {
	name    string
	process *process
	fn      func()
	done    bool
	visit   uint64 // counts its waits
	// decided is when the leader decided to make the create call of this task.
	decided time.Time
	// The coroutine; nil before the first step.
	resume func() (struct{}, bool)
	cancel func()
	yield  func(struct{}) bool
}

// start makes the coroutine of a task.
func (s *scheduler) start(t *task) {
	t.resume, t.cancel = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			t.done = true
			if r := recover(); r != nil {
				if _, ok := r.(killed); !ok {
					s.crashed(fmt.Sprintf("%s panics: %v\n%s", t.name, r, debug.Stack()))
				}
			}
		}()
		t.fn()
	})
}

// killed is the panic value that unwinds the stack of a task after its process died.
type killed struct{}

// spawn starts fn as a coroutine of p, in a separate event at the present time.
func (s *scheduler) spawn(p *process, name string, fn func()) {
	if p.dead {
		return
	}
	t := &task{name: name, process: p, fn: fn}
	p.tasks = append(p.tasks, t)
	s.wakeAfter(0, t)
	p.server.spring(name)
}

// run resumes a task until it waits again or ends.
func (s *scheduler) run(t *task) {
	if t.done || t.process.dead {
		return
	}
	t.visit++ // invalidates all other events that would wake this task
	if t.process.paused {
		t.process.held = append(t.process.held, t)
		return
	}
	outer := s.current
	s.current = t
	if t.resume == nil {
		s.start(t)
	}
	t.resume()
	s.current = outer
	if t.done {
		t.process.tasks = slices.DeleteFunc(t.process.tasks, func(other *task) bool { return other == t })
	}
}

// wait suspends the current task. The function register must arrange for an event that resumes the task. A task of a
// dead process never continues.
func (s *scheduler) wait(register func(t *task)) {
	t := s.current
	if t == nil {
		panic("sim: something outside a task waits")
	}
	if t.process.dead {
		panic(killed{})
	}
	t.visit++
	register(t)
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
}

// sleepIn suspends the current task for d, or until ctx ends. It returns the error of ctx.
func (s *scheduler) sleepIn(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var w *waiter
	s.wait(func(t *task) {
		s.wakeAfter(d, t)
		w = scopeOf(ctx).await(func() { s.wakeAfter(0, t) })
	})
	w.forget()
	return ctx.Err()
}

// kill ends a process: its tasks take no further step.
func (s *scheduler) kill(p *process) {
	p.dead = true
	for _, t := range p.tasks {
		if t != s.current && t.cancel != nil {
			t.cancel()
		}
	}
	p.tasks, p.held = nil, nil
}

// pause stops a process for d, as SIGSTOP does, while time continues.
func (s *scheduler) pause(p *process, d time.Duration, then func()) {
	p.paused = true
	p.resume = func() {
		if p.dead || !p.paused {
			return
		}
		p.paused = false
		held := p.held
		p.held = nil
		for _, t := range held {
			s.run(t)
		}
		then()
	}
	resume, this := p.resume, s.seq
	p.pauseID = this
	s.after(d, func() {
		if p.pauseID == this {
			resume()
		}
	})
}

// env returns the clock and the task functions for the tasks of p. skew returns the error of the machine's time of day.
// The function started is called when a task is created, and the function ended when a task ends.
func (s *scheduler) env(p *process, skew func() time.Duration, started, ended func()) tasks.Env {
	run := func(name string, fn func()) {
		started()
		s.spawn(p, name, func() {
			fn()
			ended()
		})
	}
	return tasks.Env{
		Now:   func() time.Time { return s.now.Add(skew()) },
		Sleep: s.sleepIn,
		Go:    run,
		ForEach: func(ctx context.Context, n, limit int, fn func(context.Context, int) error) error {
			return s.forEach(ctx, n, limit, run, fn)
		},
		Rand: p.rand,
	}
}

func (s *scheduler) forEach(ctx context.Context, n, limit int, spawn func(string, func()),
	fn func(context.Context, int) error) error {
	if n == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	inner := newScope(ctx)
	defer inner.cancel()
	var first error
	next, running := 0, 0
	s.wait(func(t *task) {
		worker := func() {
			for next < n && inner.Err() == nil {
				i := next
				next++
				if err := fn(inner, i); err != nil && first == nil {
					first = err
					inner.cancel()
				}
			}
			if running--; running == 0 {
				s.wakeAfter(0, t)
			}
		}
		for range min(limit, n) {
			running++
			spawn("for each", worker)
		}
	})
	if first != nil {
		return first
	}
	return ctx.Err()
}
