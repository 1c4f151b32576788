package gcp

import (
	"net/http"
	"slices"
	"testing"
	"time"

	api "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/infratest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/kms"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

func TestConformance(t *testing.T) {
	infratest.Run(t, func(t *testing.T) infratest.Harness {
		c := newTestCloud(t)
		c.fake.MaxPage = 2
		first := c.open(nil)
		return infratest.Harness{
			Provider: first,
			Balance: func(*testing.T) (string, func(*testing.T, infra.VM, bool)) {
				set := c.balance("web-a", "web-http")
				first.Configure(shardWith("web-a", "web-http"))
				return "web", func(_ *testing.T, vm infra.VM, healthy bool) { set(vm, healthy) }
			},
			Delay: delay,
			Kill: func(_ *testing.T, vm infra.VM) {
				c.fake.End(instances+vm.Tags.Instance.String(), "terminated by the guest")
			},
			Settle:  func(*testing.T) { c.ahead.Add(int64(time.Second)) },
			Reopen:  func(*testing.T) infra.Provider { return c.open(nil) },
			Room:    func(_ *testing.T, vms int) { c.setRoom(vms) },
			Sleeps:  contract.Block.Sleeps,
			Disks:   c.disks,
			Unknown: "9999999999999999999",
			Adapt: func(req *infra.CreateRequest) {
				req.InstanceType, req.Args = "e2-small", bootDisk()
			},
		}
	})
}

func TestLateFailuresHaveTheirClasses(t *testing.T) {
	for name, test := range map[string]struct {
		failure *compute.Failure
		want    infra.Class
		quota   string
	}{
		"stockout": {compute.Stockout(), infra.Capacity, ""},
		"quota":    {compute.QuotaExceeded("SSD_TOTAL_GB"), infra.Capacity, "SSD_TOTAL_GB"},
		"rate": {&compute.Failure{Code: "RATE_LIMIT_EXCEEDED", Message: "slow down", Status: 429}, infra.Throttled,
			""},
		"denied":  {&compute.Failure{Code: "PERMISSIONS_ERROR", Message: "no", Status: 403}, infra.Denied, ""},
		"crash":   {&compute.Failure{Code: "INTERNAL_ERROR", Message: "sorry", Status: 500}, infra.Capacity, ""},
		"unknown": {&compute.Failure{Code: "CONDITION_NOT_MET", Message: "no"}, infra.Invalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCloud(t)
			p := c.open(nil)
			c.fake.Fail(compute.Fault{Type: "insert", Failure: test.failure, Times: 1})
			c.fake.SetDelay("insert", 10*time.Second)
			req := c.request()
			_, err := p.Create(t.Context(), req)
			wantClass(t, "create", err, test.want, test.failure.Code)
			if got := infra.QuotaOf(err); got != test.quota {
				t.Errorf("quota %q, want %q", got, test.quota)
			}
			if c.count() != 0 {
				t.Error("there is a VM")
			}
			// For an hour, Google answers a repeated request with the same refusal as the first one. A request with
			// another instance ID succeeds.
			_, err = p.Create(t.Context(), req)
			wantClass(t, "repeat", err, test.want)
			c.create(p, c.request())
		})
	}
}

func TestRefusalsHaveTheirClasses(t *testing.T) {
	for name, test := range map[string]struct {
		with *rest.Error
		want infra.Class
	}{
		"rate": {compute.RateLimited("Queries"), infra.Throttled},
		"quota": {&rest.Error{Code: 403, Reason: "quotaExceeded", Message: "Quota 'CPUS' exceeded."},
			infra.Capacity},
		"forbidden": {&rest.Error{Code: 403, Reason: "forbidden", Message: "no permission"}, infra.Denied},
		"token":     {&rest.Error{Code: http.StatusUnauthorized, Reason: "authError"}, infra.Denied},
		"missing":   {&rest.Error{Code: 404, Reason: "notFound"}, infra.Invalid},
		"malformed": {&rest.Error{Code: 400, Reason: "invalid"}, infra.Invalid},
		"user's rate": {&rest.Error{Code: 403, Reason: "userRateLimitExceeded", Message: "Quota exceeded for quota " +
			"group 'ReadGroup' and limit 'Read requests per user per 100 seconds'."}, infra.Throttled},
	} {
		c := newTestCloud(t)
		var throttled string
		p := c.open(func(cfg *Config) { cfg.Throttled = func(call string) { throttled = call } })
		c.server.Refuse("compute.instances.insert", test.with)
		_, err := p.Create(t.Context(), c.request())
		wantClass(t, name, err, test.want, test.with.Reason)
		if (throttled != "") != (test.want == infra.Throttled) {
			t.Errorf("%s: throttled call %q", name, throttled)
		}
	}
}

