// Command up keeps a cluster running on this machine, in temp/ and on the default ports: `make up` and, with -down,
// `make down`.
//
// What it starts runs on when it has ended. Run again, it starts what is missing and applies examples/local as it is
// now.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/local"
)

const (
	servers  = 2
	patience = 2 * time.Minute
)

func main() {
	root := flag.String("root", ".", "the repository")
	terraform := flag.String("terraform", "", "path of tofu or terraform")
	down := flag.Bool("down", false, "end and remove what runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	name, run := "up", bringUp
	if *down {
		name, run = "down", takeDown
	}
	if err := run(ctx, *root, *terraform); err != nil {
		fmt.Fprintf(os.Stderr, "make %s: %v\n", name, err)
		os.Exit(1)
	}
}

func open(root string) (*local.Stack, error) {
	return local.New(local.Options{Root: root, Dir: filepath.Join(root, "temp"), Ports: local.DefaultPorts(),
		SharedTmux: true})
}

func bringUp(ctx context.Context, root, terraform string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("it took longer than "+patience.String()+
		"; the logs are in temp/log"))
	defer cancel()
	stack, err := open(root)
	if err != nil {
		return err
	}
	running, err := stack.Running(ctx)
	if err != nil {
		return err
	}
	if busy := stack.Ports.Busy(ctx, servers); len(busy) > 0 && len(running) == 0 {
		return fmt.Errorf(
			"ports %v are taken by other programs (make dev-tmux uses them too): end those, then try again", busy)
	}
	if err := say("Starting the object store", func() (string, error) {
		if pid, ok := running["dev-s3"]; ok {
			return fmt.Sprintf("it runs, PID %d", pid), nil
		}
		p, err := stack.StartStore(ctx)
		return pidOf(p), err
	}); err != nil {
		return err
	}
	tf, err := stack.Terraform(terraform)
	if err != nil {
		return err
	}
	if err := say(filepath.Base(terraform)+" apply of examples/local", func() (string, error) {
		return "", tf.Apply(ctx, stack.Variables())
	}); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := say("Starting "+local.ServerName(n), func() (string, error) {
			if pid, ok := running[local.ServerName(n)]; ok {
				return fmt.Sprintf("it runs, PID %d", pid), nil
			}
			p, err := stack.StartServer(ctx, n)
			if err != nil {
				return "", err
			}
			return pidOf(p), stack.AwaitReady(ctx, p, n)
		}); err != nil {
			return err
		}
	}
	identity := filepath.Join(stack.Dir, "operator")
	operator, err := stack.ConnectAs(ctx, identity)
	if err != nil {
		return err
	}
	defer operator.Close()
	// A leader that runs already need not wait for its next look.
	if _, err := operator.Refresh(ctx); err != nil {
		return err
	}
	if err := watch(ctx, stack, operator); err != nil {
		return err
	}
	return advise(stack, identity)
}

func pidOf(p *local.Process) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("PID %d", p.PID)
}

// say names a step, does it and tells how it went.
func say(what string, do func() (string, error)) error {
	fmt.Printf("  %-42s", what)
	began := time.Now()
	note, err := do()
	if err != nil {
		fmt.Println("failed")
		return err
	}
	fmt.Printf("%5.1f s  %s\n", time.Since(began).Seconds(), note)
	return nil
}

// advise prints what can be tried now.
func advise(stack *local.Stack, identity string) error {
	env := filepath.Join(stack.Dir, "env")
	text := fmt.Sprintf(
		"# For nstance-admin, beside what `make up` runs: . temp/env\nexport %s\nexport NSTANCE_ADMIN_SERVERS=%s=%s "+
			"NSTANCE_ADMIN_IDENTITY_DIR=%s NSTANCE_ADMIN_SHARD=%s\nPATH=%s:$PATH\n",
		strings.Join(stack.Settings(), " "), local.Shard, local.Address(stack.Ports.Operator), quote(identity),
		local.Shard, quote(stack.Bin))
	if err := os.WriteFile(env, []byte(text), 0o600); err != nil {
		return err
	}
	vms, err := stack.VMs()
	if err != nil || len(vms) == 0 {
		return err
	}
	fmt.Printf(`
Try, in this directory (logs are in temp/log, the bucket is temp/dev-s3):

  . temp/env                                      nstance-admin on PATH, with what it needs to know
  kill -9 %-8d                                lose a VM: it is replaced within milliseconds
  nstance-admin instance list                     the fleet
  nstance-admin events                            what happens, as it happens
  nstance-admin group scale workers 4             more
  tmux attach -t %s               see the agents (Ctrl-b n: next, Ctrl-b d: leave)
  edit examples/local, then make up               apply it again
  make down                                       destroy and clean up

Delete everything but the bucket, then run it again:

  pkill -9 -f "$PWD/temp/bin/"; rm -rf temp/cache*; make up
`, vms[0].PID, local.Session)
	return nil
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
