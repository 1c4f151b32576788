package libvirtd_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

// servers are the VMs of the test.
var servers = []string{"nstance-server-1", "nstance-server-2"}

// TestServers applies modules/libvirt/servers with the provider dmacvicar/libvirt to a real libvirtd. It checks that
// the VMs run and have their disks and seeds, and that the VMs are replaced when the boot script changes. After a
// destroy, the pool must have only the files that the test added. The VMs boot nothing, because their disks are empty.
func TestServers(t *testing.T) {
	for range 3 {
		err := applyServers(t)
		if err == nil {
			return
		}
		if !errors.Is(err, libvirtd.ErrDownload) {
			t.Fatal(err)
		}
		t.Logf("%v: again, with another libvirtd", err)
	}
	t.Fatal(libvirtd.ErrDownload)
}

func applyServers(t *testing.T) error {
	t.Helper()
	daemon := libvirtd.Start(t)
	addFiles(t, daemon)
	module := libvirtd.NewModule(t, daemon, "../../..")
	module.Configure(variables("v1"))
	if err := module.Run("apply", "-auto-approve"); err != nil {
		return err
	}
	before := checkVMs(t, daemon, "v1")
	// With -detailed-exitcode, plan fails if it finds a difference.
	if err := module.Run("plan", "-detailed-exitcode"); err != nil {
		return err
	}
	module.Configure(variables("v2"))
	if err := module.Run("apply", "-auto-approve"); err != nil {
		return err
	}
	for name, id := range checkVMs(t, daemon, "v2") {
		if id == before[name] {
			t.Errorf("%s was not replaced", name)
		}
	}
	if err := module.Run("destroy", "-auto-approve"); err != nil {
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

// addFiles adds an image and a CD-ROM to the storage pool, as a user of the module does.
func addFiles(t *testing.T, daemon *libvirtd.Daemon) {
	t.Helper()
	secrets := t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "secrets.env"), []byte("SECRET=x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon.AddCD(t, "secrets.iso", "nstance", secrets)
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2",
		filepath.Join(daemon.Pool, "server.qcow2"), "16M").CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img: %v: %s", err, out)
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

// variables returns values for the variables of the module. The value of server_userdata is a boot script that prints
// "version".
func variables(version string) map[string]any {
	mac := map[string]string{"mac": "52:54:00:0A:00:02"}
	return map[string]any{
		"servers":         map[string]any{servers[0]: struct{}{}, servers[1]: mac},
		"server_userdata": "#!/bin/sh\necho " + version + "\n",
		"image":           "server.qcow2",
		"network":         map[string]string{"name": "a"},
		"secrets_iso":     "/var/lib/libvirt/images/secrets.iso",
		"domain_type":     "qemu",
		"memory_mib":      64,
	}
}

// checkVMs checks that all VMs run with the expected definition, and that the boot script of each VM prints the
// version. It returns the VMs' UUIDs.
func checkVMs(t *testing.T, daemon *libvirtd.Daemon, version string) map[string]string {
	t.Helper()
	ids := map[string]string{}
	running := strings.Fields(daemon.Virsh(t, "list", "--name"))
	if slices.Sort(running); !slices.Equal(running, servers) {
		t.Errorf("running domains: %q, want %q", running, servers)
	}
	for _, name := range servers {
		ids[name] = strings.TrimSpace(daemon.Virsh(t, "domuuid", name))
		xml := daemon.Virsh(t, "dumpxml", "--inactive", name)
		for _, want := range []string{"<source network='a'/>", "volume='" + name + ".qcow2'", name + "-seed.iso",
			"secrets.iso", "type='socket'"} {
			if !strings.Contains(xml, want) {
				t.Errorf("%s lacks %s: %s", name, want, xml)
			}
		}
		seed, err := os.ReadFile(filepath.Join(daemon.Pool, name+"-seed.iso"))
		for _, want := range []string{"#!/bin/sh\necho " + version + "\n", `"local-hostname":"` + name + `"`} {
			if err != nil || !bytes.Contains(seed, []byte(want)) {
				t.Errorf("the seed of %s lacks %q: %v", name, want, err)
			}
		}
		if info := daemon.Virsh(t, "dominfo", name); !strings.Contains(info, "enable") {
			t.Errorf("%s does not start with the host: %s", name, info)
		}
	}
	return ids
}