// TestRateOfTheProjectIsNamed makes all calls that a project may make in a minute, and one more. The error of the last
// call must name the exceeded quota. In the next minute, a repetition of the last call is accepted.
func TestRateOfTheProjectIsNamed(t *testing.T) {
	c := newTestCloud(t)
	var throttled []string
	p := c.open(func(cfg *Config) { cfg.Throttled = func(call string) { throttled = append(throttled, call) } })
	c.fake.Rates = compute.DocumentedRates()
	c.fake.Rates["Queries"] = 2
	c.create(p, c.request())
	c.create(p, c.request())
	req := c.request()
	_, err := p.Create(t.Context(), req)
	wantClass(t, "a third one in the minute", err, infra.Throttled, "Queries per minute")
	if got := infra.QuotaOf(err); got != "Queries" || !slices.Equal(throttled, []string{"instances.insert"}) {
		t.Errorf("quota %q, throttled calls %v", got, throttled)
	}
	if _, err := p.List(t.Context(), req.Tags.Owner); err != nil {
		t.Errorf("reading has a quota of its own: %v", err)
	}
	c.ahead.Add(int64(time.Minute))
	c.create(p, req)
}

// TestUnusableKeyIsNamed encrypts a disk with a key of Cloud KMS that Compute Engine may not use, and with a disabled
// one.
func TestUnusableKeyIsNamed(t *testing.T) {
	const key = "projects/p/locations/us-central1/keyRings/r/cryptoKeys/disks"
	c := newTestCloud(t)
	p := c.open(nil)
	keys := kms.New()
	keys.Add(key)
	c.fake.UseKey = func(name string) error { return keys.Use(name, "serviceAccount:agent") }
	create := func() error {
		req := c.request()
		req.Args["disks"].([]any)[0].(map[string]any)["diskEncryptionKey"] = map[string]any{"kmsKeyName": key}
		_, err := p.Create(t.Context(), req)
		return err
	}
	wantClass(t, "a key without a binding", create(), infra.Denied, key, "cloudkms.cryptoKeyVersions.useToEncrypt")
	if _, err := keys.Handlers()["cloudkms.projects.locations.keyRings.cryptoKeys.setIamPolicy"](&rest.Call{
		Params: map[string]string{"resource": key}, Body: map[string]any{"policy": map[string]any{"bindings": []any{
			map[string]any{"role": "roles/cloudkms.cryptoKeyEncrypterDecrypter",
				"members": []any{"serviceAccount:agent"}}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := create(); err != nil {
		t.Error(err)
	}
	keys.SetDisabled(key, true)
	wantClass(t, "a disabled key", create(), infra.Denied, key, "DISABLED")
}

func TestLostAnswerOfAnInsertGivesOneVM(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.server.LoseAnswer("compute.instances.insert")
	c.create(p, c.request())
	if n := c.server.Count("compute.instances.insert"); n != 2 {
		t.Errorf("%d inserts, want 2", n)
	}
	if c.count() != 1 {
		t.Errorf("%d VMs, want 1", c.count())
	}
}

// TestRefusalAfterALostAnswerIsIndeterminate checks that a refusal of the second attempt says nothing about the first
// attempt, whose answer was lost.
func TestRefusalAfterALostAnswerIsIndeterminate(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.server.LoseAnswer("compute.instances.insert")
	c.server.Refuse("compute.instances.insert", compute.RateLimited("Queries"))
	req := c.request()
	_, err := p.Create(t.Context(), req)
	wantClass(t, "create", err, infra.Indeterminate)
	c.create(p, req)
	if c.count() != 1 {
		t.Errorf("%d VMs, want 1", c.count())
	}
}

// TestARetryAfterDeletionDoesNotCreateTheNameAgain deletes a VM and repeats its create request at four ages. At the
// first, Google still knows the requestId. At the second and third, only the log of operations shows the insert. At the
// fourth, the log may have lost the insert.
func TestARetryAfterDeletionDoesNotCreateTheNameAgain(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req := c.request()
	if err := p.Delete(t.Context(), c.create(p, req)); err != nil {
		t.Fatal(err)
	}
	for _, age := range []time.Duration{20 * time.Minute, 50 * time.Minute, 2 * time.Hour, 30 * 24 * time.Hour} {
		c.ahead.Store(int64(age))
		_, err := p.Create(t.Context(), req)
		wantClass(t, "after "+age.String(), err, infra.Conflict)
		if c.count() != 0 {
			t.Fatalf("after %s there is a second VM of one ID", age)
		}
	}
}

func TestAnOldRequestWithoutAVMIsMade(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req, failed := c.request(), c.request()
	c.fake.Fail(compute.Fault{Type: "insert", Failure: compute.Stockout(), Times: 1})
	_, err := p.Create(t.Context(), failed)
	wantClass(t, "create", err, infra.Capacity)
	c.ahead.Store(int64(2 * time.Hour))
	first := c.create(p, req)
	c.create(p, failed) // its requestId is forgotten, and no insert succeeded
	if again := c.create(p, req); again.ProviderID != first.ProviderID || c.count() != 2 {
		t.Errorf("%d VMs; %s, then %s", c.count(), first.ProviderID, again.ProviderID)
	}
}

func TestAServerOfTheSameNameIsNotItsPredecessor(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	id := c.addServer("server-x1")
	wantState := func(want infra.State) {
		t.Helper()
		state, err := p.MachineState(t.Context(), id)
		if err != nil || state != want {
			t.Errorf("state %q, %v, want %q", state, err, want)
		}
	}
	wantState(infra.Running)
	c.fake.End(instances+"server-x1", "")
	wantState(infra.Stopped)
	c.fake.Vanish(instances + "server-x1")
	c.addServer("server-x1")
	wantState(infra.Deleted)
	if err := p.Delete(t.Context(), infra.VM{ProviderID: id}); err != nil || c.count() != 1 {
		t.Errorf("a delete of the predecessor: %v, and %d machines", err, c.count())
	}
	_, err := p.MachineState(t.Context(), "9999999999999999999")
	wantClass(t, "a machine that never was", err, infra.NotFound)
}

func TestRequest(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req := c.request()
	req.Args["scheduling"] = map[string]any{"provisioningModel": "SPOT"}
	req.Args["labels"] = map[string]any{"team": "x"}
	req.Args["shieldedInstanceConfig"] = map[string]any{"enableVtpm": false}
	c.create(p, req)
	in, err := p.api.get(t.Context(), req.Tags.Instance.String())
	if err != nil {
		t.Fatal(err)
	}
	if in.Scheduling.InstanceTerminationAction != "DELETE" || *in.Scheduling.AutomaticRestart {
		t.Errorf("scheduling %+v", in.Scheduling)
	}
	if in.Labels["team"] != "x" || in.Labels["nstance-group"] != "g" || !in.Disks[0].AutoDelete {
		t.Errorf("labels %v, disk %+v", in.Labels, in.Disks[0])
	}
	if item(in, "startup-script") != "#!/bin/sh\n" {
		t.Errorf("metadata %+v", in.Metadata)
	}
	made, err := p.instance(req, "")
	if err != nil {
		t.Fatal(err)
	}
	if body, err := made.ShieldedInstanceConfig.MarshalJSON(); err != nil || string(body) != `{"enableVtpm":false}` {
		t.Errorf("a false of args is sent as %s, %v", body, err)
	}
	for what, change := range map[string]func(*infra.CreateRequest){
		"no image":    func(r *infra.CreateRequest) { r.Args = nil },
		"bad cluster": func(r *infra.CreateRequest) { r.Tags.Cluster = "C" },
		"too long":    func(r *infra.CreateRequest) { r.Userdata = make([]byte, 300<<10) },
		"no time":     func(r *infra.CreateRequest) { r.Tags.CreatedAt = time.Time{} },
		"no subnet":   func(r *infra.CreateRequest) { r.Subnet = "" },
		"no type":     func(r *infra.CreateRequest) { r.InstanceType = "" },
	} {
		req := c.request()
		change(&req)
		_, err := p.Create(t.Context(), req)
		wantClass(t, what, err, infra.Invalid)
	}
	if n := c.server.Count("compute.instances.insert"); n != 1 {
		t.Errorf("%d inserts, want only that of the first request", n)
	}
}

func TestUserdata(t *testing.T) {
	for data, want := range map[string][3]string{
		"#!/bin/sh\nx":    {"#!/bin/sh\nx", "", ""},
		"#cloud-config\n": {"", "#cloud-config\n", ""},
		"aGVsbG8=":        {"", "aGVsbG8=", "base64"},
		"\x1f\x8b\x00":    {"", "H4sA", "base64"},
		"":                {},
	} {
		items := map[string]string{}
		if err := addUserdata(items, []byte(data)); err != nil {
			t.Error(err)
		}
		if got := [3]string{items["startup-script"], items["user-data"], items["user-data-encoding"]}; got != want {
			t.Errorf("userdata %q became %q", data, got)
		}
	}
}

func TestUserdataIsRemoved(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req := c.request()
	req.Tags.Group = "Upper" // not a label, so it is in the metadata
	req.Args["metadata"] = map[string]any{"items": []any{map[string]any{"key": "mine", "value": "x"}}}
	vm := c.create(p, req)
	wantClass(t, "another shard's VM", p.RemoveUserdata(t.Context(), infra.Owner{Cluster: "c1", Shard: "s2"},
		req.Tags.Instance), infra.NotFound)
	for range 2 {
		if err := p.RemoveUserdata(t.Context(), req.Tags.Owner, req.Tags.Instance); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.server.Count("compute.instances.setMetadata"); n != 1 {
		t.Errorf("%d changes, want 1", n)
	}
	in, err := p.api.get(t.Context(), vm.ProviderID)
	if err != nil || item(in, "startup-script") != "" || item(in, "mine") != "x" {
		t.Errorf("metadata %+v, %v", in.Metadata, err)
	}
	if again := c.create(p, req); again.ProviderID != vm.ProviderID || again.Tags != req.Tags {
		t.Errorf("the VM became %+v", again)
	}
}

// TestPurchasedAsSpot creates a VM for a request with the tag Spot. A label of the VM tells later leaders that it is a
// Spot VM.
func TestPurchasedAsSpot(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req := c.request()
	req.Tags.Spot = true
	if vm := c.create(p, req); !vm.Tags.Spot {
		t.Errorf("tags %+v", vm.Tags)
	}
	in, err := p.api.get(t.Context(), req.Tags.Instance.String())
	if err != nil {
		t.Fatal(err)
	}
	if s := in.Scheduling; s.ProvisioningModel != "SPOT" || s.InstanceTerminationAction != "DELETE" ||
		*s.AutomaticRestart {
		t.Errorf("scheduling %+v", s)
	}
	if vm := c.create(p, c.request()); vm.Tags.Spot {
		t.Errorf("tags %+v", vm.Tags)
	}
	standard, err := p.instance(c.request(), "")
	if restart := standard.Scheduling.AutomaticRestart; err != nil || restart == nil || *restart {
		t.Errorf("scheduling %+v, %v", standard.Scheduling, err)
	}
}

// TestRefusedDelete checks that a refused deletion is an error, unless the VM is gone.
func TestRefusedDelete(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.create(p, c.request())
	c.server.Refuse("compute.instances.delete", &rest.Error{Code: 403, Reason: "forbidden"})
	wantClass(t, "not allowed", p.Delete(t.Context(), vm), infra.Denied)
	c.server.Refuse("compute.instances.delete", &rest.Error{Code: 404, Reason: "notFound"})
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Errorf("gone: %v", err)
	}
}

// TestClassesOfStatuses checks the classes of answers without a reason.
func TestClassesOfStatuses(t *testing.T) {
	for status, want := range map[int]infra.Class{400: infra.Invalid, 401: infra.Denied, 403: infra.Denied,
		404: infra.NotFound, 408: infra.Indeterminate, 409: infra.Conflict, 412: infra.Conflict, 429: infra.Throttled,
		500: infra.Indeterminate, 503: infra.Indeterminate} {
		if got := classOf(&googleapi.Error{Code: status}); got != want {
			t.Errorf("status %d is %q, want %q", status, got, want)
		}
	}
}

// TestDescribe checks that a VM's addresses are those of all its interfaces, because an agent may call from any of
// them. The first interface has the VM's own IPv4 and IPv6 addresses.
func TestDescribe(t *testing.T) {
	p := newTestCloud(t).open(nil)
	second := &api.NetworkInterface{NetworkIP: "10.0.1.4", Ipv6Address: "2001:db8:1::4",
		Ipv6AccessConfigs: []*api.AccessConfig{{ExternalIpv6: "2001:db8:1::5"}}}
	vm := p.describe(&api.Instance{Name: "name", Hostname: "host.example", Status: "RUNNING", StatusMessage: "fine",
		NetworkInterfaces: []*api.NetworkInterface{{NetworkIP: "10.0.0.4", Ipv6Address: "2001:db8:0:0:0:0:0:4",
			AccessConfigs:     []*api.AccessConfig{{NatIP: "192.0.2.4"}, {NatIP: "192.0.2.4"}},
			Ipv6AccessConfigs: []*api.AccessConfig{{ExternalIpv6: "2001:db8::5"}}}, second}})
	want := []string{"10.0.0.4", "2001:db8::4", "192.0.2.4", "2001:db8::5", "10.0.1.4", "2001:db8:1::4",
		"2001:db8:1::5"}
	if !slices.Equal(vm.Addresses, want) || vm.IPv4 != "10.0.0.4" || vm.IPv6 != "2001:db8::4" ||
		vm.Hostname != "host.example" || vm.EndReason != "" {
		t.Errorf("%+v, want the addresses %v", vm, want)
	}
	vm = p.describe(&api.Instance{Name: "name", Status: "TERMINATED", StatusMessage: "a\nfault",
		NetworkInterfaces: []*api.NetworkInterface{{NetworkIP: "10.0.0.4",
			Ipv6AccessConfigs: []*api.AccessConfig{{ExternalIpv6: "2001:db8::5"}}}, second}})
	if vm.IPv6 != "2001:db8::5" || vm.Hostname != "name" || vm.EndReason != "a fault" {
		t.Errorf("%+v", vm)
	}
	if vm = p.describe(&api.Instance{NetworkInterfaces: []*api.NetworkInterface{{}, second}}); vm.IPv6 != "" {
		t.Errorf("IPv6 %s of the second interface", vm.IPv6)
	}
}

func TestPreemptedSpotVMIsGone(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	req := c.request()
	req.Args["scheduling"] = map[string]any{"provisioningModel": "SPOT"}
	vm := c.create(p, req)
	c.fake.Preempt(instances+req.Tags.Instance.String(), 0)
	_, err := p.Get(t.Context(), vm.ProviderID)
	wantClass(t, "get", err, infra.NotFound)
	if state, err := p.MachineState(t.Context(), vm.ProviderID); err != nil || state != infra.Deleted {
		t.Errorf("state %q, %v", state, err)
	}
	_, err = p.Create(t.Context(), req)
	wantClass(t, "repeat", err, infra.Conflict)
}

// TestAMissingMachineNeedsItsDeletionAsEvidence checks that a machine that cannot be found counts as deleted only if the
// log of operations has a deletion that succeeded.
func TestAMissingMachineNeedsItsDeletionAsEvidence(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	vm := c.create(p, c.request()) // its insert has ended without a failure
	missing := &rest.Error{Code: 404, Reason: "notFound"}
	c.server.Refuse("compute.instances.get", missing)
	_, err := p.MachineState(t.Context(), vm.ProviderID)
	wantClass(t, "no deletion", err, infra.NotFound)
	c.fake.Fail(compute.Fault{Type: "delete", Times: 1,
		Failure: &compute.Failure{Code: "INTERNAL_ERROR", Message: "sorry", Status: 500}})
	_ = p.Delete(t.Context(), vm) // only its operation matters here
	c.server.Refuse("compute.instances.get", missing)
	_, err = p.MachineState(t.Context(), vm.ProviderID)
	wantClass(t, "a failed deletion", err, infra.NotFound)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if state, err := p.MachineState(t.Context(), vm.ProviderID); err != nil || state != infra.Deleted {
		t.Errorf("after the deletion: state %q, %v", state, err)
	}
	for what, call := range map[string]func() error{
		"look up by name": func() error { _, err := p.MachineState(t.Context(), "server-x1"); return err },
		"delete by name":  func() error { return p.Delete(t.Context(), infra.VM{ProviderID: "server-x1"}) },
	} {
		wantClass(t, what, call(), infra.Invalid, "is not the ID of an instance")
	}
}
