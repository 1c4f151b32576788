// Package check runs health checks: commands on the VM, and HTTP requests to the VM itself.
//
// A [Runner] runs each check at its interval, and at most four checks at a time. A run ends at its timeout. The status
// of a check changes only when a threshold is reached.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/loopback"
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

// Restart starts all checks again, without results.
func (r *Runner) Restart() {
	r.mu.Lock()
	var specs []*nstancev1.HealthCheck
	for _, c := range r.checks {
		if c.stop != nil {
			c.stop()
		}
		specs = append(specs, c.spec)
	}
	r.checks = map[string]*running{}
	version := r.version
	r.mu.Unlock()
	r.Set(version, specs)
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
		return cmp.Compare(a.GetName(), b.GetName())
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

const (
	// searchPath is the whole environment of a check's command.
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// maxOutput is the number of bytes that are kept from the end of a command's output.
	maxOutput = 4 << 10
	// openPipes limits the wait for the children of a command that has ended. The children may still hold its output
	// open.
	openPipes = time.Second
	// maxAnswer is the maximum number of bytes that a check reads from an HTTP answer.
	maxAnswer = 64 << 10
)

// Local runs a check on this machine.
func Local(ctx context.Context, check *nstancev1.HealthCheck) (failure string) {
	switch probe := check.GetProbe().(type) {
	case *nstancev1.HealthCheck_Exec:
		failure, _ = runCommand(ctx, probe.Exec.GetCommand())
		return failure
	case *nstancev1.HealthCheck_Http:
		return request(ctx, probe.Http)
	}
	return "this agent does not know the kind of the check"
}

// Hook runs a command like a check's, with the given variables in addition to PATH. It returns the reason of a failure
// as one line, or "" for a success. A command has also failed if it leaves children that have its output open, because
// they may still do its work.
func Hook(ctx context.Context, argv []string, environ ...string) (failure string) {
	failure, left := runCommand(ctx, argv, environ...)
	if failure == "" && left {
		failure = "it left children that still run"
	}
	return Line(failure)
}

// runCommand runs a command in its own process group. At the end of ctx the whole group is killed. The reason of a
// failure includes the last line of the output. left means that the command succeeded, but that children of it still
// hold its output open.
func runCommand(ctx context.Context, argv []string, environ ...string) (failure string, left bool) {
	if len(argv) == 0 {
		return "there is no command", false
	}
	output := &tail{}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append([]string{searchPath}, environ...), "/"
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = openPipes
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return "", err != nil // it succeeded, though a child may have kept its output open
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return withLine("killed at its timeout", output.lastLine()), false
	case errors.As(err, &exit):
		return withLine(exit.String(), output.lastLine()), false
	}
	return err.Error(), false
}

func withLine(reason, line string) string {
	if line == "" {
		return reason
	}
	return reason + ": " + line
}

func request(ctx context.Context, probe *nstancev1.HttpProbe) (failure string) {
	answer, err := loopback.Get(ctx, probe.GetPort(), probe.GetPath(), "")
	switch {
	case ctx.Err() != nil:
		return "no answer within its timeout"
	case err != nil:
		return err.Error()
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer)) // so that the program sees a complete request
	if want := int(probe.GetStatus()); answer.StatusCode != want {
		return fmt.Sprintf("status %d, want %d", answer.StatusCode, want)
	}
	return ""
}

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-maxOutput):]...)
	t.text = t.text[max(0, len(t.text)-maxOutput):]
	return len(p), nil
}

// lastLine returns the last line with any text.
func (t *tail) lastLine() string {
	text := strings.TrimSpace(string(t.text))
	return strings.TrimSpace(text[strings.LastIndexAny(text, "\r\n")+1:])
}

// Line returns a text as one line of printable UTF-8 of at most maxReason bytes.
func Line(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}
