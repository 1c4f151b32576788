package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// waiting is the time between two lines that say what a step waits for.
const waiting = 20 * time.Second

// task runs one step. It implements [lab.T]: what a test reports with t.Errorf is why the step fails.
type task struct {
	ctx  context.Context
	name string
	dir  func() string // makes a directory
	log  io.Writer
	say  func(format string, args ...any)

	mu       sync.Mutex
	failures []string
	said     time.Time
}

var _ lab.T = (*task)(nil)
var _ lab.Waiter = (*task)(nil)

// do runs a step and returns why it failed.
func (t *task) do(step func(lab.T)) error {
	ended := make(chan struct{})
	t.said = time.Now()
	go func() {
		defer close(ended)
		step(t)
	}()
	<-ended
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failures) == 0 {
		return nil
	}
	if cause := context.Cause(t.ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("%s", strings.Join(t.failures, "\n"))
}

// Waiting implements [lab.Waiter].
func (t *task) Waiting(what, wrong string) {
	if time.Since(t.said) < waiting {
		return
	}
	t.said = time.Now()
	t.say("      waiting: %s; now: %s", what, wrong)
}

func (t *task) Context() context.Context { return t.ctx }
func (t *task) Helper()                  {}
func (t *task) Name() string             { return t.name }
func (t *task) TempDir() string          { return t.dir() }

func (t *task) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.log, "%s %s: %s\n", time.Now().UTC().Format(time.RFC3339), t.name, fmt.Sprintf(format, args...))
}

func (t *task) fail(text string) {
	t.Logf("FAILED: %s", text)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, concise(text))
}

func (t *task) Fail()                             { t.fail("the step failed") }
func (t *task) FailNow()                          { t.failQuietly(); runtime.Goexit() }
func (t *task) Error(args ...any)                 { t.fail(fmt.Sprint(args...)) }
func (t *task) Errorf(format string, args ...any) { t.fail(fmt.Sprintf(format, args...)) }
func (t *task) Fatal(args ...any)                 { t.Error(args...); runtime.Goexit() }
func (t *task) Fatalf(format string, args ...any) { t.Errorf(format, args...); runtime.Goexit() }

// failQuietly makes sure that the step fails. Usually Errorf has said why.
func (t *task) failQuietly() {
	t.mu.Lock()
	empty := len(t.failures) == 0
	t.mu.Unlock()
	if empty {
		t.Fail()
	}
}

// concise returns the errors in the output of a CLI, or the whole text if there are none.
func concise(text string) string {
	const most = 25
	var lines []string
	shown := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(strings.TrimLeft(line, "│╷╵ \t"), " \n")
		if strings.HasPrefix(line, "Error: ") && !strings.Contains(line, "Received unexpected error") {
			shown = true
		}
		if shown && line != "" {
			lines = append(lines, line)
		}
	}
	if !shown {
		lines = strings.Split(strings.TrimSpace(text), "\n")
	}
	if len(lines) > most {
		lines = append(lines[:most], "…")
	}
	return strings.Join(lines, "\n")
}

// dirs returns a function that makes directories in dir, and empties them first.
func dirs(dir string) func() string {
	n := 0
	return func() string {
		n++
		path := fmt.Sprintf("%s/%d", dir, n)
		_ = os.RemoveAll(path)
		if err := os.MkdirAll(path, 0o700); err != nil {
			panic(err) // the record is in the same directory
		}
		return path
	}
}
