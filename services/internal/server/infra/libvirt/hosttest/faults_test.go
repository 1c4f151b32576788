package hosttest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/libvirt"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/libvirt"
	"github.com/nstance-kit/nstance/tests/cloud/libvirtd"
)

var owner = infra.Owner{Cluster: "c", Shard: "s"}

func request(t *testing.T) infra.CreateRequest {
	t.Helper()
	id, err := ident.NewID("tst", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return infra.CreateRequest{Tags: infra.Tags{Owner: owner, Tenant: "default", Instance: id, Group: "workers"},
		InstanceType: "1x32", Subnet: "local/a", Args: map[string]any{"image": image},
		Userdata: []byte("#!/bin/sh\n# nonce-4711\n")}
}

func create(t *testing.T, p *libvirt.Provider, req infra.CreateRequest) infra.VM {
	t.Helper()
	vm, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

// volumes returns the names of the files in the storage pool, without the image.
func volumes(t *testing.T, daemon *libvirtd.Daemon) []string {
	t.Helper()
	entries, err := os.ReadDir(daemon.Pool)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if entry.Name() != image {
			names = append(names, entry.Name())
		}
	}
	return names
}

// TestDeletedLeavesTheClaim deletes a VM. The VM's disk, seed and console are removed immediately, and the claim a day
// later.
func TestDeletedLeavesTheClaim(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	req := request(t)
	vm := create(t, p, req)
	name := req.Tags.Instance.String()
	seed := filepath.Join(daemon.Pool, name+"-seed.iso")
	if info, err := os.Stat(seed); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the seed holds the nonce and must be readable by root only: %v, %v", info.Mode(), err)
	}
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if got := volumes(t, daemon); !slices.Equal(got, []string{name + ".claim"}) {
		t.Errorf("volumes after the deletion: %q, want only the claim", got)
	}
	old := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(filepath.Join(daemon.Pool, name+".claim"), old, old); err != nil {
		t.Fatal(err)
	}
	daemon.Virsh(t, "pool-refresh", "default")
	other := request(t)
	if err := p.Delete(t.Context(), create(t, p, other)); err != nil {
		t.Fatal(err)
	}
	if got := volumes(t, daemon); !slices.Equal(got, []string{other.Tags.Instance.String() + ".claim"}) {
		t.Errorf("volumes a day later: %q, want only the claim of the other VM", got)
	}
}

// TestRefusedRequestsLeaveNothing checks the class of each wrong request, and that no wrong request leaves a domain or
// a volume.
func TestRefusedRequestsLeaveNothing(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	for name, test := range map[string]struct {
		change func(*infra.CreateRequest)
		class  infra.Class
		text   string
	}{
		"image":   {func(r *infra.CreateRequest) { r.Args["image"] = "nothing.qcow2" }, infra.Invalid, "nothing.qcow2"},
		"network": {func(r *infra.CreateRequest) { r.Subnet = "local/c" }, infra.Invalid, "'c'"},
		"host":    {func(r *infra.CreateRequest) { r.Subnet = "other/a" }, infra.Invalid, "no host other"},
		"type":    {func(r *infra.CreateRequest) { r.InstanceType = "t3.micro" }, infra.Invalid, "2x4096"},
		"memory":  {func(r *infra.CreateRequest) { r.InstanceType = "1x99999999" }, infra.Capacity, "lacks"},
	} {
		req := request(t)
		test.change(&req)
		_, err := p.Create(t.Context(), req)
		if infra.ClassOf(err) != test.class || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, want class %s and %q in the message", name, err, test.class, test.text)
		}
	}
	_, err := openPool(t, daemon, "none").Create(t.Context(), request(t))
	if infra.ClassOf(err) != infra.Invalid || !strings.Contains(err.Error(), "'none'") {
		t.Errorf("pool: %v, want class %s and the pool in the message", err, infra.Invalid)
	}
	if vms, err := p.List(t.Context(), owner); err != nil || len(vms) > 0 {
		t.Errorf("domains: %v, %v", vms, err)
	}
	if got := volumes(t, daemon); len(got) > 0 {
		t.Errorf("volumes: %q", got)
	}
}

