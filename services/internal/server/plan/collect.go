package plan

import (
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

const (
	// Orphans are not collected if their number exceeds fewOrphans and their share of the shard's VMs exceeds
	// orphanPercent (rule 36).
	fewOrphans    = 2
	orphanPercent = 5
	// unusedRetention is the longest time for which the tombstone of a reservation without a VM is kept. During this
	// time, a create call of an earlier leader may still take effect. The VM is then a stray (rule 37). Without the
	// tombstone, it would be an orphan (rule 35).
	unusedRetention = 2 * time.Minute
	// collectRetry is how long an action of the garbage collection may take before it is planned again.
	collectRetry = 10 * time.Second
)

// ShardSnapshot is everything that garbage collection may use. Strays are sorted by provider ID, the other slices by
// instance ID.
type ShardSnapshot struct {
	Now      time.Time
	Settings Settings
	// Listed is the number of VMs with this shard's tags in the latest provider list, without ended VMs. It is
	// incomplete before the first list.
	Listed Observed[int]
	// Strays are the VMs of the latest provider list that belong to no live record. VMs of Leftovers may be among them.
	Strays []Stray
	// Leftovers are reservations for which this leader will create no VM, such as those of earlier leaders.
	Leftovers []Leftover
	// Tombstones are the records in state deleted.
	Tombstones []Tombstone
	// OrphansWait means that the shard was restored, and that no person has confirmed its orphans since. All strays
	// then count as orphans, also those with a tombstone, because the tombstone may be older than the VM.
	OrphansWait bool
	// OrphansRaised means that the alert [AlertOrphans] is active.
	OrphansRaised bool
}

// Stray is a VM with this shard's tags and no live record. VMs of other clusters or shards, or without these tags, are
// never strays.
type Stray struct {
	ProviderID string
	// Instance is the ID in the VM's tag; zero if the tag cannot be read. Such a VM is left alone, because its record
	// cannot be found.
	Instance   ident.ID
	State      ProviderState
	LaunchedAt time.Time
	// Tombstone means that the VM's record is a tombstone. Claimed means that the record with the VM's instance ID is
	// live, but contains the provider ID of another VM. A claimed VM is left alone.
	Tombstone, Claimed bool
	// Reads are the times at which the VM's record was read directly and not found, oldest first.
	Reads []time.Time
	Busy  bool // an action for it is under way
	// Confirmed means that a person has permitted the termination of the VM although there are many orphans.
	Confirmed bool
}

// Leftover is a reservation for which this leader will create no VM, such as one of an earlier leader.
type Leftover struct {
	Instance ident.ID
	Busy     bool // an action for it is under way
}

// Tombstone is a record in state deleted.
type Tombstone struct {
	Instance  ident.ID
	DeletedAt time.Time
	Busy      bool // an action for it is under way
	// Unused means that the record was a reservation for which no VM was found.
	Unused bool
}

// CollectGarbage plans garbage collection for the shard (rules 34 to 38). Without a complete provider list it
// terminates nothing and removes no tombstone.
func CollectGarbage(s ShardSnapshot) Decision {
	out := s.settleLeftovers()
	if !s.Listed.Complete {
		return out.decision()
	}
	settling := make(map[ident.ID]bool, len(s.Leftovers))
	for _, left := range s.Leftovers {
		settling[left.Instance] = true
	}
	many, alert := s.checkOrphans(settling)
	out.merge(alert)
	if many {
		return out.decision()
	}
	listed := map[ident.ID]bool{}
	for k := range s.Strays {
		stray := &s.Strays[k]
		if stray.State != ProviderGone {
			listed[stray.Instance] = true
		}
		if !settling[stray.Instance] {
			s.collectStray(&out, stray)
		}
	}
	for k := range s.Tombstones {
		s.removeTombstone(&out, &s.Tombstones[k], listed)
	}
	return out.decision()
}

func (s *steps) decision() Decision {
	return Decision{Actions: s.actions, Schedule: Schedule{}.with(s.until), Blocked: s.blocked}
}

// settleLeftovers is rule 34.
func (s *ShardSnapshot) settleLeftovers() (out steps) {
	for _, left := range s.Leftovers {
		if !left.Busy {
			s.addRetried(&out, Action{Kind: Settle, Instance: left.Instance, Reason: "reserved by an earlier leader"})
		}
	}
	return out
}

// checkOrphans is rule 36: many orphans are not terminated without a confirmation, because a wrong prefix or a restored
// bucket can make every VM an orphan. After a restore, no orphan is terminated without a confirmation.
func (s *ShardSnapshot) checkOrphans(settling map[ident.ID]bool) (many bool, out steps) {
	orphans := 0
	for k := range s.Strays {
		if stray := &s.Strays[k]; stray.isOrphan(s.OrphansWait) && !stray.Confirmed && !settling[stray.Instance] {
			orphans++
		}
	}
	many = orphans > fewOrphans && 100*orphans > orphanPercent*s.Listed.Value || orphans > 0 && s.OrphansWait
	switch {
	case many:
		why := ""
		if s.OrphansWait {
			why = " after a restore"
		}
		out.block(fmt.Sprintf("%d of %d VMs have no record%s: confirm that they may be terminated", orphans,
			s.Listed.Value, why))
		if !s.OrphansRaised {
			out.add(Action{Kind: RaiseError, Alert: AlertOrphans, Reason: out.blocked, Rule: 36})
		}
	case s.OrphansRaised:
		out.add(Action{Kind: ResolveError, Alert: AlertOrphans,
			Reason: "the VMs without record are few, or confirmed"})
	}
	return many, out
}

func (s *Stray) runs() bool {
	return s.State != ProviderGone && s.State != ProviderGoing && s.State != ProviderStopping
}

func (s *Stray) isOrphan(restored bool) bool {
	return s.runs() && !s.Instance.IsZero() && (restored || !s.Tombstone) && !s.Claimed
}

// collectStray plans the next step towards the termination of a stray. A stray whose record is a tombstone is
// terminated (rule 37). An orphan is terminated only after two reads have not found its record (rule 35). The second
// read is at least one collection interval after the first, and not before the end of the registration time-out.
func (s *ShardSnapshot) collectStray(out *steps, stray *Stray) {
	if !stray.runs() || stray.Busy || stray.Instance.IsZero() || stray.Claimed {
		return
	}
	act := func(kind Kind, reason string) {
		s.addRetried(out, Action{Kind: kind, Instance: stray.Instance, ProviderID: stray.ProviderID, Reason: reason})
	}
	if stray.Tombstone {
		act(TerminateStray, "its record is a tombstone")
		return
	}
	if len(stray.Reads) == 0 {
		act(ConfirmOrphan, "it has our tags but no record")
		return
	}
	launched := stray.LaunchedAt
	if launched.IsZero() {
		launched = stray.Instance.Time()
	}
	second := latest(stray.Reads[0].Add(s.Settings.CollectInterval), launched.Add(s.Settings.RegistrationTimeout))
	due, until := reached(second, s.Now)
	switch {
	case !stray.Reads[len(stray.Reads)-1].Before(second):
		act(TerminateStray, "it has our tags but no record, read twice")
	case due:
		act(ConfirmOrphan, "it has our tags but no record, read once")
	default:
		out.wait(until)
	}
}

// removeTombstone removes an old tombstone (rule 38). Tombstones of unused reservations are removed earlier, because
// every change of leader adds some. listed are the instances whose VMs are in the provider's latest list.
func (s *ShardSnapshot) removeTombstone(out *steps, t *Tombstone, listed map[ident.ID]bool) {
	retention := s.Settings.Retention
	if t.Unused {
		retention = min(retention, unusedRetention)
	}
	due := t.DeletedAt.Add(retention)
	if over, until := reached(due, s.Now); !over || t.Busy || listed[t.Instance] || s.Listed.At.Before(due) {
		out.wait(until)
		return
	}
	s.addRetried(out, Action{Kind: RemoveTombstone, Instance: t.Instance, Reason: "its retention time has ended"})
}

// addRetried plans an action now. If the action has no effect, it is planned again after collectRetry.
func (s *ShardSnapshot) addRetried(out *steps, a Action) {
	out.add(a)
	out.wait(s.Now.Add(collectRetry))
}
