package web

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// TestReplacements shows how replacements are measured: from the failure of the old instance, or else from the request
// for the new one, until the new one is healthy.
func TestReplacements(t *testing.T) {
	now := time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)
	at := func(seconds int) *timestamppb.Timestamp {
		return timestamppb.New(now.Add(time.Duration(seconds-600) * time.Second))
	}
	var r replacements
	for _, e := range []*nstancev1.JournalEvent{
		{At: at(-100000), Kind: "instance_creating", InstanceId: "old", Replaces: "older", Group: "g"},
		{At: at(-99000), Kind: "instance_healthy", InstanceId: "old"}, // more than a day ago
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
		r.add(e)
	}
	for group, want := range map[string]statistics{
		"":        {Count: 3, P50: 20 * time.Second, P99: 30 * time.Second, Pace: 15 * time.Second},
		"g":       {Count: 2, P50: 10 * time.Second, P99: 30 * time.Second, Pace: 20 * time.Second},
		"other":   {Count: 1, P50: 20 * time.Second, P99: 20 * time.Second},
		"nothing": {},
	} {
		if got := r.statistics(group, now); got != want {
			t.Errorf("group %q: %+v, want %+v", group, got, want)
		}
	}
	if got := r.statistics("", now.Add(24*time.Hour)); got.Count != 0 {
		t.Errorf("a day later: %+v", got)
	}
	if len(r.done)+len(r.failed)+len(r.running) != 0 {
		t.Errorf("it keeps what is over: %+v", r)
	}
}

// TestProgress checks the progress of a rollout and the estimate of its end.
func TestProgress(t *testing.T) {
	pace := statistics{Count: 9, Pace: 10 * time.Second}
	for _, test := range []struct {
		group *nstancev1.GroupStatus
		want  string
	}{
		{&nstancev1.GroupStatus{ActualSize: 10}, "<nil>"},
		{&nstancev1.GroupStatus{ActualSize: 10, Outdated: 4}, "&{6 10 false  40s}"},
		{&nstancev1.GroupStatus{ActualSize: 10, Outdated: 4, Paused: true}, "&{6 10 true  0s}"},
		{&nstancev1.GroupStatus{ActualSize: 10, Outdated: 4, RolloutWaits: "windows"}, "&{6 10 false windows 0s}"},
	} {
		if got := fmt.Sprint(progressOf(test.group, pace)); got != test.want {
			t.Errorf("%+v: %s, want %s", test.group, got, test.want)
		}
	}
}
