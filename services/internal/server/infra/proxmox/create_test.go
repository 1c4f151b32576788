package proxmox_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/proxmox"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

// TestSettings checks the settings that a new VM gets from its request instead of its template.
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
	// smbios1 must contain "Proxmox" and the instance ID in base64. The agent reads both from its firmware.
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

// TestVMIDIsUsed asks for a VM whose VMID belongs to a VM that is not an instance. Create fails as Conflict, and
// FindByInstance as NotFound, so the server uses another instance ID.
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
		wantClass(t, p.Delete(t.Context(), vm), infra.Invalid, "not an instance")
		for _, online := range []bool{true, false} {
			pve.SetOnline(node, online)
			if states := list(t, p); len(states) != 0 {
				t.Errorf("listed: %v", states)
			}
		}
		pve.SetOnline(node, true)
		if ids := pve.VMs(); len(ids) != 1 {
			t.Errorf("VMs %v", ids)
		}
		pve.RemoveVM(id)
	}
}

// TestOtherInstanceHasTheVMID checks that a VM is not taken for that of another instance with the same VMID.
func TestOtherInstanceHasTheVMID(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	vm := create(t, p, req)
	description := pve.Config(vmid(t, vm))["description"]
	pve.SetConfig(vmid(t, vm), "description", strings.ReplaceAll(description, req.Tags.Instance.String(),
		request(t).Tags.Instance.String()))
	_, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance)
	wantClass(t, err, infra.NotFound, "belongs to another instance")
	_, err = p.Create(t.Context(), req)
	wantClass(t, err, infra.Conflict, "was made by another request")
	wantClass(t, p.Delete(t.Context(), vm), infra.Invalid, "")
}

// TestHostname checks that a VM has the requested hostname, or the instance ID.
func TestHostname(t *testing.T) {
	t.Parallel()
	p := open(t, fakepve.Start(t))
	named, unnamed := request(t), request(t)
	named.Hostname = "web-1"
	if vm := create(t, p, named); vm.Hostname != "web-1" {
		t.Errorf("hostname %q", vm.Hostname)
	}
	if vm := create(t, p, unnamed); vm.Hostname != unnamed.Tags.Instance.String() {
		t.Errorf("hostname %q", vm.Hostname)
	}
}

// TestCloneCollision sends one request through two servers. The first server clones the VM just before the second one
// calls clone. If the template is on the VM's node, the second call is refused. If the template is on another node, the
// task of the second call fails. Only one VM exists at the end.
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

// TestTwoServersFinish makes another server start the VM just before the server under test configures the VM. The VM is
// started only once.
func TestTwoServersFinish(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p, other := open(t, pve), open(t, pve)
	req := request(t)
	pve.Inject(fakepve.Fault{Call: configCall, Before: func() { create(t, other, req) }})
	vm := create(t, p, req)
	if starts := count(pve, startCall); starts != 1 || vm.State != infra.Running {
		t.Errorf("%d starts, state %s", starts, vm.State)
	}
}

// TestLostAnswers loses either the request or the answer of each call that changes something. Create fails as
// Indeterminate. Repeating Create results in one VM that runs. If the VM may have been started already, repeating
// Create does not start it again. If the VM does not run, it is Pending for half a minute, and then Stopped.
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

// TestTaskIsNotKnown makes a node stop answering while a task runs on it. Create fails as Indeterminate. Repeating
// Create results in one VM that runs.
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

// TestLockedTemplate asks for a VM whose template is locked. If another task of Proxmox VE holds the lock for too long,
// Create fails as Throttled. If an administrator or a backup has locked the template, the error mentions that lock.
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
	pve.Inject(fakepve.Fault{Call: startCall, TaskFails: timeout}) // repeated by the provider, after a pause
	began := time.Now()
	vm := create(t, p, req)
	if took := time.Since(began); vm.State != infra.Running || took < 250*time.Millisecond {
		t.Errorf("the VM is %s after %s", vm.State, took)
	}
}

