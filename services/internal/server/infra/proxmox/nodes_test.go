package proxmox_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
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

// TestMigrationDuringACall moves a VM to another node after a call has read on which node the VM is. The call must not
// report that there is no VM, and must succeed when it is repeated.
func TestMigrationDuringACall(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	req.Args["template"] = "shared"
	var vm infra.VM
	for i, test := range []struct {
		before string
		call   func() error
	}{
		{configCall, func() (err error) { vm, err = p.Create(t.Context(), req); return err }},
		{readCall, func() error { _, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance); return err }},
		{statusCall, func() error { _, err := p.Get(t.Context(), vm.ProviderID); return err }},
		{configCall, func() error { return p.RemoveUserdata(t.Context(), owner, req.Tags.Instance) }},
		{readCall, func() error { return p.RemoveUserdata(t.Context(), owner, req.Tags.Instance) }},
		{stopCall, func() error { return p.Delete(t.Context(), vm) }},
	} {
		to := []string{"pve2", "pve1"}[i%2]
		pve.Inject(fakepve.Fault{Call: test.before, Before: func() { pve.Migrate(pve.VMs()[0], to) }})
		if err := test.call(); infra.ClassOf(err) != infra.Indeterminate {
			t.Errorf("before %s: %v", test.before, err)
		}
		if err := test.call(); err != nil {
			t.Errorf("before %s, repeated: %v", test.before, err)
		}
	}
}

// TestInventoryFails lets a call fail that each operation makes first. Then nothing is known about any VM.
func TestInventoryFails(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	req := request(t)
	id, vm := req.Tags.Instance, create(t, p, req)
	for name, operation := range map[string]func() error{
		"Create":         func() error { _, err := p.Create(t.Context(), req); return err },
		"Delete":         func() error { return p.Delete(t.Context(), vm) },
		"FindByInstance": func() error { _, err := p.FindByInstance(t.Context(), owner, id); return err },
		"Get":            func() error { _, err := p.Get(t.Context(), vm.ProviderID); return err },
		"List":           func() error { _, err := p.List(t.Context(), owner); return err },
		"RemoveUserdata": func() error { return p.RemoveUserdata(t.Context(), owner, id) },
		"Verify":         func() error { return p.Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0"]}`)) },
	} {
		for _, call := range []string{"GET /cluster/resources", "GET /cluster/status", "GET /access/permissions"} {
			pve.Inject(fakepve.Fault{Call: call, Status: 500, Text: "unable to read"})
			if err := operation(); infra.ClassOf(err) != infra.Indeterminate {
				t.Errorf("%s: %s fails, got %v", name, call, err)
			}
		}
	}
	if vm := find(t, p, req); vm.State != infra.Running {
		t.Errorf("the VM is %s", vm.State)
	}
}

// TestMigrationDuringList moves a VM while List runs: after List has read on which node the VM is. The result of List
// must contain the VM.
func TestMigrationDuringList(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	pve.Inject(fakepve.Fault{Call: listCall, Before: func() { pve.Migrate(vmid(t, vm), "pve2") }})
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
	pve.Inject(fakepve.Fault{Call: listCall, Status: 595, Text: "No route to host"})
	if states := list(t, p); states[vm.ProviderID] != infra.Unknown {
		t.Errorf("listed: %v, want one VM in an unknown state", states)
	}
}

// TestNodeFails lets a node answer with an error. Nothing is known then: List must fail, and must not leave out VMs.
func TestNodeFails(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	vm := create(t, p, request(t))
	pve.Kill(vmid(t, vm)) // List asks for the metadata of a VM that is off
	for _, call := range []string{listCall, readCall} {
		pve.Inject(fakepve.Fault{Call: call, Status: 500, Text: "unable to read"})
		_, err := p.List(t.Context(), owner)
		wantClass(t, err, infra.Indeterminate, "unable to read")
	}
	// The node goes down, or the VM leaves it.
	for text, status := range map[string]int{"No route to host": 595,
		"Configuration file 'nodes/pve1/x' does not exist": 500} {
		pve.Inject(fakepve.Fault{Call: readCall, Status: status, Text: text})
		if states := list(t, p); states[vm.ProviderID] != infra.Unknown {
			t.Errorf("%s: listed %v, want one VM in an unknown state", text, states)
		}
	}
}

// TestCallsOfList counts how often List reads the metadata of VMs: not of VMs that are known to run, not of VMs on a
// node that is down, and not of VMs of other people, even if they look like an instance.
func TestCallsOfList(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	create(t, p, request(t))
	onDead := request(t)
	onDead.Subnet = "pve2/vmbr0"
	create(t, p, onDead)
	pve.SetOnline("pve2", false)
	pve.AddVM(500, "pve1", "somebody")
	pve.SetConfig(500, "description", "nstance/1 {")
	for _, p := range []*proxmox.Provider{p, open(t, pve)} {
		for range 2 {
			if states := list(t, p); len(states) != 2 {
				t.Errorf("listed: %v", states)
			}
		}
	}
	calls := count(pve, readCall)
	list(t, p)
	if more := count(pve, readCall) - calls; more > 0 {
		t.Errorf("%d calls", more)
	}
}

// TestEditedTags removes a tag of a VM. A server that starts while the VM's node is down does not know which instance it
// is, so no instance counts as gone.
func TestEditedTags(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	req := request(t)
	vm := create(t, open(t, pve), req)
	pve.SetOnline("pve1", false)
	for _, tags := range []string{"nstance.c.s", req.Tags.Instance.String(), ""} {
		pve.SetConfig(vmid(t, vm), "tags", tags)
		p := open(t, pve)
		_, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance)
		wantClass(t, err, infra.Indeterminate, "node pve1 is offline")
		if states := list(t, p); len(states) > 0 {
			t.Errorf("%q: listed %v", tags, states)
		}
	}
}

