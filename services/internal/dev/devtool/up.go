package devtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/libvirtd"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// runTimeout bounds one run of "up". libvirtTimeout is the same with real VMs, which boot without hardware support.
const (
	runTimeout     = 2 * time.Minute
	libvirtTimeout = 10 * time.Minute
)

// bringUp starts the programs of the cluster that do not run yet, and applies the configuration. The programs keep
// running after bringUp returns.
func bringUp(ctx context.Context, s settings) error {
	timeout, logs, other := runTimeout, "the logs are in temp/log", libvirtDir(s)
	if s.libvirt() {
		timeout, logs = libvirtTimeout, logs+", the consoles in temp/libvirt/var/lib/libvirt/images"
		other = filepath.Join(s.root, "temp", "terraform")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("timeout after %v; %s", timeout, logs))
	defer cancel()
	if _, err := os.Stat(other); err == nil {
		return fmt.Errorf("a cluster with another provider is here: run %q first", s.command("down"))
	}
	machines := &libvirtd.Machines{}
	defer machines.Close()
	stack, err := openStack(s, machines)
	if err != nil {
		return err
	}
	running, err := stack.Running(ctx)
	if err != nil {
		return err
	}
	onLoopback := stack.Servers
	if s.libvirt() {
		onLoopback = 0
	}
	if busy := stack.Ports.Busy(ctx, onLoopback); len(busy) > 0 && len(running) == 0 {
		return fmt.Errorf(
			"other programs use the ports %v (\"make dev-tmux\" uses them too): stop those, then try again",
			busy)
	}
	if s.libvirt() {
		if err := runStep(s.out, "Starting libvirtd", func() (string, error) {
			return startLibvirtd(ctx, s)
		}); err != nil {
			return err
		}
	}
	startProgram := programStarter(s.out, running)
	if err := startProgram(local.Store, func() (*local.Process, error) { return stack.StartStore(ctx) }); err != nil {
		return err
	}
	source, err := applyConfiguration(ctx, s, stack)
	if err != nil {
		return err
	}
	if err := startServers(ctx, stack, startProgram); err != nil {
		return err
	}
	// Without tofu, the first leader makes the cluster's CA, which signs the identity of the operator.
	if _, err := stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	if err := showCluster(ctx, s, stack, startProgram); err != nil {
		return err
	}
	if err := writeEnv(stack); err != nil {
		return err
	}
	if s.libvirt() {
		printLibvirtAdvice(s, stack)
		return nil
	}
	return printAdvice(s, stack, source)
}

