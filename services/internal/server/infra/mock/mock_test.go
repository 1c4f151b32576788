package mock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

var owner = infra.Owner{Cluster: "c", Shard: "s"}

func request(t testing.TB) infra.CreateRequest {
	t.Helper()
	id, err := ident.NewID("tst", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return infra.CreateRequest{Tags: infra.Tags{Owner: owner, Instance: id}, InstanceType: "small", Subnet: "a",
		Userdata: []byte("u")}
}

func create(t testing.TB, p *mock.Provider, req infra.CreateRequest) infra.VM {
	t.Helper()
	vm, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func wantClass(t *testing.T, err error, want infra.Class) {
	t.Helper()
	if infra.ClassOf(err) != want {
		t.Fatalf("error %v has class %q, want %q", err, infra.ClassOf(err), want)
	}
}

func wantState(t *testing.T, p *mock.Provider, id ident.ID, want infra.State) {
	t.Helper()
	vm, ok := p.Instance(id)
	if !ok {
		vm.State = "none"
	}
	if want == "" {
		want = "none"
	}
	if vm.State != want {
		t.Errorf("VM of %s is %s, want %s", id, vm.State, want)
	}
}

func TestStatesChangeWithTheClock(t *testing.T) {
	clock := newClock()
	p := mock.New(mock.Config{Now: clock.Now, Boot: 10 * time.Second, Shutdown: 5 * time.Second, Remember: time.Minute})
	req := request(t)
	vm := create(t, p, req)
	step := func(d time.Duration, want infra.State) {
		t.Helper()
		clock.Sleep(t.Context(), d)
		wantState(t, p, req.Tags.Instance, want)
	}
	step(0, infra.Pending)
	step(9*time.Second, infra.Pending)
	step(time.Second, infra.Running)
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	step(4*time.Second, infra.Deleting)
	step(time.Second, infra.Deleted)
	if err := p.SetState(vm.ProviderID, infra.Running); err == nil {
		t.Error("a deleted VM came back")
	}

	clock.Sleep(t.Context(), time.Minute)
	if vms, err := p.List(t.Context(), owner); err != nil || len(vms) != 1 {
		t.Errorf("a deleted VM is forgotten too early: %v, %v", vms, err)
	}
	clock.Sleep(t.Context(), time.Second)
	if vms, err := p.List(t.Context(), owner); err != nil || len(vms) != 0 {
		t.Errorf("a deleted VM is remembered: %v, %v", vms, err)
	}
	_, err := p.Get(t.Context(), vm.ProviderID)
	wantClass(t, err, infra.NotFound)
	_, err = p.Create(t.Context(), req)
	wantClass(t, err, infra.Conflict) // an instance ID is never reusable
}

// TestKilledWhileItBoots checks that a VM that is killed before it runs does not boot.
func TestKilledWhileItBoots(t *testing.T) {
	clock := newClock()
	p := mock.New(mock.Config{Now: clock.Now, Boot: 10 * time.Second})
	p.SetCapacity(mock.Place{}, 1)
	req := request(t)
	if err := p.Kill(create(t, p, req).ProviderID); err != nil {
		t.Fatal(err)
	}
	clock.Sleep(t.Context(), time.Minute)
	wantState(t, p, req.Tags.Instance, infra.Stopped)
	create(t, p, request(t)) // there is room again
}

func TestStatesByScript(t *testing.T) {
	clock := newClock()
	p := mock.New(mock.Config{Now: clock.Now, Boot: -1})
	req := request(t)
	vm := create(t, p, req)
	clock.Sleep(t.Context(), time.Hour)
	wantState(t, p, req.Tags.Instance, infra.Pending)
	for _, s := range []infra.State{infra.Running, infra.Failed, infra.Unknown, infra.Running} {
		if err := p.SetState(vm.ProviderID, s); err != nil {
			t.Fatal(err)
		}
		wantState(t, p, req.Tags.Instance, s)
	}
	if err := p.Terminate(vm.ProviderID); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, req.Tags.Instance, infra.Deleted)
}

func TestOutcomes(t *testing.T) {
	boom := errors.New("boom")
	for _, test := range []struct {
		name      string
		out       mock.Outcome
		wantClass infra.Class
		exists    bool // whether the VM exists after the call
		lands     bool // whether the call has taken effect after a minute
	}{
		{"success", mock.Outcome{}, "", true, true},
		{"refused", mock.Outcome{Err: infra.Errorf(infra.Denied, "create", "no")}, infra.Denied, false, false},
		{"bare class", mock.Outcome{Err: infra.Capacity}, infra.Capacity, false, false},
		{"unclassed", mock.Outcome{Err: boom}, infra.Indeterminate, false, false},
		{"lost", mock.Outcome{Lost: true}, infra.Indeterminate, true, true},
		{"late", mock.Outcome{Late: time.Minute}, infra.Indeterminate, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock, scripted := newClock(), true
			p := mock.New(mock.Config{Now: clock.Now, Script: func(context.Context, mock.Call) mock.Outcome {
				if scripted {
					return test.out
				}
				return mock.Outcome{}
			}})
			req := request(t)
			vm, err := p.Create(t.Context(), req)
			wantClass(t, err, test.wantClass)
			if err != nil && vm.ProviderID != "" {
				t.Errorf("a VM beside an error: %+v", vm)
			}
			scripted = false
			if _, exists := p.Instance(req.Tags.Instance); exists != test.exists {
				t.Errorf("VM exists: %v, want %v", exists, test.exists)
			}
			clock.Sleep(t.Context(), time.Minute)
			made, exists := p.Instance(req.Tags.Instance)
			if exists != test.lands {
				t.Errorf("VM exists after a minute: %v, want %v", exists, test.lands)
			}
			if again := create(t, p, req); exists && again.ProviderID != made.ProviderID {
				t.Errorf("the repeat made another VM: %s, %s", made.ProviderID, again.ProviderID)
			}
			if n := len(p.VMs()); n != 1 {
				t.Errorf("%d VMs after the repeat", n)
			}
		})
	}
}

