package proxmox_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/proxmox"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

// TestMigration moves a VM to another node. The provider must still find the VM, and must be able to delete it there.
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
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if volumes := pve.Volumes(); len(volumes) > 0 {
		t.Errorf("volumes stay: %v", volumes)
	}
}

// TestMigrationDuringList moves a VM while List runs: after List has read on which node the VM is. The result of List
// must contain the VM.
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

// TestNodeDown takes one of two nodes down. The VMs of this node are neither gone nor running, and cannot be deleted.
// New VMs are made on the other node. A server that starts while the node is down must list the VMs of this node too.
func TestNodeDown(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	onDead, onLiving := request(t), request(t)
	onDead.Subnet = "pve2/vmbr0"
	dead, living := create(t, p, onDead), create(t, p, onLiving)
	pve.Broadcast() // cluster/resources still calls the VM running
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
		wantClass(t, p.Delete(t.Context(), dead), infra.Indeterminate, "node pve2 is offline")
		other := request(t)
		other.Subnet = "pve2/vmbr0"
		_, err := p.Create(t.Context(), other)
		wantClass(t, err, infra.Capacity, "node pve2 is offline")
	}
	create(t, p, request(t))
	pve.SetOnline("pve2", true)
	if err := p.Delete(t.Context(), dead); err != nil {
		t.Error(err)
	}
}

// TestNodeGoesDown takes a node down while its VMs are listed, before the cluster has noticed that the node is down.
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

// TestNoQuorum uses a node that is cut off from the majority of the cluster. List and Create must fail as
// Indeterminate.
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

// TestNextEndpoint configures two endpoints, of which the first does not answer. All calls then go to the second one,
// even those that change something.
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

// TestLostAnswerIsNotSentElsewhere loses the answer of a call that changes something, of a cluster with two endpoints.
// The provider must not repeat the call at the other endpoint, because the first node may have executed it.
func TestLostAnswerIsNotSentElsewhere(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	raw["endpoints"] += "," + strings.Replace(raw["endpoints"], "127.0.0.1", "localhost", 1)
	p := openWith(t, raw, new(atomic.Int64))
	pve.Inject(fakepve.Fault{Call: cloneCall, AnswerLost: true})
	_, err := p.Create(t.Context(), request(t))
	wantClass(t, err, infra.Indeterminate, "EOF")
	clones := 0
	for _, call := range pve.Calls() {
		if call == cloneCall {
			clones++
		}
	}
	if clones != 1 {
		t.Errorf("%d clones, want 1", clones)
	}
	pve.AwaitTasks(t.Context())
}

// TestNextEndpointAfterFaults puts an endpoint before the cluster that is not a node with a quorum. All calls must
// succeed by the second endpoint, even those that change something.
func TestNextEndpointAfterFaults(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	proxy := func(serve http.HandlerFunc) func(*testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			server := httptest.NewTLSServer(serve)
			t.Cleanup(server.Close)
			sum := sha256.Sum256(server.Certificate().Raw)
			return server.URL + " " + fmt.Sprintf("%X", sum)
		}
	}
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, start := range map[string]func(t *testing.T) string{
		"accepts and hangs": func(t *testing.T) string {
			t.Helper()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			return "https://" + listener.Addr().String()
		},
		"speaks no TLS": func(t *testing.T) string {
			t.Helper()
			server := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(server.Close)
			return "https://" + server.Listener.Addr().String()
		},
		"has another certificate": func(t *testing.T) string {
			t.Helper()
			url, _, _ := strings.Cut(proxy(func(http.ResponseWriter, *http.Request) {})(t), " ")
			return url
		},
		"hangs after the request": proxy(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
		"502":                     proxy(answer(http.StatusBadGateway, "")),
		"503":                     proxy(answer(http.StatusServiceUnavailable, "")),
		"500 without JSON":        proxy(answer(http.StatusInternalServerError, "<html>")),
		"404 of a proxy":          proxy(http.NotFound),
		"200 without JSON":        proxy(answer(http.StatusOK, "<html>")),
		"no quorum": proxy(func(w http.ResponseWriter, r *http.Request) {
			answer := `{"data": []}`
			if strings.HasSuffix(r.URL.Path, "/cluster/status") {
				answer = `{"data": [{"type": "cluster", "quorate": 0}]}`
			}
			_, _ = w.Write([]byte(answer))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := rawOptions(t, pve)
			url, fingerprint, _ := strings.Cut(start(t), " ")
			raw["endpoints"] = url + "," + raw["endpoints"]
			if fingerprint != "" {
				raw["fingerprints"] += "," + fingerprint
			}
			p := openWith(t, raw, new(atomic.Int64))
			vm := create(t, p, request(t))
			if _, err := p.Get(t.Context(), vm.ProviderID); err != nil {
				t.Error(err)
			}
			if err := p.Delete(t.Context(), vm); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWatch checks that Watch reports a VM when it is made and when it is killed. The killed VM must be Stopped and not
// Pending, although it was started only moments ago.
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
