package plan

import (
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

const (
	orphansKind = "orphans"
	// orphansFew and orphansPercent: more than both at once stop the sweep.
	orphansFew     = 2
	orphansPercent = 5
	// sweepAgain is how long an action of a sweep may take before it is planned again.
	sweepAgain = 10 * time.Second
)

// ShardSnapshot is everything that collection may look at. Slices are sorted (strays by provider ID, the others by
// instance ID).
type ShardSnapshot struct {
	Now      time.Time
	Settings Settings
	// Listed is the number of VMs with this shard's tags in the last provider list, ended ones left out. Complete
	// false: none yet.
	Listed Observed[int]
	// Strays are those VMs of that list that no live record claims; those of Leftovers may be among them.
	Strays []Stray
	// Leftovers are reservations of earlier terms.
	Leftovers []Leftover
	// Tombstones are the records in state deleted.
	Tombstones []Tombstone
	// OrphansRaised: the error event "orphans" stands now.
	OrphansRaised bool
}

// Stray is a VM with this shard's tags and no live record. VMs of other clusters or shards, or without our tags, are
// not among them.
type Stray struct {
	ProviderID string
	Instance   ident.ID // zero if the tag could not be read: such a VM is left alone, its record cannot be looked for
	State      ProviderState
	LaunchedAt time.Time
	// Tombstone: its record is a tombstone. Claimed: a live record names its instance ID, but another VM: left alone
	// too.
	Tombstone, Claimed bool
	// Reads are when its record's key was read directly and nothing was there, in order.
	Reads []time.Time
	Busy  bool // an action for it is under way
	// Confirmed: a person said that it may go although there are many like it.
	Confirmed bool
}

// Leftover is a reservation of an earlier term.
type Leftover struct {
	Instance ident.ID
	Busy     bool
}

// Tombstone is a record in state deleted.
type Tombstone struct {
	Instance  ident.ID
	DeletedAt time.Time
	Busy      bool
}

// Sweep plans collection for the shard: strays, leftovers, tombstones. Nothing is terminated, and no tombstone removed,
// before a complete provider list was seen. Orphans (no record) are terminated after two direct reads of their key, a
// collection interval apart, the second past the registration time-out; more than 2 and more than 5 % of the shard at
// once stop the sweep until a person confirms those, since a wrong prefix or a restored bucket must not cost a fleet. A
// VM whose record is a tombstone is terminated. Reservations of earlier terms are settled. Tombstones go after the
// retention time, once a later list does not show their VM.
func Sweep(s ShardSnapshot) Decision {
	w := sweeper{ShardSnapshot: s}
	for _, left := range s.Leftovers {
		if !left.Busy {
			w.emit(Action{Kind: Settle, Instance: left.Instance, Reason: "reserved by an earlier leader"})
			w.wake(s.Now.Add(sweepAgain))
		}
	}
	if !s.Listed.Complete {
		return w.out
	}
	settling := make(map[ident.ID]bool, len(s.Leftovers))
	for _, left := range s.Leftovers {
		settling[left.Instance] = true
	}
	orphans := 0
	for k := range s.Strays {
		if s.Strays[k].orphan() && !s.Strays[k].Confirmed && !settling[s.Strays[k].Instance] {
			orphans++
		}
	}
	if many := orphans > orphansFew && 100*orphans > orphansPercent*s.Listed.Value; many {
		w.out.Blocked = fmt.Sprintf("%d of %d VMs have no record: confirm that they may be terminated", orphans,
			s.Listed.Value)
		if !s.OrphansRaised {
			w.emit(Action{Kind: RaiseError, ErrorKind: orphansKind, Reason: w.out.Blocked})
		}
		return w.out
	}
	if s.OrphansRaised {
		w.emit(Action{Kind: ResolveError, ErrorKind: orphansKind,
			Reason: "the VMs without record are few, or confirmed"})
	}
	shown := map[ident.ID]bool{}
	for k := range s.Strays {
		stray := &s.Strays[k]
		if stray.State != ProviderGone {
			shown[stray.Instance] = true
		}
		if !settling[stray.Instance] {
			w.collect(stray)
		}
	}
	for k := range s.Tombstones {
		w.bury(&s.Tombstones[k], shown)
	}
	return w.out
}

type sweeper struct {
	ShardSnapshot
	out Decision
}

func (w *sweeper) emit(a Action) { w.out.Actions = append(w.out.Actions, a) }

func (w *sweeper) wake(at time.Time) {
	if at.After(w.Now) && (w.out.WakeAt.IsZero() || at.Before(w.out.WakeAt)) {
		w.out.WakeAt = at
	}
}

func (w *sweeper) reached(at time.Time) bool {
	w.wake(at)
	return !at.After(w.Now)
}

func (s *Stray) alive() bool { return s.State != ProviderGone && s.State != ProviderGoing }

func (s *Stray) orphan() bool {
	return s.alive() && !s.Instance.IsZero() && !s.Tombstone && !s.Claimed
}

// collect plans the next step towards a stray's end.
func (w *sweeper) collect(s *Stray) {
	if !s.alive() || s.Busy || s.Instance.IsZero() || s.Claimed {
		return
	}
	act := func(kind Kind, reason string) {
		w.emit(Action{Kind: kind, Instance: s.Instance, ProviderID: s.ProviderID, Reason: reason})
		w.wake(w.Now.Add(sweepAgain))
	}
	if s.Tombstone {
		act(TerminateStray, "its record is a tombstone")
		return
	}
	if len(s.Reads) == 0 {
		act(ConfirmOrphan, "it has our tags but no record")
		return
	}
	launched := s.LaunchedAt
	if launched.IsZero() {
		launched = s.Instance.Time()
	}
	second := latest(s.Reads[0].Add(w.Settings.CollectInterval), launched.Add(w.Settings.RegistrationTimeout))
	switch {
	case !s.Reads[len(s.Reads)-1].Before(second):
		act(TerminateStray, "it has our tags but no record, read twice")
	case w.reached(second):
		act(ConfirmOrphan, "it has our tags but no record, read once")
	}
}

// bury removes a tombstone after its retention, if a list that is newer than that shows no VM of its instance.
func (w *sweeper) bury(t *Tombstone, shown map[ident.ID]bool) {
	due := t.DeletedAt.Add(w.Settings.Retention)
	if !w.reached(due) || t.Busy || shown[t.Instance] || w.Listed.At.Before(due) {
		return
	}
	w.emit(Action{Kind: RemoveTombstone, Instance: t.Instance, Reason: "its retention time is over"})
	w.wake(w.Now.Add(sweepAgain))
}
