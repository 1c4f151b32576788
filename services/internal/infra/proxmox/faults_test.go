package proxmox_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/infra/proxmox"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

// Calls of the API, as the fake names them.
const (
	cloneCall  = "POST /nodes/{node}/qemu/{vmid}/clone"
	configCall = "PUT /nodes/{node}/qemu/{vmid}/config"
	startCall  = "POST /nodes/{node}/qemu/{vmid}/status/start"
	stopCall   = "POST /nodes/{node}/qemu/{vmid}/status/stop"
	uploadCall = "POST /nodes/{node}/storage/{storage}/upload"
	taskCall   = "GET /nodes/{node}/tasks/{upid}/status"
)

// wantClass checks the class of an error and a part of its text.
func wantClass(t *testing.T, err error, class infra.Class, text string) {
	t.Helper()
	if infra.ClassOf(err) != class || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v of class %q, want class %q and %q in the text", err, infra.ClassOf(err), class, text)
	}
}

func find(t *testing.T, p *proxmox.Provider, req infra.CreateRequest) infra.VM {
	t.Helper()
	vm, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

// list returns the states of the owner's VMs by provider ID.
func list(t *testing.T, p *proxmox.Provider) map[string]infra.State {
	t.Helper()
	vms, err := p.List(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]infra.State{}
	for _, vm := range vms {
		states[vm.ProviderID] = vm.State
	}
	return states
}

// TestSettings checks what a new VM gets from its request and not from its template.
func TestSettings(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	pve.AddPool("nstance")
	raw := rawOptions(t, pve)
	raw["pool"] = "nstance"
	p := openWith(t, raw, new(atomic.Int64))
	pve.GrantPool("nstance")
	req := request(t)
	req.InstanceType, req.Args["vlan"] = "2x512", 20.0
	vm := create(t, p, req)
	got := pve.Config(vmid(t, vm))
	for setting, want := range map[string]string{"name": req.Tags.Instance.String(), "cores": "2", "memory": "512",
		"net0": "virtio,bridge=vmbr0,tag=20", "onboot": "0", "protection": "0", "balloon": "0",
		"tags": "nstance.c.s;" + req.Tags.Instance.String(),
		"ide2": "local:iso/nstance-" + req.Tags.Instance.String() + ".iso,media=cdrom"} {
		if got[setting] != want {
			t.Errorf("%s is %q, want %q", setting, got[setting], want)
		}
	}
	// Proxmox and the instance ID in base64, as the agent finds them in its firmware.
	if smbios := got["smbios1"]; !strings.Contains(smbios, "manufacturer=UHJveG1veA==") ||
		!strings.HasSuffix(smbios, ",base64=1") {
		t.Errorf("smbios1 is %q", smbios)
	}
	if pool := pve.Pool(vmid(t, vm)); pool != "nstance" {
		t.Errorf("the VM is a member of the pool %q", pool)
	}
	if id := vmid(t, vm); id < 1_000_001 || id > 999_999_999 {
		t.Errorf("VMID %d", id)
	}
}

// TestVMIDIsUsed asks for a VM while its VMID is used by a VM that is not an instance. The request is a conflict, and
// the instance is not found, so the server uses another instance ID.
func TestVMIDIsUsed(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	vm := create(t, p, req)
	id := vmid(t, vm)
	pve.Kill(id)
	pve.RemoveVM(id)
	for _, node := range []string{"pve1", "pve2"} {
		pve.AddVM(id, node, "somebody")
		_, err := p.Create(t.Context(), req)
		wantClass(t, err, infra.Conflict, "the VMID is used")
		_, err = p.FindByInstance(t.Context(), owner, req.Tags.Instance)
		wantClass(t, err, infra.NotFound, "not an instance")
		if states := list(t, p); len(states) != 0 {
			t.Errorf("listed: %v", states)
		}
		pve.RemoveVM(id)
	}
}

// TestCloneCollision lets another server clone the VM of the same request in the moment before the clone: on the same
// node, where the call is refused, and on another node, where the task fails. There is one VM.
func TestCloneCollision(t *testing.T) {
	t.Parallel()
	for _, template := range []string{"debian", "shared"} {
		t.Run(template, func(t *testing.T) {
			pve := fakepve.Start(t)
			p, other := open(t, pve), open(t, pve)
			req := request(t)
			req.Subnet, req.Args["template"] = "pve2/vmbr0", template
			var first infra.VM
			pve.Inject(fakepve.Fault{Call: cloneCall, Before: func() { first = create(t, other, req) }})
			second := create(t, p, req)
			if first.ProviderID == "" || first.ProviderID != second.ProviderID {
				t.Errorf("VMs %q and %q", first.ProviderID, second.ProviderID)
			}
			if ids := pve.VMs(); len(ids) != 1 {
				t.Errorf("VMs %v", ids)
			}
			if node := pve.Node(vmid(t, second)); node != "pve2" {
				t.Errorf("the VM is on node %s", node)
			}
		})
	}
}

// TestTwoServersFinish lets another server start the VM in the moment before it is configured. It is started once.
func TestTwoServersFinish(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p, other := open(t, pve), open(t, pve)
	req := request(t)
	pve.Inject(fakepve.Fault{Call: configCall, Before: func() { create(t, other, req) }})
	vm := create(t, p, req)
	starts := 0
	for _, call := range pve.Calls() {
		if call == startCall {
			starts++
		}
	}
	if starts != 1 || vm.State != infra.Running {
		t.Errorf("%d starts, state %s", starts, vm.State)
	}
}

// TestLostAnswers loses the request or the answer of each call that changes something. The create call is
// indeterminate, and its repetition makes one VM that runs. If the loss left it open whether the VM was started, it is
// not started again: it is pending for half a minute, and then stopped.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for _, call := range []string{cloneCall, uploadCall, configCall, startCall} {
		for _, received := range []bool{true, false} {
			name := call + " not received"
			if received {
				name = call + " received"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				pve, ahead := fakepve.Start(t), new(atomic.Int64)
				p := openWith(t, rawOptions(t, pve), ahead)
				req := request(t)
				pve.Inject(fakepve.Fault{Call: call, AnswerLost: received, RequestLost: !received})
				_, err := p.Create(t.Context(), req)
				wantClass(t, err, infra.Indeterminate, "EOF")
				pve.AwaitTasks(t.Context())
				vm := create(t, p, req)
				want := infra.Running
				if call == startCall && !received || call == configCall && received {
					want = infra.Pending
					defer func() {
						ahead.Store(31)
						_, err := p.Create(t.Context(), req)
						wantClass(t, err, infra.Conflict, "stopped")
					}()
				}
				if vm.State != want {
					t.Errorf("the VM is %s, want %s", vm.State, want)
				}
				if ids := pve.VMs(); len(ids) != 1 {
					t.Errorf("VMs %v", ids)
				}
			})
		}
	}
}

