// Package cloud describes each cloud's part of the shard configuration: its fields, its stores, and checks that need no
// network. Each cloud has a sub-package with one [Block]. The package cloud/all lists them.
//
// Invariant: neither this package nor its sub-packages link a cloud's SDK, so every program can check a configuration
// for every cloud.
package cloud

// Rate is a limit of calls: first some at once, then some in each second.
type Rate struct{ AtOnce, PerSecond int }

// Block describes one cloud's part of the shard configuration. No program changes a Block. Any of its functions may be
// nil.
type Block struct {
	// Name is the value of server.provider.kind and of the provider field of images and load balancers.
	Name string
	// Hidden means that the cloud is for tests and development. A shard of such a cloud accepts images and load
	// balancers of every cloud.
	Hidden bool

	// SpotArgs are paths into args. An arg at one of these paths requests a spot instance. Nil: the cloud has no spot
	// market.
	SpotArgs [][]any

	// Sleeps are the values of a group's spares.state with which the VMs of spares sleep. Nil: VMs cannot sleep.
	Sleeps []string

	// MaxUserdata is the maximum size of a VM's user data in bytes. 0: the cloud has no limit that matters.
	MaxUserdata int

	// NeedsZone reports whether region and zone are required.
	NeedsZone bool
	// NeedsInstanceType reports whether every group must have an instance_type.
	NeedsInstanceType bool
	// HasImages reports whether images can be looked up.
	HasImages bool
	// ImagesNeedOwners reports whether a look-up of images must name their owners.
	ImagesNeedOwners bool
	// Attestation is the value of server.attestation.method for this cloud: the method by which an agent proves on
	// which VM it runs. It is empty if the cloud has no such method.
	Attestation string
	// AttestationCertificates reports whether server.attestation.certificates must list the certificates that verify an
	// agent's proof. If it is false, the cloud publishes the keys that verify the proof.
	AttestationCertificates bool
	// IdentityTokens reports whether VMs get identity tokens with which they can assume roles of another cloud.
	IdentityTokens bool
	// Creates is the rate at which the cloud accepts calls that create VMs, as it documents it. It is zero if one call
	// cannot create several VMs.
	Creates Rate

	// LeaderNetwork is the zero value of the struct type with the cloud's own fields of server.leader_network. The
	// package cloud/all embeds that type. LeaderNetwork is nil if the cloud has no own fields.
	LeaderNetwork any
	// LeaderNetworkKinds are the values of server.leader_network.kind. Empty: the cloud has only one kind, and a
	// configuration must not name it.
	LeaderNetworkKinds []string
	// LoadBalancer is the zero value of the struct type with the cloud's own fields of a load balancer. The type may
	// have no fields. The package cloud/all embeds it. LoadBalancer is nil if the cloud has no load balancers.
	LoadBalancer any

	// Identity is the zero value of the struct type with the fields of cluster.storage.identity for the cloud's object
	// stores. The package cloud/all embeds it. Identity is nil if the cloud has no object stores.
	Identity any

	// CheckZone checks that a zone is in a region. The paths in its problems are relative to server.provider.
	CheckZone func(region, zone string) []Problem
	// CheckInstanceType checks an instance type, and CheckSubnet a subnet of server.subnet_pools. Both are nil if only
	// the cloud itself knows which ones there are.
	CheckInstanceType func(name string) error
	CheckSubnet       func(options map[string]string, subnet string) error
	// CheckOptions checks server.provider.options. The paths in its problems are relative to the options.
	CheckOptions func(options map[string]string) []Problem
	// CheckArgs checks the args of defaults, of an instance template or of a group. The texts in the args are not
	// rendered yet. The paths in the problems are relative to the args.
	CheckArgs func(args map[string]any) []Problem
	// NeedsArgs are args of which each group needs at least one. Empty: the cloud needs none.
	NeedsArgs []string

	// ObjectStores are the kinds of bucket that the cloud has.
	ObjectStores []ObjectStore
	// SecretsStores are the cloud's services that keep secrets and encryption keys.
	SecretsStores []SecretsStore
}

// Checker adds rules for the fields of a struct in [Block.LeaderNetwork], [Block.LoadBalancer] or [Block.Identity].
// Check is called only for objects of the cloud whose Block has the struct. Other code checks that required fields are
// set.
type Checker interface {
	// Check returns the problems of the fields. kind is server.leader_network.kind, and empty for other objects.
	Check(kind string) []Problem
}

// HealthSource is implemented by the struct of [Block.LoadBalancer] if the cloud's load balancers report which of their
// members are healthy.
type HealthSource interface {
	// MissingForHealth returns the name of a missing field that is needed to ask for the health of members, or "".
	MissingForHealth() string
}

// LeaderARP is a value of server.leader_network.kind that needs no cloud. The leader has the shard's fixed address on
// its own network interface and announces the address by ARP or NDP.
const LeaderARP = "arp"

// Problem is one mistake in a configuration. Path leads to the mistake: strings are names, ints are positions in lists.
type Problem struct {
	Path    []any
	Message string
	// Hint says how to mend the mistake. Optional.
	Hint string
	// WhenWritten means that the mistake is an error when a configuration is written. In a stored configuration it is a
	// warning, so that servers still accept it.
	WhenWritten bool
}

// ObjectStore describes a kind of bucket.
type ObjectStore struct {
	// Name is the value of cluster.storage.provider and of the servers' --storage.
	Name string
	// TakesEndpoint reports whether an endpoint URL may be given.
	TakesEndpoint bool
	// RegionVariable is the environment variable from which the store's SDK takes its region. Optional.
	RegionVariable string
}

// SecretsStore describes a service that keeps secrets. Encryption keys can be among its secrets.
type SecretsStore struct {
	// Name is the value of cluster.secrets.provider and of the provider of an encryption key.
	Name string
	// TakesProject reports whether project_id may be given.
	TakesProject bool
	// NeedsProject reports whether an encryption key with the given source also needs a project_id. Optional.
	NeedsProject func(source string) bool
}