func TestLateCalls(t *testing.T) {
	clock := newClock()
	var out mock.Outcome
	p := mock.New(mock.Config{Now: clock.Now, Script: func(context.Context, mock.Call) mock.Outcome { return out }})
	kept, burnt := request(t), request(t)
	start := clock.Now()
	out.Late = 3 * time.Second
	_, err := p.Create(t.Context(), kept)
	wantClass(t, err, infra.Indeterminate)
	out.Late = 2 * time.Second
	_, err = p.Create(t.Context(), burnt)
	wantClass(t, err, infra.Indeterminate)
	out.Late = 0
	vm := create(t, p, kept) // the repeat takes effect before the first attempt
	clock.Sleep(t.Context(), time.Minute)
	p.Land()
	if got, _ := p.Instance(kept.Tags.Instance); got.ProviderID != vm.ProviderID || !got.LaunchedAt.Equal(start) {
		t.Errorf("the late call changed the VM: %+v", got)
	}
	if got, _ := p.Instance(burnt.Tags.Instance); !got.LaunchedAt.Equal(start.Add(2 * time.Second)) {
		t.Errorf("landed at %s", got.LaunchedAt)
	}
	out.Late = time.Second
	wantClass(t, p.Delete(t.Context(), vm), infra.Indeterminate)
	wantState(t, p, kept.Tags.Instance, infra.Running)
	clock.Sleep(t.Context(), time.Second)
	out.Late = 0
	if got, err := p.Get(t.Context(), vm.ProviderID); err != nil || got.State != infra.Deleted {
		t.Errorf("after the late delete: %s, %v", got.State, err)
	}
	wantState(t, p, kept.Tags.Instance, infra.Deleted)
}

