// Package infratest is the conformance suite of infra.Provider. Every provider must pass it.
package infratest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Harness describes an empty provider for one test.
type Harness struct {
	Provider infra.Provider
	// Owner is the owner of the test's VMs. The zero value means cluster c1 and shard s1. Tests that share a provider's
	// state need different owners.
	Owner infra.Owner
	// Types and Subnets are two values each of InstanceType and Subnet. If empty, Types are small and large, and
	// Subnets are subnet-a and subnet-b.
	Types, Subnets [2]string
	// Kill ends a VM's machine without a provider call, as a crash would. It returns when the machine has ended.
	Kill func(t *testing.T, vm infra.VM)
	// Settle waits for a moment, or advances the provider's clock. While the suite waits until a VM reaches a state, it
	// calls Settle between two checks.
	Settle func(t *testing.T)
	// Adapt, if set, changes the args, type or subnet of a request so that the provider accepts the request.
	Adapt func(req *infra.CreateRequest)
	// Reopen, if set, opens the provider a second time, as after a restart of the server.
	Reopen func(t *testing.T) infra.Provider
	// Balance, if the provider has the capability LoadBalancerHealth, makes a load balancer and returns its name. set
	// makes a registered VM healthy or unhealthy, and returns when the load balancer reports that.
	Balance func(t *testing.T) (name string, set func(t *testing.T, vm infra.VM, healthy bool))
	// Delay is the deregistration delay of the load balancer that Balance makes. Zero means that the provider lacks the
	// capability DeregistrationDelay.
	Delay time.Duration
	// Room, if the provider has the capability Batch, limits how many VMs of the first type have room in the first
	// subnet, including those that are there. VMs that sleep take up no room, and need room to wake.
	Room func(t *testing.T, vms int)
	// Sleeps, if the provider has the capability Sleeper, are the ways in which its VMs can sleep: cloud.Block.Sleeps.
	Sleeps []string
	// Disks, if set, identifies the disks of a VM, which must still be there after sleep.
	Disks func(t *testing.T, vm infra.VM) string
	// Unknown is a well-formed provider ID that belongs to no VM.
	Unknown string
	// OddTags are unusual tag values that the provider must return unchanged. nil means a default set.
	OddTags []string
}

// settles is how many times a test checks for a state before the test fails.
const settles = 1000

var oddTags = []string{"", "grüße-世界-🙂", `a "b" 'c' \d`, "$(reboot) `x` ${HOME} #{pane_id} %d %", "a=b,c:d;e/f@g+h",
	" spaces ", "line\nbreak\ttab", "-f", "~", "*"}

// Run runs the suite. It calls open once for each test, and tests run in parallel.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for name, test := range map[string]func(*suite){
		"CreateIsIdempotent":        createIsIdempotent,
		"OtherParametersConflict":   otherParametersConflict,
		"ConcurrentCreates":         concurrentCreates,
		"InvalidRequest":            invalidRequest,
		"TagsComeBack":              tagsComeBack,
		"ListIsByOwner":             listIsByOwner,
		"UnknownIsNotFound":         unknownIsNotFound,
		"DeleteIsIdempotent":        deleteIsIdempotent,
		"ForeignIsSpared":           foreignIsSpared,
		"OneLifePerToken":           oneLifePerToken,
		"KilledIsSeen":              killedIsSeen,
		"EndedContext":              endedContext,
		"LoadBalancerHealth":        loadBalancerHealth,
		"DeregistrationDelay":       deregistrationDelay,
		"AnotherProcessSeesTheSame": anotherProcessSeesTheSame,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSuite(t, open(t)))
		})
	}
	runBatch(t, open)
	runSleep(t, open)
}

type suite struct {
	*testing.T
	Harness
	owner infra.Owner
}

func newSuite(t *testing.T, h Harness) *suite {
	if h.Owner == (infra.Owner{}) {
		h.Owner = infra.Owner{Cluster: "c1", Shard: "s1"}
	}
	if h.Types[0] == "" {
		h.Types = [2]string{"small", "large"}
	}
	if h.Subnets[0] == "" {
		h.Subnets = [2]string{"subnet-a", "subnet-b"}
	}
	return &suite{T: t, Harness: h, owner: h.Owner}
}

