package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// state is a condition in which a fault can occur: the role of a server, an operation in progress on it, or the state
// of a VM.
type state uint8

const (
	// Roles of a server.
	down state = iota
	candidate
	inheriting // a candidate that the lock names as the heir
	takingOver // leads, but has not loaded the shard yet
	acting
	losing // no longer leads, but its tasks have not ended
	// Operations in progress on a server.
	readingLock
	renewing // writing the lock: a takeover, a renewal or a release
	configuring
	creating
	marking
	draining
	terminating
	forgetting
	registering
	settling
	collecting // confirming and ending orphans, removing tombstones
	refilling
	asking // asking the provider about instances, subnets or machines
	balancing
	pushing
	addressing
	rechecking // comparing records with the bucket
	regrouping // changing or forgetting a dynamic group
	working    // any other operation
	// States of a VM's record.
	vmUnrecorded
	vmReserved
	vmCreated
	vmRegistered
	vmDeleting
	vmDeleted
	numStates
)

var stateNames = [numStates]string{
	"down", "candidate", "heir", "taking over", "acting", "losing", "reading the lock", "renewing", "configuring",
	"creating", "marking", "draining",
	"terminating", "forgetting", "registering", "settling", "collecting", "refilling", "asking", "balancing", "pushing",
	"addressing", "rechecking", "regrouping",
	"working", "VM unrecorded", "VM reserved", "VM created", "VM registered", "VM deleting", "VM deleted",
}

// stateOf maps the name of a task in the code under test to the operation that the task performs.
func stateOf(task string) state {
	switch task {
	case "read lock":
		return readingLock
	case "write lock":
		return renewing
	case "lead":
		return takingOver
	case "refresh":
		return configuring
	case "create", "create an instance", "record a tombstone for a refused reservation":
		return creating
	case "mark_deleting", "delete an instance":
		return marking
	case "drain":
		return draining
	case "terminate":
		return terminating
	case "forget":
		return forgetting
	case "register", "steal a nonce":
		return registering
	case "settle":
		return settling
	case "terminate_stray", "confirm_orphan", "remove_tombstone":
		return collecting
	case "refill reservations":
		return refilling
	case "ask the provider", "ask about an instance", "ask about many instances", "ask machine", "collect":
		return asking
	case "register_load_balancers":
		return balancing
	case "push_files":
		return pushing
	case "hold the address":
		return addressing
	case "change a group", "forget group":
		return regrouping
	}
	return working
}

// states is a set of state values, one bit each.
type states uint32

func (s states) with(x state) states { return s | 1<<x }

// role returns the role of a server.
func (s *server) role() state {
	switch {
	case !s.alive():
		return down
	case s.term == nil && s.ending > 0:
		return losing
	case s.term == nil && s.world.lock.there && s.world.lock.Heir.Incarnation == s.process.name:
		return inheriting
	case s.term == nil:
		return candidate
	case !s.term.ready:
		return takingOver
	}
	return acting
}

// met returns the states that a fault of a whole server meets: its role and all operations in progress.
func (s *server) met() states {
	set := states(0).with(s.role())
	if s.alive() {
		for x, n := range s.process.busy {
			if n > 0 {
				set = set.with(state(x))
			}
		}
	}
	return set
}

// metBy returns the states that a fault of one request meets: the role of the sender and its current operation.
func (w *World) metBy(s *server) states {
	return states(0).with(s.role()).with(w.sched.current.state)
}

// met returns the states that a fault of a VM meets.
func (m *machine) met() states {
	x := vmUnrecorded
	if d := m.agent.world.bucket.byID[m.id]; d != nil && !d.removed {
		switch d.State {
		case record.Reserved:
			x = vmReserved
		case record.Created:
			x = vmCreated
		case record.Registered:
			x = vmRegistered
		case record.Deleting:
			x = vmDeleting
		case record.Deleted:
			x = vmDeleted
		}
	}
	return states(0).with(x)
}

// metLeader returns the states that a fault of the whole shard meets: those of the leader, or the absence of one.
func (w *World) metLeader() states {
	for _, s := range w.servers {
		if s.alive() && s.term != nil {
			return s.met()
		}
	}
	return states(0).with(candidate)
}

