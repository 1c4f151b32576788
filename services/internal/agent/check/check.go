// Package check runs health checks: commands on the VM, and HTTP requests to the VM itself.
//
// A [Runner] runs each check at its interval, and at most four checks at a time. A run ends at its timeout. The status
// of a check changes only when a threshold is reached.
package check

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	// maxRunning is the maximum number of checks that run at a time.
	maxRunning = 4
	// maxReason is the maximum length of a failure's reason, in bytes.
	maxReason = 256
	// minInterval is the shortest interval between two runs of a check, even if a server asks for a shorter one.
	minInterval = time.Second
)

// Probe runs a check once. It returns the reason of a failure, or "" for a success.
type Probe func(ctx context.Context, check *nstancev1.HealthCheck) (failure string)

// Runner runs health checks. Its methods are safe for concurrent use.
type Runner struct {
	probe   Probe
	changed func()
	slots   chan struct{}

	mu      sync.Mutex
	ctx     context.Context // nil before Run and after its end
	version string
	checks  map[string]*running
	stopped sync.WaitGroup
}

// running is one check.
type running struct {
	spec *nstancev1.HealthCheck
	stop context.CancelFunc
	// Runner.mu guards state, passed and failed. `passed` counts consecutive successful runs, and `failed` consecutive
	// failed ones.
	state           *nstancev1.HealthCheckState
	passed, failed  uint32
	startPeriodEnds time.Time
}

// New returns a runner without checks. changed is called after the status of a check has changed; it must not block.
func New(probe Probe, changed func()) *Runner {
	return &Runner{probe: probe, changed: changed, slots: make(chan struct{}, maxRunning),
		checks: map[string]*running{}}
}

// Run runs the checks until ctx ends. Then it waits for the checks in progress.
func (r *Runner) Run(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	for _, c := range r.checks {
		r.start(c)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.ctx = nil
	r.mu.Unlock()
	r.stopped.Wait()
	return ctx.Err()
}

// Set replaces the list of checks. A check that is the same as before keeps its state. A new or changed check begins
// without results. Set ignores a check whose kind of probe is unknown to this agent.
func (r *Runner) Set(version string, checks []*nstancev1.HealthCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version = version
	kept := map[string]*running{}
	for _, spec := range checks {
		if spec.GetExec() == nil && spec.GetHttp() == nil {
			continue
		}
		name := spec.GetName()
		have := r.checks[name]
		if have != nil && proto.Equal(have.spec, spec) {
			kept[name] = have
			continue
		}
		kept[name] = &running{spec: spec, state: &nstancev1.HealthCheckState{Name: name,
			Status: nstancev1.HealthCheckState_STATUS_STARTING}}
	}
	for name, c := range r.checks {
		if kept[name] != c && c.stop != nil {
			c.stop()
		}
	}
	r.checks = kept
	for _, c := range kept {
		if r.ctx != nil && c.stop == nil {
			r.start(c)
		}
	}
}

// Version returns the version of the checks.
func (r *Runner) Version() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

// Report returns the version and the states of all checks, sorted by name. The caller must not change them.
func (r *Runner) Report() *nstancev1.HealthCheckReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := &nstancev1.HealthCheckReport{Version: r.version}
	for _, c := range r.checks {
		report.States = append(report.States, c.state)
	}
	slices.SortFunc(report.States, func(a, b *nstancev1.HealthCheckState) int {
		if a.GetName() < b.GetName() {
			return -1
		}
		return 1
	})
	return report
}

// start starts the loop of a check. The caller must hold mu.
func (r *Runner) start(c *running) {
	ctx, stop := context.WithCancel(r.ctx)
	c.stop = stop
	c.startPeriodEnds = time.Now().Add(c.spec.GetStartPeriod().AsDuration())
	r.stopped.Go(func() { r.loop(ctx, c) })
}

// loop runs a check until ctx ends. A run that takes longer than the interval delays the next one.
func (r *Runner) loop(ctx context.Context, c *running) {
	interval := max(c.spec.GetInterval().AsDuration(), minInterval)
	// The random delay spreads the runs of instances that received their checks at the same time.
	tick := time.NewTicker(interval/2 + rand.N(interval/2))
	defer tick.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case r.slots <- struct{}{}:
		}
		began := time.Now()
		failure := r.run(ctx, c.spec)
		<-r.slots
		if ctx.Err() != nil {
			return
		}
		if r.count(c, failure, began) {
			r.changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if first {
				tick.Reset(interval)
			}
		}
	}
}

func (r *Runner) run(ctx context.Context, spec *nstancev1.HealthCheck) string {
	ctx, cancel := context.WithTimeout(ctx, max(spec.GetTimeout().AsDuration(), time.Millisecond))
	defer cancel()
	return r.probe(ctx, spec)
}

// count evaluates a run, and reports whether the status of the check changed. A failure in the start period does not
// count. A failing check keeps one reason until it passes: the reason of the failure that reached the threshold. So the
// reason does not change with every run.
func (r *Runner) count(c *running, failure string, began time.Time) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := c.state.GetStatus()
	starting := status == nstancev1.HealthCheckState_STATUS_STARTING
	reason := ""
	switch {
	case failure == "":
		c.passed, c.failed = c.passed+1, 0
		if c.passed >= max(c.spec.GetSuccessThreshold(), 1) {
			status = nstancev1.HealthCheckState_STATUS_PASSING
		}
		c.startPeriodEnds = time.Time{}
	case starting && began.Before(c.startPeriodEnds):
		c.passed = 0
	default:
		c.passed, c.failed = 0, c.failed+1
		if c.failed >= max(c.spec.GetFailureThreshold(), 1) {
			status, reason = nstancev1.HealthCheckState_STATUS_FAILING, Line(failure)
		}
	}
	if status == c.state.GetStatus() {
		return false
	}
	c.state = &nstancev1.HealthCheckState{Name: c.spec.GetName(), Status: status, Reason: reason}
	return true
}
