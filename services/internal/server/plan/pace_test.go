package plan_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

func TestRule41PaceFollowsAnswers(t *testing.T) {
	var p plan.Pace
	if p.Limited(now) || p.ApplyAccepted(now) != p || p.ApplyCall(now).Next.After(now) {
		t.Errorf("without a throttled answer: %+v", p)
	}
	p = p.ApplyThrottled(now)
	if p.Every != 250*time.Millisecond || !p.Limited(now) || p.Next != now.Add(p.Every) {
		t.Errorf("after the first throttled answer: %+v", p)
	}
	if again := p.ApplyThrottled(now.Add(999 * time.Millisecond)); again != p {
		t.Errorf("answers of calls that were sent side by side count twice: %+v", again)
	}
	slower := p.ApplyThrottled(now.Add(time.Second))
	if slower.Every != 375*time.Millisecond {
		t.Errorf("after another throttled answer: %+v", slower)
	}
	if faster := slower.ApplyAccepted(now.Add(time.Second)); faster.Every != slower.Every*19/20 {
		t.Errorf("after an accepted call: %+v", faster)
	}
	at := now
	for range 100 {
		at = at.Add(20 * time.Second)
		slower = slower.ApplyThrottled(at)
	}
	if slower.Every != 10*time.Second {
		t.Errorf("however often calls are throttled, the pause is %s, want 10s", slower.Every)
	}
	if !slower.Limited(at.Add(59*time.Second)) || slower.Limited(at.Add(time.Minute)) {
		t.Error("the pace must end a minute after the last throttled answer")
	}
}

func TestRule42CallsTakeTurns(t *testing.T) {
	a, b, c := config.GroupKey{Group: "a"}, config.GroupKey{Group: "b"}, config.GroupKey{Group: "c"}
	waiting := []plan.Turn{{Group: c, Voluntary: true}, {Group: a}, {Group: a}, {Group: a}, {Group: b}, {Group: b}}
	served := map[config.GroupKey]uint64{}
	var order string
	for n := uint64(1); len(waiting) > 0; n++ {
		at := plan.NextTurn(waiting, served)
		served[waiting[at].Group] = n
		order += waiting[at].Group.Group
		waiting = append(waiting[:at:at], waiting[at+1:]...)
	}
	if order != "ababac" {
		t.Errorf("the calls start in the order %s, want ababac", order)
	}
}

func TestRule43LateCreates(t *testing.T) {
	pace := plan.Pace{}.ApplyThrottled(now)
	count := func(s plan.Snapshot, w plan.WaitingCreates) (needed, voluntary int, blocked string) {
		w.Pace = pace
		s.Waiting = w
		d := plan.Next(s)
		for _, a := range d.Actions {
			switch {
			case a.Kind == plan.Create && a.Voluntary:
				voluntary++
			case a.Kind == plan.Create:
				needed++
			}
		}
		return needed, voluntary, d.Blocked
	}
	for _, c := range []struct {
		name              string
		snapshot          plan.Snapshot
		waiting           plan.WaitingCreates
		needed, voluntary int
	}{
		{"a group starts few creates", snapshot(9), plan.WaitingCreates{}, 4, 0},
		{"those that wait count", snapshot(9), plan.WaitingCreates{Needed: 3, ShardNeeded: 3}, 1, 0},
		{"more than the limit wait", snapshot(9), plan.WaitingCreates{Needed: 7, ShardNeeded: 7}, 0, 0},
		{"calls of other groups do not count", snapshot(9), plan.WaitingCreates{ShardNeeded: 50}, 4, 0},
		{"own replacements that wait do not count", snapshot(9), plan.WaitingCreates{Voluntary: 9}, 4, 0},
		{"a rotation starts", snapshot(1, drifted()), plan.WaitingCreates{}, 0, 1},
		{"a rotation waits for losses of other groups", snapshot(1, drifted()), plan.WaitingCreates{ShardNeeded: 1}, 0,
			0},
	} {
		needed, voluntary, blocked := count(c.snapshot, c.waiting)
		if needed != c.needed || voluntary != c.voluntary {
			t.Errorf("%s: %d needed and %d voluntary creates, want %d and %d (blocked: %q)", c.name, needed, voluntary,
				c.needed, c.voluntary, blocked)
		}
	}
	s := snapshot(9)
	s.Waiting.Pace = pace
	if d := plan.Next(s); d.Blocked != "the provider throttles creates" || !d.NextPlan.After(now) {
		t.Errorf("blocked %q, planned again at %s", d.Blocked, d.NextPlan)
	}
	s.Waiting.Needed, s.Now = 9, now.Add(time.Minute)
	if d := plan.Next(s); len(d.Actions) != 9 {
		t.Errorf("%d creates a minute after the last throttled answer, want 9", len(d.Actions))
	}
}

// TestRefusalReachesTheReason checks that the alert of a registration that did not happen in time says why the leader
// refused it, and that a report ends the refusal.
func TestRefusalReachesTheReason(t *testing.T) {
	i := booting()
	i.Refused = "nonce: expired, from 10.0.0.9"
	i.LaunchedAt = now.Add(-24 * time.Hour)
	i.Provider = plan.Observed[plan.ProviderState]{Value: plan.ProviderRunning, At: now}
	const want = "its agent did not register in time: last refused: nonce: expired, from 10.0.0.9"
	d := plan.Next(snapshot(1, i))
	if len(d.Actions) == 0 || d.Actions[0].Reason != want {
		t.Errorf("actions %+v, want the reason %q", d.Actions, want)
	}
	if i, _ = plan.ApplyReport(i, plan.Report{Healthy: true}, now); i.Refused != "" {
		t.Errorf("an agent that reports counts as refused: %s", i.Refused)
	}
}

func TestEndReasonReachesTheReason(t *testing.T) {
	i := booting()
	i, _ = plan.ApplyProviderAnswer(i, plan.ProviderAnswer{Asked: now, State: plan.ProviderGone,
		EndReason: "Client.InvalidKMSKey.InvalidState"})
	i, _ = plan.ApplyProviderAnswer(i, plan.ProviderAnswer{Asked: now.Add(time.Second), State: plan.ProviderGone})
	const want = "its VM ended before its agent registered: Client.InvalidKMSKey.InvalidState"
	d := plan.Next(snapshot(1, i))
	if len(d.Actions) == 0 || d.Actions[0].Reason != want {
		t.Errorf("actions %+v, want the reason %q", d.Actions, want)
	}
}