// TestThrottled checks that the provider reports a call that was throttled, and no other failure.
func TestThrottled(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	options, problems := contract.ParseOptions(rawOptions(t, pve))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	throttled := 0
	p, err := proxmox.New(proxmox.Config{Options: options, Throttled: func(string) { throttled++ }})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"got timeout", "VM is locked (backup)"} {
		pve.Inject(fakepve.Fault{Call: cloneCall, TaskFails: text})
		if _, err := p.Create(t.Context(), request(t)); err == nil || throttled != 1 {
			t.Errorf("%s: %v, %d throttled calls", text, err, throttled)
		}
	}
}

// TestStartSucceeds checks results of the start task that are no failure.
func TestStartSucceeds(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	for _, text := range []string{"WARNINGS: 1", "VM 1000001 already running"} {
		pve.Inject(fakepve.Fault{Call: startCall, TaskFails: text})
		if vm := create(t, p, request(t)); vm.State != infra.Running {
			t.Errorf("%s: the VM is %s", text, vm.State)
		}
	}
}

// TestResultOfStartIsNotRead makes the call fail that checks whether a VM was deleted while it was started. The VM runs,
// so Create must not delete it, regardless of the error.
func TestResultOfStartIsNotRead(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	pve.Inject(fakepve.Fault{Call: startCall, Then: func() {
		pve.Inject(fakepve.Fault{Call: readCall, Status: 403, Text: "Permission check failed"})
	}})
	_, err := p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "Permission check failed")
	if vm := create(t, p, req); vm.State != infra.Running {
		t.Errorf("the VM is %s", vm.State)
	}
}

// TestManyChanges changes a VM before each attempt to change it. Create and Delete give up.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	change := func() {
		for range 3 {
			pve.Inject(fakepve.Fault{Call: configCall, Status: 500, Text: "file changed by other user"})
		}
	}
	change()
	_, err := p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "another request changed the VM")
	vm := create(t, p, req)
	change()
	wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate, "another request changed the VM")
	if vm := find(t, p, req); vm.State != infra.Running {
		t.Errorf("the VM is %s", vm.State)
	}
}

// TestStartIsNotWrittenDown makes the call fail that stores that a VM was started. The VM runs nevertheless. Only half a
// minute after the start it is certain that the VM has ended.
func TestStartIsNotWrittenDown(t *testing.T) {
	t.Parallel()
	pve, ahead := fakepve.Start(t), new(atomic.Int64)
	p := openWith(t, rawOptions(t, pve), ahead)
	req := request(t)
	pve.Inject(fakepve.Fault{Call: startCall, Then: func() {
		pve.Inject(fakepve.Fault{Call: configCall, Status: 500, Text: "unable to write"})
	}})
	vm := create(t, p, req)
	if vm.State != infra.Running {
		t.Errorf("the VM is %s", vm.State)
	}
	pve.Kill(vmid(t, vm))
	for _, test := range []struct {
		ahead int64
		want  infra.State
	}{{0, infra.Pending}, {31, infra.Stopped}} {
		ahead.Store(test.ahead)
		if vm := find(t, p, req); vm.State != test.want {
			t.Errorf("after %d s the VM is %s", test.ahead, vm.State)
		}
	}
}

// TestNoTask answers a call without the ID of a task. Create must not take the call for done.
func TestNoTask(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	for _, answer := range []string{`{"data":null}`, `{"data":"UPID:pve1"}`} {
		raw := rawOptions(t, pve)
		raw["endpoints"] = ""
		addEndpoint(t, raw, forward(t, pve, func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/clone") {
				return false
			}
			_, _ = w.Write([]byte(answer))
			return true
		}))
		_, err := openWith(t, raw, new(atomic.Int64)).Create(t.Context(), request(t))
		wantClass(t, err, infra.Indeterminate, "is not the ID of a task")
	}
}

// TestTemplateWithCloudInitInItsTags makes a VM from a template that has no cloud-init drive, but the tag cloudinit.
func TestTemplateWithCloudInitInItsTags(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	pve.SetConfig(9001, "tags", "cloudinit")
	create(t, open(t, pve), request(t))
}

// TestStuckClone checks a VM that stays locked after its clone was interrupted. The VM counts as existing, and the
// errors of all calls mention the lock.
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
	wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate, "qm unlock")
}