// TestTaskIsNotKnown has a node that stops to answer while a task runs there. The create call is indeterminate, and its
// repetition makes one VM that runs.
func TestTaskIsNotKnown(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	pve.Inject(fakepve.Fault{Call: taskCall, Status: 596, Text: "Connection timed out"})
	_, err := p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "ask for the result of task UPID:pve1:")
	pve.AwaitTasks(t.Context())
	if vm := create(t, p, req); vm.State != infra.Running || len(pve.VMs()) != 1 {
		t.Errorf("the VM is %s, VMs %v", vm.State, pve.VMs())
	}
}

// TestLostDelete loses the request or the answer of each call of a deletion. Its repetition removes everything.
func TestLostDelete(t *testing.T) {
	t.Parallel()
	for _, call := range []string{configCall, stopCall, "DELETE /nodes/{node}/storage/{storage}/content/{volume}"} {
		for _, received := range []bool{true, false} {
			pve := fakepve.Start(t)
			p := open(t, pve)
			vm := create(t, p, request(t))
			pve.Inject(fakepve.Fault{Call: call, AnswerLost: received, RequestLost: !received})
			wantClass(t, p.Delete(t.Context(), vm.ProviderID), infra.Indeterminate, "EOF")
			if err := p.Delete(t.Context(), vm.ProviderID); err != nil {
				t.Fatalf("%s: %v", call, err)
			}
			if volumes := pve.Volumes(); len(volumes) > 0 {
				t.Errorf("%s: volumes stay: %v", call, volumes)
			}
		}
	}
}