// TestStartFails asks for a VM that QEMU refuses to start. The error's class is Capacity, so that the leader tries
// another host. The domain and the volumes are removed. The instance ID cannot be used again.
func TestStartFails(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	if err := os.WriteFile(filepath.Join(daemon.Pool, "broken.img"), []byte("no kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	req := request(t)
	req.Args = map[string]any{"kernel": "broken.img"}
	_, err := p.Create(t.Context(), req)
	if infra.ClassOf(err) != infra.Capacity {
		t.Errorf("got %v, want class %s", err, infra.Capacity)
	}
	want := []string{"broken.img", req.Tags.Instance.String() + ".claim"}
	if got := volumes(t, daemon); !slices.Equal(got, want) {
		t.Errorf("volumes: %q, want %q", got, want)
	}
	if _, err := p.Create(t.Context(), req); infra.ClassOf(err) != infra.Conflict {
		t.Errorf("repeat: %v, want class %s", err, infra.Conflict)
	}
}

// TestPoolStaysBusy asks for a VM while another call uses the storage pool for longer than the provider waits. The
// request is throttled. It leaves no domain and no volume, so it can be repeated.
func TestPoolStaysBusy(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	release := usePool(t, daemon)
	req := request(t) // libvirtd does not know its image before a refresh of the pool
	_, err := p.Create(t.Context(), req)
	if infra.ClassOf(err) != infra.Throttled || !strings.Contains(err.Error(), "storage pool default") {
		t.Errorf("got %v, want class %s and the pool in the message", err, infra.Throttled)
	}
	if vms, err := p.List(t.Context(), owner); err != nil || len(vms) > 0 {
		t.Errorf("domains: %v, %v", vms, err)
	}
	if got := volumes(t, daemon); len(got) > 0 {
		t.Errorf("volumes: %q", got)
	}
	release()
	create(t, p, req)
}

// usePool keeps the storage pool in use until release is called. To do so, it makes libvirtd create a volume with a
// fake qemu-img that waits.
func usePool(t *testing.T, daemon *libvirtd.Daemon) (release func()) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	program, err := exec.LookPath("qemu-img")
	check(err)
	dir := t.TempDir()
	pipe, began, script := filepath.Join(dir, "pipe"), filepath.Join(dir, "began"), filepath.Join(dir, "qemu-img")
	check(syscall.Mkfifo(pipe, 0o600))
	check(os.WriteFile(script, []byte("#!/bin/sh\n: >'"+began+"'\ncat '"+pipe+"'\nexit 1\n"), 0o700))
	check(daemon.Enter(t.Context(), "mount", "--bind", script, program).Run())
	volume := daemon.Enter(t.Context(), "virsh", "-c", "qemu:///system", "vol-create-as", "default", "busy.qcow2", "1M",
		"--format", "qcow2")
	check(volume.Start())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(began); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("libvirtd does not run qemu-img: %v", err)
		}
	}
	return func() {
		t.Helper()
		check(os.WriteFile(pipe, nil, 0))
		_ = volume.Wait() // its qemu-img fails
		check(daemon.Enter(t.Context(), "umount", program).Run())
	}
}

// TestDaemonIsKilled kills libvirtd. It checks that no VM is reported as gone, that VMs keep running, and that the
// provider connects again.
func TestDaemonIsKilled(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	vm := create(t, p, request(t))
	daemon.KillDaemon(t)
	if vms, err := p.List(t.Context(), owner); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("List without libvirtd: %v, %v, want class %s", vms, err, infra.Indeterminate)
	}
	if _, err := p.Get(t.Context(), vm.ProviderID); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("Get without libvirtd: %v, want class %s", err, infra.Indeterminate)
	}
	if _, err := p.FindByInstance(t.Context(), owner, vm.Tags.Instance); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("FindByInstance without libvirtd: %v, want class %s", err, infra.Indeterminate)
	}
	daemon.StartDaemon(t)
	if again, err := p.Get(t.Context(), vm.ProviderID); err != nil || again.State != infra.Running {
		t.Errorf("after libvirtd is back: %+v, %v, want running", again, err)
	}
}

// TestDaemonHangs suspends libvirtd during a call. The call fails when its context ends. After libvirtd continues, the
// next call works.
func TestDaemonHangs(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	vm := create(t, p, request(t))
	daemon.StopDaemon(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := p.Get(ctx, vm.ProviderID); infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("Get while libvirtd hangs: %v, want class %s", err, infra.Indeterminate)
	}
	daemon.ContinueDaemon(t)
	if again, err := p.Get(t.Context(), vm.ProviderID); err != nil || again.State != infra.Running {
		t.Errorf("after libvirtd goes on: %+v, %v, want running", again, err)
	}
}

