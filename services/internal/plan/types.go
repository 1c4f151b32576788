// Package plan decides what a shard's leader does next: reconciliation, expiry, drain, collection. It is the one
// decider.
//
// Everything here is pure: no clock, randomness, context, logger or I/O; the same snapshot gives the same decision.
// Planning is level-triggered: events only say "look again", each pass plans anew from state, and an action that is
// still under way is part of the snapshot. Nothing is deleted on incomplete knowledge.
package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Observed is a value that may be partial: nothing is deleted on account of what is missing from an incomplete one.
type Observed[T any] struct {
	Value    T
	Complete bool
	At       time.Time // when the question was asked, not when it was answered
}

// ProviderState is what the provider last said of a VM.
type ProviderState string

const (
	// ProviderUnknown: not asked yet, or the answer was lost.
	ProviderUnknown ProviderState = ""
	ProviderPending ProviderState = "pending"
	ProviderRunning ProviderState = "running"
	// ProviderGoing: stopping or deleting.
	ProviderGoing ProviderState = "going"
	// ProviderStopped: stopped or failed. It does not run, but the provider still has it: it is terminated before it is
	// forgotten.
	ProviderStopped ProviderState = "stopped"
	// ProviderGone: deleted, or absent from a complete list for longer than the grace (see [StateOfAbsent]). Nothing is
	// left to terminate.
	ProviderGone ProviderState = "gone"
)

// Work is what the executor is doing for an instance at the moment of the snapshot.
type Work uint8

const (
	Idle Work = iota
	Creating
	MarkingDeleting
	Draining // announcing a drain, deregistering
	Terminating
	Forgetting // writing the tombstone
	Tending    // load balancers, files
)

// Instance is one instance of a group as the leader sees it. Times are zero when unknown.
type Instance struct {
	ID       ident.ID
	State    record.State
	OnDemand bool
	Work     Work
	// What failed last, and how often in a row, by kind: a step of its life, tending (files, load balancers), questions
	// to the provider. Kept apart so that files which an agent does not take do not hold up its end. See [Instance.End]
	// and [Instance.Answered].
	Failed, TendFailed, AskFailed Failure

	CreatedAt, LaunchedAt, RegisteredAt time.Time
	RuntimeHash                         string // as the agent last reported it
	InfraHash                           string
	ProviderID                          string
	Provider                            Observed[ProviderState]

	// Healthy: the agent's last report said so; the planner itself looks whether it is in time.
	Healthy bool
	// EverHealthy: at least one healthy report reached this leader.
	EverHealthy bool
	LastReport  time.Time
	// Connected: a health stream is open now. LostAt: when the last one closed.
	Connected bool
	LostAt    time.Time
	// Notice: the cloud will take the VM away (spot); NoticeDeadline as announced.
	Notice         bool
	NoticeDeadline time.Time
	// PowerOff: the agent announced the machine's shutdown at that time. Restarting: reboot, restart or upgrade was
	// announced then.
	PowerOffAt   time.Time
	RestartingAt time.Time
	Reboot       bool

	DeleteReason   string
	DeleteDeadline time.Time
	DeletingAt     time.Time
	// Announced: the drain was announced by this leader. Drained: acknowledged.
	Announced, Drained bool
	// TerminateRequested: the provider accepted a delete at that time.
	TerminateRequested time.Time
	// InLoadBalancers: registered with every load balancer of the group. FilesSent: runtime hash last sent in full.
	InLoadBalancers bool
	FilesSent       string
	// FilesFailed: the agent's last full report names a file that could not be stored. Asking: a question to the
	// provider about this instance is waiting or under way.
	FilesFailed bool
	Asking      bool
	Tombstone   time.Time // DeletedAt of a tombstone
}

// Failure is when something failed last, and how often in a row. The zero value is "not".
type Failure struct {
	At    time.Time
	Count int
}

// Backoff is a group's record of failed creations. The zero value is "none".
type Backoff struct {
	Failures int
	Last     time.Time // when the last one failed
	Reason   string
}

