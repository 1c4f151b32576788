package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// TestThousandInstancesLostTogether checks that 1,000 VMs of a group that vanish at the same time are replaced in one
// pass, after one shared question to the provider.
func TestThousandInstancesLostTogether(t *testing.T) {
	f := plantest.New(1)
	f.Group.Size = 1000
	for range 1000 {
		f.Add()
	}
	f.Run(30 * time.Second)
	f.Begin()
	for _, vm := range f.VMs {
		f.Destroy(vm)
	}
	f.Run(f.Ask + f.Write)
	creates, instants := 0, map[string]bool{}
	for line := range strings.Lines(f.Transcript()) {
		if fields := strings.Fields(line); fields[1] == "create" {
			creates++
			instants[fields[0]] = true
		}
	}
	if creates != 1000 || len(instants) != 1 || !instants["+50ms"] {
		t.Errorf("%d creates at %v, want 1000 at +50ms", creates, instants)
	}
	f.Run(10 * time.Minute)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if n := len(f.VMs); n != 1000 {
		t.Errorf("%d instances afterwards, want 1000", n)
	}
}

// started returns a group of 500 healthy instances without drain time-out. Its configuration has just changed.
func started(t *testing.T, rollout config.Rollout) *plantest.Fleet {
	t.Helper()
	f := plantest.New(1)
	undrained(f)
	f.Group.Size, f.Group.MaxSurge, f.Group.Rollout = 500, 25, rollout
	for range f.Group.Size {
		f.Add()
	}
	f.Run(30 * time.Second)
	f.Begin()
	f.Group.InfraHash = "v2"
	return f
}

// former counts the instances that run with the former configuration.
func former(f *plantest.Fleet) (n int) {
	for _, vm := range f.VMs {
		if vm.InfraHash == "v1" && vm.Truth == plan.ProviderRunning && vm.State == record.Registered {
			n++
		}
	}
	return n
}

// TestRule20FiveHundredInWaves checks that 500 instances with max_surge 25 are replaced in 20 waves, and with 5
// canaries in 21.
func TestRule20FiveHundredInWaves(t *testing.T) {
	for canary, want := range map[int]int{0: 20, 5: 21} {
		f := started(t, config.Rollout{Canary: canary, BakeTime: config.Duration(10 * time.Minute), HaltOnFailures: 1})
		f.Run(2 * time.Hour)
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		waves := map[string]bool{}
		for line := range strings.Lines(f.Transcript()) {
			if fields := strings.Fields(line); fields[1] == "create" {
				waves[fields[0]] = true
			}
		}
		if len(waves) != want || former(f) != 0 || len(f.VMs) != 500 || countCreates(f) != 500 {
			t.Errorf("canary %d: %d waves with %d creates, want %d with 500; %d of %d instances are left", canary,
				len(waves), countCreates(f), want, former(f), len(f.VMs))
		}
	}
}

// TestRule47BadVersionIsHaltedAfterTheCanary checks a new configuration with which no instance registers: the group
// creates one instance with it, and replaces none of its 500 instances.
func TestRule47BadVersionIsHaltedAfterTheCanary(t *testing.T) {
	f := started(t, config.Rollout{Canary: 1, HaltOnFailures: 1})
	f.Mute = true
	f.Run(24 * time.Hour)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if n := countCreates(f); n != 1 || former(f) != 500 || len(f.VMs) != 500 {
		t.Errorf("%d creates, %d of %d instances are left, want 1 and 500", n, former(f), len(f.VMs))
	}
	if d := plan.Next(f.Snapshot()); !strings.Contains(d.Rollout, "halted") {
		t.Errorf("the rollout says %q", d.Rollout)
	}
	if !strings.Contains(f.Transcript(), string(plan.AlertRolloutHalted)) {
		t.Errorf("no alert:\n%s", f.Transcript())
	}
}

