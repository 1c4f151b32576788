// Package shards owns the operator's side of every shard: one connection each, and a mirror of what the shard's leader
// says of the tenant's groups and instances.
//
// Invariant: shards are independent of each other: one that does not answer delays nothing that is said of the others.
// What a mirror holds is what a leader once said; who acts on "gone" must ask whether the mirror is synced, or ask the
// leader.
package shards

import (
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Shards is what reconcilers see of all shards. It is safe for concurrent use, and nothing in it blocks.
type Shards interface {
	// IDs are the shards of the configuration file as it is now, sorted.
	IDs() []string
	// Shard is one of them; false when the configuration file does not name it (any more).
	Shard(id string) (Shard, bool)
	// Notify adds somebody to be told of every change from now on. fn may be called from any goroutine and must not
	// block.
	Notify(fn func(Change))
}

// Shard is what is known of one shard, and the way to its leader. Messages it hands out are shared: they are not to be
// changed.
type Shard interface {
	ID() string
	State() State
	// Group is the mirror's view of a group; false when the leader named none.
	Group(name string) (*nstancev1.GroupStatus, bool)
	// Groups are all groups of the tenant, by name.
	Groups() []*nstancev1.GroupStatus
	// Instance is the mirror's view of an instance. Deleted ones stay for a while, with the state "deleted".
	Instance(id string) (*nstancev1.InstanceStatus, bool)
	// Instances are the instances of a group, all when it is empty, by ID; those that are being deleted too, deleted
	// ones not.
	Instances(group string) []*nstancev1.InstanceStatus
	// Drains are the instances that wait for their nodes to be drained, by ID.
	Drains() []Drain
	// API calls the shard's leader. A call ends after 10 seconds at the latest; while the shard is unreachable it fails
	// at once with Unavailable.
	API() nstancev1.OperatorServiceClient
}

// State is how things stand with a shard.
type State struct {
	// Reachable: the leader answers. Since is when that last changed.
	Reachable bool
	Since     time.Time
	// Synced: groups and instances have been read as a whole from the leader we are connected to. It stays true while a
	// lost connection is made anew, and false only before the first time.
	Synced bool
	// Err is why the shard is unreachable, in words; "" when it is reachable.
	Err string
	// Zone and Region are those of the shard's provider, "" while they are not known.
	Zone, Region string
}

// Drain is an instance that will be deleted once its node is drained, at the deadline at the latest.
type Drain struct {
	Instance *nstancev1.InstanceStatus
	Reason   string
	Deadline time.Time
}

// ChangeKind says what a change is about.
type ChangeKind int

// Kinds of changes.
const (
	// ShardState: reachable, synced or not, added or removed.
	ShardState ChangeKind = iota + 1
	// GroupChanged: Group has been changed or removed.
	GroupChanged
	// InstanceChanged: Instance, of Group, has been changed or deleted.
	InstanceChanged
	// DrainPending: Instance, of Group, waits for its node to be drained.
	DrainPending
	// ErrorReported: the leader reported Error.
	ErrorReported
)

// Change says that it is worth looking again. What there is to see is in the mirror by then.
type Change struct {
	Shard           string
	Kind            ChangeKind
	Group, Instance string
	Error           *nstancev1.ErrorEvent
}