// Settings are the shard-wide knobs that planning needs.
type Settings struct {
	HealthInterval, ShutdownGrace, RegistrationTimeout, Retention, CollectInterval time.Duration
	EligibleAge, ForcedAge, OnDemandAge                                            time.Duration // zero: never
	// Terminating: the shard is being emptied; groups have size zero, and on-demand instances go too.
	Terminating bool
}

// ShardHealth is the shard-wide count that the unhealthy guard looks at: Running instances that the provider confirms
// or is not known to contradict, of which Silent do not report. Summed up with [RunningSilent].
type ShardHealth struct{ Running, Silent int }

// Snapshot is everything that planning one group may look at. Instances are sorted by ID and hold no tombstones.
type Snapshot struct {
	Now      time.Time
	Term     uint64
	Settings Settings
	Group    config.Group
	// LeaderSince: when this leader began to know its shard; zero: unknown.
	LeaderSince time.Time
	// SilenceFrom: silence counts from then (this leader's address answered and one agent had connected); zero: not
	// yet.
	SilenceFrom time.Time
	Instances   []Instance
	// Pending creates of this group that have no instance ID yet.
	PendingCreates int
	Shard          ShardHealth
	Backoff        Backoff
	// CreateBudget: how many creates may start now; negative: no limit. CreateBudgetAt: when it next grows; zero:
	// unknown.
	CreateBudget   int
	CreateBudgetAt time.Time
	// GuardRaised, BackoffRaised: this group's error events that stand now (kinds "unhealthy_guard" and "backoff").
	GuardRaised, BackoffRaised bool
}

// Kind of an action.
type Kind string

const (
	Create       Kind = "create"
	Mark         Kind = "mark_deleting" // write the intent: state deleting {reason, deadline}
	Drain        Kind = "drain"         // deregister and announce
	Terminate    Kind = "terminate"
	Forget       Kind = "forget" // VM known to be gone: write the tombstone
	Ask          Kind = "ask"    // ask the provider about this instance
	PushFiles    Kind = "push_files"
	Register     Kind = "register_load_balancers"
	ForgetGroup  Kind = "forget_group"
	RaiseError   Kind = "raise_error"
	ResolveError Kind = "resolve_error"

	// Collection, see [Sweep].
	// make the tombstone durable if there is none (create-if-absent), then terminate
	TerminateStray  Kind = "terminate_stray"
	ConfirmOrphan   Kind = "confirm_orphan" // read the record's key directly
	Settle          Kind = "settle"         // a reservation of an earlier term: adopt or tombstone
	RemoveTombstone Kind = "remove_tombstone"
)

// Action is one thing to do; a comparable value. Reason says in words why, for logs and events.
type Action struct {
	Kind       Kind
	Instance   ident.ID
	ProviderID string
	// Replaces, with Create: the instance whose loss or fate made room for this one.
	Replaces ident.ID
	Reason   string
	// Cause, with Mark: a word for metrics and events (scale_down, unhealthy, gone, expired, drift, notice, power_off,
	// group_deleted, terminating, requested, unregistered). Every Mark with cause unregistered is a failed creation and
	// counts towards the group's [Backoff].
	Cause string
	// Deadline, with Mark: the drain ends then at the latest; zero: no drain.
	Deadline time.Time
	// ErrorKind with RaiseError and ResolveError.
	ErrorKind string
}

// Decision is what to do now, in order, and when to look again even if nothing happens (zero: no need).
type Decision struct {
	Actions []Action
	WakeAt  time.Time
	// Firm is WakeAt without the reports that well instances owe (see [Instance.Owes]; zero: no need): while each of
	// those comes in time, and nothing else changes, nothing is to be done before. It is WakeAt where a report that
	// merely comes can change more than that.
	Firm time.Time
	// Blocked says in words why the group is not at its size; empty when it is or is on the way.
	Blocked string
}
