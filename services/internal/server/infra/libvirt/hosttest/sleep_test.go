package hosttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/libvirt"
	"github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

// saves is the directory in which libvirt saves the memory of VMs.
func saves(daemon *libvirtd.Daemon) string {
	return filepath.Join(daemon.Dir(), "var/lib/libvirt/qemu/save")
}

// saved returns the names of the files with the memory of VMs.
func saved(t *testing.T, daemon *libvirtd.Daemon) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(saves(daemon))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func wantState(t *testing.T, p *libvirt.Provider, vm infra.VM, want infra.State) {
	t.Helper()
	if got, err := p.Get(t.Context(), vm.ProviderID); err != nil || got.State != want || got.EndReason != "" {
		t.Errorf("the VM is %s (%s), %v, want %s", got.State, got.EndReason, err, want)
	}
}

// TestSleepOutlivesTheHost restarts libvirtd while a VM sleeps. The VM still sleeps, and is woken later. Its saved memory
// is removed when it wakes, and when it is deleted.
func TestSleepOutlivesTheHost(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	vm := create(t, p, request(t))
	sleep := func() {
		t.Helper()
		if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
			t.Fatal(err)
		}
		wantState(t, p, vm, infra.Stopped)
		if names := saved(t, daemon); len(names) != 1 {
			t.Errorf("saved: %q, want one file", names)
		}
	}
	sleep()
	daemon.KillDaemon(t)
	daemon.StartDaemon(t)
	wantState(t, p, vm, infra.Stopped)
	if out := daemon.Virsh(t, "dominfo", vm.Tags.Instance.String()); !strings.Contains(out, "Autostart:      disable") {
		t.Errorf("libvirt may start the VM when the host boots: %s", out)
	}
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, vm, infra.Running)
	if names := saved(t, daemon); len(names) != 0 {
		t.Errorf("left after the VM woke: %q", names)
	}
	sleep()
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if names := saved(t, daemon); len(names) != 0 {
		t.Errorf("left after the deletion: %q", names)
	}
}

// TestSleepWithoutSpace puts a VM to sleep on a host without room for the VM's memory. The VM runs on.
func TestSleepWithoutSpace(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	vm := create(t, p, request(t))
	mount := daemon.Enter(t.Context(), "mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", "/var/lib/libvirt/qemu/save")
	if out, err := mount.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err := p.Sleep(t.Context(), vm, config.SparesSuspended)
	if infra.ClassOf(err) != infra.Capacity || !strings.Contains(err.Error(), "the VM runs on") {
		t.Errorf("got %v of class %q", err, infra.ClassOf(err))
	}
	wantState(t, p, vm, infra.Running)
	if out, err := daemon.Enter(t.Context(), "umount", "/var/lib/libvirt/qemu/save").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Errorf("later, with space: %v", err)
	}
}

// TestSavedMemoryIsLost removes the saved memory of a VM that sleeps, as an administrator can. The VM counts as ended:
// it is not booted again.
func TestSavedMemoryIsLost(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	vm := create(t, p, request(t))
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Fatal(err)
	}
	daemon.Virsh(t, "managedsave-remove", vm.Tags.Instance.String())
	for what, err := range map[string]error{"Wake": p.Wake(t.Context(), vm),
		"Sleep": p.Sleep(t.Context(), vm, config.SparesSuspended)} {
		if infra.ClassOf(err) != infra.NotFound {
			t.Errorf("%s: %v of class %q, want %q", what, err, infra.ClassOf(err), infra.NotFound)
		}
	}
	if got, err := p.Get(t.Context(), vm.ProviderID); err != nil || got.State != infra.Stopped {
		t.Errorf("got %s, %v", got.State, err)
	}
}
