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
	"syscall"
	"time"
)

// Terraform applies examples/local in a copy of its own inside the stack's directory, where its state stays too, with
// the provider that was built here.
type Terraform struct {
	stack   *Stack
	program string // tofu or terraform
	dir     string
}

// Terraform copies the example. program is the path of tofu or terraform.
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
	// The provider as it was built, instead of one from a registry; then there is nothing to init.
	rc := fmt.Sprintf(
		"disable_checkpoint = true\nprovider_installation {\n  dev_overrides {\n    \"nstance-kit/nstance\" = %q\n  "+
			"}\n  direct {}\n}\n", filepath.Join(s.Dir, "bin"))
	return t, os.WriteFile(filepath.Join(t.dir, "cli.tfrc"), []byte(rc), 0o600)
}

// Apply applies the example with these values of its variables.
func (t *Terraform) Apply(ctx context.Context, vars map[string]string) error {
	return t.run(ctx, "apply", vars)
}

// Destroy destroys what was applied with these variables. The leader looks for a new configuration every 3 minutes, or
// when told: meanwhile the operator tells it, as a person would who does not want to wait.
func (t *Terraform) Destroy(ctx context.Context, vars map[string]string, operator *Operator) error {
	refreshing, stop := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		for pause(refreshing, 500*time.Millisecond) == nil {
			_, _ = operator.Refresh(refreshing) // in the end there is no configuration to refresh, and no leader
		}
	}()
	err := t.run(ctx, "destroy", vars)
	stop()
	<-told
	return err
}

// Variables are the values of the example's variables that fit this stack.
func (s *Stack) Variables() map[string]string {
	options, _ := json.Marshal(s.ProviderOptions()) // a map of strings always can be
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
	// At home it would make a directory of its own, and look for mirrors and credentials that have nothing to do with
	// this.
	cmd.Env = append(t.stack.Env(), "HOME="+t.dir, "TF_CLI_CONFIG_FILE="+filepath.Join(t.dir, "cli.tfrc"),
		"TF_IN_AUTOMATION=1", "CHECKPOINT_DISABLE=1")
	cmd.Stdout, cmd.Stderr = log, log
	// Out of the terminal's reach: Ctrl-C is the caller's to pass on, once. Interrupted, it ends its request and writes
	// its state.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("%s %s: %w; its output is in %s", filepath.Base(t.program), command, err,
			log.Name()), context.Cause(ctx))
	}
	return nil
}