// TestRule47LateFailureIsHaltedWithinItsWave checks a configuration with which two instances register, but no later one
// does. The rollout is halted in the wave in which instances first fail.
func TestRule47LateFailureIsHaltedWithinItsWave(t *testing.T) {
	f := started(t, config.Rollout{Canary: 2, BakeTime: config.Duration(time.Minute), HaltOnFailures: 2})
	for range 3600 {
		f.Mute = countCreates(f) >= 2
		f.Run(time.Second)
	}
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if n := countCreates(f); n != 27 || former(f) != 498 {
		t.Errorf("%d creates and %d instances are left, want 2 canaries with one wave of 25, and 498", n, former(f))
	}
}

// TestRule47UnhealthyAfterTheFirstWaves checks that instances that become unhealthy after their wave halt the rollout,
// and that lost instances are replaced meanwhile.
func TestRule47UnhealthyAfterTheFirstWaves(t *testing.T) {
	f := started(t, config.Rollout{HaltOnFailures: 3})
	for former(f) > 400 {
		f.Run(time.Second)
	}
	left, cut := former(f), 0
	for _, vm := range f.VMs {
		if vm.InfraHash == "v2" && !vm.RegisteredAt.IsZero() && cut < 3 {
			f.CutOff(vm)
			cut++
		}
	}
	f.Run(time.Hour)
	if n := former(f); n < left-2*25 {
		t.Errorf("%d instances with the former configuration are left of %d", n, left)
	}
	before := former(f)
	f.Destroy(f.VMs[0])
	f.Run(time.Hour)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if n := former(f); n < before-1 || len(f.VMs) != 500 {
		t.Errorf("%d instances with the former configuration of %d, %d in all", n, before, len(f.VMs))
	}
}

// TestRule26CountsDeletionsOfTheFormerLeader replaces the leader after it has deleted an instance for its silence, a
// health check or a load balancer's verdict. The guard of the next leader must count the instance until its VM is gone.
func TestRule26CountsDeletionsOfTheFormerLeader(t *testing.T) {
	for cause, fail := range map[plan.Cause]func(*plantest.Fleet, *plantest.VM){
		plan.CauseUnhealthy:    (*plantest.Fleet).CutOff,
		plan.CauseHealthCheck:  func(_ *plantest.Fleet, vm *plantest.VM) { vm.Fails = plantest.Failure },
		plan.CauseLoadBalancer: func(_ *plantest.Fleet, vm *plantest.VM) { vm.Refused = plantest.Refusal },
	} {
		f := plantest.New(1)
		f.Group.Size, f.Group.DrainTimeout = 5, config.Duration(20*time.Minute)
		for range 5 {
			f.Add()
		}
		if cause == plan.CauseLoadBalancer {
			f.AskBalancers()
		}
		f.Run(time.Minute)
		f.Begin()
		fail(f, f.Named("i1"))
		for f.Marked(cause) == 0 && f.Err() == nil {
			f.Run(time.Second)
		}
		f.Run(time.Second)
		fail(f, f.Named("i2"))
		fail(f, f.Named("i3"))
		f.Crash(func() bool { return false })
		f.Begin()
		f.Run(10 * time.Minute)
		if n := countCreates(f); f.Err() != nil || n != 0 || f.Marked(cause) != 0 {
			t.Errorf("%s: with 3 of 6 silent, one of them leaving, %d replacements were created; %v\n%s", cause, n,
				f.Err(), f.Transcript())
		}
		f.Run(20 * time.Minute)
		if f.Err() != nil || countCreates(f) == 0 {
			t.Errorf("%s: with its VM gone, 2 of 5 are silent, and none is replaced; %v\n%s", cause, f.Err(),
				f.Transcript())
		}
	}
}