// TestBackup locks a VM that runs, as a backup does. Only Delete fails, and does not advise to unlock the VM.
func TestBackup(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	vm := create(t, p, req)
	pve.SetConfig(vmid(t, vm), "lock", "backup")
	for _, state := range []infra.State{find(t, p, req).State, create(t, p, req).State, list(t, p)[vm.ProviderID]} {
		if state != infra.Running {
			t.Errorf("the VM is %s", state)
		}
	}
	wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate, "VM is locked (backup)")
}

// TestBrokenMetadata damages the metadata of a VM. The VM must not count as gone, and must not be deleted.
func TestBrokenMetadata(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	vm := create(t, p, req)
	description := pve.Config(vmid(t, vm))["description"]
	pve.SetConfig(vmid(t, vm), "description", description[:len(description)-1])
	_, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance)
	wantClass(t, err, infra.Indeterminate, "description")
	_, err = open(t, pve).List(t.Context(), owner)
	wantClass(t, err, infra.Indeterminate, "description")
	_, err = p.Create(t.Context(), req)
	wantClass(t, err, infra.Indeterminate, "description")
	wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate, "description")
	pve.SetConfig(vmid(t, vm), "description", description)
	if vm := find(t, p, req); vm.State != infra.Running {
		t.Errorf("the VM is %s", vm.State)
	}
}

// TestFullStorage asks for a VM while one storage is full: either that of its disk or that of its userdata.
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

// TestStartFails asks for a VM that QEMU refuses to start. The VM's disk and userdata must be removed.
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

// TestRefused checks that Create refuses a request with a mistake, such as an unknown storage, and leaves no volume.
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
		"no VM":      {func(r *infra.CreateRequest) { r.Args["template"] = "web" }, `no VM template "web"`},
	} {
		pve.AddTemplate(9101, "pve1", "only")
		pve.AddTemplate(9102, "pve1", "cloudinit")
		pve.SetConfig(9102, "ide0", "local-lvm:vm-9102-cloudinit,media=cdrom")
		pve.AddTemplate(9103, "pve1", "twice")
		pve.AddTemplate(9104, "pve1", "twice")
		pve.AddVM(9105, "pve1", "web")
		pve.Broadcast()
		req := request(t)
		test.change(&req)
		_, err := p.Create(t.Context(), req)
		wantClass(t, err, infra.Invalid, test.text)
		if volumes := pve.Volumes(); len(volumes) > 0 {
			t.Errorf("%s: volumes stay: %v", name, volumes)
		}
	}
	pve.SetOnline("pve1", false)
	req := request(t)
	req.Subnet, req.Args["template"] = "pve2/vmbr0", "shared"
	_, err := p.Create(t.Context(), req)
	wantClass(t, err, infra.Invalid, "on a node that is online")
	pve.SetOnline("pve1", true)
	raw := rawOptions(t, pve)
	raw["pool"] = "none"
	pve.GrantPool("none")
	_, err = openWith(t, raw, new(atomic.Int64)).Create(t.Context(), request(t))
	wantClass(t, err, infra.Invalid, "pool 'none' does not exist")
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
	// The userdata of another shard's VM, or of another instance with the same VMID, must stay.
	if err := p.RemoveUserdata(t.Context(), infra.Owner{Cluster: "c", Shard: "other"}, req.Tags.Instance); err != nil {
		t.Error(err)
	}
	description := pve.Config(vmid(t, vm))["description"]
	pve.SetConfig(vmid(t, vm), "description", strings.ReplaceAll(description, req.Tags.Instance.String(),
		request(t).Tags.Instance.String()))
	if err := p.RemoveUserdata(t.Context(), owner, req.Tags.Instance); err != nil {
		t.Error(err)
	}
	pve.SetConfig(vmid(t, vm), "description", description)
	for _, call := range []string{configCall, seedCall} {
		pve.Inject(fakepve.Fault{Call: call, Status: 500, Text: "storage 'local' does not exist"})
		err := p.RemoveUserdata(t.Context(), owner, req.Tags.Instance)
		wantClass(t, err, infra.Invalid, "storage 'local' does not exist")
		if _, still := pve.Volumes()[seed]; !still {
			t.Error("the userdata are gone")
		}
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
