package scenario

import (
	"fmt"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// Life is the life of a shard of the example single-shard, from its first apply to its destruction. It calls only the
// cloud's API, the CLI and the bucket. So it runs in a real account, where a user's machine cannot reach the leader.
type Life struct {
	*Shard

	Stack *lab.Stack
	Vars  map[string]any // of the stack; the steps change them
	// Open sets the shard's Name and State after the first apply.
	Open func(t lab.T)
	// Args are other arguments of the VMs, with which they roll.
	Args string
}

// Step is one step of a life.
type Step struct {
	Name, Does string
	// Takes is the expected time in a real cloud.
	Takes time.Duration
	Run   func(t lab.T)
}

// Steps returns all steps in their order.
func (l *Life) Steps() []Step {
	return []Step{
		{"apply", "create the cluster with one VM", 8 * time.Minute, l.apply},
		{"plan", "plan again: nothing may change", time.Minute, func(t lab.T) { Converged(t, l.Stack) }},
		{"kill", "end a VM without notice: the leader replaces it", 4 * time.Minute, func(t lab.T) {
			l.ReplacesKilled(t, 1)
		}},
		{"change", "set the group's size to 2", 6 * time.Minute, l.change},
		{"roll", "change the VMs' arguments: the leader drains and replaces them", 10 * time.Minute, func(t lab.T) {
			l.Rolls(t, l.Stack, l.Vars, l.Args)
		}},
		{"failover", "add a hot standby, and end the leader's machine", 10 * time.Minute, func(t lab.T) {
			l.FailsOver(t, l.Stack, l.Vars)
		}},
		{"zero", "stop all servers, end a VM, and start a server", 12 * time.Minute, func(t lab.T) {
			l.OutlivesServers(t, l.Stack, l.Vars, l.Vars["worker_count"].(int))
		}},
		{"destroy", "destroy the cluster", 10 * time.Minute, l.destroy},
	}
}

func (l *Life) apply(t lab.T) {
	began := time.Now()
	l.Stack.Apply(t)
	l.measured("apply of an empty account → a server leads at the fixed address", "", time.Since(began))
	l.Open(t)
	l.Settled(t, 1, nil)
}

func (l *Life) change(t lab.T) {
	kept := l.Workers()
	l.Vars["worker_count"] = 2
	began := time.Now()
	l.Stack.Apply(t)
	l.Settled(t, 2, nil)
	l.measured("another size is applied → the agent of the new VM is registered", "3 min + boot", time.Since(began))
	if now := l.Workers(); !slices.Contains(now, kept[0]) {
		t.Errorf("the VMs are %v: %s was replaced", now, kept[0])
	}
}

func (l *Life) destroy(t lab.T) {
	began := time.Now()
	l.Stack.Destroy(t)
	l.measured("destroy, with the VMs that the leader ends first", "", time.Since(began))
}

// FailsOver adds a standby and ends the leader's machine. The standby must lead, another machine must come, and no VM
// may be replaced.
func (s *Shard) FailsOver(t lab.T, stack *lab.Stack, vars map[string]any) {
	t.Helper()
	kept := s.Workers()
	vars["server_count"] = 2
	stack.Apply(t)
	var leader string
	lab.Eventually(t, s.within(), "a standby is the leader's heir", func() string {
		lock, _, err := s.State.ReadLock(t.Context(), s.Name)
		if err != nil {
			return err.Error()
		}
		if leader = lock.Machine; lock.Heir.ID == "" || len(s.Servers()) != 2 {
			return fmt.Sprintf("the servers %v, heir %q", s.Servers(), lock.Heir.ID)
		}
		return ""
	})
	began := time.Now()
	s.Kill(leader)
	lab.Eventually(t, s.within(), "the standby leads", func() string {
		lock, _, err := s.State.ReadLock(t.Context(), s.Name)
		if err != nil {
			return err.Error()
		}
		if lock.Machine == leader || lock.Released {
			return leader + " still leads"
		}
		return ""
	})
	s.measured("the leader's machine is ended → another server leads, seen in the bucket", "1.5 s + the cloud's",
		time.Since(began))
	lab.Eventually(t, 2*s.within(), "two servers without "+leader, func() string {
		if now := s.Servers(); len(now) != 2 || slices.Contains(now, leader) {
			return fmt.Sprintf("servers %v", now)
		}
		return ""
	})
	s.Settled(t, len(kept), nil)
	if now := s.Workers(); !slices.Equal(now, kept) {
		t.Errorf("the VMs are %v, want %v, as before", now, kept)
	}
}