// TestRule61FaultThatEnds makes the health checks or the network of 6 of 10 instances fail together. The instances
// recover one after the other. None of them is replaced, even if the leader changes meanwhile.
func TestRule61FaultThatEnds(t *testing.T) {
	minute := config.Duration(time.Minute)
	two := 2
	for _, c := range []struct {
		name            string
		checks          bool
		every           time.Duration
		crash           bool
		balancers, slow bool
	}{
		{name: "network", every: 18 * time.Second},
		{name: "network, and a new leader", every: 18 * time.Second, crash: true},
		{name: "health checks", checks: true, every: 18 * time.Second},
		{name: "health checks, and a new leader", checks: true, every: 18 * time.Second, crash: true},
		{name: "slow health checks", checks: true, slow: true, every: 40 * time.Second},
		{name: "load balancers", balancers: true, every: 60 * time.Second},
	} {
		f := plantest.New(1)
		f.Group.Size = 10
		if c.slow {
			f.Group.HealthChecks = map[string]config.HealthCheck{"web": {Interval: &minute, Timeout: &minute,
				SuccessThreshold: &two}}
		}
		for range 10 {
			f.Add()
		}
		if c.balancers {
			f.AskBalancers()
		}
		f.Run(2 * time.Minute)
		f.Begin()
		failing := slices.Clone(f.VMs[:6])
		for _, vm := range failing {
			switch {
			case c.checks:
				vm.Fails = plantest.Failure
			case c.balancers:
				vm.Refused = plantest.Refusal
			default:
				f.CutOff(vm)
			}
		}
		f.Run(10 * time.Minute)
		for n, vm := range failing {
			f.Mend(vm)
			vm.Fails, vm.Refused = "", ""
			if c.crash && n == 2 {
				f.Crash(func() bool { return false })
			}
			f.Run(c.every)
		}
		f.Run(10 * time.Minute)
		if n := countCreates(f); n != 0 || f.Err() != nil {
			t.Errorf("%s: %d replacements; %v\n%s", c.name, n, f.Err(), f.Transcript())
		}
	}
}

// TestRule61RecoveryTime checks how long the last instance of a group may take to recover after the first.
func TestRule61RecoveryTime(t *testing.T) {
	duration := func(d time.Duration) *config.Duration { v := config.Duration(d); return &v }
	three := 3
	slow := map[string]config.HealthCheck{"quick": {Interval: duration(time.Second), Timeout: duration(time.Second)},
		"slow": {Interval: duration(2 * time.Minute), Timeout: duration(30 * time.Second), SuccessThreshold: &three,
			StartPeriod: config.Duration(4 * time.Minute)}}
	for _, tt := range []struct {
		name  string
		group config.Group
		want  time.Duration
	}{
		{"reports", config.Group{}, 100 * time.Second},
		{"health checks", config.Group{HealthChecks: slow}, 7*time.Minute + 30*time.Second},
		{"load balancers", config.Group{LoadBalancerHealth: true}, 5 * time.Minute},
		{"both", config.Group{LoadBalancerHealth: true, HealthChecks: slow}, 9 * time.Minute},
	} {
		if got := plan.RecoveryTime(plantest.New(1).Settings, &tt.group); got != tt.want+6*time.Second {
			t.Errorf("%s: %v, want %v and a slack of 6 s", tt.name, got, tt.want)
		}
	}
}

// TestRule61FlappingEnds checks that the guard ends although one instance fails and recovers again and again. Four
// other instances, which stay silent, are then replaced.
func TestRule61FlappingEnds(t *testing.T) {
	f := plantest.New(1)
	undrained(f)
	f.Group.Size = 10
	for range 10 {
		f.Add()
	}
	f.Run(30 * time.Second)
	f.Begin()
	flapping := f.VMs[4]
	for _, vm := range f.VMs[:5] {
		f.CutOff(vm)
	}
	for range 80 {
		f.Run(30 * time.Second)
		f.Mend(flapping)
		f.Run(time.Minute)
		f.CutOff(flapping)
	}
	if n := f.Marked(plan.CauseUnhealthy); n != 4 || f.Err() != nil {
		t.Errorf("%d instances were removed for their silence, want 4; %v\n%s", n, f.Err(), f.Transcript())
	}
}

// TestRule56ShareOfSpotInstances checks how the instances of new groups are bought.
func TestRule56ShareOfSpotInstances(t *testing.T) {
	for _, tt := range []struct{ size, base, percent, spot int }{
		{10, 2, 80, 6}, {10, 0, 100, 10}, {2, 2, 100, 0}, {1, 2, 100, 0}, {3, 1, 50, 1}, {4, 1, 50, 1}, {5, 0, 0, 0},
	} {
		f := plantest.New(1)
		f.Group.Size = tt.size
		f.Group.Purchase = config.Purchase{SpotPercent: tt.percent, OnDemandBase: tt.base}
		f.Run(10 * time.Minute)
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%d spot instances and %d others", tt.spot, tt.size-tt.spot); f.Bought() != want {
			t.Errorf("%+v: %s, want %s", tt, f.Bought(), want)
		}
	}
}

