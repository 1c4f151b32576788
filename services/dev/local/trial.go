package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Trial holds the options of [WithStack].
type Trial struct {
	Name    string // part of the directory's name
	Root    string // of the repository
	Bin     string // directory of the binaries; empty: {Root}/bin
	Servers int
	Keep    bool // keep the directory
	// MaxVMs, AccessKey and Environment are those of [Options].
	MaxVMs      int
	AccessKey   string
	Environment func(name string) []string
}

// WithStack runs fn on a stack with free ports in a temporary directory. Afterwards it kills every process of the stack
// and removes the directory. If fn fails, WithStack prints the last lines of every log.
func WithStack(ctx context.Context, trial Trial, fn func(*Stack) error) (err error) {
	ports, release, err := ReservePorts(ctx, trial.Servers)
	if err != nil {
		return err
	}
	defer release()
	dir, err := os.MkdirTemp("", "nstance-"+trial.Name+"-")
	if err != nil {
		return err
	}
	stack, err := New(Options{Root: trial.Root, Bin: trial.Bin, Dir: dir, Ports: ports, Servers: trial.Servers,
		MaxVMs: trial.MaxVMs, AccessKey: trial.AccessKey, Environment: trial.Environment})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		// The clean-up must complete even if ctx has ended.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err != nil && ctx.Err() == nil {
			stack.Tails(os.Stderr, 40)
		}
		if trial.Keep {
			fmt.Fprintf(os.Stderr, "kept: %s\n", dir)
			err = errors.Join(err, stack.KillAll(clean))
			return
		}
		err = errors.Join(err, stack.Clean(clean))
	}()
	return fn(stack)
}

// Pause waits for the duration d. If ctx ends first, Pause returns the cause of ctx's end.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
