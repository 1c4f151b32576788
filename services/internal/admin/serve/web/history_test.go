package web

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// TestReplacements shows how replacements are measured: from the failure of the old instance, or else from the request
// for the new one, until the new one is healthy.
func TestReplacements(t *testing.T) {
	now := time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)
	at := func(seconds int) *timestamppb.Timestamp {
		return timestamppb.New(now.Add(time.Duration(seconds-600) * time.Second))
	}
	var h history
	for _, e := range []*nstancev1.JournalEvent{
		{At: at(-700000), Kind: "instance_creating", InstanceId: "old", Replaces: "older", Group: "g"},
		{At: at(-699990), Kind: "instance_healthy", InstanceId: "old"}, // more than 7 days ago
		{At: at(0), Kind: "instance_unhealthy", InstanceId: "a"},
		{At: at(1), Kind: "instance_healthy", InstanceId: "a"}, // it recovered
		{At: at(10), Kind: "instance_unhealthy", InstanceId: "a"},
		{At: at(20), Kind: "instance_lost", InstanceId: "a"},
		{At: at(30), Kind: "instance_creating", InstanceId: "b", Replaces: "a", Group: "g"},
		{At: at(31), Kind: "instance_deleted", InstanceId: "a"},
		{At: at(40), Kind: "instance_healthy", InstanceId: "b"}, // 30 s
		{At: at(41), Kind: "instance_healthy", InstanceId: "b"}, // not a second replacement
		{At: at(50), Kind: "instance_creating", InstanceId: "c", Replaces: "b", Group: "g"},
		{At: at(60), Kind: "instance_healthy", InstanceId: "c"}, // 10 s
		{At: at(50), Kind: "instance_creating", InstanceId: "d", Replaces: "x", Group: "other"},
		{At: at(70), Kind: "instance_healthy", InstanceId: "d"}, // 20 s
		{At: at(80), Kind: "instance_creating", InstanceId: "e", Replaces: "y", Group: "g"},
		{At: at(90), Kind: "instance_deleted", InstanceId: "e"}, // never healthy
		{At: at(95), Kind: "instance_creating", InstanceId: "f", Group: "g"},
		{At: at(99), Kind: "instance_healthy", InstanceId: "f"}, // replaces nothing
	} {
		h.add("a", e)
	}
	for group, want := range map[string]statistics{
		"":        {Count: 3, P50: 20 * time.Second, P99: 30 * time.Second},
		"g":       {Count: 2, P50: 10 * time.Second, P99: 30 * time.Second},
		"other":   {Count: 1, P50: 20 * time.Second, P99: 20 * time.Second},
		"nothing": {},
	} {
		if got := newStatistics(h.replacements(group, now.Add(-day))); got != want {
			t.Errorf("group %q: %+v, want %+v", group, got, want)
		}
	}
	h.forget(now.Add(8 * day))
	if len(h.done)+len(h.failed)+len(h.running) != 0 {
		t.Errorf("it keeps what is over: %+v", h)
	}
}

// TestStages checks the durations of the stages of a replacement.
func TestStages(t *testing.T) {
	at := func(ms int) *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(int64(ms)).UTC()) }
	var h history
	for _, e := range []*nstancev1.JournalEvent{
		{At: at(1000), Kind: "instance_lost", InstanceId: "a"},
		{At: at(1002), Kind: "instance_creating", InstanceId: "b", Replaces: "a", Cause: "gone"},
		{At: at(1102), Kind: "instance_created", InstanceId: "b"},
		{At: at(1802), Kind: "instance_registered", InstanceId: "b", TookSeconds: 0.01},
		{At: at(1810), Kind: "instance_healthy", InstanceId: "b"},
	} {
		h.add("s", e)
	}
	want := [5]time.Duration{2 * time.Millisecond, 100 * time.Millisecond, 690 * time.Millisecond,
		10 * time.Millisecond, 8 * time.Millisecond}
	if len(h.done) != 1 || h.done[0].stages() != want || h.done[0].Took() != 810*time.Millisecond {
		t.Errorf("%+v", h.done)
	}
}

// TestLeaders checks the terms of leaders, of which one ended without an event.
func TestLeaders(t *testing.T) {
	at := func(s int) *timestamppb.Timestamp { return timestamppb.New(time.Unix(int64(s), 0).UTC()) }
	var h history
	for _, e := range []*nstancev1.JournalEvent{
		{At: at(1), Term: 1, Kind: "leader_started", Message: "server server-1, version 1.2.3"},
		{At: at(5), Term: 1, Kind: "leader_ended", Message: "the lock is lost"},
		{At: at(6), Term: 2, Kind: "leader_started", Message: "server server-2, version 1.2.3"},
		{At: at(9), Term: 3, Kind: "leader_started", Message: "server server-1, version 1.2.3"},
	} {
		h.add("s", e)
	}
	var got []string
	for _, l := range h.leaders {
		got = append(got, fmt.Sprint(l.term, " ", l.server, " ", l.started.Unix(), " ", l.ended.IsZero(), " ", l.why))
	}
	want := []string{"1 server-1 1 false the lock is lost", "2 server-2 6 true ", "3 server-1 9 true "}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestProgress checks the progress of a rollout.
func TestProgress(t *testing.T) {
	now := time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)
	var h history
	h.running = map[string]*replacement{"x": {Group: "g", Cause: "drift", creating: now}}
	surge := 3
	for _, test := range []struct {
		group *nstancev1.GroupStatus
		want  string
	}{
		{&nstancev1.GroupStatus{Group: "g", ActualSize: 10}, "none"},
		{&nstancev1.GroupStatus{Group: "g", ActualSize: 10, Outdated: 4},
			"6 of 10, 2 waves, 1 now"},
		{&nstancev1.GroupStatus{Group: "g", ActualSize: 10, Outdated: 4, RolloutWaits: "windows"},
			"6 of 10, 2 waves, 1 now"},
		{&nstancev1.GroupStatus{Group: "new", ActualSize: 10, Outdated: 4},
			"6 of 10, 2 waves, 0 now"},
	} {
		got := "none"
		if v := progressOf(test.group, config.GroupSpec{MaxSurge: &surge}, &h, now); v != nil {
			got = fmt.Sprintf("%d of %d, %d waves, %d now", v.Done, v.Total, v.Waves, v.Running)
		}
		if got != test.want {
			t.Errorf("%+v: %s, want %s", test.group, got, test.want)
		}
	}
}

// TestTexts checks how durations and times are written.
func TestTexts(t *testing.T) {
	for d, want := range map[time.Duration]string{-1: "", 90 * time.Second: "1 min 30 s", time.Minute: "1 min",
		830 * time.Millisecond: "0.83 s", 8200 * time.Millisecond: "8.2 s", 9999 * time.Millisecond: "10 s",
		59600 * time.Millisecond: "1 min", 12 * time.Millisecond: "12 ms", 20 * time.Microsecond: "20 µs",
		time.Hour: "1 h", 3*day + 4*time.Hour: "3 d 4 h", day - time.Second: "1 d"} {
		if got := took(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	now := time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{0: "now", 90 * time.Second: "1 min ago", -40 * time.Second: "in 40 s",
		50 * time.Hour: "2 d ago"} {
		if got := ago(now.Add(-d), now); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	if a, b := short("wrk06bgm7733st2576nx5jht4ecjw"), short("server-1"); a != "wrk…t4ecjw" || b != "server-1" {
		t.Error(a, b)
	}
}
