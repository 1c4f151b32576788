package sim

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/infra/mock"
)

// checkAuthority: at most one process may act at a time. Clocks only end authority, so looking after each step is enough.
func (w *World) checkAuthority() {
	var holder *server
	for _, s := range w.servers {
		if !s.alive() {
			continue
		}
		if until, _ := s.elector.ActUntil(); until <= s.clock() {
			continue
		}
		if holder != nil {
			_, a := holder.elector.ActUntil()
			_, b := s.elector.ActUntil()
			w.fail("%s (term %d) and %s (term %d) may both act", holder.process.name, a, s.process.name, b)
		}
		holder = s
	}
}

// checkTerm: terms only rise.
func (w *World) checkTerm(term uint64) {
	if term <= w.highestTerm {
		w.fail("term %d begins, but %d was led already", term, w.highestTerm)
	}
	w.highestTerm = term
	w.result.Terms++
}

// checkCall looks at a provider call at the moment of its entry.
func (w *World) checkCall(call mock.Call) {
	s := w.caller()
	if s == nil {
		w.fail("%s outside any server", call.Kind)
		return
	}
	if until, _ := s.elector.ActUntil(); until <= s.clock() {
		w.fail("%s calls %s without authority", s.process.name, call.Kind)
	}
	switch call.Kind {
	case mock.Create:
		w.result.Creates++
		id, tags := call.Instance, call.Request.Tags
		rec, ok := w.recordOf(tags.Tenant, id)
		if !ok {
			w.fail("create of %s, whose reservation is not durable", id)
		} else if rec.State != record.Reserved && rec.State != record.Created {
			w.fail("create of %s, whose record says %s", id, rec.State)
		}
		if w.restless() {
			w.fail("create of %s (%s) after everything had come to rest", id, tags.Group)
		}
	case mock.Delete:
		w.result.Deletes++
		for _, vm := range w.provider.VMs() {
			if vm.ProviderID != call.ProviderID {
				continue
			}
			if (vm.Tags.Owner != infra.Owner{Cluster: clusterName, Shard: shardName}) {
				w.fail("a VM of %v is deleted", vm.Tags.Owner)
			}
			rec, ok := w.recordOf(vm.Tags.Tenant, vm.Tags.Instance)
			if vm.State.Alive() && (!ok || rec.State != record.Deleting && rec.State != record.Deleted) {
				w.fail("running VM %s of %s is terminated without a durable intent (record there: %t, %s)", vm.ProviderID, vm.Tags.Instance, ok, rec.State)
			}
			if w.restless() && vm.State.Alive() {
				w.fail("delete of %s (%s) after everything had come to rest", vm.Tags.Instance, vm.Tags.Group)
			}
		}
	}
}

// restless says whether nothing more may happen.
func (w *World) restless() bool { return !w.restAt.IsZero() && w.sched.now.After(w.restAt) }

// checkSizes: never more VMs than the largest size asked for, its surge, and those whose end is already decided.
func (w *World) checkSizes() {
	count := map[config.GroupKey]int{}
	ids := map[string]string{}
	for _, vm := range w.ours() {
		id := vm.Tags.Instance.String()
		if other, twice := ids[id]; twice {
			w.fail("instance %s has two VMs: %s and %s", id, other, vm.ProviderID)
		}
		ids[id] = vm.ProviderID
		if !vm.State.Alive() {
			continue
		}
		a := w.agents[vm.Tags.Instance]
		if a != nil && (a.notice || a.powerOff || a.broken) {
			continue // its replacement is no surge
		}
		rec, ok := w.recordOf(vm.Tags.Tenant, vm.Tags.Instance)
		if !ok || rec.State == record.Deleting || rec.State == record.Deleted || rec.State == record.Reserved {
			continue // on its way out, or nobody knows of it yet
		}
		count[config.GroupKey{Tenant: vm.Tags.Tenant, Group: vm.Tags.Group}]++
	}
	for key, n := range count {
		if most := w.largest[key]; n > most {
			w.fail("group %s has %d VMs that stay, at most %d were asked for: %s", key, n, most, describe(w.ours()))
		}
	}
}

// checkForeigners: what is not ours is never touched.
func (w *World) checkForeigners() {
	n := 0
	for _, vm := range w.provider.VMs() {
		if (vm.Tags.Owner != infra.Owner{Cluster: clusterName, Shard: shardName}) && vm.State == infra.Running {
			n++
		}
	}
	if n != 2 {
		w.fail("%d of 2 foreign VMs run", n)
	}
}

// checkRest: after the faults have stopped there is a leader, every group has its size, every VM its record and every record its VM.
func (w *World) checkRest() {
	s := w.acting()
	if s == nil {
		w.fail("nobody leads %v after the faults have stopped", w.opts.Quiet)
		return
	}
	have := map[config.GroupKey]int{}
	records := w.records()
	for _, vm := range w.ours() {
		rec, ok := records[vm.Tags.Instance]
		if !ok {
			w.fail("VM %s of %s has no record", vm.ProviderID, vm.Tags.Instance)
			continue
		}
		if rec.State != record.Registered {
			w.fail("VM %s of %s is there, its record says %s", vm.ProviderID, vm.Tags.Instance, rec.State)
			continue
		}
		if rec.ProviderID != vm.ProviderID {
			w.fail("record of %s names %s, its VM is %s", rec.ID, rec.ProviderID, vm.ProviderID)
		}
		have[config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}]++
	}
	for _, g := range w.groups {
		if have[g.GroupKey] != g.Size {
			view, _ := s.leader.World.GroupView(g.GroupKey)
			w.fail("group %s has %d VMs, wants %d (blocked: %q, backoff %+v):%s", g.GroupKey, have[g.GroupKey], g.Size, view.Blocked, view.Backoff, describe(w.ours()))
		}
		delete(have, g.GroupKey)
	}
	for key, n := range have {
		w.fail("%d VMs of group %s, which is nobody's", n, key)
	}
	for id, rec := range records {
		switch rec.State {
		case record.Registered, record.Deleted:
		case record.Reserved:
			if rec.ReservedTerm != w.highestTerm {
				w.fail("reservation %s of term %d was never settled", id, rec.ReservedTerm)
			}
		default:
			w.fail("record of %s is left in state %s", id, rec.State)
		}
		if rec.State == record.Registered {
			if vm, ok := w.provider.Instance(id); !ok || !vm.State.Alive() {
				w.fail("record of %s says registered, its VM is gone", id)
			}
			if a := w.agents[id]; a == nil || string(a.public) != string(rec.PublicKey) {
				w.fail("record of %s holds a key that is not its agent's", id)
			}
		}
	}
}

// settled is how long nothing may happen at the end of a run.
const settled = 5 * time.Minute
