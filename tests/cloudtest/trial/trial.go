// Package trial runs cloud-test on fake clouds: whole, killed in each step, interrupted, and with bad input. It starts
// the program that `make cloud-test` starts.
package trial

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// Fake is a fake cloud with one account.
type Fake struct {
	Environment map[string]string
	// Flags are those that the program needs on this cloud.
	Flags []string
	// Inventory returns everything in the account, whatever the program finds there.
	Inventory func(t *testing.T) []string
	// Refresh lets the leader of a run read its configuration every second instead of every three minutes.
	Refresh func(t *testing.T, r Run)

	program string
}

// Run is what the program records of a run.
type Run struct {
	Name, Account, Region, Zone string
	Steps                       []struct{ Step, Error string }
	Clean                       time.Time
}

// call is a call of the program.
type call struct {
	*exec.Cmd

	dir, name string

	mu  sync.Mutex
	out bytes.Buffer
}

// Write implements io.Writer for the program's output.
func (c *call) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(text)
}

func (c *call) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// Build builds the program.
func (f *Fake) Build(t *testing.T) {
	t.Helper()
	f.program = filepath.Join(t.TempDir(), "cloud-test")
	if _, err := lab.Run(t.Context(), "go", "build", "-o", f.program, "./tests/cloudtest"); err != nil {
		t.Fatal(err)
	}
}