// TestLockedTemplate asks for a VM of a template that is locked. A timeout of the lock is throttling. A lock that an
// administrator or a backup holds fails with its name until it is gone.
func TestLockedTemplate(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	const timeout = "can't lock file '/var/lock/qemu-server/lock-9001.conf' - got timeout"
	pve.Inject(fakepve.Fault{Call: cloneCall, TaskFails: timeout})
	_, err := p.Create(t.Context(), req)
	wantClass(t, err, infra.Throttled, "lock-9001")
	pve.SetConfig(9001, "lock", "backup")
	_, err = p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "clone template 9001 on node pve1: 500 VM is locked (backup)")
	pve.SetConfig(9001, "lock", "")
	pve.Inject(fakepve.Fault{Call: startCall, TaskFails: timeout}) // repeated by the provider
	if vm := create(t, p, req); vm.State != infra.Running {
		t.Errorf("the VM is %s", vm.State)
	}
}

// TestStuckClone has a VM that stays locked by a clone that was interrupted. It is not gone, and all calls name the
// reason.
func TestStuckClone(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	vm := create(t, p, req)
	for _, setting := range []string{"description", "tags", "name"} {
		pve.SetConfig(vmid(t, vm), setting, "")
	}
	pve.SetConfig(vmid(t, vm), "lock", "clone")
	_, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance)
	wantClass(t, err, infra.Indeterminate, "qm unlock")
	_, err = p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "qm unlock")
	wantClass(t, p.Delete(t.Context(), vm.ProviderID), infra.Indeterminate, "qm unlock")
}

// TestFullStorage asks for a VM while the storage of its disk, or that of its userdata, is full.
func TestFullStorage(t *testing.T) {
	t.Parallel()
	for storage, text := range map[string]string{"local-lvm": "thin pool", "local": "No space left on device"} {
		pve := fakepve.Start(t)
		p := open(t, pve)
		pve.SetFull(storage, true)
		req := request(t)
		_, err := p.Create(t.Context(), req)
		wantClass(t, err, infra.Capacity, text)
		for id, state := range list(t, p) {
			if state != infra.Deleted {
				t.Errorf("VM %s is %s", id, state)
			}
		}
		if volumes := pve.Volumes(); len(volumes) > 0 {
			t.Errorf("volumes stay: %v", volumes)
		}
		pve.SetFull(storage, false)
		create(t, p, request(t))
	}
}

// TestStartFails asks for a VM that QEMU refuses to start. Its disk and its userdata are removed.
func TestStartFails(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	for name, change := range map[string]func(*infra.CreateRequest){
		"memory": func(r *infra.CreateRequest) { r.InstanceType = "1x9999999" },
		"bridge": func(r *infra.CreateRequest) { r.Subnet = "pve1/vmbr9" },
	} {
		req := request(t)
		change(&req)
		_, err := p.Create(t.Context(), req)
		wantClass(t, err, infra.Capacity, "start failed")
		if volumes := pve.Volumes(); len(volumes) > 0 {
			t.Errorf("%s: volumes stay: %v", name, volumes)
		}
		if vm := find(t, p, req); vm.State != infra.Deleted {
			t.Errorf("%s: the VM is %s", name, vm.State)
		}
	}
}

