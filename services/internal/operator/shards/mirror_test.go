package shards

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

var start = time.Date(2026, 7, 28, 10, 0, 0, 0, time.UTC)

// applyCompleteList applies a list of the live instances. It marks each known instance that the list lacks as unknown
// to the leader.
func (mirror *testMirror) applyCompleteList(all []*nstancev1.InstanceStatus, since uint64) []Change {
	changes, missing := mirror.applyList(all, since)
	for _, id := range missing {
		changes = append(changes, mirror.markUnknown(id, mirror.mark())...)
	}
	return changes
}

// gone returns the number of deleted instances that are remembered.
func (mirror *testMirror) gone() (n int) {
	for _, e := range mirror.instances {
		if !e.deletedAt.IsZero() {
			n++
		}
	}
	return n
}

type testMirror struct {
	*mirror
	clock time.Time
}

func newTestMirror() *testMirror {
	mirror := &testMirror{clock: start}
	mirror.mirror = newMirror("a", func() time.Time { return mirror.clock })
	return mirror
}

func instance(id, group, state string) *nstancev1.InstanceStatus {
	return &nstancev1.InstanceStatus{InstanceId: id, Group: group, State: state, Zone: "z", Region: "r"}
}

func want(t *testing.T, what string, got []Change, want ...Change) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: changes (-want +got):\n%s", what, d)
	}
}

func TestMirrorGroups(t *testing.T) {
	mirror := newTestMirror()
	changed := func(g string) Change { return Change{Shard: "a", Kind: GroupChanged, Group: g} }
	g := &nstancev1.GroupStatus{Group: "g", Size: 1}
	want(t, "new", mirror.setGroup(g, latest), changed("g"))
	want(t, "again", mirror.setGroup(&nstancev1.GroupStatus{Group: "g", Size: 1}, latest))
	// The answer to a call is applied only if the group has not changed since the call began.
	since := mirror.mark()
	want(t, "an own change", mirror.setGroup(&nstancev1.GroupStatus{Group: "g", Size: 2}, since), changed("g"))
	want(t, "an overtaken answer", mirror.setGroup(&nstancev1.GroupStatus{Group: "g", Size: 1}, since))
	want(t, "an own deletion", mirror.markDeleting("g", mirror.mark()), changed("g"))
	if have, _ := mirror.Group("g"); !have.GetDeleting() || have.GetSize() != 2 {
		t.Errorf("group %v", have)
	}
	want(t, "another leader's snapshot", mirror.replaceGroups(map[string]*nstancev1.GroupStatus{"h": {Group: "h"}}),
		changed("g"), changed("h"))
	want(t, "deleted", mirror.removeGroup("h"), changed("h"))
	want(t, "deleted again", mirror.removeGroup("h"))
	want(t, "without a name", mirror.setGroup(&nstancev1.GroupStatus{}, latest))
}

func TestMirrorInstances(t *testing.T) {
	mirror := newTestMirror()
	changed := func(id string) Change { return Change{Shard: "a", Kind: InstanceChanged, Group: "g", Instance: id} }
	want(t, "listed", mirror.applyCompleteList([]*nstancev1.InstanceStatus{instance("i1", "g", "reserved"),
		instance("i2", "g", "registered")}, mirror.mark()), changed("i1"), changed("i2"))
	quiet := instance("i2", "g", "registered")
	quiet.Metrics, quiet.LastReportAt = &nstancev1.Metrics{Cpu: 0.5}, timestamppb.New(start)
	want(t, "measured", mirror.setInstance(quiet, latest))

	// A list that was requested before an event must not undo the event.
	since := mirror.mark()
	want(t, "event", mirror.setInstance(instance("i1", "g", "created"), latest), changed("i1"))
	want(t, "new while listed", mirror.setInstance(instance("i3", "g", "reserved"), latest), changed("i3"))
	want(t, "overtaken list", mirror.applyCompleteList([]*nstancev1.InstanceStatus{instance("i1", "g", "reserved")},
		since),
		changed("i2"))
	for id, state := range map[string]string{"i1": "created", "i2": deleted, "i3": "reserved"} {
		if i, _ := mirror.Instance(id); i.GetState() != state {
			t.Errorf("%s is %s, want %s", id, i.GetState(), state)
		}
	}
	mirror.setInstance(instance("i2", "g", deleted), latest) // now a leader reports the deletion
	want(t, "a dead one does not rise", mirror.setInstance(instance("i2", "g", "registered"), latest))
	if ids := len(mirror.Instances("g")); ids != 2 {
		t.Errorf("%d live instances", ids)
	}
	want(t, "deleted, by a leader that forgot its group", mirror.setInstance(&nstancev1.InstanceStatus{InstanceId: "i3",
		State: deleted}, latest), changed("i3"))
	if zone, region := mirror.location(); zone != "z" || region != "r" {
		t.Errorf("in %s, %s", zone, region)
	}
	if d := cmp.Diff(map[string]int{"g": 1}, mirror.counts()); d != "" {
		t.Error(d)
	}
	mirror.clock = mirror.clock.Add(keepDeleted + time.Second)
	mirror.applyCompleteList([]*nstancev1.InstanceStatus{instance("i1", "g", "created")}, mirror.mark())
	if _, ok := mirror.Instance("i2"); ok {
		t.Error("i2 is still in the mirror after keepDeleted")
	}
	if _, ok := mirror.Instance("i1"); !ok {
		t.Error("the live instance i1 was dropped")
	}
}

