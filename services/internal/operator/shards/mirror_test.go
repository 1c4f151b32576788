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

// listed is a list whose missing instances the leader does not know.
func (w *world) listed(all []*nstancev1.InstanceStatus, since uint64) []Change {
	changes, missing := w.listInstances(all, since)
	for _, id := range missing {
		changes = append(changes, w.lose(id, w.mark())...)
	}
	return changes
}

type world struct {
	*mirror
	at time.Time
}

func newWorld() *world {
	w := &world{at: start}
	w.mirror = newMirror("a", func() time.Time { return w.at })
	return w
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
	w := newWorld()
	changed := func(g string) Change { return Change{Shard: "a", Kind: GroupChanged, Group: g} }
	g := &nstancev1.GroupStatus{Group: "g", Size: 1}
	want(t, "new", w.setGroup(g, latest), changed("g"))
	want(t, "again", w.setGroup(&nstancev1.GroupStatus{Group: "g", Size: 1}, latest))
	// The answer to a call that began before is news; one that was overtaken is not.
	since := w.mark()
	want(t, "an own change", w.setGroup(&nstancev1.GroupStatus{Group: "g", Size: 2}, since), changed("g"))
	want(t, "an overtaken answer", w.setGroup(&nstancev1.GroupStatus{Group: "g", Size: 1}, since))
	want(t, "an own deletion", w.deletingGroup("g", w.mark()), changed("g"))
	if have, _ := w.group("g"); !have.GetDeleting() || have.GetSize() != 2 {
		t.Errorf("group %v", have)
	}
	want(t, "another leader's snapshot", w.replaceGroups(map[string]*nstancev1.GroupStatus{"h": {Group: "h"}}),
		changed("g"), changed("h"))
	want(t, "deleted", w.removeGroup("h"), changed("h"))
	want(t, "deleted again", w.removeGroup("h"))
	want(t, "without a name", w.setGroup(&nstancev1.GroupStatus{}, latest))
}

func TestMirrorInstances(t *testing.T) {
	w := newWorld()
	changed := func(id string) Change { return Change{Shard: "a", Kind: InstanceChanged, Group: "g", Instance: id} }
	want(t, "listed", w.listed([]*nstancev1.InstanceStatus{instance("i1", "g", "reserved"),
		instance("i2", "g", "registered")}, w.mark()), changed("i1"), changed("i2"))
	quiet := instance("i2", "g", "registered")
	quiet.Metrics, quiet.LastReportAt = &nstancev1.Metrics{Cpu: 0.5}, timestamppb.New(start)
	want(t, "measured", w.setInstance(quiet, latest))

	// A list that was on its way while an event came does not undo it.
	since := w.mark()
	want(t, "event", w.setInstance(instance("i1", "g", "created"), latest), changed("i1"))
	want(t, "new while listed", w.setInstance(instance("i3", "g", "reserved"), latest), changed("i3"))
	want(t, "overtaken list", w.listed([]*nstancev1.InstanceStatus{instance("i1", "g", "reserved")}, since),
		changed("i2"))
	for id, state := range map[string]string{"i1": "created", "i2": deleted, "i3": "reserved"} {
		if i, _ := w.instance(id); i.GetState() != state {
			t.Errorf("%s is %s, want %s", id, i.GetState(), state)
		}
	}
	w.setInstance(instance("i2", "g", deleted), latest) // somebody says so
	want(t, "a dead one does not rise", w.setInstance(instance("i2", "g", "registered"), latest))
	if ids := len(w.allInstances("g")); ids != 2 {
		t.Errorf("%d live instances", ids)
	}
	want(t, "deleted, by a leader that forgot its group", w.setInstance(&nstancev1.InstanceStatus{InstanceId: "i3",
		State: deleted}, latest), changed("i3"))
	if zone, region := w.place(); zone != "z" || region != "r" {
		t.Errorf("in %s, %s", zone, region)
	}
	if d := cmp.Diff(map[string]int{"g": 1}, w.counts()); d != "" {
		t.Error(d)
	}
	w.at = w.at.Add(keepDeleted + time.Second)
	w.listed([]*nstancev1.InstanceStatus{instance("i1", "g", "created")}, w.mark())
	if _, ok := w.instance("i2"); ok {
		t.Error("i2 is remembered for ever")
	}
	if _, ok := w.instance("i1"); !ok {
		t.Error("i1 is forgotten")
	}
}

// A leader that has just taken over does not know the reservations of the one before, until it has asked the provider.
// What nobody said to be deleted may turn up again.
func TestMirrorReservations(t *testing.T) {
	w := newWorld()
	w.setInstance(instance("i1", "g", "reserved"), latest)
	w.setInstance(instance("i2", "g", "created"), latest)
	state := func(id string) string { i, _ := w.instance(id); return i.GetState() }
	w.listed(nil, w.mark())
	if state("i1") != "reserved" || state("i2") != deleted {
		t.Errorf("not listed by a new leader: %s, %s", state("i1"), state("i2"))
	}
	w.setInstance(instance("i1", "g", "reserved"), latest)
	w.at = w.at.Add(settleReserved)
	w.listed(nil, w.mark())
	if state("i1") != "reserved" {
		t.Error("that it was missing before it was seen again counts")
	}
	w.at = w.at.Add(settleReserved)
	w.listed(nil, w.mark())
	if state("i1") != deleted {
		t.Error("it is waited for for ever")
	}
	w.setInstance(instance("i1", "g", "created"), latest)
	if state("i1") != "created" || len(w.gone) != 1 {
		t.Errorf("what was not said to be deleted is %s, %v", state("i1"), w.gone)
	}
}

func TestMirrorForgetsTheOldest(t *testing.T) {
	w := newWorld()
	for n := range maxDeleted + 2 {
		w.at = w.at.Add(time.Millisecond)
		w.setInstance(instance(fmt.Sprintf("i%06d", n), "g", deleted), latest)
	}
	w.listed(nil, w.mark())
	_, first := w.instance("i000001")
	_, second := w.instance("i000002")
	if len(w.gone) != maxDeleted || first || !second {
		t.Errorf("%d are remembered, of the second and third %t, %t", len(w.gone), first, second)
	}
}

func TestMirrorDrains(t *testing.T) {
	w := newWorld()
	drain := func(id string) Drain {
		return Drain{Instance: instance(id, "g", "deleting"), Reason: "expired", Deadline: start.Add(time.Minute)}
	}
	pending := func(id string) Change { return Change{Shard: "a", Kind: DrainPending, Group: "g", Instance: id} }
	over := func(id string) Change { return Change{Shard: "a", Kind: InstanceChanged, Group: "g", Instance: id} }
	want(t, "announced", w.setDrain(drain("i1")), pending("i1"))
	want(t, "announced again", w.setDrain(drain("i1")))
	w.setDrain(drain("i2"))
	want(t, "another leader's", w.replaceDrains(map[string]Drain{"i2": drain("i2"), "i3": drain("i3")}), over("i1"),
		pending("i3"))
	w.setInstance(instance("i3", "g", "deleting"), latest)
	want(t, "acknowledged", w.endDrain("i2"), over("i2"))
	want(t, "acknowledged again", w.endDrain("i2"))
	w.setInstance(instance("i3", "g", deleted), latest)
	if drains := w.allDrains(); len(drains) != 0 {
		t.Errorf("drains %v", drains)
	}
	want(t, "of a dead one", w.setDrain(drain("i3")))
}