// TestMigration moves a VM to another node. It stays the same VM, and is deleted there.
func TestMigration(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	req.Args["template"] = "shared"
	vm := create(t, p, req)
	if err := p.RemoveUserdata(t.Context(), owner, req.Tags.Instance); err != nil {
		t.Fatal(err)
	}
	pve.Migrate(vmid(t, vm), "pve2")
	got, err := p.Get(t.Context(), vm.ProviderID)
	if err != nil || got.State != infra.Running || got.ProviderID != vm.ProviderID {
		t.Errorf("after the migration: %+v, %v", got, err)
	}
	if states := list(t, p); states[vm.ProviderID] != infra.Running {
		t.Errorf("listed: %v", states)
	}
	if err := p.Delete(t.Context(), vm.ProviderID); err != nil {
		t.Fatal(err)
	}
	if volumes := pve.Volumes(); len(volumes) > 0 {
		t.Errorf("volumes stay: %v", volumes)
	}
}

// TestMigrationDuringList moves a VM after the list has asked where it is. The VM is not absent.
func TestMigrationDuringList(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	pve.Inject(fakepve.Fault{Call: "GET /nodes/{node}/qemu", Before: func() { pve.Migrate(vmid(t, vm), "pve2") }})
	if states := list(t, p); states[vm.ProviderID] != infra.Unknown {
		t.Errorf("listed: %v, want one VM in an unknown state", states)
	}
}

// TestNodeDown takes a node down. Its VMs are neither gone nor running, and cannot be deleted. The other node gets new
// VMs. A server that starts in this time knows the VMs, too.
func TestNodeDown(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	onDead, onLiving := request(t), request(t)
	onDead.Subnet = "pve2/vmbr0"
	dead, living := create(t, p, onDead), create(t, p, onLiving)
	pve.Broadcast() // cluster/resources goes on to call the VM running
	pve.SetOnline("pve2", false)
	for name, p := range map[string]*proxmox.Provider{"same": p, "new": open(t, pve)} {
		states := list(t, p)
		if len(states) != 2 || states[dead.ProviderID] != infra.Unknown || states[living.ProviderID] != infra.Running {
			t.Errorf("%s server: listed %v", name, states)
		}
		if vm := find(t, p, onDead); vm.State != infra.Unknown || vm.ProviderID != dead.ProviderID {
			t.Errorf("%s server: found %+v", name, vm)
		}
		if vm, err := p.Get(t.Context(), dead.ProviderID); err != nil || vm.State != infra.Unknown {
			t.Errorf("%s server: got %+v, %v", name, vm, err)
		}
		wantClass(t, p.Delete(t.Context(), dead.ProviderID), infra.Indeterminate, "node pve2 is offline")
		other := request(t)
		other.Subnet = "pve2/vmbr0"
		_, err := p.Create(t.Context(), other)
		wantClass(t, err, infra.Capacity, "node pve2 is offline")
	}
	create(t, p, request(t))
	pve.SetOnline("pve2", true)
	if err := p.Delete(t.Context(), dead.ProviderID); err != nil {
		t.Error(err)
	}
}

// TestNodeGoesDown takes a node down while its VMs are listed: the cluster does not know it yet.
func TestNodeGoesDown(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	pve.Inject(fakepve.Fault{Call: "GET /nodes/{node}/qemu", Status: 595, Text: "No route to host"})
	if states := list(t, p); states[vm.ProviderID] != infra.Unknown {
		t.Errorf("listed: %v, want one VM in an unknown state", states)
	}
}

// TestNoQuorum asks a node that the majority of the cluster has lost. Nothing is known, and nothing is made.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	create(t, p, request(t))
	pve.SetQuorate(false)
	_, err := p.List(t.Context(), owner)
	wantClass(t, err, infra.Indeterminate, "no quorum")
	_, err = p.Create(t.Context(), request(t))
	wantClass(t, err, infra.Indeterminate, "no quorum")
}

