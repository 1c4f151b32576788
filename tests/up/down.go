package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/local"
)

// takeDown destroys what was applied, ends what runs and removes temp/. It goes on when destroying fails: what is in
// temp/ is all there is.
func takeDown(ctx context.Context, root, terraform string) error {
	dir := filepath.Join(root, "temp")
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		fmt.Println("  Nothing runs and nothing is left.")
		return nil
	}
	stack, err := open(root)
	if err != nil {
		return err
	}
	var failed error
	if _, err := os.Stat(filepath.Join(dir, "terraform", "terraform.tfstate")); err == nil {
		failed = say(filepath.Base(terraform)+" destroy", func() (string, error) {
			return "", destroy(ctx, stack, terraform)
		})
	}
	err = say("Ending what runs", func() (string, error) { return "", end(ctx, stack) })
	if err == nil {
		err = say("Removing temp/", func() (string, error) { return "", os.RemoveAll(stack.Dir) })
	}
	if failed != nil {
		failed = fmt.Errorf("destroy failed, so everything was simply removed: %w", failed)
	}
	return errors.Join(failed, err)
}

// destroy needs the object store and a server, which empties the shard.
func destroy(ctx context.Context, stack *local.Stack, terraform string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("it took longer than "+patience.String()))
	defer cancel()
	running, err := stack.Running(ctx)
	if err != nil {
		return err
	}
	if _, ok := running["dev-s3"]; !ok {
		if _, err := stack.StartStore(ctx); err != nil {
			return err
		}
	}
	if running[local.ServerName(1)] == 0 && running[local.ServerName(2)] == 0 {
		if _, err := stack.StartServer(ctx, 1); err != nil {
			return err
		}
	}
	tf, err := stack.Terraform(terraform)
	if err != nil {
		return err
	}
	operator, err := stack.Connect(ctx)
	if err != nil {
		return err
	}
	defer operator.Close()
	return tf.Destroy(ctx, stack.Variables(), operator)
}

// end asks servers and object store to end, and kills what has not ended soon.
func end(ctx context.Context, stack *local.Stack) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, names := range [][]string{{local.ServerName(1), local.ServerName(2)}, {"dev-s3"}} {
		running, err := stack.Running(ctx)
		if err != nil {
			return err
		}
		asked := time.Now()
		for _, name := range names {
			if pid, ok := running[name]; ok {
				_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended
			}
		}
		for time.Since(asked) < 10*time.Second {
			if running, err = stack.Running(ctx); err != nil {
				return err
			}
			left := false
			for _, name := range names {
				left = left || running[name] != 0
			}
			if !left {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return stack.KillAll(ctx)
}
