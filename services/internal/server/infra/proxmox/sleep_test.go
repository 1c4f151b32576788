package proxmox_test

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/proxmox"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

// wantState checks the state of a VM in Get and in List.
func wantState(t *testing.T, p *proxmox.Provider, vm infra.VM, want infra.State) {
	t.Helper()
	if got, err := p.Get(t.Context(), vm.ProviderID); err != nil || got.State != want {
		t.Errorf("Get: the VM is %s, %v, want %s", got.State, err, want)
	}
	if got := list(t, p)[vm.ProviderID]; got != want {
		t.Errorf("List: the VM is %s, want %s", got, want)
	}
}

func sleep(t *testing.T, p *proxmox.Provider, vm infra.VM) {
	t.Helper()
	if err := p.Sleep(t.Context(), vm, config.SparesSuspended); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, vm, infra.Stopped)
}

// TestSleepLeavesNothing checks that the saved memory of a VM is removed when the VM wakes, and when it is deleted.
func TestSleepLeavesNothing(t *testing.T) {
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	states := func() (n int) {
		for volume := range pve.Volumes() {
			if strings.Contains(volume, "-state-") {
				n++
			}
		}
		return n
	}
	sleep(t, p, vm)
	if states() != 1 {
		t.Errorf("volumes: %v", pve.Volumes())
	}
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, vm, infra.Running)
	if conf := pve.Config(vmid(t, vm)); states() != 0 || conf["lock"]+conf["vmstate"] != "" {
		t.Errorf("volumes: %v, configuration: %v", pve.Volumes(), conf)
	}
	sleep(t, p, vm)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if conf := pve.Config(vmid(t, vm)); len(pve.Volumes()) != 0 || conf["lock"]+conf["vmstate"] != "" {
		t.Errorf("volumes: %v, configuration: %v", pve.Volumes(), conf)
	}
}

// TestSleepFails checks failures of a call that puts a VM to sleep. The VM runs on.
func TestSleepFails(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(pve *fakepve.Cluster, id int)
		class   infra.Class
		text    string
	}{
		"no room": {func(pve *fakepve.Cluster, _ int) { pve.SetFull("local-lvm", true) }, infra.Capacity, "free space"},
		"HA":      {func(pve *fakepve.Cluster, id int) { pve.ManageByHA(id) }, infra.Invalid, "HA managed"},
		"backup": {func(pve *fakepve.Cluster, id int) { pve.SetConfig(id, "lock", "backup") }, infra.Indeterminate,
			"backup"},
		"not allowed": {func(pve *fakepve.Cluster, _ int) { pve.Revoke("Datastore.AllocateSpace") }, infra.Denied,
			"Datastore.AllocateSpace"},
	} {
		t.Run(name, func(t *testing.T) {
			pve := fakepve.Start(t)
			p := open(t, pve)
			vm := create(t, p, request(t))
			test.prepare(pve, vmid(t, vm))
			wantClass(t, p.Sleep(t.Context(), vm, config.SparesSuspended), test.class, test.text)
			wantState(t, p, vm, infra.Running)
		})
	}
}

// TestSaveFails lets the node fail while it saves the memory of a VM. Proxmox VE then leaves the VM locked, and an
// administrator must unlock it. Nothing else can be done with the VM before, and no call claims more than is known.
func TestSaveFails(t *testing.T) {
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	id := vmid(t, vm)
	pve.Inject(fakepve.Fault{Call: suspendCall, TaskFails: "query-savevm failed with error 'Input/output error'",
		Then: func() { pve.SetConfig(id, "lock", "suspending") }})
	wantClass(t, p.Sleep(t.Context(), vm, config.SparesSuspended), infra.Indeterminate, "unlock it with qm unlock")
	wantState(t, p, vm, infra.Stopping)
	wantClass(t, p.Wake(t.Context(), vm), infra.Conflict, "falls asleep")
	wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate, "VM is locked (suspending)")
	pve.SetConfig(id, "lock", "")
	sleep(t, p, vm)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Error(err)
	}
}

// TestWakeFails checks failures of a call that wakes a VM. The VM sleeps on.
func TestWakeFails(t *testing.T) {
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	sleep(t, p, vm)
	pve.Inject(fakepve.Fault{Call: startCall, TaskFails: "start failed: QEMU exited with code 1"})
	wantClass(t, p.Wake(t.Context(), vm), infra.Capacity, "start failed")
	wantState(t, p, vm, infra.Stopped)
	pve.Inject(fakepve.Fault{Call: startCall, AnswerLost: true})
	wantClass(t, p.Wake(t.Context(), vm), infra.Indeterminate, "EOF")
	pve.AwaitTasks(t.Context())
	wantState(t, p, vm, infra.Running)
	if err := p.Wake(t.Context(), vm); err != nil {
		t.Errorf("repeated Wake: %v", err)
	}
}

// TestWokenWhileDeleted deletes a VM by another server just before it is woken. The VM does not stay on.
func TestWokenWhileDeleted(t *testing.T) {
	pve := fakepve.Start(t)
	p, other := open(t, pve), open(t, pve)
	vm := create(t, p, request(t))
	sleep(t, p, vm)
	pve.Inject(fakepve.Fault{Call: startCall, Before: func() {
		if err := other.Delete(t.Context(), vm); err != nil {
			t.Error(err)
		}
	}})
	wantClass(t, p.Wake(t.Context(), vm), infra.NotFound, "deleted while")
	wantState(t, p, vm, infra.Deleted)
}

// TestSuspensionIsLost takes the saved memory of a VM away, as an administrator can. The VM counts as ended.
func TestSuspensionIsLost(t *testing.T) {
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	sleep(t, p, vm)
	pve.SetConfig(vmid(t, vm), "lock", "")
	pve.SetConfig(vmid(t, vm), "vmstate", "")
	wantClass(t, p.Wake(t.Context(), vm), infra.NotFound, "not suspended")
	wantState(t, p, vm, infra.Stopped)
}