// TestRule56RollAndScaleDownKeepTheShare checks that a rollout and a scale-down keep the share of spot instances.
func TestRule56RollAndScaleDownKeepTheShare(t *testing.T) {
	f := plantest.New(1)
	undrained(f)
	f.Group.Size, f.Group.MaxSurge = 10, 3
	f.Group.Purchase = config.Purchase{SpotPercent: 75, OnDemandBase: 2}
	f.Run(10 * time.Minute)
	f.Group.InfraHash = "v2"
	f.Run(time.Hour)
	if want := "6 spot instances and 4 others"; former(f) != 0 || f.Bought() != want {
		t.Errorf("%d are not replaced; %s, want %s", former(f), f.Bought(), want)
	}
	f.Group.Size = 6
	f.Run(10 * time.Minute)
	if want := "3 spot instances and 3 others"; f.Err() != nil || f.Bought() != want {
		t.Errorf("%s, want %s; %v", f.Bought(), want, f.Err())
	}
}

// TestRule56SilentInstanceServesAsNoKind checks which of two instances a scale-down removes. It must remove the failing
// one, although it is the healthy one of whose kind (spot or on demand) the group has too many.
func TestRule56SilentInstanceServesAsNoKind(t *testing.T) {
	f := plantest.New(1)
	undrained(f)
	f.Group.Size, f.Group.MaxUnhealthy = 2, config.Limit{Value: 100, Percent: true}
	f.Group.Purchase = config.Purchase{SpotPercent: 100, OnDemandBase: 1}
	f.Run(10 * time.Minute)
	failing := slices.IndexFunc(f.VMs, func(vm *plantest.VM) bool { return !vm.Spot })
	f.VMs[failing].Fails, f.Group.Size = "web: refused", 1
	id := f.VMs[failing].ID
	f.Run(20 * time.Second)
	if f.Err() != nil || slices.ContainsFunc(f.VMs, func(vm *plantest.VM) bool {
		return vm.ID != id && vm.State == record.Deleting
	}) {
		t.Errorf("an instance that works is removed: %v\n%s", f.Err(), f.Transcript())
	}
}

// TestRule58ReturnsInWindows checks that a return to spot begins only in a window. The replacement must be created
// first, even with max_unavailable, and protected instances must stay.
func TestRule58ReturnsInWindows(t *testing.T) {
	f := plantest.New(1)
	undrained(f)
	f.Group.Size, f.NoSpot, f.Group.Rollout.MaxUnavailable = 3, true, 2
	f.Group.Purchase = config.Purchase{SpotPercent: 100, Fallback: config.FallbackOnDemand,
		ReturnToSpot: config.Duration(time.Hour)}
	f.Group.Windows = []config.Window{window("Mon-Sun 09:00-10:00 UTC")}
	f.Run(10 * time.Minute)
	f.NoSpot, f.Group.Protected = false, []ident.ID{f.VMs[0].ID}
	f.Run(8 * time.Hour)
	if want := "0 spot instances and 3 others"; f.Bought() != want {
		t.Errorf("before the window %s, want %s", f.Bought(), want)
	}
	f.Begin()
	f.Run(2 * time.Hour)
	if want := "2 spot instances and 1 others"; f.Err() != nil || f.Bought() != want {
		t.Errorf("after the window %s, want %s; %v", f.Bought(), want, f.Err())
	}
	if text := f.Transcript(); strings.Index(text, "create") > strings.Index(text, "mark_deleting") ||
		f.Marked(plan.CauseReturnToSpot) != 2 {
		t.Errorf("not replaced first:\n%s", text)
	}
}

