package shardstate_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

func TestListed(t *testing.T) {
	p := newPicture(t)
	running, stopped, absent, young := p.serving(t), p.serving(t), p.serving(t), p.serving(t)
	p.now = p.now.Add(5 * time.Minute)
	p.put(young, workers, record.Registered) // created just now
	p.forget()
	asked := p.now
	p.now = p.now.Add(2 * time.Second)
	p.Listed([]infra.VM{p.vm(running, infra.Running), p.vm(stopped, infra.Stopped)}, nil, asked)
	for id, want := range map[ident.ID]plan.ProviderState{running: plan.ProviderRunning, stopped: plan.ProviderStopped,
		absent: plan.ProviderGone, young: plan.ProviderUnknown} {
		if got := p.planned(t, id).Provider; got.Value != want || got.At != asked {
			t.Errorf("%+v, want %q asked for at %v", got, want, asked)
		}
	}
	p.wantDirty(t, "a list", workers)
	p.wantEvents(t, "a list", shardstate.EventLost, shardstate.EventLost)
	if !p.GarbageCollectionDue() {
		t.Error("no garbage collection is due after a list")
	}
	p.Listed([]infra.VM{p.vm(running, infra.Running), p.vm(stopped, infra.Stopped)}, nil, asked.Add(time.Second))
	p.wantEvents(t, "the same list again")
}