// applyConfiguration applies examples/local with tofu or terraform. Without these, it writes examples/config-tmux.jsonc
// to the bucket. It stays with the way that the cluster began with, and returns the source of the configuration. With
// libvirt, it writes that example to the bucket, with VMs of libvirt.
func applyConfiguration(ctx context.Context, s settings, stack *local.Stack) (source string, err error) {
	if s.libvirt() {
		return "", stack.PutConfig(ctx, func(c *config.Shard) {
			guest := libvirtd.Guest{URI: libvirtd.URI(libvirtDir(s)), Version: guestVersion,
				Leader: stack.Network.Host(local.Leader)}
			guest.Configure(c, "worker")
		})
	}
	_, missing := os.Stat(filepath.Join(stack.Dir, "terraform"))
	applied := missing == nil
	_, missing = stack.ConfigWritten()
	if written := missing == nil && !applied; written || s.terraform == "" && !applied {
		source = "examples/config-tmux.jsonc"
		note := ""
		if s.terraform == "" {
			note = "neither tofu nor terraform is on PATH"
		}
		return source, runStep(s.out, "Writing the configuration", func() (string, error) {
			return note, stack.PutConfig(ctx, nil)
		})
	}
	if s.terraform == "" {
		return "", fmt.Errorf("this cluster was applied with tofu or terraform, but %w", errNoTerraform)
	}
	tf, err := stack.Terraform(s.terraform)
	if err != nil {
		return "", err
	}
	source = "examples/local"
	return source, runStep(s.out, filepath.Base(s.terraform)+" apply of "+source, func() (string, error) {
		return "", tf.Apply(ctx, stack.Variables())
	})
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

// showCluster waits until the groups are complete, shows groups and instances, and starts the web page.
func showCluster(ctx context.Context, s settings, stack *local.Stack, startProgram starter) error {
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
	err = runStep(s.out, "Waiting for the VMs", func() (string, error) { return "", operator.AwaitGroups(ctx) })
	for _, noun := range []string{"group", "instance"} {
		fmt.Fprintln(s.out)
		cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(s.bin, "nstance-admin"), noun, "list")
		cmd.Env = append(stack.Env(), adminSettings(stack)...)
		cmd.Stdout, cmd.Stderr = s.out, s.out
		err = errors.Join(err, cmd.Run())
	}
	fmt.Fprintln(s.out)
	if err != nil {
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

// printAdvice prints what the user can try next. source is what the user edits to change the configuration.
func printAdvice(s settings, stack *local.Stack, source string) error {
	vms, err := stack.VMs()
	if err != nil {
		return err
	}
	if len(vms) == 0 {
		return errors.New("the cluster has no VM")
	}
	fmt.Fprintf(s.out, `
Look at the cluster in a browser: %s

Try, in %s (logs are in temp/log, the bucket is temp/dev-s3):

  . temp/env                                      put nstance-admin on PATH and tell it about the cluster
  kill -9 %-8d                                kill a VM: it is replaced within milliseconds
  nstance-admin instance list                     list the instances
  nstance-admin events --follow                   follow what happens
  nstance-admin group scale workers 4             add VMs
  tmux attach -t %s               look at the agents (Ctrl-b n: next, Ctrl-b d: leave)
  %-45s   apply a change of %s
  %-45s   stop the cluster and clean up

Kill every process, delete everything but the bucket, and start again:

  pkill -9 -f "$PWD/temp/bin/"; rm -rf temp/cache*; %s
`, stack.PageURL(), s.place(stack), vms[0].PID, local.Session, s.command("up"), source, s.command("down"),
		s.command("up"))
	return nil
}

// place names the root directory in a sentence.
func (s settings) place(stack *local.Stack) string {
	if current, err := os.Getwd(); err == nil && current == stack.Root {
		return "this directory"
	}
	return stack.Root
}

// adminSettings returns the variables with which nstance-admin reaches the cluster.
func adminSettings(stack *local.Stack) []string {
	return append(stack.Settings(), "NSTANCE_ADMIN_SERVERS="+stack.AdminServers(), "NSTANCE_ADMIN_SHARD="+local.Shard,
		"NSTANCE_ADMIN_IDENTITY_DIR="+identityDir(stack), "NSTANCE_ADMIN_STORAGE_BUCKET="+local.Bucket,
		"NSTANCE_ADMIN_CLUSTER_ID="+local.Cluster)
}

// writeEnv writes temp/env, a shell script with the settings that nstance-admin needs to reach the cluster.
func writeEnv(stack *local.Stack) error {
	text := "# For nstance-admin, with the cluster of nstance-dev: . temp/env\n"
	for _, setting := range adminSettings(stack) {
		name, value, _ := strings.Cut(setting, "=")
		text += "export " + name + "=" + quote(value) + "\n"
	}
	return os.WriteFile(filepath.Join(stack.Dir, "env"), []byte(text+"PATH="+quote(stack.Bin)+":$PATH\n"), 0o600)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// libvirtDir returns the directory of the cluster's libvirtd.
func libvirtDir(s settings) string { return filepath.Join(s.root, "temp", "libvirt") }

// guestVersion is the name of the VM image in the storage pool.
const guestVersion = "1"

// startLibvirtd starts the cluster's libvirtd unless libvirtd runs already. It first empties libvirtd's directory. No
// VM needs the old files, because the VMs of a killed libvirtd were killed too.
func startLibvirtd(ctx context.Context, s settings) (note string, err error) {
	dir := libvirtDir(s)
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", libvirtd.Socket(dir)); err == nil {
		return "already running", conn.Close()
	}
	if err := errors.Join(os.RemoveAll(dir), libvirtd.RemoveLinks(), os.MkdirAll(dir, 0o700)); err != nil {
		return "", err
	}
	if _, err := libvirtd.Start(ctx, libvirtd.Options{Dir: dir, Detached: true}); err != nil {
		return "", err
	}
	return "", libvirtd.AddGuest(dir, filepath.Join(s.root, "bin", "guest"), guestVersion)
}

// printLibvirtAdvice prints what the user can try next with VMs of libvirt.
func printLibvirtAdvice(s settings, stack *local.Stack) {
	fmt.Fprintf(s.out, `
Look at the cluster in a browser: %s

Try, in this directory (logs are in temp/log, consoles in temp/libvirt/var/lib/libvirt/images):

  . temp/env                                      put nstance-admin on PATH and tell it about the cluster
  nstance-admin instance list                     list the instances
  virsh -c '%s' list
  nstance-admin group scale workers 3             add a VM
  make down                                       remove everything

The leader has the address %s.
`, stack.PageURL(), libvirtd.URI(libvirtDir(s)), stack.Network.Host(local.Leader))
}

// takeDown stops every process and removes temp/, which has all state of the cluster.
func takeDown(ctx context.Context, s settings) error {
	if _, err := os.Stat(filepath.Join(s.root, "temp")); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(s.out, "  There is no cluster to remove.")
		return nil
	}
	stack, err := openStack(s, nil)
	if err != nil {
		return err
	}
	err = runStep(s.out, "Stopping processes", func() (string, error) {
		err := stopAll(ctx, stack)
		if _, none := os.Stat(libvirtDir(s)); none == nil {
			err = errors.Join(err, libvirtd.RemoveLinks())
		}
		return "", err
	})
	if err != nil {
		return err
	}
	return runStep(s.out, "Removing temp/", func() (string, error) { return "", os.RemoveAll(stack.Dir) })
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