// TestRule39SpotReclaimOfAWholeGroup checks that all instances of a group are replaced as soon as the leader learns of
// their notices.
func TestRule39SpotReclaimOfAWholeGroup(t *testing.T) {
	f := plantest.New(1)
	f.Group.Size = 1000
	for range 1000 {
		f.Add()
	}
	f.Run(30 * time.Second)
	f.Begin()
	for _, vm := range f.VMs {
		f.Notice(vm, 2*time.Minute)
	}
	f.Pass()
	if n := countCreates(f); n != 1000 {
		t.Errorf("%d creates in the first pass, want 1000", n)
	}
	f.Run(10 * time.Minute)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if n := countCreates(f); n != 1000 || len(f.VMs) != 1000 {
		t.Errorf("afterwards %d creates and %d instances, want 1000", n, len(f.VMs))
	}
}

// TestRule39HostileNoticesArePaced simulates a group in which every agent reports a notice as soon as it is registered.
// In each hour, the group may create twice as many instances as its size, plus those that the backoff permits.
func TestRule39HostileNoticesArePaced(t *testing.T) {
	f := plantest.New(1)
	f.Group.Size = 10
	for range 10 {
		f.Add()
	}
	f.Run(30 * time.Second)
	for hour := range 4 {
		f.Begin()
		for range 360 {
			for _, vm := range f.VMs {
				if vm.Agent && vm.Connected && !vm.Notice {
					f.Notice(vm, 2*time.Minute)
				}
			}
			f.Run(10 * time.Second)
		}
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		if n := countCreates(f); n > 2*10+20 {
			t.Errorf("hour %d: %d creates, want at most 40", hour+1, n)
		}
	}
	if !strings.Contains(f.Transcript(), "raise_error backoff: its agents report more termination notices") {
		t.Error("no alert")
	}
	f.Begin()
	f.Run(2 * time.Hour)
	if n := len(f.VMs); n != 10 || !strings.Contains(f.Transcript(), "resolve_error backoff") {
		t.Errorf("two hours after the last notice there are %d instances, want 10:\n%s", n, f.Transcript())
	}
}

// TestRule65NeverShrinksAGroup checks a group in which the cloud recommends replacing 4 of 10 instances while it has no
// capacity. The group keeps all of them, and its backoff does not delay the replacement of an instance that is lost.
func TestRule65NeverShrinksAGroup(t *testing.T) {
	f := plantest.New(1)
	advised(f)
	f.Group.Size = 10
	for range 10 {
		f.Add().Spot = true
	}
	f.Run(30 * time.Second)
	f.Begin()
	f.NoSpot = true
	for _, vm := range f.VMs[:4] {
		f.Recommend(vm, true)
	}
	f.Run(2 * time.Hour)
	if n := f.Marked(plan.CauseRecommendation); n != 0 || len(f.VMs) != 10 || f.Err() != nil {
		t.Fatalf("without capacity, %d are deleted and %d left: %v\n%s", n, len(f.VMs), f.Err(), f.Transcript())
	}
	f.NoSpot = false
	f.Destroy(f.VMs[9])
	f.Begin()
	f.Run(2 * time.Second)
	if text := f.Transcript(); !strings.Contains(text, "in place of") || strings.Contains(text, "raise_error backoff") {
		t.Errorf("the lost instance waits:\n%s", text)
	}
	f.Run(30 * time.Minute)
	if n := f.Marked(plan.CauseRecommendation); n != 4 || len(f.VMs) != 10 || f.Err() != nil {
		t.Errorf("with capacity, %d are replaced and %d left: %v\n%s", n, len(f.VMs), f.Err(), f.Transcript())
	}
}

// TestRule65DoesNotFallBack checks that no instance is bought on demand because of a recommendation.
func TestRule65DoesNotFallBack(t *testing.T) {
	f := plantest.New(1)
	advised(f)
	f.Group.Size, f.Group.Purchase.Fallback = 2, config.FallbackOnDemand
	f.Add().Spot, f.Add().Spot = true, true
	f.Run(30 * time.Second)
	f.NoSpot = true
	f.Recommend(f.VMs[0], true)
	f.Run(10 * time.Minute)
	if want := "2 spot instances and 0 others"; f.Err() != nil || f.Bought() != want {
		t.Errorf("%s, want %s; %v", f.Bought(), want, f.Err())
	}
}

