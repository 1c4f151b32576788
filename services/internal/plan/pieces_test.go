package plan_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

func TestBackoffDoublesWithinBounds(t *testing.T) {
	key := config.GroupKey{Tenant: "default", Group: "workers"}
	if until := (plan.Backoff{}).Until(key); !until.IsZero() {
		t.Errorf("without failures: %s", until)
	}
	want := time.Second
	different := map[time.Duration]bool{}
	for failures := 1; failures < 2000; failures++ {
		got := plan.Backoff{Failures: failures, Last: now}.Until(key).Sub(now)
		if got < want*9/10 || got > want*11/10 {
			t.Fatalf("%d failures: %s, want %s give or take 10 %%", failures, got, want)
		}
		if want = min(2*want, 5*time.Minute); failures > 20 {
			different[got] = true
		}
	}
	if len(different) < 100 {
		t.Errorf("only %d different waits: no jitter", len(different))
	}
	other := plan.Backoff{Failures: 9, Last: now}.Until(config.GroupKey{Tenant: "default", Group: "others"})
	if other.Equal(plan.Backoff{Failures: 9, Last: now}.Until(key)) {
		t.Error("two groups wait in step")
	}
}

func TestBackoffCountsCreationsThatFailTogetherOnce(t *testing.T) {
	key := config.GroupKey{Tenant: "default", Group: "workers"}
	var b plan.Backoff
	for n := range 1000 {
		b = b.Failed(key, now.Add(time.Duration(n)*100*time.Microsecond), "no capacity")
	}
	if b.Failures != 1 || !b.Last.Equal(now) || b.Reason != "no capacity" {
		t.Errorf("a thousand at once: %+v", b)
	}
	if b = b.Failed(key, b.Until(key), "still none"); b.Failures != 2 || b.Reason != "still none" {
		t.Errorf("after the wait: %+v", b)
	}
}

func TestFailuresAreKeptApart(t *testing.T) {
	var i plan.Instance
	end := func(work plan.Work, failed bool) {
		i.Work = work
		i.End(now, failed)
	}
	end(plan.Tending, true)
	end(plan.Tending, true)
	end(plan.MarkingDeleting, true)
	i.Asking = true
	i.Answered(now, true)
	if i.TendFailed.Count != 2 || i.Failed.Count != 1 || i.AskFailed.Count != 1 || i.Work != plan.Idle || i.Asking {
		t.Fatalf("%+v", i)
	}
	end(plan.Draining, false)
	if i.TendFailed.Count != 2 || i.Failed != (plan.Failure{}) || i.AskFailed.Count != 1 {
		t.Fatalf("%+v", i)
	}
}

func TestStateOfAbsent(t *testing.T) {
	seen := booting()
	for _, c := range []struct {
		name  string
		i     plan.Instance
		asked time.Time
		want  plan.ProviderState
	}{
		{"within the grace after launch", seen, seen.LaunchedAt.Add(59 * time.Second), plan.ProviderRunning},
		{"after the grace", seen, seen.LaunchedAt.Add(time.Minute), plan.ProviderGone},
		{"reserved: nobody knows", creating(), now.Add(time.Hour), plan.ProviderUnknown},
		{"its create call is under way", func() plan.Instance {
			i := seen
			i.Work = plan.Creating
			return i
		}(), now.Add(time.Hour), plan.ProviderRunning},
		{"no launch time", plan.Instance{State: record.Created, CreatedAt: now}, now.Add(time.Minute),
			plan.ProviderGone},
	} {
		if got := plan.StateOfAbsent(&c.i, c.asked); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCounts(t *testing.T) {
	notice, incomplete := well(), well()
	notice.Notice = true
	incomplete.Provider = plan.Observed[plan.ProviderState]{Value: plan.ProviderGone}
	marking := well()
	marking.Work = plan.MarkingDeleting
	for _, c := range []struct {
		name string
		i    plan.Instance
		want bool
	}{
		{"well", well(), true}, {"booting", booting(), true}, {"creating", creating(), true},
		{"silent", silent(), true},
		{"gone", gone(), false}, {"gone by an incomplete answer", incomplete, true}, {"a notice", notice, false},
		{"deleting", deleting(nil), false}, {"marked", marking, false}, {"on demand", onDemand(well()), false},
	} {
		if got := plan.Counts(&c.i); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestRunningSilent(t *testing.T) {
	s := snapshot(0).Settings
	soon := silentDeleting()
	soon.DeletingAt = ago(9 * time.Minute) // it was heard of a minute before
	rebooting := restarting(4*time.Minute, true)
	off := poweringOff(0)
	for _, c := range []struct {
		name            string
		i               plan.Instance
		running, silent bool
	}{
		{"well", well(), true, false}, {"late", late(), true, true}, {"stream lost", lostStream(time.Second), true,
			true},
		{"silent", silent(), true, true}, {"booting", booting(), false, false}, {"gone", gone(), false, false},
		{"removed for its silence", silentDeleting(), true, true}, {"removed before it was silent", soon, false, false},
		{"deleting", deleting(nil), false, false}, {"rebooting", rebooting, true, false},
		{"powers off", off, false, false},
	} {
		running, silent := plan.RunningSilent(&c.i, s, ago(time.Hour), now)
		if running != c.running || silent != c.silent {
			t.Errorf("%s: running %v silent %v", c.name, running, silent)
		}
		if _, silent := plan.RunningSilent(&c.i, s, time.Time{}, now); silent {
			t.Errorf("%s: silent although silence does not count yet", c.name)
		}
	}
}