// request makes a request for a new instance.
func (s *suite) request() infra.CreateRequest {
	s.Helper()
	id, err := ident.NewID("tst", time.Now(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	req := infra.CreateRequest{
		Tags: infra.Tags{
			Owner: s.owner, Tenant: "default", Instance: id, Term: 7, InfraHash: "0123abcd",
			Group: "workers", Template: "worker", Kind: "tst", CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
		},
		InstanceType: s.Types[0],
		Subnet:       s.Subnets[0],
		Userdata:     []byte("#!/bin/sh\nexit 0\n"),
	}
	if s.Adapt != nil {
		s.Adapt(&req)
	}
	return req
}

func (s *suite) create(req infra.CreateRequest) infra.VM {
	s.Helper()
	vm, err := s.Provider.Create(s.Context(), req)
	if err != nil {
		s.Fatalf("Create: %v", err)
	}
	if vm.ProviderID == "" || vm.LaunchedAt.IsZero() {
		s.Fatalf("Create answered a VM without provider ID or launch time: %+v", vm)
	}
	return vm
}

func (s *suite) list(owner infra.Owner) []infra.VM {
	s.Helper()
	vms, err := s.Provider.List(s.Context(), owner)
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	return vms
}

// await gets a VM repeatedly until it has a wanted state. A VM that is not found counts as deleted.
func (s *suite) await(providerID string, want func(infra.State) bool) infra.VM {
	s.Helper()
	var vm infra.VM
	for range settles {
		var err error
		vm, err = s.Provider.Get(s.Context(), providerID)
		if errors.Is(err, infra.NotFound) {
			vm, err = infra.VM{ProviderID: providerID, State: infra.Deleted}, nil
		}
		if err != nil {
			s.Fatalf("Get: %v", err)
		}
		if want(vm.State) {
			return vm
		}
		s.Settle(s.T)
	}
	s.Fatalf("%s stays %s", providerID, vm.State)
	return vm
}

func running(s infra.State) bool { return s == infra.Running }
func dead(s infra.State) bool    { return s == infra.Stopped || s == infra.Deleted || s == infra.Failed }
func deleted(s infra.State) bool { return s == infra.Deleted }

// wantClass checks that both ClassOf and errors.Is find the given class in an error.
func (s *suite) wantClass(what string, err error, want infra.Class) {
	s.Helper()
	if infra.ClassOf(err) != want || !errors.Is(err, want) {
		s.Errorf("%s: got error %v of class %q, want class %q", what, err, infra.ClassOf(err), want)
	}
}

// wantLiving checks that exactly the VMs with the given provider IDs are alive.
func (s *suite) wantLiving(want ...string) {
	s.Helper()
	got := map[string]bool{}
	for _, vm := range s.list(s.owner) {
		if vm.State.Alive() {
			if got[vm.ProviderID] {
				s.Errorf("%s is listed twice", vm.ProviderID)
			}
			got[vm.ProviderID] = true
		}
	}
	wanted := map[string]bool{}
	for _, id := range want {
		wanted[id] = true
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		s.Errorf("living VMs (-want +got):\n%s", diff)
	}
}

func createIsIdempotent(s *suite) {
	req := s.request()
	first := s.create(req)
	vm := s.await(first.ProviderID, running)
	again := s.create(req)
	if again.ProviderID != first.ProviderID {
		s.Errorf("a repeat made another VM: %s, then %s", first.ProviderID, again.ProviderID)
	}
	found, err := s.Provider.FindByInstance(s.Context(), s.owner, req.Tags.Instance)
	if err != nil {
		s.Fatalf("FindByInstance: %v", err)
	}
	listed := s.list(s.owner)
	if len(listed) != 1 {
		s.Fatalf("List: %d VMs, want 1", len(listed))
	}
	for what, other := range map[string]infra.VM{"repeat": again, "FindByInstance": found, "List": listed[0]} {
		if diff := cmp.Diff(vm, other, cmp.AllowUnexported(ident.ID{})); diff != "" {
			s.Errorf("%s describes another VM than Get (-Get +%s):\n%s", what, what, diff)
		}
	}
	if !first.LaunchedAt.Equal(vm.LaunchedAt) {
		s.Errorf("launch time moved from %s to %s", first.LaunchedAt, vm.LaunchedAt)
	}
}

func otherParametersConflict(s *suite) {
	req := s.request()
	vm := s.create(req)
	for name, change := range map[string]func(*infra.CreateRequest){
		"type":     func(r *infra.CreateRequest) { r.InstanceType = s.Types[1] },
		"subnet":   func(r *infra.CreateRequest) { r.Subnet = s.Subnets[1] },
		"userdata": func(r *infra.CreateRequest) { r.Userdata = []byte("#!/bin/sh\nexit 1\n") },
		"group":    func(r *infra.CreateRequest) { r.Tags.Group = "others" },
		"term":     func(r *infra.CreateRequest) { r.Tags.Term++ },
	} {
		other := req
		change(&other)
		_, err := s.Provider.Create(s.Context(), other)
		s.wantClass("create with another "+name, err, infra.Conflict)
	}
	s.wantLiving(vm.ProviderID)
}

func concurrentCreates(s *suite) {
	const callers = 4
	same, others := s.request(), make([]infra.CreateRequest, callers)
	for i := range others {
		others[i] = s.request()
	}
	var wg sync.WaitGroup
	ids, errs := make([]string, 2*callers), make([]error, 2*callers)
	for i := range ids {
		req := same
		if i%2 == 1 {
			req = others[i/2]
		}
		wg.Go(func() {
			var vm infra.VM
			vm, errs[i] = s.Provider.Create(s.Context(), req)
			ids[i] = vm.ProviderID
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		s.Fatalf("concurrent creates: %v", err)
	}
	s.wantLiving(ids...)
	if n := len(s.list(s.owner)); n != callers+1 {
		s.Errorf("%d VMs for %d instance IDs", n, callers+1)
	}
	for i := 2; i < len(ids); i += 2 {
		if ids[i] != ids[0] {
			s.Errorf("one instance ID has two VMs: %s, %s", ids[0], ids[i])
		}
	}
}

func invalidRequest(s *suite) {
	req := s.request()
	req.Tags.Instance = ident.ID{}
	_, err := s.Provider.Create(s.Context(), req)
	s.wantClass("create without instance ID", err, infra.Invalid)
	if vms := s.list(s.owner); len(vms) != 0 {
		s.Errorf("an invalid request made %v", vms)
	}
}

func tagsComeBack(s *suite) {
	odd := s.OddTags
	if odd == nil {
		odd = oddTags
	}
	want := map[string]infra.Tags{}
	for i, text := range odd {
		req := s.request()
		req.Tags.Group, req.Tags.Template, req.Tags.InfraHash = text, odd[(i+1)%len(odd)], odd[(i+2)%len(odd)]
		req.Tags.Tenant = "t" + req.Tags.Instance.String()[3:20]
		req.Tags.Term = uint64(1)<<63 + uint64(i)
		want[s.create(req).ProviderID] = req.Tags
	}
	got := map[string]infra.Tags{}
	for _, vm := range s.list(s.owner) {
		got[vm.ProviderID] = vm.Tags
		if vm.Warning != "" {
			s.Errorf("%s: warning %q", vm.ProviderID, vm.Warning)
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(ident.ID{})); diff != "" {
		s.Errorf("tags (-asked +listed):\n%s", diff)
	}
}

func listIsByOwner(s *suite) {
	mine, otherShard, otherCluster := s.request(), s.request(), s.request()
	otherShard.Tags.Shard += "-2"
	otherCluster.Tags.Cluster += "-2"
	for _, req := range []infra.CreateRequest{mine, otherShard, otherCluster} {
		vm := s.create(req)
		listed := s.list(req.Tags.Owner)
		if len(listed) != 1 || listed[0].ProviderID != vm.ProviderID {
			s.Errorf("List(%v) = %v, want only %s", req.Tags.Owner, listed, vm.ProviderID)
		}
	}
	if vms := s.list(infra.Owner{Cluster: s.owner.Cluster, Shard: s.owner.Shard + "-3"}); len(vms) != 0 {
		s.Errorf("an owner of nothing has %v", vms)
	}
	for _, other := range []infra.CreateRequest{otherShard, otherCluster} {
		_, err := s.Provider.FindByInstance(s.Context(), s.owner, other.Tags.Instance)
		s.wantClass("look-up of another owner's instance", err, infra.NotFound)
	}
}

func unknownIsNotFound(s *suite) {
	_, err := s.Provider.Get(s.Context(), s.Unknown)
	s.wantClass("Get", err, infra.NotFound)
	_, err = s.Provider.FindByInstance(s.Context(), s.owner, s.request().Tags.Instance)
	s.wantClass("FindByInstance", err, infra.NotFound)
	if err := s.Provider.Delete(s.Context(), infra.Target(s.owner, s.request().Tags.Instance, s.Unknown)); err != nil {
		s.Errorf("deleting what never was: %v", err)
	}
}

func deleteIsIdempotent(s *suite) {
	vm, other := s.create(s.request()), s.create(s.request())
	for range 2 {
		if err := s.Provider.Delete(s.Context(), vm); err != nil {
			s.Fatalf("Delete: %v", err)
		}
	}
	s.await(vm.ProviderID, deleted)
	if err := s.Provider.Delete(s.Context(), vm); err != nil {
		s.Errorf("deleting what is gone: %v", err)
	}
	s.wantLiving(other.ProviderID)
}

// foreignIsSpared tries to change a VM in the name of another instance, shard or cluster, as a leader does that reads a
// wrong provider ID in a record.
func foreignIsSpared(s *suite) {
	vm := s.create(s.request())
	vm = s.await(vm.ProviderID, running)
	otherShard, otherCluster := s.owner, s.owner
	otherShard.Shard += "-2"
	otherCluster.Cluster += "-2"
	for what, target := range map[string]infra.VM{
		"another instance": infra.Target(s.owner, s.request().Tags.Instance, vm.ProviderID),
		"no instance":      infra.Target(s.owner, ident.ID{}, vm.ProviderID),
		"another shard":    infra.Target(otherShard, vm.Tags.Instance, vm.ProviderID),
		"another cluster":  infra.Target(otherCluster, vm.Tags.Instance, vm.ProviderID),
	} {
		s.wantClass("Delete for "+what, s.Provider.Delete(s.Context(), target), infra.Invalid)
	}
	if after := s.await(vm.ProviderID, running); !cmp.Equal(vm, after, cmp.AllowUnexported(ident.ID{})) {
		s.Errorf("the VM changed from %+v to %+v", vm, after)
	}
	s.wantLiving(vm.ProviderID)
}

func oneLifePerToken(s *suite) {
	req := s.request()
	vm := s.create(req)
	if err := s.Provider.Delete(s.Context(), vm); err != nil {
		s.Fatalf("Delete: %v", err)
	}
	check := func() {
		s.Helper()
		_, err := s.Provider.Create(s.Context(), req)
		s.wantClass("create after delete", err, infra.Conflict)
		other := req
		other.InstanceType = s.Types[1]
		_, err = s.Provider.Create(s.Context(), other)
		s.wantClass("create after delete with another type", err, infra.Conflict)
	}
	check()
	s.await(vm.ProviderID, deleted)
	check()
	s.wantLiving()
}

func killedIsSeen(s *suite) {
	req := s.request()
	vm, other := s.create(req), s.create(s.request())
	s.await(other.ProviderID, running)
	s.Kill(s.T, s.await(vm.ProviderID, running))
	s.await(vm.ProviderID, dead)
	s.wantLiving(other.ProviderID)
	again, err := s.Provider.Create(s.Context(), req)
	if err != nil {
		s.wantClass("repeat for a killed VM", err, infra.Conflict)
	} else if again.ProviderID != vm.ProviderID || again.State.Alive() {
		s.Errorf("repeat for a killed VM answered %+v", again)
	}
	if err := s.Provider.Delete(s.Context(), vm); err != nil {
		s.Errorf("deleting a killed VM: %v", err)
	}
	s.await(vm.ProviderID, deleted)
	s.wantLiving(other.ProviderID)
}

func endedContext(s *suite) {
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	req := s.request()
	_, err := s.Provider.Create(ended, req)
	s.wantClass("create under an ended context", err, infra.Indeterminate)
	vms, err := s.Provider.List(ended, s.owner)
	if unlisted, known := infra.UnlistedBy(err); known {
		s.Errorf("List under an ended context answered %v, without those of %q", vms, unlisted)
	}
	vm := s.create(req)
	if err := s.Provider.Delete(ended, vm); err == nil {
		s.Error("Delete under an ended context claims to have been requested")
	}
	s.wantLiving(vm.ProviderID)
}

func loadBalancerHealth(s *suite) {
	health, has := infra.Capability[infra.LoadBalancerHealth](s.Provider)
	if has != (s.Balance != nil) {
		s.Fatalf("the provider tells the health in load balancers: %t, the harness has a load balancer: %t", has,
			s.Balance != nil)
	}
	if !has {
		return
	}
	balancers, _ := infra.Capability[infra.LoadBalancers](s.Provider)
	req := s.request()
	vm, other := s.create(req), s.create(s.request())
	vm, other = s.await(vm.ProviderID, running), s.await(other.ProviderID, running)
	_, err := health.MemberHealth(s.Context(), "none", []infra.VM{vm})
	s.wantClass("an unknown load balancer", err, infra.Invalid)
	lb, set := s.Balance(s.T)
	want := func(what string, want map[string]infra.MemberHealth) {
		s.Helper()
		got, err := health.MemberHealth(s.Context(), lb, []infra.VM{vm, other})
		if err != nil {
			s.Fatalf("%s: %v", what, err)
		}
		for id, member := range got {
			if member.Healthy == (member.Reason != "") {
				s.Errorf("%s: %s has the verdict %+v", what, id, member)
			}
			member.Reason = ""
			got[id] = member
		}
		if diff := cmp.Diff(want, got); diff != "" {
			s.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("before it is registered", map[string]infra.MemberHealth{})
	if err := balancers.Register(s.Context(), lb, vm); err != nil {
		s.Fatalf("Register: %v", err)
	}
	for _, healthy := range []bool{true, false, true} {
		set(s.T, vm, healthy)
		want("registered", map[string]infra.MemberHealth{vm.ProviderID: {Healthy: healthy}})
	}
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	if members, err := health.MemberHealth(ended, lb, []infra.VM{vm}); err == nil {
		s.Errorf("MemberHealth under an ended context answered %v", members)
	}
	if err := balancers.Deregister(s.Context(), lb, vm); err != nil {
		s.Fatalf("Deregister: %v", err)
	}
	want("after it is deregistered", map[string]infra.MemberHealth{})
}

func deregistrationDelay(s *suite) {
	delays, has := infra.Capability[infra.DeregistrationDelay](s.Provider)
	if has != (s.Delay > 0) {
		s.Fatalf("the provider tells deregistration delays: %t, the harness has a delay: %t", has, s.Delay > 0)
	}
	if !has {
		return
	}
	lb, _ := s.Balance(s.T)
	if delay, err := delays.DeregistrationDelay(s.Context(), lb); err != nil || delay != s.Delay {
		s.Errorf("%s, %v; want %s", delay, err, s.Delay)
	}
	_, err := delays.DeregistrationDelay(s.Context(), "none")
	s.wantClass("an unknown load balancer", err, infra.NotFound)
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	if delay, err := delays.DeregistrationDelay(ended, lb); err == nil {
		s.Errorf("DeregistrationDelay under an ended context answered %s", delay)
	}
}

func anotherProcessSeesTheSame(s *suite) {
	if s.Reopen == nil {
		return
	}
	req, terminated := s.request(), s.request()
	vm, terminatedVM := s.create(req), s.create(terminated)
	if err := s.Provider.Delete(s.Context(), terminatedVM); err != nil {
		s.Fatalf("Delete: %v", err)
	}
	s.await(vm.ProviderID, running)
	s.await(terminatedVM.ProviderID, deleted)
	before := s.list(s.owner)
	s.Provider = s.Reopen(s.T)
	if diff := cmp.Diff(before, s.list(s.owner), cmp.AllowUnexported(ident.ID{})); diff != "" {
		s.Errorf("listing changed (-before +after):\n%s", diff)
	}
	if again := s.create(req); again.ProviderID != vm.ProviderID {
		s.Errorf("one instance ID has two VMs: %s, %s", vm.ProviderID, again.ProviderID)
	}
	_, err := s.Provider.Create(s.Context(), terminated)
	s.wantClass("create after delete by another process", err, infra.Conflict)
}
