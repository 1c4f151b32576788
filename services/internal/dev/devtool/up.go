package devtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// runTimeout bounds one run of "up", and the destroy of "down".
const runTimeout = 2 * time.Minute

// bringUp starts the programs of the cluster that do not run yet, and applies examples/local. The programs keep running
// after bringUp returns.
func bringUp(ctx context.Context, s settings) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runTimeout, fmt.Errorf("timeout after %v; the logs are in temp/log",
		runTimeout))
	defer cancel()
	stack, err := openStack(s)
	if err != nil {
		return err
	}
	if _, err := os.Stat(libvirtDir(s)); err == nil {
		return errors.New("a cluster with libvirt is here: run \"make down\" first")
	}
	running, err := stack.Running(ctx)
	if err != nil {
		return err
	}
	if busy := stack.Ports.Busy(ctx, stack.Servers); len(busy) > 0 && len(running) == 0 {
		return fmt.Errorf(
			"other programs use the ports %v (\"make dev-tmux\" uses them too): stop those, then try again",
			busy)
	}
	startProgram := programStarter(s.out, running)
	if err := startProgram(local.Store, func() (*local.Process, error) { return stack.StartStore(ctx) }); err != nil {
		return err
	}
	tf, err := stack.Terraform(s.terraform)
	if err != nil {
		return err
	}
	if err := runStep(s.out, filepath.Base(s.terraform)+" apply of examples/local", func() (string, error) {
		return "", tf.Apply(ctx, stack.Variables())
	}); err != nil {
		return err
	}
	if err := startServers(ctx, stack, startProgram); err != nil {
		return err
	}
	if err := showCluster(ctx, s.out, stack, startProgram); err != nil {
		return err
	}
	return printAdvice(s.out, stack, identityDir(stack))
}

// starter starts the program with a given name, unless it runs already.
type starter func(name string, start func() (*local.Process, error)) error

func startServers(ctx context.Context, stack *local.Stack, startProgram starter) error {
	for n := 1; n <= servers; n++ {
		if err := startProgram(local.ServerName(n), func() (*local.Process, error) {
			p, err := stack.StartServer(ctx, n)
			if err == nil {
				err = stack.AwaitReady(ctx, p, n)
			}
			return p, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// showCluster shows the groups and instances until they are complete, and starts the web page.
func showCluster(ctx context.Context, out io.Writer, stack *local.Stack, startProgram starter) error {
	operator, err := connectOperator(ctx, stack)
	if err != nil {
		return err
	}
	defer operator.Close()
	// Make the leader read the new configuration now. A leader that was already running would read it only minutes
	// later.
	if _, err := operator.Refresh(ctx); err != nil {
		return err
	}
	if err := showUntilConverged(ctx, out, stack, operator); err != nil {
		return err
	}
	return startProgram(local.Page, func() (*local.Process, error) {
		return stack.StartPage(ctx, identityDir(stack))
	})
}

func identityDir(stack *local.Stack) string { return filepath.Join(stack.Dir, "operator") }

// connectOperator registers an operator with the example's encryption key. If that fails because the user has rotated
// the key, connectOperator uses the operator of an earlier run.
func connectOperator(ctx context.Context, stack *local.Stack) (*local.Operator, error) {
	operator, err := stack.ConnectAs(ctx, identityDir(stack))
	if err != nil {
		if earlier, missing := stack.ConnectWith(identityDir(stack)); missing == nil {
			return earlier, nil
		}
	}
	return operator, err
}

// programStarter returns a starter. `running` contains the programs that run already.
func programStarter(out io.Writer, running map[string]int) starter {
	return func(name string, start func() (*local.Process, error)) error {
		return runStep(out, "Starting "+name, func() (string, error) {
			if pid, ok := running[name]; ok {
				return fmt.Sprintf("already running, PID %d", pid), nil
			}
			p, err := start()
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("PID %d", p.PID), nil
		})
	}
}

// printAdvice writes temp/env and prints what the user can try next.
func printAdvice(out io.Writer, stack *local.Stack, identity string) error {
	if err := writeEnv(stack, identity); err != nil {
		return err
	}
	vms, err := stack.VMs()
	if err != nil {
		return err
	}
	if len(vms) == 0 {
		return errors.New("the cluster has no VM")
	}
	fmt.Fprintf(out, `
Look at the cluster in a browser: %s

Try, in this directory (logs are in temp/log, the bucket is temp/dev-s3):

  . temp/env                                      put nstance-admin on PATH and tell it about the cluster
  kill -9 %-8d                                kill a VM: it is replaced within milliseconds
  nstance-admin instance list                     list the instances
  nstance-admin events                            follow what happens
  nstance-admin group scale workers 4             add VMs
  tmux attach -t %s               look at the agents (Ctrl-b n: next, Ctrl-b d: leave)
  edit examples/local, then make up               apply a change
  make down                                       destroy the cluster and clean up

Kill every process, delete everything but the bucket, and start again:

  pkill -9 -f "$PWD/temp/bin/"; rm -rf temp/cache*; make up
`, stack.PageURL(), vms[0].PID, local.Session)
	return nil
}

// writeEnv writes temp/env, a shell script with the settings that nstance-admin needs to reach the cluster.
func writeEnv(stack *local.Stack, identity string) error {
	text := fmt.Sprintf("# For nstance-admin, with the cluster of `make up`: . temp/env\n"+
		"export %s\nexport NSTANCE_ADMIN_SERVERS=%s NSTANCE_ADMIN_IDENTITY_DIR=%s NSTANCE_ADMIN_SHARD=%s\n"+
		"PATH=%s:$PATH\n", strings.Join(stack.Settings(), " "), stack.AdminServers(), quote(identity), local.Shard,
		quote(stack.Bin))
	return os.WriteFile(filepath.Join(stack.Dir, "env"), []byte(text), 0o600)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
