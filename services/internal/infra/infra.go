// Package infra owns the boundary to whatever makes VMs: the Provider interface, its error classes and optional
// capabilities.
//
// Invariant: every call is idempotent and none of them decides anything. Implementations live in sub-packages and pass
// infratest.
package infra

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// State is what the provider says of a VM.
type State string

const (
	Pending  State = "pending"
	Running  State = "running"
	Stopping State = "stopping"
	Stopped  State = "stopped"
	Deleting State = "deleting"
	Deleted  State = "deleted"
	Failed   State = "failed"
	Unknown  State = "unknown"
)

// Alive reports whether the VM runs or is about to: anything else is gone or going.
func (s State) Alive() bool { return s == Pending || s == Running || s == Unknown }

// Owner is what makes a VM ours: it is written as tags and every List is filtered by Cluster and Shard.
type Owner struct{ Cluster, Shard string }

// Tags are written on every VM. The first block decides; the second is for people.
type Tags struct {
	Owner
	Tenant    string
	Instance  ident.ID
	Term      uint64
	InfraHash string

	Group, Template, Kind string
	OnDemand              bool
	CreatedAt             time.Time
}

// CreateRequest asks for one VM. Tags.Instance is the idempotency token: repeated with the same bytes it yields the
// same VM.
type CreateRequest struct {
	Tags         Tags
	Arch         string
	InstanceType string
	Subnet       string
	Args         map[string]any // merged and rendered, the provider's own vocabulary
	Userdata     []byte         // holds the registration nonce: never logged
	Hostname     string
}

// VM is one machine as the provider describes it.
type VM struct {
	ProviderID string
	State      State
	Tags       Tags // as far as they could be read back
	IPv4, IPv6 string
	Hostname   string
	LaunchedAt time.Time // provider's own time stamp
	// Warnings about the VM that came with the answer, e.g. an unparsable tag.
	Warning string
}

// Provider makes and unmakes VMs. All methods are safe for concurrent use, honour ctx, and classify errors with
// [ClassOf].
type Provider interface {
	// Create asks for a VM and returns it as soon as it has a ProviderID (usually Pending). A repeat with the same
	// request returns the same VM. Same ID with other parameters is [Conflict], and so is any repeat after the VM was
	// deleted: an ID has one life. [Indeterminate] means that a VM may exist, or may come to exist: repeat the same
	// bytes or look it up; any other class means that this call made none.
	Create(ctx context.Context, req CreateRequest) (VM, error)
	// Delete requests the end of a VM; nil means requested, not gone. Deleting what is gone is no error.
	Delete(ctx context.Context, providerID string) error
	// Get describes one VM. [NotFound] proves nothing about a VM younger than the provider's consistency window.
	Get(ctx context.Context, providerID string) (VM, error)
	// List returns every VM tagged with owner, terminated ones too while the provider remembers them. An error means
	// that nothing is known: a partial list is never returned. Only absence from a complete list, after a grace since
	// creation, proves gone.
	List(ctx context.Context, owner Owner) ([]VM, error)
	// FindByInstance looks one VM up by its instance tag. [NotFound] as with Get.
	FindByInstance(ctx context.Context, owner Owner, id ident.ID) (VM, error)
}

// LeaderNetwork is an optional capability: a fixed address that follows the leader.
type LeaderNetwork interface {
	// Acquire makes the address this machine's own; repeated calls are cheap and verify.
	Acquire(ctx context.Context, machineID string) error
	// Release gives it up if this machine has it.
	Release(ctx context.Context, machineID string) error
}

// MachineEvidence is an optional capability: what became of a lock holder's machine.
type MachineEvidence interface {
	// MachineState describes a server's own machine by an ID that is never reused.
	MachineState(ctx context.Context, machineID string) (State, error)
}

// SubnetCapacity is an optional capability.
type SubnetCapacity interface {
	// HasRoom reports for each subnet whether an instance can still be placed there.
	HasRoom(ctx context.Context, subnets []string) (map[string]bool, error)
}

// LoadBalancers is an optional capability. Both are idempotent. A VM that is gone, or on its way, is refused as Invalid
// (Elastic Load Balancing: "targets are not in a running state"; RegisterTargets, InvalidTarget): a call of an earlier
// leader that lands late makes no member that nobody would remove.
type LoadBalancers interface {
	Register(ctx context.Context, lb string, vm VM) error
	Deregister(ctx context.Context, lb string, vm VM) error
}

// Images is an optional capability: look-up of a machine image by a query.
type Images interface {
	Resolve(ctx context.Context, q ImageQuery) (string, error)
}

// Verifier is an optional capability: a provider that can compare a configuration with the cloud.
type Verifier interface {
	// Verify checks that what the configuration names exists in the cloud and can be used as configured. No server
	// starts with an error of class [Invalid]; other errors raise an alert.
	Verify(ctx context.Context, shard *config.Shard) error
}

// ImageQuery mirrors the shard configuration's image entry.
type ImageQuery struct {
	Owners  []string
	Filters map[string][]string
	Sort    string
	Newest  bool
}
