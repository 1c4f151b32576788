package plan_test

import (
	"flag"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

var (
	worlds = flag.Int64("worlds", 250, "how many random histories to play, with -short at most 60")
	from   = flag.Int64("from", 0, "seed of the first random history")
)

// TestRandomHistoriesKeepTheRules checks that no decision breaks a rule ([plantest.Check], after every event). Once the
// faults stop, the group converges: it has its size, all instances are healthy and current, and no action follows.
func TestRandomHistoriesKeepTheRules(t *testing.T) {
	n := *worlds
	if testing.Short() {
		n = min(n, 60)
	}
	seeds := []int64{1410} // in which the removal of a replacement made another instance superfluous
	for seed := *from; seed < *from+n; seed++ {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		rng := rand.New(rand.NewSource(seed))
		f := plantest.Random(rng)
		f.DrawSpares()
		f.Run(time.Minute)
		f.Begin()
		for range 5 + rng.Intn(25) {
			if f.Err() != nil {
				break
			}
			f.Trouble(rng)
			f.Run(time.Duration(rng.Intn(int(8 * time.Minute))))
		}
		f.Calm()
		f.Settings.EligibleAge, f.Settings.ForcedAge = 0, 0 // otherwise rotation never ends for long
		f.Group.Spares.MaxAge = 0
		f.Run(150 * time.Minute)
		if err := f.Err(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, f.Transcript())
		}
		if wrong := f.Settled(); wrong != "" {
			t.Fatalf("seed %d: %s (size %d)\n%s", seed, wrong, f.Group.Size, f.Transcript())
		}
		before := f.Transcript()
		f.Run(20 * time.Minute)
		if after := f.Transcript(); after != before {
			t.Fatalf("seed %d: not quiet:\n%s", seed, after)
		}
	}
}

// TestFalseSilenceRemovesFewInstances cuts off all agents, one by one within one and a half report intervals, while
// their VMs run. At most max_unhealthy instances of the group may be removed. If new VMs are cut off too, none may be
// removed.
func TestFalseSilenceRemovesFewInstances(t *testing.T) {
	for seed := range int64(400) {
		rng := rand.New(rand.NewSource(seed))
		f := plantest.Random(rng)
		f.Settings.EligibleAge, f.Settings.ForcedAge, f.Settings.OnDemandAge = 0, 0, 0
		f.Group.Schedules = nil
		size := f.Group.Size
		f.Mute = rng.Intn(2) == 0 // whether new VMs share the partition
		f.Run(time.Minute)
		f.Begin()
		original := append([]*plantest.VM(nil), f.VMs...)
		spread := time.Duration(rng.Intn(int(90 * time.Second)))
		for _, k := range rng.Perm(len(original)) {
			f.CutOff(original[k])
			f.Run(spread / time.Duration(len(original)))
		}
		f.Run(time.Hour)
		if err := f.Err(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, f.Transcript())
		}
		limit := f.Group.MaxUnhealthy.Of(size)
		if f.Mute {
			limit = 0 // no replacement can become healthy
		}
		if n := f.Marked("unhealthy"); n > limit {
			t.Fatalf("seed %d: %d of %d removed, at most %d may be\n%s", seed, n, size, limit, f.Transcript())
		}
	}
}