// TestToken takes privileges from the token. A token that may not see VMs must not make them look gone.
func TestToken(t *testing.T) {
	t.Parallel()
	for privilege, ask := range map[string]func(*proxmox.Provider) error{
		"VM.Audit": func(p *proxmox.Provider) error { _, err := p.List(t.Context(), owner); return err },
		"VM.Clone": func(p *proxmox.Provider) error { _, err := p.Create(t.Context(), request(t)); return err },
		"Datastore.AllocateTemplate": func(p *proxmox.Provider) error {
			_, err := p.Create(t.Context(), request(t))
			return err
		},
		"VM.Config.CDROM": func(p *proxmox.Provider) error { _, err := p.Create(t.Context(), request(t)); return err },
		"SDN.Use":         func(p *proxmox.Provider) error { _, err := p.Create(t.Context(), request(t)); return err },
	} {
		pve := fakepve.Start(t)
		p := open(t, pve)
		create(t, p, request(t))
		pve.Revoke(privilege)
		wantClass(t, ask(p), infra.Denied, privilege)
		if privilege != "SDN.Use" {
			wantClass(t, p.Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0"]}`)), infra.Denied, privilege)
		}
	}
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	if err := os.WriteFile(raw["token_file"], []byte(fakepve.TokenID+"=wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner)
	wantClass(t, err, infra.Denied, "401 invalid token value!")
}

// TestTokenFile opens providers with bad token files.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	for text, test := range map[string]struct {
		mode os.FileMode
		want string
	}{
		fakepve.TokenID + "=x": {0o644, "chmod 600"},
		"root@pam=x":           {0o600, "USER@REALM!TOKENID=SECRET"},
		"":                     {0o600, "USER@REALM!TOKENID=SECRET"},
	} {
		raw := rawOptions(t, pve)
		if err := os.WriteFile(raw["token_file"], []byte(text), test.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(raw["token_file"], test.mode); err != nil {
			t.Fatal(err)
		}
		wantClass(t, openError(t, raw), infra.Invalid, test.want)
	}
	raw := rawOptions(t, pve)
	raw["token_file"] += "-missing"
	wantClass(t, openError(t, raw), infra.Invalid, "no such file")
}

// TestCertificate connects to a node with another certificate than configured, and to one that no authority signed.
func TestCertificate(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	raw["fingerprints"] = strings.Repeat("00", 32)
	_, err := openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner)
	wantClass(t, err, infra.Denied, strings.ToUpper(pve.Fingerprint()))
	delete(raw, "fingerprints")
	_, err = openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner)
	wantClass(t, err, infra.Denied, "give the option ca_file or fingerprints")
	if calls := pve.Calls(); len(calls) > 0 {
		t.Errorf("the token was sent: %v", calls)
	}
	raw["ca_file"] = pve.CAFile(t)
	if _, err := openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner); err != nil {
		t.Error(err)
	}
}

// TestRefused checks requests that name something that is not there. Nothing is left.
func TestRefused(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	for name, test := range map[string]struct {
		change func(*infra.CreateRequest)
		text   string
	}{
		"template":    {func(r *infra.CreateRequest) { r.Args["template"] = "none" }, `no VM template "none"`},
		"no template": {func(r *infra.CreateRequest) { r.Args = nil }, "template is missing"},
		"storage":     {func(r *infra.CreateRequest) { r.Args["storage"] = "none" }, "storage 'none' does not exist"},
		"content":     {func(r *infra.CreateRequest) { r.Args["storage"] = "local" }, "does not support vm images"},
		"node":        {func(r *infra.CreateRequest) { r.Subnet = "pve3/vmbr0" }, "no node pve3"},
		"subnet":      {func(r *infra.CreateRequest) { r.Subnet = "vmbr0" }, "NODE/BRIDGE"},
		"type":        {func(r *infra.CreateRequest) { r.InstanceType = "t3.micro" }, "2x4096"},
		"local": {func(r *infra.CreateRequest) { r.Subnet, r.Args["template"] = "pve2/vmbr0", "only" },
			"VM uses local storage"},
		"cloud-init": {func(r *infra.CreateRequest) { r.Args["template"] = "cloudinit" }, "has a cloud-init drive"},
		"twice":      {func(r *infra.CreateRequest) { r.Args["template"] = "twice" }, "both templates"},
	} {
		pve.AddTemplate(9101, "pve1", "only")
		pve.AddTemplate(9102, "pve1", "cloudinit")
		pve.SetConfig(9102, "ide0", "local-lvm:vm-9102-cloudinit,media=cdrom")
		pve.AddTemplate(9103, "pve1", "twice")
		pve.AddTemplate(9104, "pve1", "twice")
		req := request(t)
		test.change(&req)
		_, err := p.Create(t.Context(), req)
		wantClass(t, err, infra.Invalid, test.text)
		if volumes := pve.Volumes(); len(volumes) > 0 {
			t.Errorf("%s: volumes stay: %v", name, volumes)
		}
	}
	raw := rawOptions(t, pve)
	raw["pool"] = "none"
	pve.GrantPool("none")
	_, err := openWith(t, raw, new(atomic.Int64)).Create(t.Context(), request(t))
	wantClass(t, err, infra.Invalid, "pool 'none' does not exist")
}

