package plan_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// keeping lets a group with a load balancer preserve failed instances.
func keeping(most int, length time.Duration) func(*plantest.Fleet) {
	return func(f *plantest.Fleet) {
		undrained(f)
		f.Group.LoadBalancers = []string{"www"}
		f.Group.Preserve = config.Preserve{Max: most, For: config.Duration(length)}
	}
}

// preserved returns an instance that has been preserved for a time, and is out of its load balancers.
func preserved(d time.Duration) plan.Instance {
	i := silent()
	i.PreservedAt, i.Deregistered = ago(d), true
	return i
}

// overdue returns an instance that did not register in time.
func overdue() plan.Instance {
	i := booting()
	i.LaunchedAt = ago(10 * time.Minute)
	return i
}

func TestRule67Preserve(t *testing.T) {
	up := func(n int) []plan.Instance {
		var all []plan.Instance
		for range n {
			all = append(all, well())
		}
		return all
	}
	for _, c := range []struct {
		name      string
		instances []plan.Instance
		change    func(*plan.Snapshot)
		want      []string
	}{
		{name: "it did not register", instances: append(up(2), overdue()),
			want: []string{"preserve i3 unregistered +1m0s"}},
		{name: "its replacement is healthy", instances: append(up(3), silent()),
			want: []string{"preserve i4 unhealthy +1m0s"}},
		{name: "its replacement is not healthy yet", instances: append(up(2), failing(nil), booting())},
		{name: "its health check fails", instances: append(up(3), failing(nil)),
			want: []string{"preserve i4 health_check +1m0s"}},
		{name: "its VM ended", instances: append(up(2), lost()),
			want: []string{"create for i3", "mark_deleting i3 gone"}},
		{name: "one of two is preserved", instances: append(up(1), overdue(), overdue()),
			want: []string{"preserve i2 unregistered +1m0s", "mark_deleting i3 unregistered +1m0s"}},
		{name: "one is preserved already", instances: append(up(2), overdue(), preserved(time.Minute)),
			want: []string{"mark_deleting i3 unregistered +1m0s"}},
		{name: "one is being preserved", instances: append(up(3), silent(), with(func(i *plan.Instance) {
			*i = silent()
			i.Work = plan.Preserving
		})), want: []string{"mark_deleting i4 unhealthy +1m0s"}},
		{name: "the time of the other is over", instances: append(up(3), silent(), preserved(25*time.Hour)),
			want: []string{"preserve i4 unhealthy +1m0s", "mark_deleting i5 preserved +1m0s"}},
		{name: "none is preserved", instances: append(up(3), silent()),
			change: func(s *plan.Snapshot) { s.Group.Preserve.Max = 0 },
			want:   []string{"mark_deleting i4 unhealthy +1m0s"}},
		{name: "a smaller size is no failure", instances: append(up(3), silent()),
			change: func(s *plan.Snapshot) { s.Group.Size, s.Group.MaxSurge = 2, 1 },
			want:   []string{"mark_deleting i4 scale_down +1m0s", "mark_deleting i1 scale_down +1m0s"}},
		{name: "the group is emptied", instances: append(up(1), overdue()),
			change: func(s *plan.Snapshot) { s.Group.Deleted = true },
			want:   []string{"mark_deleting i1 group_deleted +1m0s", "mark_deleting i2 unregistered +1m0s"}},
		{name: "an on-demand instance", instances: append(up(3), onDemand(overdue())),
			want: []string{"mark_deleting i4 unregistered +1m0s"}},

		{name: "rule 68: it stays, and the group has its size", instances: append(up(3), preserved(23*time.Hour))},
		{name: "rule 68: it does not count", instances: append(up(2), preserved(time.Hour)), want: []string{"create"}},
		{name: "rule 68: its time is over", instances: append(up(3), preserved(24*time.Hour)),
			want: []string{"mark_deleting i4 preserved +1m0s"}},
		{name: "rule 68: preserve.max is lower", instances: append(up(3), preserved(time.Hour), preserved(2*time.Hour)),
			want: []string{"mark_deleting i5 preserved +1m0s"}},
		{name: "rule 68: preserve was removed", instances: append(up(3), preserved(time.Hour)),
			change: func(s *plan.Snapshot) { s.Group.Preserve = config.Preserve{} },
			want:   []string{"mark_deleting i4 preserved +1m0s"}},
		{name: "rule 68: its VM ended", instances: append(up(3), with(func(i *plan.Instance) {
			*i = preserved(time.Hour)
			i.Provider = observed(plan.ProviderStopped)
		})), want: []string{"mark_deleting i4 gone"}},
		{name: "rule 68: the group is deleted", instances: []plan.Instance{preserved(time.Hour)},
			change: func(s *plan.Snapshot) { s.Group.Deleted = true },
			want:   []string{"mark_deleting i1 group_deleted +1m0s"}},
		{name: "rule 68: the shard is emptied", instances: []plan.Instance{preserved(time.Hour)},
			change: func(s *plan.Snapshot) { s.Settings.Terminating = true },
			want:   []string{"mark_deleting i1 terminating +1m0s"}},
		{name: "rule 67: another leader removes it from its load balancers", change: balanced,
			instances: append(up(3), with(func(i *plan.Instance) {
				*i = preserved(time.Hour)
				i.Deregistered = false
			})), want: []string{"preserve i4"}},
		{name: "rule 69: it joins no load balancer and gets no files", change: balanced,
			instances: append(up(3), with(func(i *plan.Instance) {
				i.PreservedAt, i.Deregistered, i.RuntimeHash = ago(time.Hour), true, "r0"
			}))},
	} {
		for n := range c.instances {
			c.instances[n].InLoadBalancers = c.instances[n].PreservedAt.IsZero()
		}
		s := snapshot(3, c.instances...)
		s.Group.Preserve = config.Preserve{Max: 1, For: config.Duration(24 * time.Hour)}
		answered(&s)
		if c.change != nil {
			c.change(&s)
		}
		got, d := planned(s)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		if err := plantest.Check(s, d); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestRule69Guard checks that preserved instances, and those that were, do not count for the unhealthy guard.
func TestRule69Guard(t *testing.T) {
	gone := preserved(time.Hour)
	gone.State, gone.DeletingAt, gone.DeleteReason = record.Deleting, ago(time.Minute), "released"
	for _, i := range []plan.Instance{preserved(time.Hour), gone} {
		if running, silent := plan.CountSilence(&i, snapshot(0).Settings, ago(time.Hour), now); running || silent {
			t.Errorf("%s: running %t, silent %t", i.State, running, silent)
		}
		if plan.Counts(&i) {
			t.Errorf("%s: it counts", i.State)
		}
	}
}

// TestRule69LateReport checks that a healthy report of a preserved instance does not end its group's backoff.
func TestRule69LateReport(t *testing.T) {
	i := overdue()
	i.PreservedAt = ago(time.Minute)
	if _, effect := plan.ApplyReport(i, plan.Report{Healthy: true}, now); effect.EndsBackoff || !effect.Recovered {
		t.Errorf("%+v", effect)
	}
}

// TestPreserveSurvivesLeaders kills the leader at every moment from the failure of an instance to the end of its
// preservation, with and without what it was writing. Never may two instances be preserved, and the VM must run until
// its time is over.
func TestPreserveSurvivesLeaders(t *testing.T) {
	step := 13 * time.Second
	if testing.Short() {
		step = 41 * time.Second
	}
	const length = 3 * time.Minute
	for _, landed := range []bool{false, true} {
		for at := time.Duration(0); at < 8*time.Minute; at += step {
			f := plantest.New(1)
			keeping(1, length)(f)
			f.Group.Size = 3
			for range 3 {
				f.Add()
			}
			f.Run(2 * time.Minute)
			f.Begin()
			victim := f.Named("i1")
			f.CutOff(victim)
			preserved := time.Time{}
			watch := func(d time.Duration) {
				for end := f.Now.Add(d); f.Now.Before(end); f.Run(time.Second) {
					n := 0
					for _, vm := range f.VMs {
						if !vm.PreservedAt.IsZero() && vm.Truth == plan.ProviderRunning {
							n++
						}
					}
					if preserved.IsZero() {
						preserved = victim.PreservedAt
					}
					over := !preserved.IsZero() && !f.Now.Before(preserved.Add(length))
					if n > 1 || victim.Truth != plan.ProviderRunning && !over {
						t.Fatalf("after %v, landed %t: %d are preserved, the first since %v:\n%s", at, landed, n,
							preserved, f.Transcript())
					}
				}
			}
			watch(at)
			f.Note("the leader crashes")
			f.Crash(func() bool { return landed })
			watch(15*time.Minute - at)
			runs("v1", 3)(t, f)
			if f.Err() != nil || preserved.IsZero() {
				t.Errorf("preserved since %v, %v", preserved, f.Err())
			}
			if t.Failed() {
				t.Fatalf("a crash after %v, landed %t:\n%s", at, landed, f.Transcript())
			}
		}
	}
}

func TestRequestPreserveHappensOnce(t *testing.T) {
	rec := record.Instance{State: record.Registered}
	if !plan.RequestPreserve(&rec, "it is silent", now) || plan.RequestPreserve(&rec, "again", now.Add(time.Minute)) {
		t.Error("it is preserved twice, or not at all")
	}
	if want := (record.Preserved{At: now, Reason: "it is silent"}); *rec.Preserved != want {
		t.Errorf("%+v, want %+v", rec.Preserved, want)
	}
	if !plan.RequestDelete(&rec, plan.Deletion{Reason: "released"}, now) || rec.Preserved == nil {
		t.Errorf("%+v", rec)
	}
	leaving := record.Instance{State: record.Deleting}
	if plan.RequestPreserve(&leaving, "it is silent", now) {
		t.Error("an instance that is being deleted is preserved")
	}
}
