package agent_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/agent/check"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

// drainEvent returns the event with which a server asks for the drain hook.
func drainEvent(timeout, remaining time.Duration, command ...string) *nstancev1.ReceiveFilesResponse {
	return &nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_Drain{Drain: &nstancev1.Drain{
		Reason: "the group became smaller", Command: command, Timeout: durationpb.New(timeout),
		Remaining: durationpb.New(remaining)}}}
}

func hasDrain(r *nstancev1.ReportHealthRequest) bool { return r.GetDrain() != nil }

// drainOptions returns the options of an agent that runs its drain hook as a real process.
func drainOptions(m *memories, s *fakeServer, n *network) agent.Options {
	o := m.options(s, n)
	o.DrainHook = check.Hook
	return o
}

// startDraining runs an agent with a server that never wants a report, so that the agent reports only news.
func startDraining(t *testing.T) *fakeServer {
	t.Helper()
	s, n := newFakeServer(t, newID(t)), &network{}
	s.interval = "1h"
	stopServer := s.start(t, n.listen(address))
	_, stop := run(t, drainOptions(newMemories(t, s), s, n))
	t.Cleanup(func() {
		_ = stop()
		stopServer()
	})
	if report := s.next(t, "sequence 1", first); report.GetDrain() != nil {
		t.Errorf("the hook has ended before it began: %v", report)
	}
	return s
}

// TestDrainHookEnds checks how hooks end as real processes, and that the agent reports the end immediately, once.
func TestDrainHookEnds(t *testing.T) {
	t.Setenv("SECRET", "of the agent")
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	for name, c := range map[string]struct {
		command []string
		want    string // a part of the error; empty: success
	}{
		"success":    {sh("echo drained"), ""},
		"no shell":   {[]string{"/bin/test", "$HOME;", "=", "$HOME;"}, ""},
		"exit code":  {sh("echo first; echo no peers >&2; exit 1"), "exit status 1: no peers"},
		"a signal":   {sh("kill -TERM $$"), "signal: terminated"},
		"missing":    {[]string{filepath.Join(dir, "missing")}, "no such file or directory"},
		"no program": {[]string{plain}, "permission denied"},
		"no command": {nil, "there is no command"},
		"a flood":    {sh("head -c 20000000 /dev/zero | tr '\\0' 'x'; echo; echo end; exit 3"), "exit status 3: end"},
		"children":   {sh("sleep 30 & exit 0"), "it left children that still run"},
		"a long line": {sh("head -c 3000 /dev/zero | tr '\\0' 'x'; exit 1"),
			"exit status 1: " + strings.Repeat("x", 241)},
		"environment": {sh(`test "$NSTANCE_DRAIN_REASON" = "the group became smaller" && test -n "$PATH" &&
			test "$(env | grep -cv '^\(PATH\|NSTANCE_DRAIN_[A-Z]*\|PWD\|SHLVL\|OLDPWD\|_\)=')" = 0 &&
			d=$(($(date -d "$NSTANCE_DRAIN_DEADLINE" +%s) - $(date +%s))) && test $d -gt 30 && test $d -le 61`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := startDraining(t)
			s.fileSends <- drainEvent(time.Minute, time.Hour, c.command...)
			report := s.next(t, "the end of the hook", hasDrain)
			got := report.GetDrain().GetError()
			if !strings.Contains(got, c.want) || (got == "") != (c.want == "") || len(got) > 256 {
				t.Errorf("%q, want %q", got, c.want)
			}
			if !report.GetUnchanged() || !report.GetHealthy() {
				t.Errorf("the report waits for files: %v", report)
			}
		})
	}
}