func TestStaleReads(t *testing.T) {
	clock := newClock()
	var lag time.Duration
	p := mock.New(mock.Config{Now: clock.Now, Script: func(context.Context, mock.Call) mock.Outcome {
		return mock.Outcome{Lag: lag}
	}})
	clock.Sleep(t.Context(), time.Hour)
	req := request(t)
	vm := create(t, p, req)
	clock.Sleep(t.Context(), 10*time.Second)
	if err := p.Kill(vm.ProviderID); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		lag  time.Duration
		want infra.State
	}{{0, infra.Stopped}, {time.Second, infra.Running}, {11 * time.Second, ""}} {
		lag = test.lag
		vms, err := p.List(t.Context(), owner)
		if err != nil {
			t.Fatal(err)
		}
		var got infra.State
		if len(vms) == 1 {
			got = vms[0].State
		}
		if got != test.want {
			t.Errorf("%s ago: listed %q, want %q", lag, got, test.want)
		}
		found, err := p.FindByInstance(t.Context(), owner, req.Tags.Instance)
		if (err == nil) != (test.want != "") || found.State != test.want {
			t.Errorf("%s ago: found %q, %v, want %q", lag, found.State, err, test.want)
		}
	}
}

func TestCapacity(t *testing.T) {
	clock := newClock()
	p := mock.New(mock.Config{Now: clock.Now})
	p.SetCapacity(mock.Place{Type: "small", Subnet: "a"}, 1)
	p.SetCapacity(mock.Place{Subnet: "b"}, 1)
	p.SetCapacity(mock.Place{}, 3)
	try := func(typ, subnet string) error {
		req := request(t)
		req.InstanceType, req.Subnet = typ, subnet
		_, err := p.Create(t.Context(), req)
		return err
	}
	first := create(t, p, request(t))
	for _, step := range []struct {
		typ, subnet string
		want        infra.Class
	}{{"small", "a", infra.Capacity}, {"small", "b", ""}, {"large", "b", infra.Capacity}, {"large", "a", ""},
		{"large", "c", infra.Capacity}} {
		if got := infra.ClassOf(try(step.typ, step.subnet)); got != step.want {
			t.Errorf("%s in %s: %q, want %q", step.typ, step.subnet, got, step.want)
		}
	}
	p.SetCapacity(mock.Place{Subnet: "d"}, 1)
	room, err := p.HasRoom(t.Context(), []string{"a", "b", "d"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"a": true, "b": false, "d": true}, room); diff != "" {
		t.Errorf("room (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := p.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	if err := try("small", "a"); err != nil {
		t.Errorf("no room although a VM went: %v", err)
	}
	wantClass(t, try("small", "a"), infra.Capacity)
	p.SetCapacity(mock.Place{Type: "small", Subnet: "a"}, -1)
	wantClass(t, try("small", "a"), infra.Capacity) // the whole cloud is full
	p.SetCapacity(mock.Place{}, -1)
	if err := try("small", "a"); err != nil {
		t.Errorf("no room although the limits went: %v", err)
	}
}

func TestHooksSeeEveryCallInOrder(t *testing.T) {
	clock := newClock()
	var log []string
	note := func(what string, c mock.Call) { log = append(log, what+" "+string(c.Kind)) }
	start := clock.Now()
	var p *mock.Provider
	p = mock.New(mock.Config{
		Now: clock.Now, Sleep: clock.Sleep,
		Script: func(_ context.Context, c mock.Call) mock.Outcome {
			note("script", c)
			if c.Kind != mock.Create {
				return mock.Outcome{}
			}
			if !c.At.Equal(start) || string(c.Request.Userdata) != "u" {
				t.Errorf("entered at %s with %q", c.At, c.Request.Userdata)
			}
			return mock.Outcome{Latency: time.Second}
		},
		Yield: func(_ context.Context, c mock.Call) {
			note("yield", c)
			p.VMs() // this succeeds because no lock is held
		},
	})
	create(t, p, request(t))
	if _, err := p.List(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	want := []string{"script create", "yield create", "script list", "yield list"}
	if diff := cmp.Diff(want, log); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := clock.Now().Sub(start); got != time.Second {
		t.Errorf("the latency was %s", got)
	}
	if creates, lists, gets := p.Count(mock.Create), p.Count(mock.List), p.Count(mock.Get); creates != 1 ||
		lists != 1 || gets != 0 {
		t.Errorf("counted %d creates, %d lists and %d gets, want 1, 1 and 0", creates, lists, gets)
	}
}

func TestPlantedVMs(t *testing.T) {
	clock := newClock()
	p := mock.New(mock.Config{Now: clock.Now})
	orphan := infra.VM{ProviderID: "x", Tags: request(t).Tags, Warning: "odd tag"}
	if err := p.Plant(orphan); err != nil {
		t.Fatal(err)
	}
	if err := p.Plant(orphan); err == nil {
		t.Error("planted twice")
	}
	vms, err := p.List(t.Context(), owner)
	if err != nil || len(vms) != 1 || vms[0].State != infra.Running || vms[0].Warning != "odd tag" {
		t.Errorf("listed %+v, %v", vms, err)
	}
	if err := p.Delete(t.Context(), vms[0]); err != nil {
		t.Fatal(err)
	}
	if vms := p.VMs(); len(vms) != 0 {
		t.Errorf("left: %v", vms)
	}
}

func TestOptionalCapabilities(t *testing.T) {
	ctx, clock := t.Context(), newClock()
	p := mock.New(mock.Config{Now: clock.Now, Images: func(q infra.ImageQuery) (string, error) {
		if q.Sort == "name" {
			return "ami-1", nil
		}
		return "", infra.Denied
	}})
	vm := create(t, p, request(t))

	for _, id := range []string{"m1", "m2"} {
		if err := p.Acquire(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Release(ctx, "m1"); err != nil || p.Holder() != "m2" {
		t.Errorf("after the release by another: holder %q, %v", p.Holder(), err)
	}
	if err := p.Release(ctx, "m2"); err != nil || p.Holder() != "" {
		t.Errorf("after the release: holder %q, %v", p.Holder(), err)
	}

	_, err := p.MachineState(ctx, "m1")
	wantClass(t, err, infra.NotFound)
	p.SetMachine("m1", infra.Deleted)
	if s, err := p.MachineState(ctx, "m1"); err != nil || s != infra.Deleted {
		t.Errorf("machine is %q, %v", s, err)
	}

	for range 2 {
		if err := p.Register(ctx, "www", vm); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.Members("www"); !cmp.Equal(got, []string{vm.ProviderID}) {
		t.Errorf("members %v", got)
	}
	for range 2 {
		if err := p.Deregister(ctx, "www", vm); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.Members("www"); len(got) != 0 {
		t.Errorf("members %v", got)
	}
	wantClass(t, p.Register(ctx, "www", infra.VM{ProviderID: "mock-unknown"}), infra.Invalid)
	if err := p.Delete(ctx, vm); err != nil {
		t.Fatal(err)
	}
	wantClass(t, p.Register(ctx, "www", vm), infra.Invalid)

	if image, err := p.Resolve(ctx, infra.ImageQuery{Sort: "name"}); err != nil || image != "ami-1" {
		t.Errorf("image %q, %v", image, err)
	}
	_, err = p.Resolve(ctx, infra.ImageQuery{})
	wantClass(t, err, infra.Denied)
}

func BenchmarkCreate(b *testing.B) {
	p := mock.New(mock.Config{Now: newClock().Now})
	for b.Loop() {
		create(b, p, request(b))
	}
}

func BenchmarkList10000(b *testing.B) {
	p := mock.New(mock.Config{Now: newClock().Now})
	for range 10_000 {
		create(b, p, request(b))
	}
	for b.Loop() {
		if vms, err := p.List(b.Context(), owner); err != nil || len(vms) != 10_000 {
			b.Fatal(len(vms), err)
		}
	}
}
