package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Terraform applies a copy of examples/local with the provider from the stack's binaries. The copy and the state are in
// the directory of the stack.
type Terraform struct {
	stack   *Stack
	program string // tofu or terraform
	dir     string
}

// Terraform copies examples/local into the directory of the stack. program is the path of tofu or terraform.
func (s *Stack) Terraform(program string) (*Terraform, error) {
	t := &Terraform{stack: s, program: program, dir: filepath.Join(s.Dir, "terraform")}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, err
	}
	example := filepath.Join(s.Root, "examples", "local")
	files, err := filepath.Glob(filepath.Join(example, "*.t*"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no configuration in %s", example)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(t.dir, filepath.Base(path)), raw, 0o600); err != nil {
			return nil, err
		}
	}
	// With dev_overrides, tofu and terraform use the provider's binary directly. They need no registry and no "init".
	rc := fmt.Sprintf(
		"disable_checkpoint = true\nprovider_installation {\n  dev_overrides {\n    \"nstance-kit/nstance\" = %q\n  "+
			"}\n  direct {}\n}\n", filepath.Join(s.Dir, "bin"))
	return t, os.WriteFile(filepath.Join(t.dir, "cli.tfrc"), []byte(rc), 0o600)
}

// Apply applies examples/local with the given variables.
func (t *Terraform) Apply(ctx context.Context, vars map[string]string) error {
	return t.run(ctx, "apply", vars)
}

// Destroy destroys what was applied with the given variables. Meanwhile the client `operator` speeds up the deletion of
// VMs. It calls RefreshConfig, because the leader reads its configuration only every 3 minutes. It also acknowledges
// drains, which would otherwise last until their deadline.
func (t *Terraform) Destroy(ctx context.Context, vars map[string]string, operator *Operator) error {
	helping, stop := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	helpers.Go(func() { operator.Watch(helping) })
	helpers.Go(func() {
		for Pause(helping, 500*time.Millisecond) == nil {
			_, _ = operator.Refresh(helping) // fails when the configuration is deleted
		}
	})
	err := t.run(ctx, "destroy", vars)
	stop()
	helpers.Wait()
	return err
}

// Variables returns the values of the variables of examples/local for this stack.
func (s *Stack) Variables() map[string]string {
	options, _ := json.Marshal(s.ProviderOptions()) // a map of strings never fails
	return map[string]string{"endpoint": s.storeURL(), "first_port": strconv.Itoa(s.Ports.Health),
		"agents": string(options)}
}

func (t *Terraform) run(ctx context.Context, command string, vars map[string]string) error {
	args := []string{"-chdir=" + t.dir, command, "-auto-approve", "-input=false", "-no-color"}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		args = append(args, "-var="+name+"="+vars[name])
	}
	log, err := os.OpenFile(t.stack.LogFile("terraform"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "\n# %s %s\n", filepath.Base(t.program), strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, t.program, args...)
	// If HOME were the user's home directory, tofu and terraform would use the user's mirrors and credentials.
	cmd.Env = append(t.stack.Env(), "HOME="+t.dir, "TF_CLI_CONFIG_FILE="+filepath.Join(t.dir, "cli.tfrc"),
		"TF_IN_AUTOMATION=1", "CHECKPOINT_DISABLE=1")
	cmd.Stdout, cmd.Stderr = log, log
	// In a separate session, the terminal's Ctrl-C does not reach the CLI. cmd.Cancel sends only one interrupt. The CLI
	// then completes its request and writes its state. A second interrupt would stop the CLI before it has written its
	// state.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("%s %s: %w; its output is in %s", filepath.Base(t.program), command, err,
			log.Name()), context.Cause(ctx))
	}
	return nil
}

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