// TestDrainHookIsKilled checks that the hook and its children are killed after the shorter one of its timeout and the
// remaining time, and that a later request shortens the time.
func TestDrainHookIsKilled(t *testing.T) {
	for name, requests := range map[string][][2]time.Duration{
		"timeout":    {{time.Second, time.Hour}},
		"remaining":  {{time.Hour, time.Second}},
		"shortened":  {{time.Hour, time.Hour}, {time.Hour, time.Second}},
		"not longer": {{time.Hour, 2 * time.Second}, {time.Hour, time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			pipe := filepath.Join(t.TempDir(), "pipe")
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			s := startDraining(t)
			command := []string{"/bin/sh", "-c", "sleep 1000 & echo $! >" + pipe + "; echo waiting; wait"}
			s.fileSends <- drainEvent(requests[0][0], requests[0][1], command...)
			text, err := os.ReadFile(pipe)
			if err != nil {
				t.Fatal(err)
			}
			child, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			watch, err := unix.PidfdOpen(child, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(watch)
			for _, r := range requests[1:] {
				s.fileSends <- drainEvent(r[0], r[1], command...)
			}
			if got := s.next(t, "the end", hasDrain).GetDrain().GetError(); got != "killed at its timeout: waiting" {
				t.Errorf("%q", got)
			}
			fds := []unix.PollFd{{Fd: int32(watch), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, 10_000); n != 1 || err != nil {
				t.Errorf("the child lives on: %d, %v", n, err)
			}
		})
	}
	s := startDraining(t)
	s.fileSends <- drainEvent(-time.Second, time.Hour, "/bin/sleep", "1000")
	if got := s.next(t, "no time", hasDrain).GetDrain().GetError(); got != "killed at its timeout" {
		t.Errorf("without any time: %q", got)
	}
}

// TestDrainHookRunsOnce checks that the hook runs once though every stream asks for it, that its result is reported after
// a lost connection and in each later report, and that an agent without a hook asks for no drain.
func TestDrainHookRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		s.interval = "10s"
		s.firstFiles = []*nstancev1.ReceiveFilesResponse{drainEvent(time.Hour, time.Hour, "x", "y"),
			drainEvent(time.Hour, time.Hour, "again")}
		stopServer := s.start(t, n.listen(address))
		o, end, runs := newMemories(t, s).options(s, n), make(chan string), [][]string{}
		o.DrainHook = func(_ context.Context, command []string, _ ...string) string {
			runs = append(runs, command)
			return <-end
		}
		_, stop := run(t, o)
		if got := s.next(t, "sequence 1", first); got.GetDrain() != nil {
			t.Errorf("the hook has ended: %v", got)
		}
		synctest.Wait()
		if !get(s, func() bool { return s.asked.GetWithDrain() }) {
			t.Error("the agent does not ask for the drain")
		}
		stopServer()
		n.unlisten()
		end <- "exit status 1"
		synctest.Wait()
		for len(s.reports) > 0 {
			if report := <-s.reports; report.GetDrain() != nil {
				t.Errorf("reported without a connection: %v", report)
			}
		}
		stopServer = s.start(t, n.listen(address))
		for sequence := range uint64(3) {
			got := s.next(t, "the next number", func(r *nstancev1.ReportHealthRequest) bool {
				return r.GetSequence() == sequence+1
			}).GetDrain()
			if got == nil || got.GetError() != "exit status 1" {
				t.Errorf("report %d: %v", sequence+1, got)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(runs) != 1 || !slices.Equal(runs[0], []string{"x", "y"}) {
			t.Errorf("the hook ran as %q", runs)
		}
		_ = stop()

		plain := newMemories(t, s).options(s, n)
		s.set(func() { s.spentBy = nil })
		_, stop = run(t, plain)
		time.Sleep(time.Minute)
		synctest.Wait()
		if get(s, func() bool { return s.asked.GetWithDrain() }) {
			t.Error("an agent without a hook asks for the drain")
		}
		_ = stop()
		stopServer()
	})
}

// TestDrainAfterRestart checks what an agent reports and runs after a restart: nothing more of a hook that has ended or
// that was interrupted.
func TestDrainAfterRestart(t *testing.T) {
	const interrupted = "the agent restarted while the hook ran"
	foreign := `{"instance": "knc00000000000000000000000000", "ended": true}`
	for name, c := range map[string]struct {
		hook  func(ctx context.Context) string // of the first process
		state string                           // replaces what the first process stored
		want  *nstancev1.DrainReport
		runs  int // of the second process
	}{
		"ended":  {func(context.Context) string { return "" }, "", &nstancev1.DrainReport{}, 0},
		"failed": {func(context.Context) string { return "no" }, "", &nstancev1.DrainReport{Error: "no"}, 0},
		"interrupted": {func(ctx context.Context) string { <-ctx.Done(); return "killed" }, "",
			&nstancev1.DrainReport{Error: interrupted}, 0},
		"ended with the agent": {func(ctx context.Context) string { <-ctx.Done(); return "" }, "",
			&nstancev1.DrainReport{}, 0},
		"damaged":    {func(context.Context) string { return "" }, "{", &nstancev1.DrainReport{Error: interrupted}, 0},
		"of another": {func(context.Context) string { return "" }, foreign, nil, 1},
		"two lines":  {func(context.Context) string { return "a\nb" }, "", &nstancev1.DrainReport{Error: "a b"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, n := newFakeServer(t, newID(t)), &network{}
				s.firstFiles = []*nstancev1.ReceiveFilesResponse{drainEvent(time.Hour, time.Hour, "x")}
				defer s.start(t, n.listen(address))()
				m := newMemories(t, s)
				o := m.options(s, n)
				o.DrainHook = func(ctx context.Context, _ []string, _ ...string) string { return c.hook(ctx) }
				_, stop := run(t, o)
				s.next(t, "sequence 1", first)
				synctest.Wait()
				_ = stop()
				if c.state != "" {
					if err := m.identity.Write("drain.json", []byte(c.state), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				for len(s.reports) > 0 {
					<-s.reports
				}
				runs := 0
				o.DrainHook = func(context.Context, []string, ...string) string {
					runs++
					time.Sleep(10 * time.Second) // it ends after the first report
					return ""
				}
				_, stop = run(t, o)
				got := s.next(t, "sequence 1", first).GetDrain()
				if (got == nil) != (c.want == nil) || got.GetError() != c.want.GetError() {
					t.Errorf("reported %v, want %v", got, c.want)
				}
				time.Sleep(time.Minute)
				_ = stop()
				if runs != c.runs {
					t.Errorf("the hook ran %d times after the restart", runs)
				}
			})
		})
	}
}

// fullDisk is a folder that cannot store the state of the drain hook.
type fullDisk struct{ folder.Folder }

func (f fullDisk) Write(name string, content []byte, mode fs.FileMode) error {
	if name == "drain.json" {
		return syscall.ENOSPC
	}
	return f.Folder.Write(name, content, mode)
}

// TestDrainOnAFullDisk checks that the hook runs even if its start cannot be stored.
func TestDrainOnAFullDisk(t *testing.T) {
	s, n := newFakeServer(t, newID(t)), &network{}
	defer s.start(t, n.listen(address))()
	m := newMemories(t, s)
	o := drainOptions(m, s, n)
	o.Identity = fullDisk{&m.identity}
	_, stop := run(t, o)
	defer func() { _ = stop() }()
	s.fileSends <- drainEvent(time.Minute, time.Hour, "/bin/true")
	if got := s.next(t, "the end", hasDrain).GetDrain().GetError(); got != "" {
		t.Errorf("%q", got)
	}
}

// TestProcessRestartsInADrain kills an agent with SIGTERM and SIGKILL while its hook runs. The next process reports
// that, and does not run the hook a second time.
func TestProcessRestartsInADrain(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		s := newFakeServer(t, newID(t))
		s.interval = "1h"
		listener := listen(t)
		addr, dir := listener.Addr().String(), machineOf(t, s)
		ran := filepath.Join(dir, "ran")
		s.firstFiles = []*nstancev1.ReceiveFilesResponse{drainEvent(time.Hour, time.Hour, "/bin/sh", "-c",
			"echo $$ >>"+ran+"; exec sleep 1000")}
		stopServer := s.start(t, listener)
		p := launch(t, s, addr, dir)
		p.say(t, `(The drain hook starts)`)
		var text []byte
		for len(text) == 0 {
			var err error
			if text, err = os.ReadFile(ran); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		hook, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(hook, syscall.SIGKILL) })
		_ = p.end(t, sig)
		if sig == syscall.SIGTERM && syscall.Kill(hook, 0) == nil {
			t.Error("the hook outlives its agent")
		}
		p = launch(t, s, addr, dir)
		report := s.next(t, "the end of the hook", hasDrain)
		if got := report.GetDrain().GetError(); got != "the agent restarted while the hook ran" {
			t.Errorf("%v: %q", sig, got)
		}
		if now, err := os.ReadFile(ran); err != nil || string(now) != string(text) {
			t.Errorf("%v: the hook ran again: %q, %v", sig, now, err)
		}
		_ = p.end(t, syscall.SIGTERM)
		stopServer()
	}
}
