package libvirtd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

const root = "../../.."

// servers are the VMs of the test.
var servers = []string{"nstance-server-1", "nstance-server-2"}

// errDownload is the error of a command of the CLI that does not end, or does not read a seed. The provider's library
// can mistake the end of a download, and has a deadlock there, on a busy machine.
var errDownload = errors.New("the provider cannot read a seed")

// TestServers applies modules/libvirt/servers with the provider dmacvicar/libvirt to a real libvirtd. The VMs run and
// have their disks and seeds. A new boot script gets new VMs. Destroy leaves the image only. The VMs boot an empty disk.
func TestServers(t *testing.T) {
	for range 3 {
		err := applyServers(t)
		if err == nil {
			return
		}
		if !errors.Is(err, errDownload) {
			t.Fatal(err)
		}
		t.Logf("%v: again, with another libvirtd", err)
	}
	t.Fatal(errDownload)
}

func applyServers(t *testing.T) error {
	t.Helper()
	daemon := libvirtd.Start(t)
	addFiles(t, daemon)
	module := newModule(t, daemon)
	if err := module.run("apply", "-auto-approve", "-input=false"); err != nil {
		return err
	}
	before := module.check("v1")
	// It fails if it finds a difference.
	if err := module.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
		return err
	}
	module.configure("v2")
	if err := module.run("apply", "-auto-approve", "-input=false"); err != nil {
		return err
	}
	for name, id := range module.check("v2") {
		if id == before[name] {
			t.Errorf("%s was not replaced", name)
		}
	}
	if err := module.run("destroy", "-auto-approve", "-input=false"); err != nil {
		return err
	}
	if left := strings.TrimSpace(daemon.Virsh(t, "list", "--all", "--name")); left != "" {
		t.Errorf("domains stay: %q", left)
	}
	if left := poolFiles(t, daemon); !slices.Equal(left, []string{"secrets.iso", "server.qcow2"}) {
		t.Errorf("files after destroy: %q", left)
	}
	return nil
}

// addFiles adds an image and a CD-ROM to the storage pool, as a person does.
func addFiles(t *testing.T, daemon *libvirtd.Daemon) {
	t.Helper()
	if _, err := exec.LookPath("mkisofs"); err != nil {
		t.Fatalf("%v: the provider needs it: on Debian, apt-get install --no-install-recommends genisoimage", err)
	}
	secrets := t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "secrets.env"), []byte("SECRET=x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"qemu-img", "create", "-q", "-f", "qcow2", filepath.Join(daemon.Pool, "server.qcow2"), "16M"},
		{"mkisofs", "-quiet", "-R", "-V", "nstance", "-o", filepath.Join(daemon.Pool, "secrets.iso"), secrets},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	daemon.Virsh(t, "pool-refresh", "default")
}

// poolFiles returns the names of the files in the storage pool.
func poolFiles(t *testing.T, daemon *libvirtd.Daemon) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(daemon.Pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// module is a copy of the module with the CLI that applies it.
type module struct {
	t        *testing.T
	daemon   *libvirtd.Daemon
	dir, cli string
}

func newModule(t *testing.T, daemon *libvirtd.Daemon) module {
	t.Helper()
	m := module{t: t, daemon: daemon, dir: t.TempDir(), cli: tool(t, "terraform-or-tofu")}
	files, err := filepath.Glob(filepath.Join(root, "modules/libvirt/servers/*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no module: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m.write(filepath.Base(file), string(content))
	}
	m.write("provider.tf", "provider \"libvirt\" {\n  uri = \""+daemon.URI()+"\"\n}\n")
	provider := filepath.Dir(tool(t, "terraform-provider-libvirt"))
	m.write("cli.rc", `provider_installation {
  dev_overrides {
    "registry.terraform.io/dmacvicar/libvirt" = "`+provider+`"
    "registry.opentofu.org/dmacvicar/libvirt" = "`+provider+`"
  }
}
`)
	m.configure("v1")
	return m
}

// tool returns the path of a program that scripts/tool.sh builds.
func tool(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/tool.sh"), name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scripts/tool.sh %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

func (m module) write(name, content string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// configure sets the variables. The version is in the boot script.
func (m module) configure(version string) {
	m.t.Helper()
	mac := map[string]string{"mac": "52:54:00:0A:00:02"}
	content, err := json.Marshal(map[string]any{
		"servers":         map[string]any{servers[0]: struct{}{}, servers[1]: mac},
		"server_userdata": "#!/bin/sh\necho " + version + "\n",
		"image":           "server.qcow2",
		"network":         map[string]string{"name": "a"},
		"secrets_iso":     "/var/lib/libvirt/images/secrets.iso",
		"domain_type":     "qemu",
		"memory_mib":      64,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.write("terraform.tfvars.json", string(content))
}

func (m module) run(args ...string) error {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.cli, append(args, "-no-color")...)
	cmd.WaitDelay = time.Second // the provider's process has the same output
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(m.dir, "cli.rc"), "CHECKPOINT_DISABLE=1")
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil || bytes.Contains(out, []byte("error while retrieving remote ISO")) {
		return fmt.Errorf("%q: %w\n%s", args, errDownload, out)
	}
	if err != nil {
		return fmt.Errorf("%q: %w\n%s", args, err, out)
	}
	return nil
}

// check checks the VMs and returns their UUIDs.
func (m module) check(version string) map[string]string {
	m.t.Helper()
	ids := map[string]string{}
	running := strings.Fields(m.daemon.Virsh(m.t, "list", "--name"))
	if slices.Sort(running); !slices.Equal(running, servers) {
		m.t.Errorf("running domains: %q, want %q", running, servers)
	}
	for _, name := range servers {
		ids[name] = strings.TrimSpace(m.daemon.Virsh(m.t, "domuuid", name))
		xml := m.daemon.Virsh(m.t, "dumpxml", "--inactive", name)
		for _, want := range []string{"<source network='a'/>", "volume='" + name + ".qcow2'", name + "-seed.iso",
			"secrets.iso", "type='socket'"} {
			if !strings.Contains(xml, want) {
				m.t.Errorf("%s lacks %s: %s", name, want, xml)
			}
		}
		seed, err := os.ReadFile(filepath.Join(m.daemon.Pool, name+"-seed.iso"))
		for _, want := range []string{"#!/bin/sh\necho " + version + "\n", `"local-hostname":"` + name + `"`} {
			if err != nil || !bytes.Contains(seed, []byte(want)) {
				m.t.Errorf("the seed of %s lacks %q: %v", name, want, err)
			}
		}
		if info := m.daemon.Virsh(m.t, "dominfo", name); !strings.Contains(info, "enable") {
			m.t.Errorf("%s does not start with the host: %s", name, info)
		}
	}
	return ids
}