func shard(t *testing.T, subnetPools string) *config.Shard {
	t.Helper()
	var s config.Shard
	if err := json.Unmarshal([]byte(`{"server":{"subnet_pools":`+subnetPools+`}}`), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// TestVerify compares configurations with a cluster.
func TestVerify(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	p := openWith(t, raw, new(atomic.Int64))
	if err := p.Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0","pve2/vmbr1"]}`)); err != nil {
		t.Error(err)
	}
	for subnets, text := range map[string]string{
		`["pve1/vmbr9"]`: "node pve1 has no bridge vmbr9",
		`["pve3/vmbr0"]`: "no node pve3: there are pve1, pve2",
		`["vmbr0"]`:      "is not NODE/BRIDGE",
	} {
		wantClass(t, p.Verify(t.Context(), shard(t, `{"p":`+subnets+`}`)), infra.Invalid, text)
	}
	for args, text := range map[string]string{
		`{"template":"debian"}`:                   "",
		`{"template":"{{.Vars.image}}"}`:          "",
		`{"template":"none"}`:                     `no VM template "none"`,
		`{"template":"debian","storage":"none"}`:  "no storage none for disks",
		`{"template":"debian","storage":"local"}`: "no storage local for disks",
		`{"template":"debian","storage":"ceph"}`:  "",
		`{"template":"shared","storage":"ceph"}`:  "",
	} {
		s := shard(t, `{"p":["pve1/vmbr0"]}`)
		if err := json.Unmarshal([]byte(`{"templates":{"w":{"args":`+args+`}}}`), s); err != nil {
			t.Fatal(err)
		}
		err := p.Verify(t.Context(), s)
		if text == "" && err != nil {
			t.Errorf("%s: %v", args, err)
		} else if text != "" {
			wantClass(t, err, infra.Invalid, text)
		}
	}
	raw["seed_storage"] = "local-lvm"
	pve.GrantStorage("local-lvm")
	err := openWith(t, raw, new(atomic.Int64)).Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0"]}`))
	wantClass(t, err, infra.Invalid, "no storage local-lvm for ISO images")
	pve.SetOnline("pve2", false)
	wantClass(t, p.Verify(t.Context(), shard(t, `{"p":["pve2/vmbr0"]}`)), infra.Indeterminate, "595")
}

// TestUserdata removes the userdata of a VM that runs.
func TestUserdata(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	vm := create(t, p, req)
	seed := ""
	for volume, content := range pve.Volumes() {
		if strings.Contains(string(content), "nonce-4711") {
			seed = volume
		}
	}
	if seed != "pve1 local:iso/nstance-"+req.Tags.Instance.String()+".iso" {
		t.Errorf("the userdata is in %q", seed)
	}
	for range 2 {
		if err := p.RemoveUserdata(t.Context(), owner, req.Tags.Instance); err != nil {
			t.Fatal(err)
		}
	}
	if _, still := pve.Volumes()[seed]; still {
		t.Error("the userdata stay")
	}
	if ide2 := pve.Config(vmid(t, vm))["ide2"]; ide2 != "none,media=cdrom" {
		t.Errorf("ide2 is %q", ide2)
	}
	if vm := find(t, p, req); vm.State != infra.Running {
		t.Errorf("the VM is %s", vm.State)
	}
}

// TestDeletedStaysADay deletes a VM. What is left has no disks, and is removed by a deletion a day later.
func TestDeletedStaysADay(t *testing.T) {
	t.Parallel()
	pve, ahead := fakepve.Start(t), new(atomic.Int64)
	p := openWith(t, rawOptions(t, pve), ahead)
	first, second := create(t, p, request(t)), create(t, p, request(t))
	if err := p.Delete(t.Context(), first.ProviderID); err != nil {
		t.Fatal(err)
	}
	if states := list(t, p); states[first.ProviderID] != infra.Deleted {
		t.Errorf("listed: %v", states)
	}
	ahead.Store(25 * 60 * 60)
	if err := p.Delete(t.Context(), second.ProviderID); err != nil {
		t.Fatal(err)
	}
	if ids := pve.VMs(); len(ids) != 1 || ids[0] != vmid(t, second) {
		t.Errorf("VMs %v, want %s only", ids, second.ProviderID)
	}
}

// TestDeletedDuringStart deletes a VM in the moment before its start, and in the moment after it. The create call fails,
// and the VM does not stay running.
func TestDeletedDuringStart(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		pve := fakepve.Start(t)
		p, other := open(t, pve), open(t, pve)
		req := request(t)
		remove := func() {
			if err := other.Delete(t.Context(), find(t, other, req).ProviderID); err != nil {
				t.Error(err)
			}
		}
		fault := fakepve.Fault{Call: startCall, Then: remove}
		if before {
			fault = fakepve.Fault{Call: startCall, Before: remove}
		}
		pve.Inject(fault)
		_, err := p.Create(t.Context(), req)
		if class := infra.ClassOf(err); class != infra.Conflict && class != infra.Invalid {
			t.Errorf("got %v", err)
		}
		if vm := find(t, p, req); vm.State != infra.Deleted {
			t.Errorf("the VM is %s", vm.State)
		}
	}
}

