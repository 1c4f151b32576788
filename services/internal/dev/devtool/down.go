package devtool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/dev/libvirtd"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// takeDown destroys what was applied, stops every process and removes temp/. If the destroy fails, takeDown continues,
// because the removal of temp/ removes all state of the cluster.
func takeDown(ctx context.Context, s settings) error {
	dir := filepath.Join(s.root, "temp")
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(s.out, "  There is no cluster to remove.")
		return nil
	}
	stack, err := openStack(s)
	if err != nil {
		return err
	}
	var destroyErr error
	if _, err := os.Stat(filepath.Join(dir, "terraform", "terraform.tfstate")); err == nil {
		destroyErr = runStep(s.out, filepath.Base(s.terraform)+" destroy", func() (string, error) {
			return "", destroy(ctx, stack, s.terraform)
		})
	}
	err = runStep(s.out, "Stopping processes", func() (string, error) {
		err := stopAll(ctx, stack)
		if _, none := os.Stat(libvirtDir(s)); none == nil {
			err = errors.Join(err, libvirtd.RemoveLinks())
		}
		return "", err
	})
	if err == nil {
		err = runStep(s.out, "Removing temp/", func() (string, error) { return "", os.RemoveAll(stack.Dir) })
	}
	if destroyErr != nil {
		destroyErr = fmt.Errorf("the destroy failed, so everything was removed without it: %w", destroyErr)
	}
	return errors.Join(destroyErr, err)
}

// destroy runs tofu or terraform destroy. It needs the object store, and a server that deletes the shard's VMs. If
// these programs do not run, destroy starts them.
func destroy(ctx context.Context, stack *local.Stack, terraform string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runTimeout, fmt.Errorf("timeout after %v", runTimeout))
	defer cancel()
	running, err := stack.Running(ctx)
	if err != nil {
		return err
	}
	if _, ok := running[local.Store]; !ok {
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
	operator, err := connectOperator(ctx, stack)
	if err != nil {
		return err
	}
	defer operator.Close()
	return tf.Destroy(ctx, stack.Variables(), operator)
}

// stopAll sends SIGTERM to the servers and then to the object store, and kills what has not ended after 10 s. It also
// stops servers that the user has started for other shards, because they would replace killed VMs with new ones.
func stopAll(ctx context.Context, stack *local.Stack) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, program := range []string{"nstance-server", "dev-s3"} {
		deadline := time.Now().Add(10 * time.Second)
		for signalled := false; time.Now().Before(deadline); signalled = true {
			found, err := stack.Processes(ctx)
			if err != nil {
				return err
			}
			found = slices.DeleteFunc(found, func(f local.Found) bool { return f.Program() != program })
			if len(found) == 0 {
				break
			}
			for _, f := range found {
				if !signalled {
					_ = syscall.Kill(f.PID, syscall.SIGTERM) // it may have ended
				}
			}
			if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return stack.KillAll(ctx)
}