// TestRule52FailingChecksRemoveFewInstances lets a health check fail on all instances, one by one within one and a half
// report intervals. If the check also fails on new VMs, no instance is removed. If it passes on new VMs, at most
// max_unhealthy instances are removed, because it fails on all old VMs before the first new VM has booted.
func TestRule52FailingChecksRemoveFewInstances(t *testing.T) {
	for seed := range int64(150) {
		rng := rand.New(rand.NewSource(seed))
		f := plantest.Random(rng)
		f.Settings.EligibleAge, f.Settings.ForcedAge, f.Settings.OnDemandAge = 0, 0, 0
		f.Group.Schedules = nil
		size, newToo := f.Group.Size, rng.Intn(2) == 0
		f.Run(time.Minute)
		f.Begin()
		original := append([]*plantest.VM(nil), f.VMs...)
		if newToo {
			f.Fails = func(vm *plantest.VM) string {
				if slices.Contains(original, vm) {
					return ""
				}
				return plantest.Failure
			}
		}
		spread := time.Duration(rng.Intn(int(90 * time.Second)))
		if !newToo {
			spread = min(spread, f.Boot) // a replacement that is healthy proves that the fault is the instance's
		}
		for _, k := range rng.Perm(len(original)) {
			original[k].Fails = plantest.Failure
			f.Run(spread / time.Duration(len(original)))
		}
		f.Run(time.Hour)
		if err := f.Err(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, f.Transcript())
		}
		limit := f.Group.MaxUnhealthy.Of(size)
		if n := f.Marked(plan.CauseHealthCheck); n > limit && !newToo {
			t.Fatalf("seed %d: %d of %d removed, at most %d may be\n%s", seed, n, size, limit, f.Transcript())
		}
		for _, vm := range original {
			if newToo && !slices.Contains(f.VMs, vm) {
				t.Fatalf("seed %d: %s is removed, and no new instance is healthy\n%s", seed, vm.Name, f.Transcript())
			}
		}
	}
}

// TestRule59AVerdictOnAllRemovesNone lets a load balancer call every instance unhealthy, new ones too, one by one
// within one and a half rounds of questions. No instance is removed, because the load balancer calls no replacement
// healthy (rule 60).
func TestRule59AVerdictOnAllRemovesNone(t *testing.T) {
	for seed := range int64(150) {
		rng := rand.New(rand.NewSource(seed))
		f := plantest.Random(rng)
		f.Settings.EligibleAge, f.Settings.ForcedAge, f.Settings.OnDemandAge = 0, 0, 0
		f.Group.Schedules = nil
		f.AskBalancers()
		f.Run(2 * time.Minute)
		f.Begin()
		original := append([]*plantest.VM(nil), f.VMs...)
		f.Refuses = func(vm *plantest.VM) string {
			if slices.Contains(original, vm) {
				return ""
			}
			return plantest.Refusal
		}
		spread := time.Duration(rng.Intn(int(30 * time.Second)))
		for _, k := range rng.Perm(len(original)) {
			original[k].Refused = plantest.Refusal
			f.Run(spread / time.Duration(len(original)))
		}
		f.Run(time.Hour)
		if err := f.Err(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, f.Transcript())
		}
		for _, vm := range original {
			if !slices.Contains(f.VMs, vm) {
				t.Fatalf("seed %d: %s is removed, and no new instance is healthy\n%s", seed, vm.Name, f.Transcript())
			}
		}
	}
}

// TestArbitrarySnapshotsKeepTheRules checks that decisions break no rule, even for snapshots that cannot occur.
func TestArbitrarySnapshotsKeepTheRules(t *testing.T) {
	for seed := range int64(20000) {
		checkSeed(t, seed)
	}
}

func FuzzNext(f *testing.F) {
	f.Add(int64(1))
	f.Fuzz(checkSeed)
}

func checkSeed(t *testing.T, seed int64) {
	s := plantest.RandomSnapshot(rand.New(rand.NewSource(seed)))
	if err := plantest.Check(s, plan.Next(s)); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}

// TestNextIsPure checks that the same instances in the same order give the same plan, wherever they are in memory.
// Planning must not change its snapshot.
func TestNextIsPure(t *testing.T) {
	for seed := range int64(300) {
		rng := rand.New(rand.NewSource(seed))
		f := plantest.Random(rng)
		f.Run(time.Minute)
		for range 8 {
			f.Trouble(rng)
			s := f.Snapshot()
			before := append([]plan.Instance(nil), s.Instances...)
			plan.Next(s)
			for n := range before {
				if before[n] != s.Instances[n] {
					t.Fatalf("seed %d: the snapshot changed", seed)
				}
			}
			f.Run(time.Minute)
		}
	}
}
