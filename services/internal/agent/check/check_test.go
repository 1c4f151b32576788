package check_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/check"
)

const (
	starting = nstancev1.HealthCheckState_STATUS_STARTING
	passing  = nstancev1.HealthCheckState_STATUS_PASSING
	failing  = nstancev1.HealthCheckState_STATUS_FAILING
)

// command returns a check with a command, an interval of 10 s, a timeout of 5 s, a failure threshold of 3, and a
// success threshold of 2.
func command(name string, argv ...string) *nstancev1.HealthCheck {
	return &nstancev1.HealthCheck{Name: name,
		Probe:    &nstancev1.HealthCheck_Exec{Exec: &nstancev1.ExecProbe{Command: argv}},
		Interval: durationpb.New(10 * time.Second), Timeout: durationpb.New(5 * time.Second),
		FailureThreshold: 3, SuccessThreshold: 2}
}

// results is a fake probe. The test sets the result that the probe returns for a check with a given name.
type results struct {
	mu       sync.Mutex
	failures map[string]string
	runs     map[string]int
	now, max int // probes that run
	takes    time.Duration
}

func (r *results) probe(ctx context.Context, c *nstancev1.HealthCheck) string {
	r.mu.Lock()
	r.now++
	r.max = max(r.max, r.now)
	if r.runs == nil {
		r.runs = map[string]int{}
	}
	r.runs[c.GetName()]++
	failure, takes := r.failures[c.GetName()], r.takes
	r.mu.Unlock()
	select {
	case <-ctx.Done():
		failure = "timeout"
	case <-time.After(takes):
	}
	r.mu.Lock()
	r.now--
	r.mu.Unlock()
	return failure
}

func (r *results) set(name, failure string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures == nil {
		r.failures = map[string]string{}
	}
	r.failures[name] = failure
}

func (r *results) count(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[name]
}

// run runs a runner in a bubble of synctest until the test ends.
func run(t *testing.T, r *check.Runner) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func wantStates(t *testing.T, r *check.Runner, what string, want ...*nstancev1.HealthCheckState) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, r.Report().GetStates(), protocmp.Transform()); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

func state(name string, status nstancev1.HealthCheckState_Status, reason string) *nstancev1.HealthCheckState {
	return &nstancev1.HealthCheckState{Name: name, Status: status, Reason: reason}
}

// TestThresholds checks when the status of a check changes, and that the reason stays the same while the check fails.
func TestThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe, changes := &results{}, 0
		r := check.New(probe.probe, func() { changes++ })
		r.Set("v1", []*nstancev1.HealthCheck{command("web", "x")})
		run(t, r)
		wantStates(t, r, "one run", state("web", starting, ""))
		time.Sleep(10 * time.Second)
		wantStates(t, r, "two successful runs", state("web", passing, ""))
		probe.set("web", "refused")
		time.Sleep(20 * time.Second)
		wantStates(t, r, "two failed runs", state("web", passing, ""))
		time.Sleep(10 * time.Second)
		wantStates(t, r, "three failed runs", state("web", failing, "refused"))
		probe.set("web", "status 503")
		time.Sleep(30 * time.Second)
		wantStates(t, r, "another reason", state("web", failing, "refused"))
		probe.set("web", "")
		time.Sleep(10 * time.Second)
		wantStates(t, r, "one successful run", state("web", failing, "refused"))
		time.Sleep(10 * time.Second)
		wantStates(t, r, "two successful runs", state("web", passing, ""))
		if changes != 3 {
			t.Errorf("%d changes were signalled, want 3", changes)
		}
	})
}

// TestStartPeriod checks that failures in the start period do not count, and that the first success ends the start
// period.
func TestStartPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := &results{}
		probe.set("slow", "not yet")
		probe.set("early", "not yet")
		slow, early := command("slow", "x"), command("early", "x")
		slow.StartPeriod, early.StartPeriod = durationpb.New(2*time.Minute), durationpb.New(2*time.Minute)
		r := check.New(probe.probe, func() {})
		r.Set("v1", []*nstancev1.HealthCheck{slow, early})
		run(t, r)
		time.Sleep(time.Minute)
		wantStates(t, r, "in the start period", state("early", starting, ""), state("slow", starting, ""))
		probe.set("early", "")
		time.Sleep(10 * time.Second)
		probe.set("early", "down again")
		time.Sleep(30 * time.Second)
		wantStates(t, r, "after a success", state("early", failing, "down again"), state("slow", starting, ""))
		time.Sleep(50 * time.Second)
		wantStates(t, r, "after the start period", state("early", failing, "down again"),
			state("slow", failing, "not yet"))
	})
}

// TestSet checks that Set continues unchanged checks, restarts changed ones, ends removed ones, and ignores unknown
// kinds.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := &results{}
		r := check.New(probe.probe, func() {})
		run(t, r)
		r.Set("v1", []*nstancev1.HealthCheck{command("a", "x"), command("b", "x"), command("c", "x")})
		time.Sleep(time.Minute)
		r.Set("v2", []*nstancev1.HealthCheck{command("a", "x"), command("b", "y"), {Name: "unknown"}})
		before := probe.count("c")
		wantStates(t, r, "after the change", state("a", passing, ""), state("b", starting, ""))
		if r.Version() != "v2" || r.Report().GetVersion() != "v2" {
			t.Errorf("version %q", r.Version())
		}
		time.Sleep(time.Minute)
		wantStates(t, r, "a minute later", state("a", passing, ""), state("b", passing, ""))
		if after := probe.count("c"); after != before {
			t.Errorf("the removed check ran %d times more", after-before)
		}
	})
}