// TestDeletedBeforeStart deletes a VM that was cloned and not started. The request does not go on.
func TestDeletedBeforeStart(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	pve.Inject(fakepve.Fault{Call: uploadCall, RequestLost: true})
	_, err := p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "EOF")
	if vm := find(t, p, req); vm.State != infra.Pending {
		t.Errorf("the VM is %s", vm.State)
	}
	if err := p.Delete(t.Context(), find(t, p, req).ProviderID); err != nil {
		t.Fatal(err)
	}
	_, err = p.Create(t.Context(), req)
	wantClass(t, err, infra.Conflict, "of this request was deleted")
	if volumes := pve.Volumes(); len(volumes) > 0 {
		t.Errorf("volumes stay: %v", volumes)
	}
}

// TestNextEndpoint has an endpoint that does not answer. The next one is used, also for calls that change something.
func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	raw["endpoints"] = "https://127.0.0.1:1," + raw["endpoints"]
	p := openWith(t, raw, new(atomic.Int64))
	create(t, p, request(t))
	raw["endpoints"] = "https://127.0.0.1:1"
	_, err := openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner)
	wantClass(t, err, infra.Indeterminate, "connection refused")
}

// TestWatch reports a VM that is made and then killed. Its end is known, although its start was a moment ago.
func TestWatch(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	changed := make(chan ident.ID, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Watch(ctx, func(id ident.ID) { changed <- id })
	}()
	defer func() { cancel(); <-ended }()
	req := request(t)
	vm := create(t, p, req)
	for _, step := range []func(){func() {}, func() { pve.Kill(vmid(t, vm)) }} {
		step()
		select {
		case id := <-changed:
			if id != vm.Tags.Instance {
				t.Errorf("%s changed", id)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no report")
		}
	}
	if vm := find(t, p, req); vm.State != infra.Stopped {
		t.Errorf("the VM is %s", vm.State)
	}
}
