package plan_test

import (
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// shard returns a snapshot of a shard with the given number of VMs, listed a second ago. The strays are vm-1, vm-2 and
// so on.
func shard(listed int, strays ...plan.Stray) plan.ShardSnapshot {
	s := snapshot(0)
	for n := range strays {
		strays[n].ProviderID = fmt.Sprintf("vm-%d", n+1)
	}
	return plan.ShardSnapshot{Now: now, Settings: s.Settings, Strays: strays,
		Listed: plan.Observed[int]{Value: listed, Complete: true, At: ago(time.Second)}}
}

// orphan returns a VM of the given age. Each value in reads is the age of one read that found no record.
func orphan(age time.Duration, reads ...time.Duration) plan.Stray {
	s := plan.Stray{Instance: id(1), State: plan.ProviderRunning, LaunchedAt: ago(age)}
	for _, r := range reads {
		s.Reads = append(s.Reads, ago(r))
	}
	return s
}

func tombstoned() plan.Stray {
	s := orphan(time.Hour)
	s.Tombstone = true
	return s
}

func orphans(n int) (strays []plan.Stray) {
	for range n {
		strays = append(strays, orphan(time.Hour, 3*time.Minute, time.Minute))
	}
	return strays
}

func TestCollectGarbage(t *testing.T) {
	change := func(s plan.Stray, fn func(*plan.Stray)) plan.Stray { fn(&s); return s }
	for _, c := range []struct {
		name     string
		snapshot plan.ShardSnapshot
		change   func(*plan.ShardSnapshot)
		want     []string
		wake     time.Duration
	}{
		{name: "nothing"},
		{name: "an orphan is looked for", snapshot: shard(9, orphan(time.Hour)), want: []string{"confirm_orphan vm-1"},
			wake: 10 * time.Second},
		{name: "an orphan was looked for once", snapshot: shard(9, orphan(time.Hour, time.Minute)), wake: time.Minute},
		{name: "an orphan is looked for again after an interval", snapshot: shard(9, orphan(time.Hour, 2*time.Minute)),
			want: []string{"confirm_orphan vm-1"}},
		{name: "an orphan was looked for twice", snapshot: shard(9, orphan(time.Hour, 2*time.Minute, 0)),
			want: []string{"terminate_stray vm-1"}},
		{name: "two reads too close together", snapshot: shard(9, orphan(time.Hour, 3*time.Minute, 2*time.Minute)),
			want: []string{"confirm_orphan vm-1"}},
		{name: "a young orphan is given the registration time-out", snapshot: shard(9,
			orphan(3*time.Minute, 3*time.Minute, time.Minute)), wake: 2 * time.Minute},
		{name: "a young orphan is read again after it", snapshot: shard(9,
			orphan(5*time.Minute, 4*time.Minute, time.Minute)), want: []string{"confirm_orphan vm-1"}},
		{name: "without launch time its ID tells its age", snapshot: shard(9,
			change(orphan(0, 9*time.Minute), func(s *plan.Stray) {
				s.LaunchedAt = time.Time{}
			})),
			wake: 5*time.Minute + time.Second},
		{name: "an orphan that is going", snapshot: shard(9, change(orphan(time.Hour), func(s *plan.Stray) {
			s.State = plan.ProviderGoing
		}))},
		{name: "an orphan that is stopped", snapshot: shard(9, change(orphan(time.Hour), func(s *plan.Stray) {
			s.State = plan.ProviderStopped
		})),
			want: []string{"confirm_orphan vm-1"}},
		{name: "an orphan that is seen to already", snapshot: shard(9, change(orphan(time.Hour), func(s *plan.Stray) {
			s.Busy = true
		}))},
		{name: "an orphan without a valid ID is left", snapshot: shard(9,
			change(orphan(time.Hour), func(s *plan.Stray) {
				s.Instance = ident.ID{}
			}))},
		{name: "a second VM of a live instance is left", snapshot: shard(9,
			change(orphan(time.Hour), func(s *plan.Stray) {
				s.Claimed = true
			}))},
		{name: "no garbage collection without a complete list", snapshot: shard(9, orphan(time.Hour), tombstoned()),
			change: func(s *plan.ShardSnapshot) {
				s.Listed.Complete = false
			}},
		{name: "two orphans of three are few", snapshot: shard(3, orphans(2)...),
			want: []string{"terminate_stray vm-1", "terminate_stray vm-2"}},
		{name: "three of 59 are many", snapshot: shard(59, orphans(3)...), want: []string{"raise_error orphans"}},
		{name: "three of 60 are few", snapshot: shard(60, orphans(3)...),
			want: []string{"terminate_stray vm-1", "terminate_stray vm-2", "terminate_stray vm-3"}},
		{name: "many stop everything that destroys", snapshot: shard(9, append(orphans(3), tombstoned())...),
			want: []string{"settle"},
			change: func(s *plan.ShardSnapshot) {
				s.OrphansRaised = true
				s.Leftovers = []plan.Leftover{{Instance: id(3)}}
				s.Tombstones = []plan.Tombstone{{Instance: id(4), DeletedAt: ago(time.Hour)}}
			}},
		{name: "many, confirmed by a person", snapshot: shard(4, orphans(3)...), change: func(s *plan.ShardSnapshot) {
			s.OrphansRaised = true
			for k := range s.Strays {
				s.Strays[k].Confirmed = true
			}
		}, want: []string{"resolve_error orphans", "terminate_stray vm-1", "terminate_stray vm-2",
			"terminate_stray vm-3"}},
		{name: "many that came after those confirmed", snapshot: shard(4, orphans(4)...),
			change: func(s *plan.ShardSnapshot) {
				s.Strays[0].Confirmed = true
			},
			want: []string{"raise_error orphans"}},
		{name: "few again", snapshot: shard(9), change: func(s *plan.ShardSnapshot) {
			s.OrphansRaised = true
		}, want: []string{"resolve_error orphans"}},
		{name: "after a restore, one orphan of many waits", snapshot: shard(99, orphans(1)...), change: restored,
			want: []string{"raise_error orphans"}},
		{name: "after a restore, a VM with a tombstone waits", snapshot: shard(99, tombstoned()), change: restored,
			want: []string{"raise_error orphans"}},
		{name: "after a restore, a claimed VM and one that ends are no orphans", snapshot: shard(99,
			change(orphans(1)[0], func(s *plan.Stray) { s.Claimed = true }),
			change(tombstoned(), func(s *plan.Stray) { s.State = plan.ProviderGoing })), change: restored},
		{name: "VMs of reservations that are being settled are no orphans", snapshot: shard(9, orphans(3)...),
			change: func(s *plan.ShardSnapshot) {
				s.Leftovers = []plan.Leftover{{Instance: id(1)}}
			}, want: []string{"settle"}},
		{name: "a tombstone with a running VM", snapshot: shard(9, tombstoned()),
			want: []string{"terminate_stray vm-1"}},
		{name: "a tombstone with a VM that is gone", snapshot: shard(9, change(tombstoned(), func(s *plan.Stray) {
			s.State = plan.ProviderGone
		}))},
		{name: "a reservation of an earlier term", change: func(s *plan.ShardSnapshot) {
			s.Leftovers = []plan.Leftover{{Instance: id(3)}}
		},
			want: []string{"settle"}, wake: 10 * time.Second},
		{name: "a reservation that is seen to already", change: func(s *plan.ShardSnapshot) {
			s.Leftovers = []plan.Leftover{{Instance: id(3), Busy: true}}
		}},
		{name: "a tombstone within its retention", snapshot: shard(9), change: buried(20 * time.Minute),
			wake: 10 * time.Minute},
		{name: "a tombstone past its retention", snapshot: shard(9), change: buried(31 * time.Minute),
			want: []string{"remove_tombstone"}, wake: 10 * time.Second},
		{name: "rule 38: the tombstone of an unused reservation, within 2 minutes", snapshot: shard(9),
			change: unused(time.Minute), wake: time.Minute},
		{name: "rule 38: the tombstone of an unused reservation, after 2 minutes", snapshot: shard(9),
			change: unused(2*time.Minute + time.Second), want: []string{"remove_tombstone"}, wake: 10 * time.Second},
		{name: "a tombstone past its retention, no list since", snapshot: shard(9), change: buried(30 * time.Minute)},
		{name: "a tombstone with a listed VM", snapshot: shard(9, tombstoned()), change: func(s *plan.ShardSnapshot) {
			s.Tombstones = []plan.Tombstone{{Instance: id(1), DeletedAt: ago(time.Hour)}}
			s.Strays[0].Busy = true
		}},
		{name: "a tombstone that is seen to already", snapshot: shard(9), change: func(s *plan.ShardSnapshot) {
			s.Tombstones = []plan.Tombstone{{Instance: id(1), DeletedAt: ago(time.Hour), Busy: true}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.snapshot
			s.Now = now
			s.Settings = snapshot(0).Settings
			if c.change != nil {
				c.change(&s)
			}
			d := plan.CollectGarbage(s)
			var got []string
			for _, a := range d.Actions {
				line := string(a.Kind)
				if a.ProviderID+string(a.Alert) != "" {
					line += " " + a.ProviderID + string(a.Alert)
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if wake := d.NextPlan.Sub(now); c.wake > 0 && wake != c.wake {
				t.Errorf("wakes after %s, want %s", wake, c.wake)
			}
			if again := plan.CollectGarbage(s); !reflect.DeepEqual(again, d) {
				t.Errorf("not deterministic: %+v, then %+v", d, again)
			}
		})
	}
}

func restored(s *plan.ShardSnapshot) { s.OrphansWait = true }

func unused(d time.Duration) func(*plan.ShardSnapshot) {
	return func(s *plan.ShardSnapshot) {
		s.Tombstones = []plan.Tombstone{{Instance: id(1), DeletedAt: ago(d), Unused: true}}
	}
}

func buried(d time.Duration) func(*plan.ShardSnapshot) {
	return func(s *plan.ShardSnapshot) { s.Tombstones = []plan.Tombstone{{Instance: id(1), DeletedAt: ago(d)}} }
}

// TestCollectGarbageProperties checks that garbage collection terminates only VMs with an ID and without a live record.
// Such a VM must have a tombstone, or two reads one interval apart must have found no record. If there are more than 2
// orphans, and more than 5 % of the shard's VMs are orphans, none of them is terminated before a person confirms it.
// VMs and records for which an action is under way are left alone.
func TestCollectGarbageProperties(t *testing.T) {
	states := []plan.ProviderState{plan.ProviderUnknown, plan.ProviderPending, plan.ProviderRunning,
		plan.ProviderStopped, plan.ProviderGoing, plan.ProviderGone}
	for seed := range int64(5000) {
		rng := rand.New(rand.NewSource(seed))
		when := func() time.Duration { return time.Duration(rng.Intn(int(12 * time.Minute))) }
		var strays []plan.Stray
		for range rng.Intn(8) {
			stray := orphan(when())
			stray.Instance = id(1 + rng.Intn(20))
			if rng.Intn(8) == 0 {
				stray.Instance = ident.ID{}
			}
			at := when() + when()
			for range rng.Intn(4) {
				stray.Reads = append(stray.Reads, ago(at))
				at -= time.Duration(rng.Int63n(int64(at) + 1))
			}
			stray.State = states[rng.Intn(len(states))]
			stray.Tombstone, stray.Claimed, stray.Busy = rng.Intn(4) == 0, rng.Intn(6) == 0, rng.Intn(6) == 0
			stray.Confirmed = rng.Intn(4) == 0
			strays = append(strays, stray)
		}
		s := shard(len(strays)+rng.Intn(100), strays...)
		s.Listed.Complete = rng.Intn(5) > 0
		d := plan.CollectGarbage(s)
		if !d.NextPlan.IsZero() && !d.NextPlan.After(now) {
			t.Fatalf("seed %d: wakes at %s", seed, d.NextPlan)
		}
		byID := map[string]plan.Stray{}
		unrecorded := 0
		for _, stray := range strays {
			byID[stray.ProviderID] = stray
			ended := stray.State == plan.ProviderGone || stray.State == plan.ProviderGoing
			if !stray.Tombstone && !stray.Claimed && !stray.Instance.IsZero() && !ended && !stray.Confirmed {
				unrecorded++
			}
		}
		for _, a := range d.Actions {
			if a.Kind != plan.TerminateStray {
				continue
			}
			stray := byID[a.ProviderID]
			reads := len(stray.Reads)
			twice := reads > 1 && stray.Reads[reads-1].Sub(stray.Reads[0]) >= s.Settings.CollectInterval &&
				!stray.Reads[reads-1].Before(stray.LaunchedAt.Add(s.Settings.RegistrationTimeout))
			switch {
			case !s.Listed.Complete, stray.Busy, stray.Claimed, stray.Instance.IsZero(), a.Instance != stray.Instance:
				t.Fatalf("seed %d: %+v for %+v", seed, a, stray)
			case !stray.Tombstone && !twice:
				t.Fatalf("seed %d: %+v, but it is not proven an orphan: %+v", seed, a, stray)
			case unrecorded > 2 && unrecorded*20 > s.Listed.Value:
				t.Fatalf("seed %d: %+v with %d orphans of %d", seed, a, unrecorded, s.Listed.Value)
			}
		}
	}
}
