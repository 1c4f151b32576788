package plan_test

import (
	"flag"
	"math/rand"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/plan/plantest"
)

var (
	worlds = flag.Int64("worlds", 250, "how many random worlds to play")
	from   = flag.Int64("from", 0, "seed of the first random world")
)

// Whatever happens to a group, no decision breaks a rule ([plantest.Check], after every event), and once the faults
// stop the group reaches its size, healthy and as configured, and is then quiet.
func TestWorldsHold(t *testing.T) {
	for seed := *from; seed < *from+*worlds; seed++ {
		rng := rand.New(rand.NewSource(seed))
		w := plantest.Random(rng)
		w.Run(time.Minute)
		w.Begin()
		for range 5 + rng.Intn(25) {
			if w.Err() != nil {
				break
			}
			w.Trouble(rng)
			w.Run(time.Duration(rng.Intn(int(8 * time.Minute))))
		}
		w.Calm()
		w.Settings.EligibleAge, w.Settings.ForcedAge = 0, 0 // else it is never quiet for long
		w.Run(150 * time.Minute)
		if err := w.Err(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, w.Transcript())
		}
		if wrong := w.Settled(); wrong != "" {
			t.Fatalf("seed %d: %s (size %d)\n%s", seed, wrong, w.Group.Size, w.Transcript())
		}
		before := w.Transcript()
		w.Run(20 * time.Minute)
		if after := w.Transcript(); after != before {
			t.Fatalf("seed %d: not quiet:\n%s", seed, after)
		}
	}
}

// A wave of false signals (agents cut off while their VMs run) never removes more than max_unhealthy of a group, nor
// the only instance before its replacement is healthy, however it spreads within one and a half report intervals.
func TestFalseWaves(t *testing.T) {
	for seed := range int64(400) {
		rng := rand.New(rand.NewSource(seed))
		w := plantest.Random(rng)
		w.Settings.EligibleAge, w.Settings.ForcedAge, w.Settings.OnDemandAge = 0, 0, 0
		size := w.Group.Size
		w.Mute = rng.Intn(2) == 0 // a partition that new VMs share, or not
		w.Run(time.Minute)
		w.Begin()
		original := append([]*plantest.VM(nil), w.VMs...)
		spread := time.Duration(rng.Intn(int(90 * time.Second)))
		for _, k := range rng.Perm(len(original)) {
			w.CutOff(original[k])
			w.Run(spread / time.Duration(len(original)))
		}
		w.Run(time.Hour)
		if err := w.Err(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, w.Transcript())
		}
		limit := w.Group.MaxUnhealthy.Of(size)
		if w.Mute {
			limit = 0 // nothing could take their place
		}
		if n := w.Marked("unhealthy"); n > limit {
			t.Fatalf("seed %d: %d of %d removed, at most %d may be\n%s", seed, n, size, limit, w.Transcript())
		}
	}
}

// Snapshots that no world may ever lead to do not lead to a decision that breaks a rule either.
func TestAnySnapshotHolds(t *testing.T) {
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

// The same instances in the same order give the same plan, wherever they lie in memory, and planning changes nothing in
// its snapshot.
func TestNextIsPure(t *testing.T) {
	for seed := range int64(300) {
		rng := rand.New(rand.NewSource(seed))
		w := plantest.Random(rng)
		w.Run(time.Minute)
		for range 8 {
			w.Trouble(rng)
			s := w.Snapshot()
			before := append([]plan.Instance(nil), s.Instances...)
			plan.Next(s)
			for n := range before {
				if before[n] != s.Instances[n] {
					t.Fatalf("seed %d: the snapshot changed", seed)
				}
			}
			w.Run(time.Minute)
		}
	}
}
