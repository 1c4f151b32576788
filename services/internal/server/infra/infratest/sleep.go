package infratest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// sleepTests test the capability [infra.Sleeper], each with every way in which the VMs of the provider can sleep.
var sleepTests = map[string]func(s *suite, how string){
	"SleepAndWake":         sleepAndWake,
	"SleepIsIdempotent":    sleepIsIdempotent,
	"WakeIsIdempotent":     wakeIsIdempotent,
	"SleepIsSeen":          sleepIsSeen,
	"SleepSparesForeign":   sleepSparesForeign,
	"SleepUnknownWay":      sleepUnknownWay,
	"SleepAndDelete":       sleepAndDelete,
	"SleepOfGone":          sleepOfGone,
	"WakeWithoutRoom":      wakeWithoutRoom,
	"WokenAndKilledIsSeen": wokenAndKilledIsSeen,
	"SleepEndedContext":    sleepEndedContext,
}

// runSleep runs the tests of sleeping if the provider has the capability.
func runSleep(t *testing.T, open func(t *testing.T) Harness) {
	h := open(t)
	_, has := infra.Capability[infra.Sleeper](h.Provider)
	if has != (len(h.Sleeps) > 0) {
		t.Fatalf("the provider lets VMs sleep: %t, the ways of its cloud: %q", has, h.Sleeps)
	}
	for _, how := range h.Sleeps {
		for name, test := range sleepTests {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				test(newSuite(t, open(t)), how)
			})
		}
	}
}

func (s *suite) sleeper() infra.Sleeper {
	s.Helper()
	sleeper, ok := infra.Capability[infra.Sleeper](s.Provider)
	if !ok {
		s.Fatal("the provider lets no VMs sleep")
	}
	return sleeper
}

func asleep(s infra.State) bool    { return s == infra.Stopped }
func notAwake(s infra.State) bool  { return s == infra.Stopping || s == infra.Stopped }
func notAsleep(s infra.State) bool { return s == infra.Pending || s == infra.Running }

// sleepy makes a VM that can sleep, and returns it when it runs.
func (s *suite) sleepy(how string) (infra.CreateRequest, infra.VM) {
	s.Helper()
	req := s.request()
	req.Sleep = how
	return req, s.await(s.create(req).ProviderID, running)
}