// TestRule39HostileAdviceIsPaced simulates a group in which every agent reports a recommendation as soon as it is
// healthy. In each hour, the group may create as many instances as its size.
func TestRule39HostileAdviceIsPaced(t *testing.T) {
	f := plantest.New(1)
	advised(f)
	f.Group.Size, f.Group.MaxSurge = 5, 5
	for range 5 {
		f.Add().Spot = true
	}
	f.Run(30 * time.Second)
	f.Begin()
	for range 4 * 360 {
		for _, vm := range f.VMs {
			if vm.Healthy {
				f.Recommend(vm, true)
			}
		}
		f.Run(10 * time.Second)
	}
	if n := countCreates(f); n > 5*5 || n < 4*5 || f.Err() != nil {
		t.Errorf("%d creates in four hours, want 20 to 25: %v", n, f.Err())
	}
}

// TestRule66EndsBeforeTheMaintenance checks that the replacements of many instances with maintenance at the same time
// are complete when the maintenance begins, with at most max_surge of them under way.
func TestRule66EndsBeforeTheMaintenance(t *testing.T) {
	f := plantest.New(1)
	undrained(f)
	f.Group.Size, f.Group.MaxSurge, f.Boot = 9, 2, 4*time.Minute
	f.Group.Windows = []config.Window{window("Mon-Sun 22:00-23:00 UTC")}
	for range 9 {
		f.Add()
	}
	f.Run(30 * time.Second)
	for n, vm := range f.VMs {
		f.Maintain(vm, "system-reboot", 3*time.Hour+time.Duration(n%3)*time.Minute)
	}
	for range 200 {
		f.Run(time.Minute)
		if len(f.VMs) > 9+2 {
			t.Fatalf("%d VMs, want at most 11", len(f.VMs))
		}
		for _, vm := range f.VMs {
			if vm.Maintenance != "" && !f.Now.Before(vm.MaintenanceAt) {
				t.Fatalf("%s still runs when its maintenance begins:\n%s", vm.Name, f.Transcript())
			}
		}
	}
	if f.Err() != nil || len(f.VMs) != 9 || f.Marked(plan.CauseMaintenance) != 9 {
		t.Errorf("%d VMs, %d replaced: %v", len(f.VMs), f.Marked(plan.CauseMaintenance), f.Err())
	}
}

// advised makes a group buy spot instances and replace those for which the cloud recommends it.
func advised(f *plantest.Fleet) {
	undrained(f)
	f.Group.Purchase = config.Purchase{SpotPercent: 100, OnRecommendation: config.OnNoticeReplace}
	for _, vm := range f.VMs {
		vm.Spot = true
	}
}

func countCreates(f *plantest.Fleet) (n int) {
	for line := range strings.Lines(f.Transcript()) {
		if strings.Fields(line)[1] == "create" {
			n++
		}
	}
	return n
}

// window returns the window that a text describes.
func window(text string) config.Window {
	w, err := config.ParseWindow(text)
	if err != nil {
		panic(err)
	}
	return w
}

// TestRule62FlapperIsReplaced lets one VM fail again and again for 25 hours. It recovers each time before its
// replacement has booted. The replacement is finished all the same, and one alert names the instance.
func TestRule62FlapperIsReplaced(t *testing.T) {
	for name, fail := range map[string]func(f *plantest.Fleet, vm *plantest.VM){
		"silent": func(f *plantest.Fleet, vm *plantest.VM) {
			f.CutOff(vm)
			f.Run(200 * time.Second)
			f.Mend(vm)
		},
		"health check": func(f *plantest.Fleet, vm *plantest.VM) {
			vm.Fails = "http"
			f.Run(80 * time.Second)
			vm.Fails = ""
		},
		"load balancer": func(f *plantest.Fleet, vm *plantest.VM) {
			vm.Refused = "load balancer web"
			f.Run(80 * time.Second)
			vm.Refused = ""
		},
	} {
		f := plantest.New(1)
		f.Group.Size, f.Boot = 3, 2*time.Minute
		flapper := f.Add()
		f.Add()
		f.Add()
		if name == "load balancer" {
			f.AskBalancers()
		}
		f.Run(10 * time.Minute)
		f.Begin()
		for end := f.Now.Add(25 * time.Hour); f.Now.Before(end) && f.Err() == nil; f.Run(2 * time.Minute) {
			if flapper.State == record.Registered {
				fail(f, flapper)
			}
		}
		if err := f.Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		alerts := strings.Count(f.Transcript(), "raise_error i1 flaps")
		if n := countCreates(f); n > 3 || alerts != 1 || f.VM(flapper.ID) != nil || len(f.VMs) != 3 {
			t.Errorf("%s: %d creates, %d alerts, %d VMs; want at most 3, 1 and 3, without the flapper:\n%.3000s", name,
				n,
				alerts, len(f.VMs), f.Transcript())
		}
	}
}