// Coverage counts, for each kind of fault, the states that it met.
type Coverage struct{ counts map[Kind]*[numStates]uint64 }

func (c *Coverage) add(k Kind, met states) {
	row := c.row(k)
	for x := range numStates {
		if met&(1<<x) != 0 {
			row[x]++
		}
	}
}

func (c *Coverage) row(k Kind) *[numStates]uint64 {
	if c.counts == nil {
		c.counts = map[Kind]*[numStates]uint64{}
	}
	row := c.counts[k]
	if row == nil {
		row = &[numStates]uint64{}
		c.counts[k] = row
	}
	return row
}

func (c *Coverage) merge(o *Coverage) {
	for k, row := range o.counts {
		mine := c.row(k)
		for x, n := range row {
			mine[x] += n
		}
	}
}

// group returns the states that a kind of fault can meet.
func (k Kind) group() []state {
	span := func(from, to state) (all []state) {
		for x := from; x <= to; x++ {
			all = append(all, x)
		}
		return all
	}
	// pushing takes no time, so no fault can meet it.
	work := slices.DeleteFunc(span(candidate, regrouping), func(x state) bool { return x == pushing })
	without := func(out ...state) []state {
		return slices.DeleteFunc(slices.Clone(work), func(x state) bool { return slices.Contains(out, x) })
	}
	vms := span(vmUnrecorded, vmDeleting)
	switch k {
	case bucketRefused, bucketSlow:
		return without(losing, draining, terminating, asking, balancing, addressing)
	case bucketLost, bucketLate, bucketRepeated:
		return without(losing, readingLock, draining, terminating, asking, balancing, addressing, rechecking)
	case bucketStale:
		return []state{takingOver, rechecking}
	case cloudFails, cloudThrottles, cloudSlow:
		return []state{takingOver, acting, creating, draining, terminating, forgetting, settling, collecting, asking,
			balancing, addressing}
	case cloudLost, cloudLate:
		return []state{acting, creating, draining, terminating, collecting, addressing}
	case cloudLag:
		return []state{takingOver, acting, settling, asking}
	case cloudRepeated:
		return []state{acting, creating, terminating, collecting}
	case cloudFull:
		return []state{acting, creating}
	case crashBefore, crashAfter, pauseAtCall:
		return without(losing)
	case agentBroken:
		return []state{vmUnrecorded, vmReserved, vmCreated}
	case answerGone:
		return []state{vmRegistered}
	case thief:
		return []state{vmReserved, vmCreated, vmRegistered}
	case lostVM, agentMute, allMute, agentSick, notice, powerOff, reboot:
		return vms
	case timerLate, messageLost, messageLate, messageTwice:
		return []state{candidate, inheriting, takingOver, acting}
	case lockLate:
		return []state{candidate, inheriting, takingOver, acting, renewing}
	case heirKilled, heirPaused, pairKilled, pairCut:
		return []state{inheriting}
	case killedAll, wiped:
		return without(inheriting)
	case stranger, subnetFull, addressGone, lostAll, lockRemoved:
		return without(losing, inheriting)
	case resize, newInfra, newRuntime, groupGone, rebalance, expiryOn, emptying, invalid, watchCut, neverDrains:
		return without(losing, inheriting)
	case groupChanged, madeOne, removedOne:
		return without(losing, candidate, inheriting, takingOver)
	}
	return work
}

// Table returns the counts as a Markdown table, followed by the combinations that never occurred.
func (c *Coverage) Table() string {
	var b strings.Builder
	b.WriteString("| fault |")
	for _, name := range stateNames {
		b.WriteString(" " + name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", int(numStates)) + "\n")
	var never []string
	for _, k := range Kinds() {
		row, can := c.row(k), k.group()
		fmt.Fprintf(&b, "| %s |", k)
		for x := range numStates {
			switch {
			case row[x] > 0:
				fmt.Fprintf(&b, " %d |", row[x])
			case slices.Contains(can, x):
				b.WriteString(" **0** |")
				never = append(never, fmt.Sprintf("%s while %s", k, stateNames[x]))
			default:
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n%d combinations that can be were never met", len(never))
	if len(never) > 0 {
		b.WriteString(":\n\n* " + strings.Join(never, "\n* "))
	}
	b.WriteString("\n\n" + c.Summary())
	return b.String()
}
