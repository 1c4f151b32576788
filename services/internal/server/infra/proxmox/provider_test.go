package proxmox_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/infratest"
	"github.com/nstance-kit/nstance/services/internal/server/infra/proxmox"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

var owner = infra.Owner{Cluster: "c", Shard: "s"}

// Names of API calls in package fakepve.
const (
	cloneCall   = "POST /nodes/{node}/qemu/{vmid}/clone"
	configCall  = "PUT /nodes/{node}/qemu/{vmid}/config"
	listCall    = "GET /nodes/{node}/qemu"
	readCall    = "GET /nodes/{node}/qemu/{vmid}/config"
	seedCall    = "DELETE /nodes/{node}/storage/{storage}/content/{volume}"
	statusCall  = "GET /nodes/{node}/qemu/{vmid}/status/current"
	startCall   = "POST /nodes/{node}/qemu/{vmid}/status/start"
	suspendCall = "POST /nodes/{node}/qemu/{vmid}/status/suspend"
	stopCall    = "POST /nodes/{node}/qemu/{vmid}/status/stop"
	uploadCall  = "POST /nodes/{node}/storage/{storage}/upload"
	taskCall    = "GET /nodes/{node}/tasks/{upid}/status"
)

// rawOptions returns options for a fake cluster.
func rawOptions(t *testing.T, pve *fakepve.Cluster) map[string]string {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(fakepve.TokenID+"="+fakepve.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"endpoints": pve.URL(), "fingerprints": pve.Fingerprint(), "token_file": token}
}

// openWith opens a provider with the given options. The provider's clock is ahead by the given number of seconds.
func openWith(t *testing.T, raw map[string]string, ahead *atomic.Int64) *proxmox.Provider {
	t.Helper()
	options, problems := contract.ParseOptions(raw)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	p, err := proxmox.New(proxmox.Config{Options: options, Now: func() time.Time {
		return time.Now().Add(time.Duration(ahead.Load()) * time.Second)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// openError returns the error of opening a provider.
func openError(t *testing.T, raw map[string]string) error {
	t.Helper()
	options, problems := contract.ParseOptions(raw)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	_, err := proxmox.New(proxmox.Config{Options: options})
	return err
}

func open(t *testing.T, pve *fakepve.Cluster) *proxmox.Provider {
	t.Helper()
	return openWith(t, rawOptions(t, pve), new(atomic.Int64))
}

func request(t *testing.T) infra.CreateRequest {
	t.Helper()
	id, err := ident.NewID("tst", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return infra.CreateRequest{Tags: infra.Tags{Owner: owner, Tenant: "default", Instance: id, Group: "workers"},
		InstanceType: "1x256", Subnet: "pve1/vmbr0", Args: map[string]any{"template": "debian"},
		Userdata: []byte("#!/bin/sh\n# nonce-4711\n")}
}

func create(t *testing.T, p *proxmox.Provider, req infra.CreateRequest) infra.VM {
	t.Helper()
	vm, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func vmid(t *testing.T, vm infra.VM) int {
	t.Helper()
	id, err := strconv.Atoi(vm.ProviderID)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestConformance runs the conformance suite of package infratest against a fake cluster.
func TestConformance(t *testing.T) {
	pve := fakepve.Start(t)
	var owners atomic.Int64
	infratest.Run(t, func(t *testing.T) infratest.Harness {
		raw, ahead := rawOptions(t, pve), new(atomic.Int64)
		return infratest.Harness{
			Provider: openWith(t, raw, ahead),
			Owner:    infra.Owner{Cluster: fmt.Sprintf("c%d", owners.Add(1)), Shard: "s1"},
			Kill:     func(t *testing.T, vm infra.VM) { t.Helper(); pve.Kill(vmid(t, vm)) },
			Settle:   func(t *testing.T) { t.Helper(); ahead.Add(10) },
			Types:    [2]string{"1x256", "2x512"},
			Subnets:  [2]string{"pve1/vmbr0", "pve2/vmbr1"},
			Adapt:    func(req *infra.CreateRequest) { req.Args = map[string]any{"template": "debian"} },
			Reopen:   func(t *testing.T) infra.Provider { t.Helper(); return openWith(t, raw, ahead) },
			Sleeps:   contract.Block.Sleeps,
			Disks: func(t *testing.T, vm infra.VM) string {
				t.Helper()
				return pve.Config(vmid(t, vm))["scsi0"]
			},
			Unknown: "123456789",
		}
	})
	t.Cleanup(func() { pve.AwaitTasks(context.WithoutCancel(t.Context())) })
}

// wantClass checks the class of an error and a part of its text.
func wantClass(t *testing.T, err error, class infra.Class, text string) {
	t.Helper()
	if infra.ClassOf(err) != class || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v of class %q, want class %q and %q in the text", err, infra.ClassOf(err), class, text)
	}
}

// count returns how often a call was made.
func count(pve *fakepve.Cluster, call string) (n int) {
	for _, c := range pve.Calls() {
		if c == call {
			n++
		}
	}
	return n
}

func find(t *testing.T, p *proxmox.Provider, req infra.CreateRequest) infra.VM {
	t.Helper()
	vm, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

// list returns the states of the VMs of the test's owner, by provider ID.
func list(t *testing.T, p *proxmox.Provider) map[string]infra.State {
	t.Helper()
	vms, err := p.List(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(vms, func(a, b infra.VM) int { return cmp.Compare(a.ProviderID, b.ProviderID) }) {
		t.Errorf("listed in this order: %v", vms)
	}
	states := map[string]infra.State{}
	for _, vm := range vms {
		states[vm.ProviderID] = vm.State
	}
	return states
}