// TestRule62GroupOfOne checks that a replacement that fails leaves the recovered instance alone.
func TestRule62GroupOfOne(t *testing.T) {
	f := plantest.New(1)
	f.Group.Size, f.Mute = 1, true
	old := f.Add()
	f.Run(time.Minute)
	f.Begin()
	f.CutOff(old)
	f.Run(200 * time.Second)
	f.Mend(old)
	f.Run(time.Hour)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if n := countCreates(f); n != 1 || len(f.VMs) != 1 || f.VMs[0] != old || old.State != record.Registered {
		t.Errorf("%d creates and %d VMs, want 1 and the old one:\n%s", n, len(f.VMs), f.Transcript())
	}
}

// TestRule62NewLeaders changes the leader after each failure, while the replacement boots. Such a leader does not know
// of the replacement. The first leader that stays replaces the flapping instance.
func TestRule62NewLeaders(t *testing.T) {
	f := plantest.New(1)
	f.Group.Size, f.Boot = 2, 2*time.Minute
	flapper := f.Add()
	f.Add()
	f.Run(10 * time.Minute)
	f.Begin()
	lapse := func() {
		f.CutOff(flapper)
		f.Run(200 * time.Second)
		f.Mend(flapper)
	}
	for range 3 {
		lapse()
		f.Crash(func() bool { return true })
		f.Run(10 * time.Minute)
	}
	if f.VM(flapper.ID) != nil {
		lapse()
		f.Run(10 * time.Minute)
	}
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	if n := countCreates(f); n > 4 || f.VM(flapper.ID) != nil || len(f.VMs) != 2 {
		t.Errorf("%d creates and %d VMs, want at most 4, and 2 without the flapping one:\n%s", n, len(f.VMs),
			f.Transcript())
	}
}

// TestRule63Reboots reboots a VM every minute for a day. It is replaced, and one alert names it. A protected VM stays,
// and so does the whole group if all its VMs reboot.
func TestRule63Reboots(t *testing.T) {
	for name, want := range map[string]int{"one": 1, "protected": 0, "all": 0} {
		f := plantest.New(1)
		f.Group.Size = 3
		reboots := []*plantest.VM{f.Add()}
		others := []*plantest.VM{f.Add(), f.Add()}
		switch name {
		case "protected":
			f.Group.Protected = []ident.ID{reboots[0].ID}
		case "all":
			f.Group.MaxUnhealthy = config.Limit{Value: 1}
			reboots = append(reboots, others...)
		}
		f.Run(time.Minute)
		f.Begin()
		for range 24 * 60 {
			for _, vm := range reboots {
				if vm.State == record.Registered {
					f.Restart(vm, true, 20*time.Second)
				}
			}
			f.Run(time.Minute)
		}
		if err := f.Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n, alerts := countCreates(f), strings.Count(f.Transcript(), "raise_error i1 flaps")
		if n != want || len(f.VMs) != 3 || name == "one" && (alerts != 1 || f.VM(reboots[0].ID) != nil) {
			t.Errorf("%s: %d creates, %d alerts, %d VMs, want %d creates:\n%.3000s", name, n, alerts, len(f.VMs), want,
				f.Transcript())
		}
	}
}
