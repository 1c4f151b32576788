package plan

import (
	"fmt"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Role is what an instance is in its group, for its agent.
type Role string

const (
	RoleSpare  Role = "spare"
	RoleMember Role = "member"
)

// Observed is a value that may be incomplete. If an incomplete value lacks something, that is no reason to delete
// anything.
type Observed[T any] struct {
	Value    T
	Complete bool
	At       time.Time // when the question was asked, not when it was answered
}

// ProviderState is the state of a VM according to the provider's latest answer.
type ProviderState string

const (
	// ProviderUnknown means that the provider was not asked yet, or that its answer was lost.
	ProviderUnknown ProviderState = ""
	ProviderPending ProviderState = "pending"
	ProviderRunning ProviderState = "running"
	// ProviderStopping and ProviderStopped are also the states of a VM that falls asleep or sleeps.
	ProviderStopping ProviderState = "stopping"
	// ProviderGoing means that the VM is being deleted.
	ProviderGoing ProviderState = "going"
	// ProviderStopped and ProviderFailed mean that the VM does not run, but the provider still has it. It must be
	// terminated before it is forgotten.
	ProviderStopped ProviderState = "stopped"
	ProviderFailed  ProviderState = "failed"
	// ProviderGone means deleted, or absent from a complete list more than a minute after the VM's creation (see
	// [ApplyProviderAnswer]). Nothing is left to terminate.
	ProviderGone ProviderState = "gone"
)

// Work is what the executor does for an instance at the moment of the snapshot.
type Work uint8

const (
	Idle Work = iota
	Creating
	MarkingDeleting
	Draining // announcing a drain, deregistering
	Terminating
	Forgetting  // writing the tombstone
	Maintaining // load balancers, files
	Preserving  // recording that it is preserved, deregistering
	Promoting   // recording that it is a member
	Sleeping    // recording that it sleeps, putting its VM to sleep
	Waking      // waking its VM
)

// Instance is one instance of a group as the leader sees it. Times are zero when unknown.
type Instance struct {
	ID       ident.ID
	State    record.State
	OnDemand bool
	Spot     bool // the VM was bought as a spot instance
	// Spare means that the record calls the instance a warm spare (rule 77). PromotedAt is when it became a member of
	// its group; zero: it is a spare, or was never one.
	Spare      bool
	PromotedAt time.Time
	// Sleep and AsleepAt are those of record.Spare. CertificateEnds is when the agent's certificate expires.
	Sleep                     string
	AsleepAt, CertificateEnds time.Time
	// SleepRequested and WakeRequested are when the provider last accepted to put the VM to sleep, and to wake it.
	// WakeFailed is why it cannot wake it; "": it can, as far as known. Woken means that the VM has run since the
	// promotion.
	SleepRequested, WakeRequested time.Time
	WakeFailed                    string
	Woken                         bool
	// Role is the role that the agent last reported; "": unknown, because the agent is older than spares.
	Role Role
	Work Work
	// Failed, MaintenanceFailed and AskFailed count failures in a row. MaintenanceFailed is for maintenance (files,
	// load balancers, sleep), AskFailed for questions to the provider, and Failed for all other actions. These counts
	// are separate so that an agent that refuses files does not delay its own deletion. See [ApplyWorkResult] and
	// [ApplyAskResult].
	Failed, MaintenanceFailed, AskFailed Failure

	CreatedAt, LaunchedAt, RegisteredAt time.Time
	RuntimeHash                         string // as the agent last reported it
	InfraHash, SubnetID                 string
	Image                               string // ID of the configured image that it was made from; "": none, or unknown
	ProviderID                          string
	Provider                            Observed[ProviderState]
	EndReason                           string // why the VM ended, in the provider's words; "": unknown

	// Refused is why the leader last refused the agent, and from where it called; "": not since its last report.
	Refused string

	// Healthy means that the agent's last report called the instance healthy, and that no health check fails. The
	// planner checks whether that report is recent.
	Healthy bool
	// EverHealthy means that at least one healthy report reached this leader.
	EverHealthy bool
	// ChecksPending means that the agent has not run all present health checks yet, or that some have neither passed
	// nor failed.
	ChecksPending bool
	// FailedCheck is the health check that fails, with its reason; "": none. CheckFailedAt is when the check began to
	// fail. A load balancer's verdict that the instance is unhealthy counts as a failed check.
	FailedCheck   string
	CheckFailedAt time.Time
	Balancer      BalancerHealth
	// Lapses counts how often the instance restarted or became unhealthy (rule 63). FlapsRaised means that the alert
	// [AlertFlaps] about the instance is active.
	Lapses      Lapses
	FlapsRaised bool
	// Finishes is the instance for which rule 12, 52, 59 or 63 made this one (rule 62); zero: none. A new leader does
	// not know it.
	Finishes   ident.ID
	LastReport time.Time
	// Connected means that a health stream is open now. LostAt is when the previous stream closed; zero while one is
	// open.
	Connected bool
	LostAt    time.Time
	// Notice means that the cloud will take the VM away (spot). NoticeDeadline is the announced time; zero: unknown.
	Notice         bool
	NoticeDeadline time.Time
	// Recommended means that the cloud recommends replacing the VM.
	Recommended bool
	// Maintenance is the kind of the maintenance that the cloud has announced for the VM, in the cloud's words; "":
	// none. MaintenanceAt is when it begins at the earliest; zero: at any time.
	Maintenance   string
	MaintenanceAt time.Time
	// PowerOffAt is when the agent announced the machine's shutdown. RestartingAt is when it announced a restart: of
	// the machine if Reboot is true, otherwise of the agent, which may also be upgraded.
	PowerOffAt   time.Time
	RestartingAt time.Time
	Reboot       bool

	// PreservedAt is since when the failed instance is preserved (rule 67); zero: it is not. It stays set when the
	// instance is deleted.
	PreservedAt time.Time

	DeleteReason   string
	DeleteDeadline time.Time
	DeletingAt     time.Time
	// Postponed means that this leader has moved DeleteDeadline (rule 30), so that the record has an earlier one.
	Postponed bool
	// Announced means that this leader announced the drain.
	Announced bool
	// Operator means that an operator takes part in the drain (rule 27), and Drained that it acknowledged the node as
	// drained.
	Operator, Drained bool
	// Hook means that the drain was announced with the VM's drain hook, and HookEnded that the hook has ended.
	Hook, HookEnded bool
	// BalancersUntil is when the deregistration delay of the instance's load balancers is over; zero: there is none.
	BalancersUntil time.Time
	// TerminateRequested is when the provider accepted a delete call.
	TerminateRequested time.Time
	// InLoadBalancers means that the instance is registered with every load balancer of the group, and Deregistered
	// that this leader removed it from all of them. BalancedAt is when InLoadBalancers or the group's load balancers
	// last changed. FilesSent is the runtime hash of the files that were last sent completely.
	InLoadBalancers bool
	Deregistered    bool
	BalancedAt      time.Time
	FilesSent       string
	// FilesFailed means that according to the agent's last full report, a file could not be stored.
	FilesFailed bool
	// Asking means that a question to the provider about this instance is waiting or under way.
	Asking    bool
	Tombstone time.Time // DeletedAt of a tombstone
}

// Failure is when something failed last, and how often in a row. The zero value means that the last attempt did not
// fail.
type Failure struct {
	At    time.Time
	Count int
}

// Backoff is a group's record of failed creations. The zero value means none.
type Backoff struct {
	Failures int
	Last     time.Time // when the last one failed
	Reason   string
}

// Notices counts what follows from the cloud's notices to a group's instances (rule 39). The zero value means nothing.
type Notices struct {
	Since time.Time // when the first one of the current hour was counted
	Count int       // in that hour
	// Backoff makes the group wait. See [ApplyNotice] and [ApplyAdvisedCreate].
	Backoff Backoff
}

// Lapses counts how often an instance restarted or became unhealthy (rule 63). The zero value means never.
type Lapses struct {
	Since time.Time // when the first one of the current hour happened
	Count int       // in that hour
}

// Settings are the shard-wide settings that planning needs.
type Settings struct {
	HealthInterval, ShutdownGrace, RegistrationTimeout, Retention, CollectInterval time.Duration
	EligibleAge, ForcedAge, OnDemandAge                                            time.Duration // zero: never
	// RequestTimeout is how long a VM that is woken may still be asleep (rule 84).
	RequestTimeout time.Duration
	// Terminating means that the shard is being emptied. Groups have size zero, and on-demand instances are deleted
	// too.
	Terminating bool
}

// ShardHealth counts the shard's instances for the unhealthy guard (rule 26). Running counts the registered instances
// that run according to the provider's last answer. Of these, Silent counts the silent and failing ones. See
// [CountSilence].
type ShardHealth struct {
	Running, Silent int
	// HoldUntil is when the latest recovery period of the shard ends, see [Guard].
	HoldUntil time.Time
}

// Snapshot is everything that planning one group may use. Instances are sorted by ID and contain no tombstones.
type Snapshot struct {
	Now      time.Time
	Term     uint64
	Settings Settings
	Group    config.Group
	// LeaderSince is when this leader began to load its shard's state; zero: unknown.
	LeaderSince time.Time
	// ServingSince is when operators could first connect to this leader; zero: they cannot yet.
	ServingSince time.Time
	// SilenceFrom is when the first agent connected to this leader. Silence before that time does not count. Zero means
	// that no agent has connected yet.
	SilenceFrom time.Time
	Instances   []Instance
	// PendingCreates counts the creations of this group that have no instance ID yet.
	PendingCreates int
	// PendingSpot counts those PendingCreates that will be spot instances.
	PendingSpot int
	// PendingSpares counts the creations of spares that have no instance ID yet. PendingCreates does not contain them.
	PendingSpares int
	// SpotRefusedAt is when the provider last had no spot capacity for the group; zero: not since this leader took
	// over.
	SpotRefusedAt time.Time
	Shard         ShardHealth
	// Guard is the Guard of the previous Decision about the group.
	Guard   Guard
	Backoff Backoff
	// SpareBackoff is the record of failed creations of spares, which delays no other creations (rule 79).
	SpareBackoff Backoff
	// NotWokenAt is when a member was last deleted because its VM did not wake (rule 84); zero: not since this leader
	// took over.
	NotWokenAt time.Time
	// Notices counts the termination notices (rule 3), and Advised the replacements under rules 65 and 66.
	Notices, Advised Notices
	// CreateBudget is how many create calls may start now; negative: no limit. CreateBudgetAt is when the budget grows
	// next; zero: unknown.
	CreateBudget   int
	CreateBudgetAt time.Time
	// CreateEvery is the value of create_rate_limit if this setting determines CreateBudget, otherwise 0.
	CreateEvery time.Duration
	Waiting     WaitingCreates
	// Operators means that an operator of the group's tenant is connected that takes part in drains (rule 27).
	Operators bool
	// OperatorLeftAt is when the last of them was disconnected; zero: not since this leader took over.
	OperatorLeftAt time.Time
	// Image is the ID of the image that the group's new instances get: the one that the query of the group's image
	// found last, or that of the good configuration to which the group has returned; "": none, or unknown.
	Image string
	// WantedImage is the ID that the query found with the group's present configuration. It differs from Image only if
	// the group has returned to its good configuration.
	WantedImage string
	// RolloutFailures counts the failures of instances with the group's present configuration (rule 47).
	RolloutFailures int
	// RolloutFailure is the reason of the last of them.
	RolloutFailure string
	// ConfiguredAt is when this leader put the group's present configuration in force.
	ConfiguredAt time.Time
	// StoringRollout means that an action [Halt], [EndHalt] or [KeepGood] of the group is under way. StoreFailed is the
	// last failure of such an action.
	StoringRollout bool
	StoreFailed    Failure
	// GuardRaised, BackoffRaised and LateRaised mean that the group's alerts [AlertUnhealthyGuard], [AlertBackoff] and
	// [AlertLateRegistration] are active.
	GuardRaised, BackoffRaised, LateRaised bool
	// HaltRaised is the text of the group's active alert [AlertRolloutHalted]; "": there is none.
	HaltRaised string
}

// Kind of an action.
type Kind string

const (
	Create Kind = "create"
	Mark   Kind = "mark_deleting" // write the intent: state deleting {reason, deadline}
	// Preserve records that a failed instance is preserved, and deregisters it from load balancers (rule 67).
	Preserve Kind = "preserve"
	// Promote makes a warm spare a member of its group (rule 78).
	Promote Kind = "promote"
	// Sleep puts the VM of a spare to sleep (rule 82), and Wake wakes that of a member (rule 83).
	Sleep        Kind = "sleep"
	Wake         Kind = "wake"
	Drain        Kind = "drain" // deregister from load balancers and announce the drain
	Terminate    Kind = "terminate"
	Forget       Kind = "forget" // the VM is known to be gone: write the tombstone
	Ask          Kind = "ask"    // ask the provider about this instance
	PushFiles    Kind = "push_files"
	Register     Kind = "register_load_balancers"
	ForgetGroup  Kind = "forget_group"
	Halt         Kind = "halt_rollout"      // store that the group's rollout is halted
	EndHalt      Kind = "end_halt"          // remove what Halt stored
	KeepGood     Kind = "store_good_config" // store the group's configuration, to return to it after a halt
	RaiseError   Kind = "raise_error"
	ResolveError Kind = "resolve_error"

	// TerminateStray terminates a stray VM. If the VM has no record, a tombstone is written first (create-if-absent).
	// This kind and the ones after it are planned by [CollectGarbage].
	TerminateStray  Kind = "terminate_stray"
	ConfirmOrphan   Kind = "confirm_orphan" // read the record's key directly
	Settle          Kind = "settle"         // find out whether a reservation's VM exists: adopt it or write a tombstone
	RemoveTombstone Kind = "remove_tombstone"
)

// Action is one step that the planner asks for. Two actions can be compared with ==. Reason is a sentence for logs and
// events.
type Action struct {
	Kind       Kind
	Instance   ident.ID
	ProviderID string
	// Replaces is the instance that the new instance of a Create action, or the spare of a Promote action, replaces;
	// zero: none.
	Replaces ident.ID
	// Voluntary means that the instance that a Create action replaces still runs, or that the action makes a spare.
	Voluntary bool
	// Spare means that a Create action makes a warm spare.
	Spare bool
	// Spot means that a Create action makes a spot instance. Fallback means that it makes one on demand if there is no
	// spot capacity.
	Spot, Fallback bool
	Reason         string
	// Cause is set for Mark and Preserve, and for a Create or Promote that replaces an instance. A Preserve without a
	// cause only repeats the deregistration.
	Cause Cause
	// Deadline is set for Mark, Preserve and Drain. It is when the drain ends at the latest; zero: no drain.
	Deadline time.Time
	// Alert is set for RaiseError and ResolveError.
	Alert AlertKind
	// Version is set for Halt and KeepGood: what the group runs.
	Version record.GroupVersion
	// Rule is the number of the rule that led to the action; 0: none.
	Rule int
}

// Finishes returns the instance that is deleted when the new instance of a Create or Promote action is healthy, even if
// it recovers first (rule 62); zero: none.
func (a Action) Finishes() ident.ID {
	switch a.Cause {
	case CauseUnhealthy, CauseHealthCheck, CauseLoadBalancer, CauseFlapping:
		return a.Replaces
	}
	return ident.ID{}
}

// Why returns the reason of the action and the number of its rule.
func (a Action) Why() string {
	if a.Rule == 0 {
		return a.Reason
	}
	return fmt.Sprintf("%s (rule %d)", a.Reason, a.Rule)
}

// decidedBy reports whether a text from [Action.Why] ends with the given rule.
func decidedBy(reason string, rule int) bool {
	return reason != "" && strings.HasSuffix(reason, fmt.Sprintf(" (rule %d)", rule))
}

// Decision is what to do now, in order, and when to plan again.
type Decision struct {
	Actions []Action
	Schedule
	// Blocked says why the group cannot reach its size now. It is empty if the group is at its size or can reach it.
	// BlockedUntil is when that reason ends if nothing happens until then; zero: unknown.
	Blocked      string
	BlockedUntil time.Time
	// Rollout says why outdated instances are not replaced now, or why the group runs its last good configuration. It
	// is empty if there is no such reason, or while a wave is under way. RolloutUntil is when that reason ends if
	// nothing happens until then; zero: unknown.
	Rollout      string
	RolloutUntil time.Time
	// Wait says what the group waits for. It has no words for a resting group.
	Wait Wait
	// Guard must be copied into the group's next Snapshot.
	Guard Guard
}