// TestEventsAreReported checks that Watch reports a killed VM, even after libvirtd was killed and started again.
func TestEventsAreReported(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	changed := make(chan ident.ID, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Watch(ctx, func(id ident.ID) { changed <- id })
	}()
	defer func() { cancel(); <-ended }()
	for _, kill := range []bool{false, true} {
		vm := create(t, p, request(t))
		if kill {
			daemon.KillDaemon(t)
			daemon.StartDaemon(t)
		}
		awaitID(t, changed, vm.Tags.Instance) // started, or the report of all VMs after the connection is back
		began := time.Now()
		daemon.KillVM(t, vm.Tags.Instance.String())
		awaitID(t, changed, vm.Tags.Instance)
		t.Logf("a killed VM is reported after %s", time.Since(began).Round(time.Millisecond))
		awaitEnd(t, p, vm)
	}
}

func awaitID(t *testing.T, changed <-chan ident.ID, want ident.ID) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case id := <-changed:
			if id == want {
				return
			}
		case <-timeout:
			t.Fatalf("no event for %s", want)
		}
	}
}

// awaitEnd waits until the provider no longer reports a VM as alive.
func awaitEnd(t *testing.T, p *libvirt.Provider, vm infra.VM) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := p.Get(ctx, vm.ProviderID)
		if err != nil {
			t.Fatal(err)
		}
		if !got.State.Alive() {
			return
		}
		<-tick.C
	}
}

// TestTwoHosts checks that VMs of one host are listed, found and made while the other host does not answer.
func TestTwoHosts(t *testing.T) {
	daemon := startDaemon(t)
	good, err := url.Parse(daemon.URI())
	if err != nil {
		t.Fatal(err)
	}
	dead := &url.URL{Scheme: "qemu", Path: "/system", RawQuery: "socket=" + filepath.Join(t.TempDir(), "none")}
	p := libvirt.New(libvirt.Config{Options: contract.Options{Hosts: map[string]*url.URL{"local": good, "dead": dead},
		Pool: "default", DomainType: "qemu"}})
	t.Cleanup(p.Close)
	vm := create(t, p, request(t))
	found, err := p.FindByInstance(t.Context(), owner, vm.Tags.Instance)
	if err != nil || found.ProviderID != vm.ProviderID {
		t.Errorf("FindByInstance: %+v, %v", found, err)
	}
	vms, err := p.List(t.Context(), owner)
	unlisted, known := infra.UnlistedBy(err)
	if len(vms) != 1 || vms[0].ProviderID != vm.ProviderID || !known || !slices.Equal(unlisted, []string{"dead/"}) {
		t.Errorf("List: %v without those of %q, %v", vms, unlisted, err)
	}
	_, err = p.FindByInstance(t.Context(), owner, request(t).Tags.Instance)
	if infra.ClassOf(err) != infra.Indeterminate {
		t.Errorf("FindByInstance of an unknown VM: %v, want class %s", err, infra.Indeterminate)
	}
	room, err := p.HasRoom(t.Context(), []string{"local/a"})
	if err != nil || !room["local/a"] {
		t.Errorf("HasRoom: %v, %v", room, err)
	}
}

// TestVerify checks which mistakes Verify finds in configurations for a real host.
func TestVerify(t *testing.T) {
	daemon := startDaemon(t)
	p := open(t, daemon)
	err := openPool(t, daemon, "none").Verify(t.Context(), new(config.Shard))
	if infra.ClassOf(err) != infra.Invalid || !strings.Contains(err.Error(), "host local has no storage pool none") {
		t.Errorf("unknown pool: %v, want class %s", err, infra.Invalid)
	}
	for subnets, want := range map[string]string{
		`["local/a","local/b"]`: "",
		`["local/c"]`:           "host local has no network c",
		`["other/a"]`:           "there is no host other",
		`["a"]`:                 `subnet "a" is not HOST/NETWORK`,
	} {
		var shard config.Shard
		if err := json.Unmarshal([]byte(`{"server":{"subnet_pools":{"p":`+subnets+`}}}`), &shard); err != nil {
			t.Fatal(err)
		}
		err := p.Verify(t.Context(), &shard)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", subnets, err)
		case want != "" && (infra.ClassOf(err) != infra.Invalid || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want class %s and %q", subnets, err, infra.Invalid, want)
		}
	}
}