// start starts the program in a process group of its own.
func (f *Fake) start(t *testing.T, dir, name string, args ...string) *call {
	t.Helper()
	c := &call{Cmd: exec.CommandContext(t.Context(), f.program, slices.Concat(f.Flags, []string{"-dir", dir, "-name",
		name}, args)...), dir: filepath.Join(dir, name), name: name}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Dir = lab.Root()
	for name, value := range f.Environment {
		c.Env = append(c.Env, name+"="+value)
	}
	c.Env = append(os.Environ(), c.Env...)
	c.Stdout, c.Stderr = c, c
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// wait waits for the end of the program and returns its exit code.
func (c *call) wait(t *testing.T) int {
	t.Helper()
	err := c.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode()
}

// logs returns the output of the program and the end of the run's log.
func (c *call) logs() string {
	const most = 10 << 10
	text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	return c.output() + "\n--- log\n" + string(text[max(0, len(text)-most):])
}

// reached waits until a run has begun a step, and returns its record.
func (c *call) reached(t *testing.T, step string) (r Run) {
	t.Helper()
	lab.Eventually(t, 5*time.Minute, c.name+" has begun the step "+step, func() string {
		text, err := os.ReadFile(filepath.Join(c.dir, "run.json"))
		if err != nil {
			return err.Error() + " " + c.output()
		}
		r = Run{}
		if err := json.Unmarshal(text, &r); err != nil {
			return err.Error()
		}
		for _, one := range r.Steps {
			if one.Step == step {
				return ""
			}
			if one.Error != "" {
				t.Fatalf("step %s: %s", one.Step, c.logs())
			}
		}
		return fmt.Sprint(r.Steps)
	})
	return r
}

// of returns what the account has of a run, by its name.
func (f *Fake) of(t *testing.T, name string) []string {
	t.Helper()
	return slices.DeleteFunc(f.Inventory(t), func(one string) bool {
		return !strings.Contains(strings.ReplaceAll(one, "_", "-"), name)
	})
}

// Whole runs all steps. Nothing may be left.
func (f *Fake) Whole(t *testing.T) {
	dir := t.TempDir()
	c := f.start(t, dir, "ct-whole")
	f.Refresh(t, c.reached(t, "plan"))
	code := c.wait(t)
	page, err := os.ReadFile(filepath.Join(c.dir, "result.md"))
	const passed = "All steps passed. An inventory after the run found nothing of it."
	if code != 0 || err != nil || !strings.Contains(string(page), passed) {
		t.Errorf("exit code %d, result page %v:\n%s\n%s", code, err, page, c.logs())
	}
	t.Logf("%s\n%s", c.output(), page)
	if left := f.of(t, "ct-whole"); len(left) > 0 {
		t.Errorf("after the run there is %v", left)
	}
}

// Point is a moment at which a run is killed with kill -9.
type Point struct {
	// Step is the step. The run has only the step "apply" before it.
	Step string
	// Made is part of a line of the inventory: the run is killed when the account has it. If it is empty, the run is
	// killed as soon as the step has changed what the account has.
	Made string
	// Alone means that only the program is killed. Its children go on, as if only this process had crashed. Otherwise
	// all processes of the run end, as if the power had failed.
	Alone bool
	// Again means that the clean-up is killed as well, and runs again.
	Again bool
}

// Killed runs the scenario on a fake cloud, kills it, and cleans up. Nothing may be left.
func (f *Fake) Killed(t *testing.T, name string, at Point) {
	dir := t.TempDir()
	steps := "apply"
	if at.Step != "apply" {
		steps += "," + at.Step
	}
	c := f.start(t, dir, name, "-steps", steps)
	r := c.reached(t, at.Step)
	if at.Step != "apply" {
		f.Refresh(t, r)
	}
	f.changes(t, name, at.Made)
	c.kill(t, at.Alone)
	if at.Again {
		clean := f.start(t, dir, name, "-clean")
		f.changes(t, name, "")
		clean.kill(t, false)
	}
	clean := f.start(t, dir, name, "-clean")
	if code := clean.wait(t); code != 0 {
		t.Errorf("the clean-up ends with the code %d:\n%s\n--- the run\n%s", code, clean.output(), c.logs())
	}
	if left := f.of(t, name); len(left) > 0 {
		t.Errorf("after the clean-up there is %v:\n%s", left, clean.output())
	}
}

// changes waits until the account has something of a run, or something else of it than now.
func (f *Fake) changes(t *testing.T, name, made string) {
	t.Helper()
	before := f.of(t, name)
	lab.Eventually(t, 3*time.Minute, name+": "+made+" is made", func() string {
		now := f.of(t, name)
		if made == "" && !slices.Equal(now, before) ||
			made != "" && slices.ContainsFunc(now, func(one string) bool { return strings.HasPrefix(one, made) }) {
			return ""
		}
		return fmt.Sprint(now)
	})
}

// kill ends the program with kill -9, and its children too unless "alone" is set.
func (c *call) kill(t *testing.T, alone bool) {
	t.Helper()
	pid := c.Process.Pid
	if !alone {
		pid = -pid
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if alone {
		// Wait would wait for the children, which have the program's output.
		_, _ = c.Process.Wait()
		return
	}
	_ = c.Wait()
}

// Interrupted interrupts a run: once, and then twice. After the second interrupt, the command that the program prints
// cleans up.
func (f *Fake) Interrupted(t *testing.T, made string) {
	dir := t.TempDir()
	c := f.start(t, dir, "ct-once", "-steps", "apply")
	f.changes(t, "ct-once", made)
	clean := f.start(t, dir, "ct-once", "-clean")
	if code := clean.wait(t); code != 1 || !strings.Contains(clean.output(), "is at work in another process") {
		t.Errorf("a clean-up while the run is at work: exit code %d\n%s", code, clean.output())
	}
	c.interrupt(t)
	if code := c.wait(t); code != 1 || !strings.Contains(c.output(), "interrupted") ||
		!strings.Contains(c.output(), "nothing is left of ct-once") {
		t.Errorf("after an interrupt: exit code %d\n%s", code, c.logs())
	}
	if left := f.of(t, "ct-once"); len(left) > 0 {
		t.Errorf("after an interrupt there is %v", left)
	}

	c = f.start(t, dir, "ct-twice", "-steps", "apply")
	f.changes(t, "ct-twice", made)
	c.interrupt(t)
	lab.Eventually(t, time.Minute, "the first interrupt is noticed", func() string {
		if !strings.Contains(c.output(), "Interrupt again to stop immediately") {
			return c.output()
		}
		return ""
	})
	c.interrupt(t)
	if code := c.wait(t); code != 130 || !strings.Contains(c.output(), "make cloud-test CLEAN=1 NAME=ct-twice CLOUD=") {
		t.Errorf("after a second interrupt: exit code %d\n%s", code, c.logs())
	}
	clean = f.start(t, dir, "ct-twice", "-clean")
	if code := clean.wait(t); code != 0 {
		t.Errorf("the clean-up: exit code %d\n%s", code, clean.output())
	}
	if left := f.of(t, "ct-twice"); len(left) > 0 {
		t.Errorf("after two interrupts and a clean-up there is %v", left)
	}
}

// interrupt sends SIGINT to the program and its children, as a terminal does.
func (c *call) interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-c.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// Refuses runs the program, which must fail with the given code and with errors that contain the texts. Nothing may be
// left.
func (f *Fake) Refuses(t *testing.T, code int, args []string, texts ...string) {
	t.Helper()
	before := f.Inventory(t)
	c := f.start(t, t.TempDir(), "ct-refused", append([]string{"-steps", "apply"}, args...)...)
	if got := c.wait(t); got != code {
		t.Errorf("exit code %d, want %d:\n%s", got, code, c.logs())
	}
	for _, text := range texts {
		if !strings.Contains(c.output(), text) {
			t.Errorf("the output lacks %q:\n%s", text, c.output())
		}
	}
	if diff := cmp.Diff(before, f.Inventory(t)); diff != "" {
		t.Errorf("the account (-before +now):\n%s", diff)
	}
}

// Taken runs the program with a name that has a resource in the account already, which the function "make" makes. The
// program must refuse the name and change nothing, and its clean-up of this name must delete the resource.
func (f *Fake) Taken(t *testing.T, make func(name string)) {
	t.Helper()
	before := f.Inventory(t)
	const name = "ct-refused"
	make(name)
	f.Refuses(t, 1, nil, "the account already has resources of a cluster "+name, "nothing was created or deleted",
		"CLEAN=1 NAME="+name)
	c := f.start(t, t.TempDir(), name, "-clean")
	if code := c.wait(t); code != 0 {
		t.Errorf("the clean-up: exit code %d\n%s", code, c.output())
	}
	if diff := cmp.Diff(before, f.Inventory(t)); diff != "" {
		t.Errorf("after the clean-up (-before +now):\n%s", diff)
	}
}

// With returns a fake whose programs have another environment.
func (f *Fake) With(environment map[string]string) *Fake {
	other := *f
	other.Environment = map[string]string{}
	for name, value := range f.Environment {
		other.Environment[name] = value
	}
	for name, value := range environment {
		other.Environment[name] = value
	}
	return &other
}
