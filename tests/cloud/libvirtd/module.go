package libvirtd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ErrDownload means that a command of tofu or terraform hangs, or cannot read a seed (an ISO image). The cause is the
// provider's library: on a busy machine, it can miss the end of a download, or deadlock.
var ErrDownload = errors.New("the provider cannot read a seed")

// Module is a copy of modules/libvirt/servers. Its methods apply the copy to a daemon, with tofu or terraform and the
// provider dmacvicar/libvirt. They end the test on failure, except [Module.Run].
type Module struct {
	t        testing.TB
	dir, cli string
}

// NewModule copies the module from the clone of the repository in the directory root.
func NewModule(t testing.TB, d *Daemon, root string) *Module {
	t.Helper()
	m := &Module{t: t, dir: t.TempDir(), cli: tool(t, root, "terraform-or-tofu")}
	files, err := filepath.Glob(filepath.Join(root, "modules/libvirt/servers/*.tf"))
	check(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		check(t, err)
		m.Write(filepath.Base(file), string(content))
	}
	m.Write("provider.tf", "provider \"libvirt\" {\n  uri = \""+d.URI()+"\"\n}\n")
	provider := filepath.Dir(tool(t, root, "terraform-provider-libvirt"))
	m.Write("cli.rc", `provider_installation {
  dev_overrides {
    "registry.terraform.io/dmacvicar/libvirt" = "`+provider+`"
    "registry.opentofu.org/dmacvicar/libvirt" = "`+provider+`"
  }
}
`)
	return m
}

// tool returns the path of a program that scripts/tool.sh provides.
func tool(t testing.TB, root, name string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/tool.sh"), name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	check(t, err)
	return strings.TrimSpace(string(out))
}

// Write writes a file of the module.
func (m *Module) Write(name, content string) {
	m.t.Helper()
	check(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600))
}

// Configure sets the variables.
func (m *Module) Configure(variables map[string]any) {
	m.t.Helper()
	content, err := json.Marshal(variables)
	check(m.t, err)
	m.Write("terraform.tfvars.json", string(content))
}

// Run runs a command of the CLI.
func (m *Module) Run(args ...string) error {
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.cli, append(args, "-input=false", "-no-color")...)
	cmd.WaitDelay = time.Second // the provider's process has the same output
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(m.dir, "cli.rc"), "CHECKPOINT_DISABLE=1")
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil || bytes.Contains(out, []byte("error while retrieving remote ISO")) {
		return fmt.Errorf("%q: %w\n%s", args, ErrDownload, out)
	}
	if err != nil {
		return fmt.Errorf("%q: %w\n%s", args, err, out)
	}
	return nil
}

// AddCD adds an image of a CD-ROM with the files of a directory to the storage pool. It needs the program mkisofs.
func (d *Daemon) AddCD(t testing.TB, name, label, dir string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "mkisofs", "-quiet", "-R", "-V", label, "-o",
		filepath.Join(d.Pool, name), dir).CombinedOutput()
	if err != nil {
		t.Fatalf("mkisofs: %v: %s: on Debian, apt-get install --no-install-recommends genisoimage", err, out)
	}
}
