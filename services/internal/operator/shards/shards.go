// Package shards connects the operator to the leader of every shard. For each shard it keeps one connection and a
// mirror of the tenant's groups and instances as the leader reports them.
//
// Invariants:
//
//   - Shards are independent. A shard that does not answer delays no other.
//   - A mirror shows what a leader once reported. Code that acts on the absence of an object must check that the mirror
//     is synced, or ask the leader.
package shards

import (
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Shards gives reconcilers access to all shards. It is safe for concurrent use, and no method blocks.
type Shards interface {
	// All returns the shards of the current configuration file, sorted by ID.
	All() []Shard
	// Shard returns a shard by its ID. It returns false if the configuration file does not list the shard.
	Shard(id string) (Shard, bool)
	// Notify registers fn for all future changes. fn may be called from any goroutine and must not block.
	Notify(fn func(Change))
}

// Shard is the mirror of one shard and the client of its leader. The messages that it returns are shared and must not
// be modified.
type Shard interface {
	ID() string
	State() State
	// Group returns a group of the mirror. It returns false if the leader has not reported the group.
	Group(name string) (*nstancev1.GroupStatus, bool)
	// Groups returns all groups of the tenant, sorted by name.
	Groups() []*nstancev1.GroupStatus
	// Instance returns an instance of the mirror. A deleted instance stays in the mirror for 15 minutes with the state
	// "deleted".
	Instance(id string) (*nstancev1.InstanceStatus, bool)
	// Instances returns the instances of a group, or of all groups if group is empty, sorted by ID. It includes
	// instances that are being deleted and leaves out deleted ones.
	Instances(group string) []*nstancev1.InstanceStatus
	// Drains returns the instances whose nodes must be drained before the leader deletes them, sorted by ID.
	Drains() []Drain
	// API returns a client of the shard's leader. A call takes at most 10 seconds. While the shard is unreachable,
	// all calls except RenewCertificate fail immediately with Unavailable.
	API() nstancev1.OperatorServiceClient
}

// State is the state of the connection to a shard.
type State struct {
	// Reachable reports whether the leader answers.
	Reachable bool
	// Synced reports whether all groups and instances have been read from a leader at least once. It stays true while
	// the operator reconnects.
	Synced bool
	// Err says why the shard is unreachable. It is empty if the shard is reachable, or if the first attempt to connect
	// still runs.
	Err string
	// Zone and Region come from the shard's provider. They are empty while unknown.
	Zone, Region string
}

// Answers reports whether the leader answers and the mirror is complete.
func (s State) Answers() bool { return s.Reachable && s.Synced }

// Silent returns the IDs of the shards that do not answer, separated by commas. If only is not empty, it considers only
// the shard with this ID.
func Silent(all Shards, only string) string {
	var ids []string
	for _, one := range all.All() {
		if !one.State().Answers() && (only == "" || only == one.ID()) {
			ids = append(ids, one.ID())
		}
	}
	return strings.Join(ids, ", ")
}

// Drain is an instance that the leader deletes once its node is drained, or at the deadline.
type Drain struct {
	Instance *nstancev1.InstanceStatus
	Reason   string
	// Deadline is the deadline by this process's clock. It is zero if there is none.
	Deadline time.Time
	// Announced is the deadline by the leader's clock. It only serves to notice that the deadline was moved.
	Announced time.Time
}

// ChangeKind is the kind of a [Change].
type ChangeKind int

// Kinds of changes.
const (
	// ShardState means that the shard was added or removed, or its reachability or sync state changed.
	ShardState ChangeKind = iota + 1
	// GroupChanged means that the group in the field Group was changed or removed.
	GroupChanged
	// InstanceChanged means that the instance in the field Instance was changed or deleted.
	InstanceChanged
	// DrainPending means that the instance in the field Instance waits for the drain of its node.
	DrainPending
	// ErrorReported means that the leader reported Error.
	ErrorReported
)

// Change is a notification. When it is sent, the mirror already shows the new state.
type Change struct {
	Shard           string
	Kind            ChangeKind
	Group, Instance string
	Error           *nstancev1.ErrorEvent
}