// TestMirrorReservations checks instances that a new leader does not know. Such a leader learns of its predecessor's
// reservations only from the provider. An instance that no leader reported as deleted may appear again.
func TestMirrorReservations(t *testing.T) {
	mirror := newTestMirror()
	mirror.setInstance(instance("i1", "g", "reserved"), latest)
	mirror.setInstance(instance("i2", "g", "created"), latest)
	state := func(id string) string { i, _ := mirror.Instance(id); return i.GetState() }
	mirror.applyCompleteList(nil, mirror.mark())
	if state("i1") != "reserved" || state("i2") != deleted {
		t.Errorf("not listed by a new leader: %s, %s", state("i1"), state("i2"))
	}
	mirror.setInstance(instance("i1", "g", "reserved"), latest)
	mirror.clock = mirror.clock.Add(settleReserved)
	mirror.applyCompleteList(nil, mirror.mark())
	if state("i1") != "reserved" {
		t.Error("i1 is deleted too early: the time before it was seen again counted")
	}
	mirror.clock = mirror.clock.Add(settleReserved)
	mirror.applyCompleteList(nil, mirror.mark())
	if state("i1") != deleted {
		t.Error("i1 is not deleted after settleReserved")
	}
	mirror.setInstance(instance("i1", "g", "created"), latest)
	if state("i1") != "created" || mirror.gone() != 1 {
		t.Errorf("i1, never reported as deleted, has state %s; %d deleted", state("i1"), mirror.gone())
	}
}

func TestMirrorForgetsTheOldest(t *testing.T) {
	mirror := newTestMirror()
	for n := range maxDeleted + 2 {
		mirror.clock = mirror.clock.Add(time.Millisecond)
		mirror.setInstance(instance(fmt.Sprintf("i%06d", n), "g", deleted), latest)
	}
	mirror.applyCompleteList(nil, mirror.mark())
	_, first := mirror.Instance("i000001")
	_, second := mirror.Instance("i000002")
	if mirror.gone() != maxDeleted || first || !second {
		t.Errorf("%d deleted instances remembered, the second %t, the third %t", mirror.gone(), first, second)
	}
}

func TestMirrorDrains(t *testing.T) {
	mirror := newTestMirror()
	drain := func(id string) Drain {
		return Drain{Instance: instance(id, "g", "deleting"), Reason: "expired", Announced: start.Add(time.Minute)}
	}
	pending := func(id string) Change { return Change{Shard: "a", Kind: DrainPending, Group: "g", Instance: id} }
	over := func(id string) Change { return Change{Shard: "a", Kind: InstanceChanged, Group: "g", Instance: id} }
	want(t, "announced", mirror.setDrain(drain("i1")), pending("i1"))
	want(t, "announced again", mirror.setDrain(drain("i1")))
	mirror.setDrain(drain("i2"))
	want(t, "another leader's", mirror.replaceDrains(map[string]Drain{"i2": drain("i2"), "i3": drain("i3")}),
		over("i1"),
		pending("i3"))
	mirror.setInstance(instance("i3", "g", "deleting"), latest)
	want(t, "acknowledged", mirror.endDrain("i2"), over("i2"))
	want(t, "acknowledged again", mirror.endDrain("i2"))
	mirror.setInstance(instance("i3", "g", deleted), latest)
	if drains := mirror.Drains(); len(drains) != 0 {
		t.Errorf("drains %v", drains)
	}
	want(t, "of a dead one", mirror.setDrain(drain("i3")))
}
