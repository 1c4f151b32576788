// Package record owns the documents that programs leave in the bucket for each other: instances, operators, the
// election lock, certificate logs. Each has a schema version; decoding is strict and refuses newer versions.
package record

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// State is a step in the life of an instance. An instance only changes to later states. The record of a Deleted
// instance is a tombstone.
type State string

const (
	// Reserved: the ID is stored durably. Only then is the provider asked for a VM. The provider's answer is not
	// recorded yet.
	Reserved State = "reserved"
	// Created: the provider's ID is known.
	Created State = "created"
	// Registered: the agent has registered with its nonce. The record has the agent's public key and the serial number
	// of its certificate.
	Registered State = "registered"
	// Deleting: the decision to delete is stored durably, with its reason and deadline. An instance changes from this
	// state only to Deleted.
	Deleting State = "deleting"
	// Deleted: the VM is known to be gone. The record is kept for deleted_record_retention, so that no other VM gets
	// the ID.
	Deleted State = "deleted"
)

// Instance is the record of one VM, `shard/{shard}/instance/{tenant}.{id}.json`. Its states are written in order, each
// at most once. CanMove says which states may be skipped. Every update is conditional on the token that its writer last
// read.
type Instance struct {
	Schema int      `json:"schema"`
	ID     ident.ID `json:"id"`
	State  State    `json:"state"`
	// Revision counts the writes of this record, so that no two versions have the same bytes.
	Revision uint64 `json:"revision"`
	// Term is the term of the leader that wrote this version. ReservedTerm is the term of the leader that reserved the
	// ID.
	Term         uint64 `json:"term"`
	ReservedTerm uint64 `json:"reserved_term"`
	// Writer is the incarnation of the server that wrote this version.
	Writer  string `json:"writer"`
	Cluster string `json:"cluster"`
	Shard   string `json:"shard"`
	Tenant  string `json:"tenant"`
	// Kind is the ID's prefix. In an unused reservation, Group, Template and the fields of the VM are empty.
	Kind     string `json:"kind"`
	Group    string `json:"group,omitempty"`
	Template string `json:"template,omitempty"`
	OnDemand bool   `json:"on_demand,omitempty"`
	// Spot: the VM was bought as a spot instance.
	Spot bool `json:"spot,omitempty"`
	// Vars and InstanceType of an on-demand instance may differ from its group's.
	Vars         map[string]string `json:"vars,omitempty"`
	InstanceType string            `json:"instance_type,omitempty"`
	SubnetID     string            `json:"subnet_id,omitempty"`
	Image        string            `json:"image,omitempty"`
	InfraHash    string            `json:"infra_config_hash,omitempty"`
	CreatedAt    time.Time         `json:"created_at"`
	LaunchedAt   time.Time         `json:"launched_at,omitzero"`
	ProviderID   string            `json:"provider_id,omitempty"`
	IPv4         string            `json:"ipv4,omitempty"`
	IPv6         string            `json:"ipv6,omitempty"`
	Hostname     string            `json:"hostname,omitempty"`
	RegisteredAt time.Time         `json:"registered_at,omitzero"`
	PublicKey    []byte            `json:"public_key,omitempty"` // Ed25519, 32 bytes
	// PreviousKey is the key that PublicKey replaced at the last renewal. It is kept until the agent has used
	// PublicKey. An agent that presents PreviousKey can only repeat the last renewal.
	PreviousKey []byte          `json:"previous_key,omitempty"`
	Certificate *CertificateRef `json:"certificate,omitempty"`
	NonceID     string          `json:"nonce_id,omitempty"` // jti of the consumed nonce
	// Preserved is set if the instance failed and is kept for a person to look at. It stays set until the record is
	// removed.
	Preserved *Preserved `json:"preserved,omitempty"`
	// Spare is set if the instance was created as a warm spare of its group. It stays set until the record is removed.
	Spare          *Spare    `json:"spare,omitempty"`
	DeleteReason   string    `json:"delete_reason,omitempty"`
	DeleteDeadline time.Time `json:"delete_deadline,omitzero"` // drain ends then at the latest
	DeletingAt     time.Time `json:"deleting_at,omitzero"`
	DeletedAt      time.Time `json:"deleted_at,omitzero"`
}

// Preserved says since when a failed instance is kept, and how it failed.
type Preserved struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

// Spare says whether an instance that was created as a warm spare still is one.
type Spare struct {
	// PromotedAt is when the spare became a member of its group; zero: it is still a spare.
	PromotedAt time.Time `json:"promoted_at,omitzero"`
	// Sleep is how the VM of the spare can sleep: "stopped" or "suspended"; "": it runs. It never changes.
	Sleep string `json:"sleep,omitempty"`
	// AsleepAt is when a leader decided to put the VM to sleep; zero: it never did. It stays set when the spare becomes
	// a member, so that every leader knows that the VM may have to be woken.
	AsleepAt time.Time `json:"asleep_at,omitzero"`
}

// IsSpare reports whether the instance is a warm spare, so that it does not count towards the size of its group.
func (i *Instance) IsSpare() bool { return i.Spare != nil && i.Spare.PromotedAt.IsZero() }

// CertificateRef identifies an issued certificate. It does not contain the certificate.
type CertificateRef struct {
	Serial   string    `json:"serial"` // hexadecimal
	NotAfter time.Time `json:"not_after"`
	// Trust identifies the CA that issued the certificate and the CA bundle that was delivered with it, see
	// authority.Trust. It is empty unless the CA was being rotated.
	Trust string `json:"trust,omitempty"`
}
