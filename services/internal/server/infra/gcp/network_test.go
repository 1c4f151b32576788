package gcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

func alias(cfg *Config) {
	cfg.Network = Network{Kind: "alias", Range: "leader", Address: netip.MustParseAddr(leaderIP)}
	cfg.Answers = func(context.Context, netip.Addr) error { return nil }
}

// holders returns the names of the machines that have the leader's address.
func (c *testCloud) holders() (names []string) {
	c.fake.Do(func() {
		for _, r := range c.fake.All("", "instances") {
			if strings.Contains(fmt.Sprint(r.Body["networkInterfaces"]), leaderIP+"/32") {
				names = append(names, r.Name())
			}
		}
	})
	return names
}

func (c *testCloud) wantHolder(names ...string) {
	c.t.Helper()
	if got := c.holders(); !slices.Equal(got, names) {
		c.t.Errorf("the address is on %v, want %v", got, names)
	}
}

func TestAliasMovesFromADeadVM(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(alias)
	a, b := c.addServer("a"), c.addServer("b")
	if err := p.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	c.wantHolder("a")
	c.fake.End(instances+"a", "it crashed")
	c.fake.SetDelay("updateNetworkInterface", 40*time.Second)
	if err := p.Acquire(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c.wantHolder("b")

	calls := len(c.server.Calls())
	if err := p.Acquire(t.Context(), b); err != nil || len(c.server.Calls()) != calls+1 {
		t.Errorf("a check of the address: %v, %d calls", err, len(c.server.Calls())-calls)
	}
	for range 2 {
		if err := p.Release(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		c.wantHolder()
	}
}

// TestAliasStaysStuckOnADeadVM makes the API refuse, for longer than one Acquire, to take the leader's address from a
// dead VM. Acquire returns the API's reason. A later Acquire gets the address.
func TestAliasStaysStuckOnADeadVM(t *testing.T) {
	c := newTestCloud(t)
	patience := 50 // pauses
	p := c.open(func(cfg *Config) {
		alias(cfg)
		cfg.Sleep = func(ctx context.Context, d time.Duration) error {
			c.ahead.Add(int64(d))
			if patience--; patience < 0 { // as after acquireTimeout
				return context.DeadlineExceeded
			}
			return ctx.Err()
		}
	})
	a, b := c.addServer("a"), c.addServer("b")
	if err := p.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	c.fake.End(instances+"a", "it crashed")
	c.fake.Fail(compute.Fault{Type: "updateNetworkInterface", Matches: func(r *compute.Resource) bool {
		return r.Name() == "a"
	}, Failure: &compute.Failure{Code: "RESOURCE_NOT_READY", Message: "The resource a is not ready"}})
	wantClass(t, "a stuck address", p.Acquire(t.Context(), b), infra.Indeterminate, leaderIP, "a is not ready")
	c.wantHolder("a")
	c.fake.Repair()
	patience = 50
	if err := p.Acquire(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c.wantHolder("b")
}

// TestAliasIsTakenInARace makes a third machine take the leader's address during Acquire: after the old holder has lost
// the address and before the new holder has it.
func TestAliasIsTakenInARace(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(alias)
	a, b := c.addServer("a"), c.addServer("b")
	if err := p.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	c.server.Refuse("compute.instances.updateNetworkInterface", compute.Stale("fingerprint"))
	c.fake.Fail(compute.Fault{Type: "updateNetworkInterface", Times: 1, Matches: func(r *compute.Resource) bool {
		return r.Name() == "b"
	}, Failure: &compute.Failure{Code: "IP_IN_USE_BY_ANOTHER_RESOURCE", Message: "in use"}})
	if err := p.Acquire(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c.wantHolder("b")
}

// TestAliasAfterPassingErrors checks that Acquire goes on after an error that may be temporary, and after the holder is
// gone, but not after a refusal.
func TestAliasAfterPassingErrors(t *testing.T) {
	const update = "compute.instances.updateNetworkInterface"
	for name, test := range map[string]struct {
		call string
		with *rest.Error
		want infra.Class
	}{
		"the holder is gone": {update, &rest.Error{Code: 404, Reason: "notFound"}, ""},
		"not ready":          {update, &rest.Error{Code: 400, Reason: "resourceNotReady"}, ""},
		"not allowed":        {update, &rest.Error{Code: 403, Reason: "forbidden"}, infra.Denied},
		"not allowed to look": {"compute.instances.get", &rest.Error{Code: 403, Reason: "forbidden"},
			infra.Denied},
	} {
		c := newTestCloud(t)
		p := c.open(alias)
		a, b := c.addServer("a"), c.addServer("b")
		if err := p.Acquire(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		c.server.Refuse(test.call, test.with)
		if err := p.Acquire(t.Context(), b); test.want != "" {
			wantClass(t, name, err, test.want)
			c.wantHolder("a")
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			c.wantHolder("b")
		}
	}
}

func TestAliasKeepsOtherRanges(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(alias)
	a := c.addServer("a")
	other := map[string]any{"ipCidrRange": "10.9.0.9/32", "subnetworkRangeName": "leader"}
	c.fake.Do(func() {
		nic := c.fake.Find(instances + "a").Body["networkInterfaces"].([]any)[0].(map[string]any)
		nic["aliasIpRanges"] = []any{other}
	})
	for _, do := range []func(context.Context, string) error{p.Acquire, p.Release} {
		if err := do(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		self, err := p.api.get(t.Context(), a)
		if err != nil || self.NetworkInterfaces[0].AliasIpRanges[0].IpCidrRange != "10.9.0.9/32" {
			t.Errorf("interfaces %+v, %v", self.NetworkInterfaces, err)
		}
	}
}

func TestAddressMustBeOnTheMachine(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(func(cfg *Config) {
		alias(cfg)
		cfg.Answers = infra.Answers
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := p.Acquire(ctx, c.addServer("a"))
	wantClass(t, "an address that this machine does not have", err, infra.Indeterminate, "cannot be used yet")
	if err := infra.Answers(t.Context(), netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Error(err)
	}
}

func TestLoadBalancerFindsTheLeaderItself(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(func(cfg *Config) { cfg.Network = Network{Kind: "load_balancer"} })
	if err := errors.Join(p.Acquire(t.Context(), "1"), p.Release(t.Context(), "1")); err != nil {
		t.Error(err)
	}
	if n := len(c.server.Calls()); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestInstanceGroups(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	p.Configure(shardWith("web-a"))
	vm := c.create(p, c.request())
	wantClass(t, "a group that does not exist", p.Register(t.Context(), "web", vm), infra.NotFound)
	if err := p.Deregister(t.Context(), "web", vm); err != nil {
		t.Error(err)
	}
	c.fake.Do(func() { c.fake.Put("projects/p/zones/us-central1-a/instanceGroups/web-a", map[string]any{"size": 0}) })
	members := func(want int) {
		t.Helper()
		if links, err := p.api.groupMembers(t.Context(), "web-a"); err != nil || len(links) != want {
			t.Errorf("members %v, %v, want %d", links, err, want)
		}
	}
	for range 2 {
		if err := p.Register(t.Context(), "web", vm); err != nil {
			t.Fatal(err)
		}
		members(1)
	}
	c.server.Refuse("compute.instanceGroups.removeInstances", &rest.Error{Code: 403, Reason: "forbidden"})
	wantClass(t, "a refused removal", p.Deregister(t.Context(), "web", vm), infra.Denied)
	for range 2 {
		if err := p.Deregister(t.Context(), "web", vm); err != nil {
			t.Fatal(err)
		}
		members(0)
	}
	// The call is accepted, and its operation fails.
	failed := compute.Failure{Code: "PERMISSIONS_ERROR", Message: "no", Status: 403}
	for _, change := range []struct {
		kind string
		call func() error
	}{
		{"addInstances", func() error { return p.Register(t.Context(), "web", vm) }},
		{"removeInstances", func() error { return p.Deregister(t.Context(), "web", vm) }},
	} {
		c.fake.Fail(compute.Fault{Type: change.kind, Failure: &failed, Times: 1})
		wantClass(t, change.kind, change.call(), infra.Denied)
		if err := change.call(); err != nil {
			t.Fatal(err)
		}
	}
	c.fake.SetDelay("delete", time.Minute)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	wantClass(t, "a VM that is being deleted", p.Register(t.Context(), "web", vm), infra.Invalid)
	c.ahead.Add(int64(time.Hour))
	wantClass(t, "a VM that is gone", p.Register(t.Context(), "web", vm), infra.Invalid)
	wantClass(t, "an unknown load balancer", p.Register(t.Context(), "none", vm), infra.Invalid)
}

// TestBackendServices checks MemberHealth with backend services that give no verdict: one has no health checks, one is
// gone, and one does not contain the instance group.
func TestBackendServices(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.balance("web-a", "web-http")
	c.fake.Do(func() {
		backend := c.fake.Find("projects/p/zones/us-central1-a/instanceGroups/web-a").Link()
		c.fake.Put("projects/p/regions/us-central1/backendServices/unused", map[string]any{
			"backends": []any{map[string]any{"group": backend}}})
		c.fake.Put("projects/p/regions/us-central1/backendServices/other", map[string]any{"backends": []any{}})
	})
	vm := c.create(p, c.request())
	p.Configure(shardWith("web-a"))
	if err := p.Register(t.Context(), "web", vm); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		services []string
		want     infra.Class
		members  int
	}{
		{nil, infra.Invalid, 0}, {[]string{"unused"}, "", 0}, {[]string{"unused", "web-http"}, "", 1},
		{[]string{"web-http", "gone"}, infra.NotFound, 0}, {[]string{"web-http", "other"}, infra.Invalid, 0},
	} {
		p.Configure(shardWith("web-a", test.services...))
		members, err := p.MemberHealth(t.Context(), "web", []infra.VM{vm})
		if infra.ClassOf(err) != test.want && (err != nil || test.want != "") || len(members) != test.members {
			t.Errorf("%v: %v, %v; want %d members, class %q", test.services, members, err, test.members, test.want)
		}
	}
}

// TestDelaysOfBackendServices checks that the longest delay of the backend services counts.
func TestDelaysOfBackendServices(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.balance("web-a", "web-http")
	c.fake.Do(func() {
		at := "projects/p/regions/us-central1/backendServices/"
		c.fake.Put(at+"off", map[string]any{})
		c.fake.Put(at+"long", map[string]any{"connectionDraining": map[string]any{"drainingTimeoutSec": 3600}})
	})
	ask := func(services ...string) (time.Duration, error) {
		p.Configure(shardWith("web-a", services...))
		return p.DeregistrationDelay(t.Context(), "web")
	}
	for _, test := range []struct {
		services []string
		want     time.Duration
	}{
		{[]string{"off"}, 0}, {[]string{"off", "web-http"}, delay}, {[]string{"long", "web-http"}, time.Hour},
	} {
		if got, err := ask(test.services...); err != nil || got != test.want {
			t.Errorf("%v: %s, %v; want %s", test.services, got, err, test.want)
		}
	}
	_, err := ask()
	wantClass(t, "no backend services", err, infra.Invalid, "backend_service_names")
	_, err = ask("web-http", "gone")
	wantClass(t, "a missing service", err, infra.NotFound, "gone")
	c.server.Refuse("compute.regionBackendServices.get", compute.RateLimited("Queries"))
	_, err = ask("web-http")
	wantClass(t, "throttled", err, infra.Throttled)
}

func TestImages(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.ahead.Add(int64(time.Minute))
	c.fake.AddImage("debian-cloud", "debian-12-v2", "debian-12")
	c.fake.AddImage("debian-cloud", "debian-11-v9", "debian-11")
	for name, change := range map[string]map[string]any{
		"debian-12-v8": {"status": "PENDING"}, "debian-12-v9": {"deprecated": map[string]any{"state": "DEPRECATED"}},
	} {
		c.fake.AddImage("debian-cloud", name, "debian-12")
		c.fake.Do(func() { maps.Copy(c.fake.Find("projects/debian-cloud/global/images/"+name).Body, change) })
	}
	c.ahead.Add(int64(time.Minute))
	c.fake.AddImage("debian-cloud", "debian-13-v2", "debian-13")
	c.ahead.Add(int64(time.Minute))
	c.fake.AddImage("debian-cloud", "debian-13-v1", "debian-13") // a newer one
	c.fake.AddImage("p", "base-1", "")
	for what, test := range map[string]struct {
		query infra.ImageQuery
		want  string
	}{
		"newest of a family": {infra.ImageQuery{Owners: []string{"debian-cloud"}, Newest: true,
			Filters: map[string][]string{"family": {"debian-12"}}}, "projects/debian-cloud/global/images/debian-12-v2"},
		"newest by its time": {infra.ImageQuery{Owners: []string{"debian-cloud"}, Newest: true,
			Filters: map[string][]string{"family": {"debian-13"}}}, "projects/debian-cloud/global/images/debian-13-v1"},
		"not ready, on request": {infra.ImageQuery{Owners: []string{"debian-cloud"},
			Filters: map[string][]string{"status": {"PENDING"}}}, "projects/debian-cloud/global/images/debian-12-v8"},
		"oldest": {infra.ImageQuery{Owners: []string{"debian-cloud"}, Filters: map[string][]string{
			"name": {"debian-12-*"}}}, "projects/debian-cloud/global/images/debian-12-v1"},
		"by name": {infra.ImageQuery{Owners: []string{"self", "debian-cloud"}, Sort: "name",
			Filters: map[string][]string{"architecture": {"X86_64"}}}, "projects/p/global/images/base-1"},
	} {
		if got, err := p.Resolve(t.Context(), test.query); err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", what, got, err, test.want)
		}
	}
	_, err := p.Resolve(t.Context(), infra.ImageQuery{Owners: []string{"self"},
		Filters: map[string][]string{"name": {"x"}}})
	wantClass(t, "no image", err, infra.NotFound)
	_, err = p.Resolve(t.Context(), infra.ImageQuery{})
	wantClass(t, "no owner", err, infra.Invalid)
	_, err = p.Resolve(t.Context(), infra.ImageQuery{Owners: []string{"self"},
		Filters: map[string][]string{"state": {"x"}}})
	wantClass(t, "a filter of another cloud", err, infra.Invalid, "family")
}

func TestSubnets(t *testing.T) {
	c := newTestCloud(t)
	p := c.open(nil)
	c.fake.Do(func() {
		c.fake.Find(subnets + "subnet-b").Body["utilizationDetails"] = compute.JSON(
			`{"ipv4Utilizations": [{"totalAllocatedIp": "4090", "totalFreeIp": "2"}]}`)
	})
	room, err := p.HasRoom(t.Context(), []string{"subnet-a", "subnet-b", "none"})
	want := map[string]bool{"subnet-a": true, "subnet-b": false, "none": false}
	if diff := cmp.Diff(want, room); err != nil || diff != "" {
		t.Errorf("room %v, %v", diff, err)
	}
	shard := shardWith("web-a")
	wantClass(t, "no group", p.Verify(t.Context(), shard), infra.NotFound, "load_balancers.web")
	c.fake.Do(func() { c.fake.Put("projects/p/zones/us-central1-a/instanceGroups/web-a", map[string]any{"size": 0}) })
	if err := p.Verify(t.Context(), shard); err != nil {
		t.Error(err)
	}
	shard.Server.SubnetPools["main"] = []string{"none"}
	wantClass(t, "no subnet", p.Verify(t.Context(), shard), infra.NotFound, "none")
	shard.Server.SubnetPools["main"] = []string{"projects/p/regions/europe-west1/subnetworks/x"}
	wantClass(t, "a foreign subnet", p.Verify(t.Context(), shard), infra.Invalid, "europe-west1")
}

func TestMachineIDIsThatOfTheMetadataServer(t *testing.T) {
	answer, flavor := "4611686018427395822", "Google"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/id" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		w.Header().Set("Metadata-Flavor", flavor)
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	t.Setenv(metadataVariable, strings.TrimPrefix(server.URL, "http://"))
	machine, err := identify(t.Context(), infra.Env{})
	if err != nil || machine != (infra.Machine{ID: answer, Named: true}) {
		t.Errorf("machine %+v, %v", machine, err)
	}
	if answer = "i-123"; !failed(identify(t.Context(), infra.Env{})) {
		t.Error("the ID of another cloud is accepted")
	}
	if answer, flavor = "1", ""; !failed(identify(t.Context(), infra.Env{})) {
		t.Error("another metadata server is accepted")
	}
}

func failed(_ infra.Machine, err error) bool { return err != nil }

// TestDescribeType asks for the size of a machine type, and of one that does not exist.
func TestDescribeType(t *testing.T) {
	p := newTestCloud(t).open(nil)
	size, err := p.DescribeType(t.Context(), "e2-standard-2")
	if err != nil || size != (infra.InstanceType{CPUs: 2, MemoryMiB: 8192}) {
		t.Errorf("e2-standard-2 is %+v, %v", size, err)
	}
	_, err = p.DescribeType(t.Context(), "e2-tiny")
	wantClass(t, "an unknown type", err, infra.NotFound, "e2-tiny")
}