// TestProviderIDs asks for VMs that are not instances, such as a VM that a person made.
func TestProviderIDs(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	for _, id := range []string{"", "x", "-1", "9001", "1000000", "1000000000"} {
		_, err := p.Get(t.Context(), id)
		wantClass(t, err, infra.Invalid, "not the VMID of an instance")
		wantClass(t, p.Delete(t.Context(), infra.VM{ProviderID: id}), infra.Invalid, "not the VMID of an instance")
	}
	if err := p.RemoveUserdata(t.Context(), owner, request(t).Tags.Instance); err != nil {
		t.Errorf("there is no VM and no userdata: %v", err)
	}
	for _, id := range []string{"1000001", "999999999"} {
		_, err := p.Get(t.Context(), id)
		wantClass(t, err, infra.NotFound, "")
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
	if clones := count(pve, cloneCall); clones != 1 {
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
		"502 for a read": proxy(forward(t, pve, func(w http.ResponseWriter, r *http.Request) bool {
			bad := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/config")
			if bad {
				w.WriteHeader(http.StatusBadGateway)
			}
			return bad
		})),
		"ends before the first change": func(t *testing.T) string {
			t.Helper()
			var listener net.Listener
			server := httptest.NewUnstartedServer(forward(t, pve, func(w http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "/access/permissions") {
					w.Header().Set("Connection", "close")
					_ = listener.Close()
				}
				return false
			}))
			listener = server.Listener
			server.StartTLS()
			t.Cleanup(server.Close)
			sum := sha256.Sum256(server.Certificate().Raw)
			return server.URL + " " + fmt.Sprintf("%X", sum)
		},
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

// forward returns a handler that sends each request to the cluster, unless the function instead has answered it.
func forward(t *testing.T, pve *fakepve.Cluster, instead func(http.ResponseWriter, *http.Request) bool) http.HandlerFunc {
	t.Helper()
	target, err := url.Parse(pve.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test
	return func(w http.ResponseWriter, r *http.Request) {
		if !instead(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}
}

// addEndpoint starts a server, and adds it to the options as the last endpoint.
func addEndpoint(t *testing.T, raw map[string]string, serve http.HandlerFunc) {
	t.Helper()
	server := httptest.NewTLSServer(serve)
	t.Cleanup(server.Close)
	sum := sha256.Sum256(server.Certificate().Raw)
	raw["endpoints"] = strings.TrimPrefix(raw["endpoints"]+","+server.URL, ",")
	raw["fingerprints"] += "," + fmt.Sprintf("%X", sum)
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// TestErrorOfANodeIsAnAnswer lets calls fail at a cluster whose second endpoint hangs. The provider must return the
// error, and must not ask the second endpoint.
func TestErrorOfANodeIsAnAnswer(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	vm := create(t, open(t, pve), request(t))
	ask := func(p *proxmox.Provider) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := p.Get(ctx, vm.ProviderID)
		return err
	}
	raw := rawOptions(t, pve)
	addEndpoint(t, raw, hang)
	p := openWith(t, raw, new(atomic.Int64))
	for text, status := range map[string]int{"unable to read": 500, "No route to host": 595, "not allowed": 403} {
		pve.Inject(fakepve.Fault{Call: statusCall, Status: status, Text: text})
		if err := ask(p); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
		if err := ask(p); err != nil {
			t.Errorf("after %q: %v", text, err)
		}
	}
	// An answer without a body is an answer too.
	raw = rawOptions(t, pve)
	raw["endpoints"] = ""
	addEndpoint(t, raw, forward(t, pve, func(w http.ResponseWriter, r *http.Request) bool {
		bad := strings.HasSuffix(r.URL.Path, "/config")
		if bad {
			w.WriteHeader(599)
		}
		return bad
	}))
	addEndpoint(t, raw, hang)
	wantClass(t, ask(openWith(t, raw, new(atomic.Int64))), infra.Indeterminate, "599")
}

// TestNoQuorumForACall lets one of two endpoints refuse a read because it has lost the quorum. The other endpoint answers
// it.
func TestNoQuorumForACall(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	raw["endpoints"] += "," + strings.Replace(raw["endpoints"], "127.0.0.1", "localhost", 1)
	p := openWith(t, raw, new(atomic.Int64))
	vm := create(t, p, request(t))
	pve.Inject(fakepve.Fault{Call: statusCall, Status: 500, Text: "cluster not ready - no quorum?"})
	if _, err := p.Get(t.Context(), vm.ProviderID); err != nil {
		t.Error(err)
	}
}

// TestCallThatEndsEarly ends the context of a call while an endpoint has the call. After a deadline, the next call goes
// to the next endpoint, because the endpoint may hang. After a cancellation, it goes to the same endpoint.
func TestCallThatEndsEarly(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	list := func(p *proxmox.Provider, ctx context.Context) error {
		_, err := p.List(ctx, owner)
		return err
	}
	wantNext := func(p *proxmox.Provider) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := list(p, ctx); err != nil {
			t.Error(err)
		}
	}
	raw := rawOptions(t, pve)
	good := raw["endpoints"]
	raw["endpoints"] = ""
	addEndpoint(t, raw, hang)
	raw["endpoints"] += "," + good
	p := openWith(t, raw, new(atomic.Int64))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	wantClass(t, list(p, ctx), infra.Indeterminate, "deadline")
	wantNext(p)

	raw = rawOptions(t, pve)
	addEndpoint(t, raw, hang)
	p = openWith(t, raw, new(atomic.Int64))
	ctx, cancel = context.WithCancel(t.Context())
	pve.Inject(fakepve.Fault{Call: "GET /cluster/resources", Before: cancel})
	wantClass(t, list(p, ctx), infra.Indeterminate, "canceled")
	wantNext(p)
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
	began, req := time.Now(), request(t)
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
	if calls := count(pve, "GET /cluster/status"); calls > 5+int(time.Since(began)/time.Second) {
		t.Errorf("%d calls in %s", calls, time.Since(began))
	}
}

// TestReports checks which VMs Watch reports after a change. It must not call a node that is offline, which takes long.
func TestReports(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	pve.SetOnline("pve2", false)
	vm := create(t, p, request(t))
	create(t, p, request(t))
	pve.AddVM(500, "pve1", "somebody")
	calls, pass := count(pve, listCall), proxmox.Passes(p)
	for i, step := range []struct {
		change func()
		want   int
	}{
		{func() {}, 2},
		{func() {}, 0},
		{func() { pve.Kill(vmid(t, vm)) }, 1},
		{func() { pve.Inject(fakepve.Fault{Call: listCall, Status: 500, Text: "unable to read"}) }, 0},
		{func() { pve.RemoveVM(vmid(t, vm)) }, 1},
		{func() {}, 0},
	} {
		step.change()
		var reports []ident.ID
		pass(t.Context(), func(id ident.ID) { reports = append(reports, id) })
		if len(reports) != step.want || step.want == 1 && reports[0] != vm.Tags.Instance {
			t.Errorf("step %d: %v", i, reports)
		}
	}
	if calls = count(pve, listCall) - calls; calls != 5 {
		t.Errorf("%d calls, want those of one node", calls)
	}
}