// TestPartialList checks a list without the VMs of one host. The VMs of that host do not count as gone, but missing VMs
// of another host do. Garbage collection waits for a list of all VMs.
func TestPartialList(t *testing.T) {
	p := newPicture(t)
	here, there, seen := p.serving(t), p.serving(t), p.serving(t)
	place := func(id ident.ID, host string) infra.VM {
		vm := p.vm(id, infra.Running)
		vm.ProviderID = host + "/" + id.String()
		rec, token, _ := p.Record(id)
		rec.ProviderID = vm.ProviderID
		p.PutRecord(rec, token)
		return vm
	}
	place(here, "a")
	place(there, "b")
	found := place(seen, "a")
	p.now = p.now.Add(5 * time.Minute)
	p.Listed([]infra.VM{found}, []string{"b/"}, p.now)
	for id, want := range map[ident.ID]plan.ProviderState{here: plan.ProviderGone, there: plan.ProviderUnknown,
		seen: plan.ProviderRunning} {
		if got := p.planned(t, id).Provider.Value; got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	if p.ShardSnapshot().Listed.Complete {
		t.Error("garbage collection would take a partial list for a list of all VMs")
	}
	p.now = p.now.Add(time.Second)
	p.Listed([]infra.VM{found}, nil, p.now)
	if got := p.planned(t, there).Provider.Value; got != plan.ProviderGone || !p.ShardSnapshot().Listed.Complete {
		t.Errorf("after a list of all VMs: %q", got)
	}
}

// TestOlderAnswersAreIgnored checks that an answer to an earlier call never replaces the answer to a later call,
// whatever the order in which they arrive.
func TestOlderAnswersAreIgnored(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	p.now = p.now.Add(5 * time.Minute)
	early, late := p.now, p.now.Add(10*time.Second)
	p.now = late.Add(time.Second)

	p.Answered(id, p.vm(id, infra.Stopped), late)
	p.Answered(id, p.vm(id, infra.Running), early)
	if got := p.planned(t, id).Provider.Value; got != plan.ProviderStopped {
		t.Errorf("an older answer made it %q", got)
	}
	if vm, ok := p.VM(id); !ok || vm.State != infra.Stopped {
		t.Errorf("an older answer replaced the description of the VM: %+v, %t", vm, ok)
	}
	p.NotFound(id, early)
	if got := p.planned(t, id).Provider.Value; got != plan.ProviderStopped {
		t.Errorf("an older answer made it %q", got)
	}
	p.Listed(nil, nil, early)
	if got := p.planned(t, id).Provider.Value; got != plan.ProviderStopped {
		t.Errorf("an older list made it %q", got)
	}
	p.NotFound(id, late.Add(2*time.Minute))
	if got := p.planned(t, id).Provider.Value; got != plan.ProviderGone || !p.VMDeleted(id) {
		t.Errorf("a newer answer left it %q", got)
	}

	// A list does not change the strays if the State already has the result of a list call that started later.
	stranger := p.vm(p.newID(t), infra.Running)
	p.Listed([]infra.VM{stranger}, nil, late.Add(2*time.Second))
	p.Listed(nil, nil, late)
	if !p.beginStray(stranger.ProviderID) {
		t.Error("an older list dropped a stray")
	}
}

// TestAbsentInstanceIsNotGoneImmediately checks that a missing VM does not count as gone until the provider had time to
// show it. While a create call runs, the VM never counts as gone.
func TestAbsentInstanceIsNotGoneImmediately(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	p.now = p.now.Add(30 * time.Second)
	p.NotFound(id, p.now)
	if p.VMDeleted(id) {
		t.Error("gone after half a minute")
	}
	p.now = p.now.Add(time.Minute)
	p.NotFound(id, p.now)
	if !p.VMDeleted(id) {
		t.Error("not gone after a minute and a half")
	}

	creating := record.Instance{ID: p.newID(t), State: record.Reserved, Tenant: workers.Tenant, Group: workers.Group,
		CreatedAt: p.now}
	p.Use(creating, "t", ident.ID{})
	p.now = p.now.Add(time.Hour)
	p.Listed(nil, nil, p.now)
	if got := p.planned(t, creating.ID); got.Provider.Value != plan.ProviderUnknown || got.Work != plan.Creating ||
		p.VMDeleted(creating.ID) {
		t.Errorf("%+v", got)
	}
	if !p.VMDeleted(p.newID(t)) {
		t.Error("a stranger is not gone")
	}
}

// TestAnswersFillIn checks that an answer with an unknown state does not replace the known state. The same must hold
// for other values that an answer lacks.
func TestAnswersFillIn(t *testing.T) {
	p := newPicture(t)
	id := p.newID(t)
	p.PutRecord(record.Instance{ID: id, State: record.Registered, Revision: 1, Tenant: workers.Tenant,
		Group: workers.Group, CreatedAt: p.now}, "t")
	if vm, ok := p.VM(id); !ok || vm.ProviderID != "" {
		t.Fatalf("%v, %t", vm, ok)
	}
	p.Answered(id, p.vm(id, infra.Running), p.now)
	p.now = p.now.Add(time.Minute)
	p.Answered(id, p.vm(id, infra.Unknown), p.now)
	got := p.planned(t, id)
	if got.Provider.Value != plan.ProviderRunning || got.ProviderID != "vm-"+id.String() ||
		got.LaunchedAt != p.now.Add(-time.Minute) {
		t.Errorf("%+v", got)
	}
	if vm, _ := p.VM(id); vm.ProviderID != "vm-"+id.String() {
		t.Errorf("VM %+v", vm)
	}
	ended := p.vm(id, infra.Deleted)
	ended.EndReason = "Client.InvalidKMSKey.InvalidState"
	p.Answered(id, ended, p.now)
	if got := p.planned(t, id); got.EndReason != ended.EndReason {
		t.Errorf("after the VM has ended: %+v", got)
	}
}

func TestStrays(t *testing.T) {
	p := newPicture(t)
	known, dead, left, orphan, ended := p.serving(t), p.newID(t), p.newID(t), p.newID(t), p.newID(t)
	p.put(dead, workers, record.Deleted)
	p.AddLeftover(shardstate.Reservation{Record: record.Instance{ID: left, State: record.Reserved,
		Tenant: workers.Tenant}})
	second := p.vm(known, infra.Running)
	second.ProviderID = "vm-second"
	unreadable := infra.VM{ProviderID: "vm-unreadable", State: infra.Running, Tags: infra.Tags{Owner: owner}}
	p.Listed([]infra.VM{p.vm(known, infra.Running), second, p.vm(dead, infra.Running), p.vm(left, infra.Running),
		p.vm(orphan, infra.Running),
		p.vm(ended, infra.Deleted), unreadable}, nil, p.now)

	s := p.ShardSnapshot()
	if s.Listed.Value != 6 || !s.Listed.Complete || s.Listed.At != p.now {
		t.Errorf("listed %+v", s.Listed)
	}
	got := map[string]plan.Stray{}
	for _, stray := range s.Strays {
		got[stray.ProviderID] = stray
	}
	if len(got) != 5 || !got["vm-second"].Claimed || !got["vm-"+dead.String()].Tombstone ||
		!got["vm-unreadable"].Instance.IsZero() {
		t.Errorf("strays %+v", got)
	}
	if orphans := p.Orphans(); len(orphans) != 1 || orphans[0].Tags.Instance != orphan {
		t.Errorf("orphans %v", orphans)
	}

	// Only one task works on a stray at a time. After a new list, the State still knows when the stray's record was
	// read.
	of := "vm-" + orphan.String()
	if !p.beginStray(of) || p.beginStray(of) || p.beginStray("vm-nobody") {
		t.Error("work on a stray is not one at a time")
	}
	p.ReadMissing(of, p.now)
	p.Listed([]infra.VM{p.vm(known, infra.Running), p.vm(orphan, infra.Running)}, nil, p.now.Add(time.Second))
	s = p.ShardSnapshot()
	if len(s.Strays) != 1 || len(s.Strays[0].Reads) != 1 || s.Strays[0].Busy {
		t.Errorf("strays %+v", s.Strays)
	}
	p.beginStray(of)
	p.EndStray(of, false)
	if !p.beginStray(of) {
		t.Error("work on a stray did not end")
	}
	p.EndStray(of, true)
	if p.beginStray(of) {
		t.Error("a stray that is gone is there")
	}
	p.ReadMissing(of, p.now)
	p.EndStray(of, true)
}

// TestConfirmOrphans checks that a confirmation covers the known orphans and makes garbage collection due.
func TestConfirmOrphans(t *testing.T) {
	p := newPicture(t)
	found, later := p.vm(p.newID(t), infra.Running), p.vm(p.newID(t), infra.Running)
	p.Listed([]infra.VM{found}, nil, p.now)
	p.forget()
	if vms := p.ConfirmOrphans(); len(vms) != 0 || p.GarbageCollectionDue() {
		t.Errorf("%v are confirmed without a question", vms)
	}
	p.RaiseError(shardstate.ErrorKey{Kind: "orphans"}, "so many")
	if vms := p.ConfirmOrphans(); len(vms) != 1 || vms[0].ProviderID != found.ProviderID || !p.GarbageCollectionDue() ||
		p.wakes == 0 {
		t.Errorf("%v are confirmed", vms)
	}
	p.Listed([]infra.VM{found, later}, nil, p.now.Add(time.Second))
	for _, stray := range p.ShardSnapshot().Strays {
		if stray.Confirmed != (stray.ProviderID == found.ProviderID) {
			t.Errorf("%+v", stray)
		}
	}
}

func TestRecords(t *testing.T) {
	p := newPicture(t)
	id := p.newID(t)
	created := p.put(id, workers, record.Created)
	p.wantDirty(t, "a new record", workers)
	registered := p.put(id, workers, record.Registered)
	p.PutRecord(created, "older")
	if rec, token, ok := p.Record(id); !ok || rec.Revision != registered.Revision ||
		token != objstore.Token(id.String()) {
		t.Errorf("an older version took over: %+v under %q", rec, token)
	}
	p.forget()
	p.put(id, workers, record.Deleted)
	p.wantDirty(t, "a tombstone", workers)
	if _, _, ok := p.Record(id); ok {
		t.Error("the dead live")
	}
	if rec, ok := p.Tombstone(id); !ok || rec.State != record.Deleted {
		t.Errorf("%+v, %t", rec, ok)
	}
	p.PutRecord(registered, "older")
	if _, _, ok := p.Record(id); ok {
		t.Error("the dead rise")
	}
	if view, ok := p.State.Instance(id); !ok || view.Record.State != record.Deleted {
		t.Errorf("%+v, %t", view, ok)
	}
	p.RemoveTombstone(id)
	if _, ok := p.Tombstone(id); ok {
		t.Error("a removed tombstone is remembered")
	}
}

// TestRunningWorkIsVisible checks that the planner sees running work, so that it plans nothing twice.
func TestRunningWorkIsVisible(t *testing.T) {
	p := newPicture(t)
	id := p.serving(t)
	p.forget()
	if !p.Begin(id, plan.Draining) || p.Begin(id, plan.Terminating) || p.Begin(p.newID(t), plan.Draining) {
		t.Error("work is not one at a time")
	}
	if got := p.planned(t, id).Work; got != plan.Draining {
		t.Errorf("work %v", got)
	}
	p.End(id, errTest)
	p.wantDirty(t, "the end of work", workers)
	if got := p.planned(t, id); got.Work != plan.Idle || got.Failed.Count != 1 || got.Failed.At != p.now {
		t.Errorf("%+v", got)
	}
	p.Begin(id, plan.Draining)
	p.End(id, nil)
	if got := p.planned(t, id); got.Failed.Count != 0 {
		t.Errorf("%+v", got)
	}
	ask := plan.Action{Kind: plan.Ask, Instance: id}
	if !p.Plan(ask, plan.Idle) || p.Plan(ask, plan.Idle) || !p.planned(t, id).Asking {
		t.Error("a question is not asked once")
	}
	for name, change := range map[string]func(){
		"announced":  func() { p.Announced(id, p.now) },
		"drained":    func() { p.Drained(id) },
		"terminated": func() { p.TerminateRequested(id) },
		"balanced":   func() { p.Balanced(id, true, p.now) },
		"files sent": func() { p.FilesSent(id, "r") },
	} {
		p.forget()
		change()
		p.wantDirty(t, name, workers)
	}
	got := p.planned(t, id)
	if !got.Announced || got.BalancersUntil != p.now || !got.Drained || got.TerminateRequested != p.now ||
		!got.InLoadBalancers || got.FilesSent != "r" {
		t.Errorf("%+v", got)
	}
	p.ExpectCreates(workers, shardstate.Pending{Members: 2})
	p.forget()
	p.ExpectCreates(workers, shardstate.Pending{Members: -1})
	p.wantDirty(t, "a create that came to something", workers)
	if s, _ := p.Snapshot(workers, nil); s.PendingCreates != 1 {
		t.Errorf("%d creates are pending", s.PendingCreates)
	}
}