// TestConcurrencyAndTimeout checks that at most four checks run at a time, that each run ends at its timeout, and that
// slow checks do not stop the others.
func TestConcurrencyAndTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := &results{takes: time.Hour}
		r := check.New(probe.probe, func() {})
		var checks []*nstancev1.HealthCheck
		for n := range 12 {
			checks = append(checks, command("c"+strconv.Itoa(n), "x"))
		}
		r.Set("v1", checks)
		run(t, r)
		time.Sleep(10 * time.Minute)
		probe.mu.Lock()
		if probe.max != 4 {
			t.Errorf("%d checks ran at a time, want 4", probe.max)
		}
		probe.mu.Unlock()
		for _, s := range r.Report().GetStates() {
			if s.GetStatus() != failing || s.GetReason() != "timeout" {
				t.Errorf("%v", s)
			}
		}
	})
}

// local runs a command as a health check on this machine, and returns the reason of a failure.
func local(t *testing.T, timeout time.Duration, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return check.Local(ctx, command("x", argv...))
}

func TestCommand(t *testing.T) {
	t.Setenv("SECRET", "of the agent")
	for _, c := range []struct {
		name, script, want string
	}{
		{"success", "exit 0", ""},
		{"exit status", "exit 3", "exit status 3"},
		{"last line", "echo first; echo '  last words '; echo; exit 1", "exit status 1: last words"},
		{"standard error", "echo broken >&2; exit 1", "exit status 1: broken"},
		{"environment", `test "$SECRET" = "" && test "$(env | grep -cv '^\(PATH\|PWD\|SHLVL\|OLDPWD\|_\)=')" = 0`, ""},
		{"working directory", `test "$(pwd)" = /`, ""},
		{"no input", "test \"$(cat)\" = ''", ""},
		{"a lot of output", "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890; i=$((i+1)); done; " +
			"echo end; exit 1", "exit status 1: end"},
		{"a signal", "kill -9 $$", "signal: killed"},
	} {
		if got := local(t, time.Minute, "/bin/sh", "-c", c.script); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := local(t, time.Minute, "/no/such/command"); !strings.Contains(got, "no such file") {
		t.Errorf("a command that does not exist: %q", got)
	}
}

// TestCommandIsKilledAtItsTimeout checks that a command and its children end at the timeout.
func TestCommandIsKilledAtItsTimeout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	got := local(t, time.Second, "/bin/sh", "-c", "sleep 600 & echo $! > "+file+"; echo waiting; wait")
	if got != "killed at its timeout: waiting" {
		t.Errorf("%q", got)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); syscall.Kill(child, 0) == nil && running(child); {
		if time.Now().After(deadline) {
			t.Fatalf("child %d of the command still runs", child)
		}
	}
}

// running reports whether a process runs. A zombie, which its parent has not reaped, does not run.
func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestHTTP(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			if r.URL.RawQuery != "full=1" {
				w.WriteHeader(http.StatusBadRequest)
			}
		case "/moved":
			http.Redirect(w, r, "/ok?full=1", http.StatusFound)
		case "/slow":
			<-r.Context().Done()
		case "/large":
			for range 100 {
				_, _ = w.Write(make([]byte, 64<<10))
			}
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	port := uint32(server.Listener.Addr().(*net.TCPAddr).Port)
	request := func(port uint32, path string, status uint32) string {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return check.Local(ctx, &nstancev1.HealthCheck{Probe: &nstancev1.HealthCheck_Http{
			Http: &nstancev1.HttpProbe{Port: port, Path: path, Status: status}}})
	}
	for _, c := range []struct {
		path   string
		status uint32
		want   string
	}{
		{"/ok?full=1", 200, ""}, {"/ok", 200, "status 400, want 200"}, {"/down", 503, ""}, {"/large", 200, ""},
		{"/down", 200, "status 503, want 200"}, {"/moved", 200, "status 302, want 200"}, {"/moved", 302, ""},
		{"/slow", 200, "no answer within its timeout"},
	} {
		if got := request(port, c.path, c.status); got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
	server.Close()
	if got := request(port, "/ok", 200); !strings.Contains(got, "connection refused") {
		t.Errorf("nothing listens: %q", got)
	}
}

// TestReasonIsOneLine checks that the reason of a failure is one printable line of at most 256 bytes.
func TestReasonIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := &results{}
		probe.set("web", "a\x1b[31m\nb\xff"+strings.Repeat("é", 300))
		spec := command("web", "x")
		spec.FailureThreshold = 1
		r := check.New(probe.probe, func() {})
		r.Set("v1", []*nstancev1.HealthCheck{spec})
		run(t, r)
		synctest.Wait()
		reason := r.Report().GetStates()[0].GetReason()
		if len(reason) > 256 || !strings.HasPrefix(reason, "a [31m b�é") || strings.ContainsAny(reason, "\n\x1b") {
			t.Errorf("%q", reason)
		}
	})
}