// until repeats a call while it fails as a conflict.
func (s *suite) until(what string, call func() error) {
	s.Helper()
	var err error
	for range settles {
		if err = call(); !errors.Is(err, infra.Conflict) {
			break
		}
		s.Settle(s.T)
	}
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// requestSleep puts a running VM to sleep, and checks that the provider no longer says that it runs.
func (s *suite) requestSleep(vm infra.VM, how string) {
	s.Helper()
	s.until("Sleep", func() error { return s.sleeper().Sleep(s.Context(), vm, how) })
	s.await(vm.ProviderID, s.never("Sleep", notAwake))
}

// sleep puts a running VM to sleep, and returns it when it sleeps.
func (s *suite) sleep(vm infra.VM, how string) infra.VM {
	s.Helper()
	s.requestSleep(vm, how)
	return s.await(vm.ProviderID, s.passing("falling asleep", notAwake, asleep))
}

// wake wakes a VM, and returns it when it runs.
func (s *suite) wake(vm infra.VM) infra.VM {
	s.Helper()
	s.until("Wake", func() error { return s.sleeper().Wake(s.Context(), vm) })
	return s.await(vm.ProviderID, s.passing("waking", notAsleep, running))
}

// passing returns a condition for await: done. The test fails if the VM has a state that is not allowed.
func (s *suite) passing(what string, allowed, done func(infra.State) bool) func(infra.State) bool {
	return func(state infra.State) bool {
		if !allowed(state) {
			s.Fatalf("%s: the VM is %s", what, state)
		}
		return done(state)
	}
}

// never returns a condition for await that holds immediately: the VM has an allowed state.
func (s *suite) never(what string, allowed func(infra.State) bool) func(infra.State) bool {
	return s.passing("after "+what, allowed, allowed)
}

// wantSame checks that a VM is still the same one, with the same disks.
func (s *suite) wantSame(what string, before, after infra.VM, disks string) {
	s.Helper()
	// Some clouds set a new launch time and a new public address when a VM boots again.
	before.LaunchedAt, before.Addresses, before.State = after.LaunchedAt, after.Addresses, after.State
	if diff := cmp.Diff(before, after, cmp.AllowUnexported(ident.ID{})); diff != "" {
		s.Errorf("%s: the VM changed (-before +after):\n%s", what, diff)
	}
	if after.LaunchedAt.IsZero() {
		s.Errorf("%s: the VM has no launch time", what)
	}
	if now := s.disks(after); now != disks {
		s.Errorf("%s: disks %s, before %s", what, now, disks)
	}
}

func (s *suite) disks(vm infra.VM) string {
	if s.Disks == nil {
		return ""
	}
	return s.Disks(s.T, vm)
}

func sleepAndWake(s *suite, how string) {
	req, vm := s.sleepy(how)
	_, other := s.sleepy(how)
	disks := s.disks(vm)
	for range 2 {
		sleeping := s.sleep(vm, how)
		sleeping.IPv4, sleeping.IPv6 = vm.IPv4, vm.IPv6 // some providers know only the addresses of running VMs
		s.wantSame("asleep", vm, sleeping, disks)
		s.wantLiving(other.ProviderID)
		if again := s.create(req); again.ProviderID != vm.ProviderID || again.State.Alive() {
			s.Errorf("a repeated create of a sleeping VM answered %+v", again)
		}
		s.await(vm.ProviderID, s.never("a repeated create", asleep))
		s.wantSame("woken", vm, s.wake(vm), disks)
		s.wantLiving(vm.ProviderID, other.ProviderID)
	}
}

// sleepIsIdempotent repeats Sleep while the VM boots, while it falls asleep, and while it sleeps.
func sleepIsIdempotent(s *suite, how string) {
	req := s.request()
	req.Sleep = how
	vm := s.create(req)
	s.requestSleep(vm, how)
	for range 2 {
		if err := s.sleeper().Sleep(s.Context(), vm, how); err != nil {
			s.Errorf("repeated Sleep: %v", err)
		}
		s.await(vm.ProviderID, s.passing("falling asleep", notAwake, asleep))
	}
	s.wake(vm)
}

// wakeIsIdempotent repeats Wake while the VM runs, falls asleep, wakes, and runs again.
func wakeIsIdempotent(s *suite, how string) {
	_, vm := s.sleepy(how)
	for range 2 {
		for range 2 {
			if err := s.sleeper().Wake(s.Context(), vm); err != nil {
				s.Errorf("Wake of a VM that runs: %v", err)
			}
			s.await(vm.ProviderID, s.never("Wake", running))
		}
		s.requestSleep(vm, how)
		s.until("Wake", func() error { return s.sleeper().Wake(s.Context(), vm) })
		for range 2 {
			if err := s.sleeper().Wake(s.Context(), vm); err != nil {
				s.Errorf("repeated Wake: %v", err)
			}
		}
		s.await(vm.ProviderID, s.passing("waking", notAsleep, running))
	}
	s.until("Sleep of a VM that woke", func() error { return s.sleeper().Sleep(s.Context(), vm, how) })
}

// sleepIsSeen checks that every call, and a provider that was opened later, still describe a sleeping VM.
func sleepIsSeen(s *suite, how string) {
	req, vm := s.sleepy(how)
	vm = s.sleep(vm, how)
	check := func() {
		s.Helper()
		found, err := s.Provider.FindByInstance(s.Context(), s.owner, req.Tags.Instance)
		if err != nil {
			s.Fatalf("FindByInstance: %v", err)
		}
		listed := s.list(s.owner)
		if len(listed) != 1 {
			s.Fatalf("List: %d VMs, want 1", len(listed))
		}
		for what, other := range map[string]infra.VM{"FindByInstance": found, "List": listed[0]} {
			if diff := cmp.Diff(vm, other, cmp.AllowUnexported(ident.ID{})); diff != "" {
				s.Errorf("%s describes another VM than Get (-Get +%s):\n%s", what, what, diff)
			}
		}
	}
	check()
	if s.Reopen != nil {
		s.Provider = s.Reopen(s.T)
		check()
	}
	s.wake(vm)
}

// sleepSparesForeign tries to put a VM to sleep and to wake it in the name of another instance, shard or cluster.
func sleepSparesForeign(s *suite, how string) {
	_, vm := s.sleepy(how)
	otherShard, otherCluster := s.owner, s.owner
	otherShard.Shard += "-2"
	otherCluster.Cluster += "-2"
	targets := map[string]infra.VM{
		"another instance": infra.Target(s.owner, s.request().Tags.Instance, vm.ProviderID),
		"no instance":      infra.Target(s.owner, ident.ID{}, vm.ProviderID),
		"another shard":    infra.Target(otherShard, vm.Tags.Instance, vm.ProviderID),
		"another cluster":  infra.Target(otherCluster, vm.Tags.Instance, vm.ProviderID),
	}
	for what, target := range targets {
		s.wantClass("Sleep for "+what, s.sleeper().Sleep(s.Context(), target, how), infra.Invalid)
	}
	s.await(vm.ProviderID, s.never("Sleep for another", running))
	s.sleep(vm, how)
	for what, target := range targets {
		s.wantClass("Wake for "+what, s.sleeper().Wake(s.Context(), target), infra.Invalid)
	}
	s.await(vm.ProviderID, s.never("Wake for another", asleep))
	// The leader's target has only the owner, the instance and the provider ID.
	target := infra.Target(s.owner, vm.Tags.Instance, vm.ProviderID)
	s.wake(target)
	s.sleep(target, how)
}

func sleepUnknownWay(s *suite, how string) {
	_, vm := s.sleepy(how)
	for _, other := range []string{"", "hibernated", config.SparesRunning, config.SparesStopped,
		config.SparesSuspended} {
		if !slices.Contains(s.Sleeps, other) {
			s.wantClass("Sleep as "+other, s.sleeper().Sleep(s.Context(), vm, other), infra.Invalid)
		}
	}
	s.await(vm.ProviderID, s.never("Sleep", running))
}

// sleepAndDelete deletes a VM that sleeps, one that falls asleep, and one that wakes.
func sleepAndDelete(s *suite, how string) {
	_, sleeping := s.sleepy(how)
	_, falling := s.sleepy(how)
	_, waking := s.sleepy(how)
	_, other := s.sleepy(how)
	s.sleep(sleeping, how)
	s.sleep(waking, how)
	s.requestSleep(falling, how)
	if err := s.sleeper().Wake(s.Context(), waking); err != nil {
		s.Fatalf("Wake: %v", err)
	}
	for _, vm := range []infra.VM{sleeping, falling, waking} {
		for range 2 {
			if err := s.Provider.Delete(s.Context(), vm); err != nil {
				s.Fatalf("Delete: %v", err)
			}
		}
	}
	for _, vm := range []infra.VM{sleeping, falling, waking} {
		s.await(vm.ProviderID, deleted)
	}
	s.wantLiving(other.ProviderID)
}

func sleepOfGone(s *suite, how string) {
	_, vm := s.sleepy(how)
	_, sleeping := s.sleepy(how)
	s.sleep(sleeping, how)
	unknown := infra.Target(s.owner, s.request().Tags.Instance, s.Unknown)
	check := func(what string, vm infra.VM) {
		s.Helper()
		s.wantClass("Sleep of a VM that "+what, s.sleeper().Sleep(s.Context(), vm, how), infra.NotFound)
		s.wantClass("Wake of a VM that "+what, s.sleeper().Wake(s.Context(), vm), infra.NotFound)
	}
	check("never was", unknown)
	for _, vm := range []infra.VM{vm, sleeping} {
		if err := s.Provider.Delete(s.Context(), vm); err != nil {
			s.Fatalf("Delete: %v", err)
		}
		check("is being deleted", vm)
		s.await(vm.ProviderID, deleted)
		check("is deleted", vm)
	}
	s.wantLiving()
}

// wakeWithoutRoom checks that a VM whose place was taken while it slept can be woken later.
func wakeWithoutRoom(s *suite, how string) {
	if s.Room == nil {
		return
	}
	_, vm := s.sleepy(how)
	s.sleep(vm, how)
	s.Room(s.T, 0)
	s.wantClass("Wake without room", s.sleeper().Wake(s.Context(), vm), infra.Capacity)
	s.await(vm.ProviderID, s.never("Wake without room", asleep))
	s.Room(s.T, 100)
	s.wake(vm)
}

func wokenAndKilledIsSeen(s *suite, how string) {
	_, vm := s.sleepy(how)
	s.sleep(vm, how)
	s.Kill(s.T, s.wake(vm))
	s.await(vm.ProviderID, dead)
	s.wantLiving()
	if err := s.Provider.Delete(s.Context(), vm); err != nil {
		s.Errorf("deleting a killed VM: %v", err)
	}
	s.await(vm.ProviderID, deleted)
}

func sleepEndedContext(s *suite, how string) {
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	_, vm := s.sleepy(how)
	s.wantClass("Sleep under an ended context", s.sleeper().Sleep(ended, vm, how), infra.Indeterminate)
	s.await(vm.ProviderID, s.never("Sleep under an ended context", running))
	s.sleep(vm, how)
	s.wantClass("Wake under an ended context", s.sleeper().Wake(ended, vm), infra.Indeterminate)
	s.await(vm.ProviderID, s.never("Wake under an ended context", asleep))
	s.wake(vm)
}
