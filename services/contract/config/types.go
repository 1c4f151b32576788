// Package config owns the shard configuration: its types, strict parsing, defaults, validation, merging, hashing and JSON Schema.
//
// One type, [Shard], describes `config/{shard}.jsonc`. The Terraform provider's check at plan time, `nstance-server --validate`,
// the server's loader and the published schema all come from it. The package is pure: it reads no files and calls no service.
//
// Invariant: whatever [Parse] accepts renders. A document that passes here never fails later because of its own content.
package config

// Shard is the whole of `config/{shard}.jsonc`. Pointers tell "not written" from zero; [Shard.WithDefaults] fills them.
type Shard struct {
	Schema        string                  `json:"$schema,omitempty"`
	Cluster       Cluster                 `json:"cluster"`
	Server        Server                  `json:"server"`
	Tenants       map[string]Tenant       `json:"tenants,omitempty"`
	LoadBalancers map[string]LoadBalancer `json:"load_balancers,omitempty"`
	Images        map[string]Image        `json:"images,omitempty"`
	Certificates  map[string]Certificate  `json:"certificates,omitempty"`
	Defaults      Defaults                `json:"defaults,omitzero"`
	Templates     map[string]Template     `json:"templates,omitempty"`
	// Groups by tenant, then by name.
	Groups map[string]map[string]GroupSpec `json:"groups,omitempty"`
	// Terminating empties the shard (every group to zero, with drain) and keeps it empty.
	Terminating bool `json:"terminating,omitempty"`
}

// Cluster names the cluster and says where its shared state is.
type Cluster struct {
	ID      string   `json:"id"`
	Storage *Storage `json:"storage,omitempty"`
	Secrets Secrets  `json:"secrets,omitzero"`
}

// Storage is a bucket other than the shard's own, for cluster-scoped keys.
type Storage struct {
	Provider string `json:"provider"`
	Bucket   string `json:"bucket"`
	Region   string `json:"region,omitempty"`
	Prefix   string `json:"prefix,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
}

// Secrets says which store holds the cluster's secrets and, for object storage, which keys seal them.
type Secrets struct {
	Provider          string      `json:"provider,omitempty"`
	Prefix            string      `json:"prefix,omitempty"`
	ProjectID         string      `json:"project_id,omitempty"`
	EncryptionKey     *KeySource  `json:"encryption_key,omitempty"`
	OldEncryptionKeys []KeySource `json:"old_encryption_keys,omitempty"`
	CacheTTL          *Duration   `json:"cache_ttl,omitempty"`
}

// KeySource says where a 32-byte encryption key is read from; it never holds the key.
type KeySource struct {
	Provider  string `json:"provider"`
	Source    string `json:"source,omitempty"`
	ProjectID string `json:"project_id,omitempty"`
}

// Server configures the shard's servers.
type Server struct {
	Shard               string              `json:"shard"`
	Provider            Provider            `json:"provider"`
	Bind                Addresses           `json:"bind,omitzero"`
	Advertise           Addresses           `json:"advertise,omitzero"`
	LeaderNetwork       *LeaderNetwork      `json:"leader_network,omitempty"`
	SubnetPools         map[string][]string `json:"subnet_pools"`
	DynamicSubnetPools  []string            `json:"dynamic_subnet_pools,omitempty"`
	RequestTimeout      *Duration           `json:"request_timeout,omitempty"`
	CreateRateLimit     *Duration           `json:"create_rate_limit,omitempty"`
	HealthCheckInterval *Duration           `json:"health_check_interval,omitempty"`
	DefaultDrainTimeout *Duration           `json:"default_drain_timeout,omitempty"`
	ImageRefresh        *Duration           `json:"image_refresh_interval,omitempty"`
	ShutdownTimeout     *Duration           `json:"shutdown_timeout,omitempty"`
	ShutdownGrace       *Duration           `json:"shutdown_grace,omitempty"`
	GarbageCollection   GarbageCollection   `json:"garbage_collection,omitzero"`
	Expiry              Expiry              `json:"expiry,omitzero"`
	LeaderElection      LeaderElection      `json:"leader_election,omitzero"`
	ErrorExitJitter     ErrorExitJitter     `json:"error_exit_jitter,omitzero"`
}

// Provider says what makes the shard's VMs. Options are the provider's own, checked by it.
type Provider struct {
	Kind    string            `json:"kind"`
	Region  string            `json:"region,omitempty"`
	Zone    string            `json:"zone,omitempty"`
	Options map[string]string `json:"options,omitempty"`
}

// Addresses are host:port pairs of the five listeners.
type Addresses struct {
	Health       string `json:"health_addr,omitempty"`
	Election     string `json:"election_addr,omitempty"`
	Registration string `json:"registration_addr,omitempty"`
	Operator     string `json:"operator_addr,omitempty"`
	Agent        string `json:"agent_addr,omitempty"`
}

// LeaderNetwork is the fixed address that follows the leader.
type LeaderNetwork struct {
	IPv4        string `json:"ipv4,omitempty"`
	IPv6        string `json:"ipv6,omitempty"`
	InterfaceID string `json:"interface_id,omitempty"`
}

// GarbageCollection sets how soon strays and tombstones go.
type GarbageCollection struct {
	Interval               *Duration `json:"interval,omitempty"`
	RegistrationTimeout    *Duration `json:"registration_timeout,omitempty"`
	DeletedRecordRetention *Duration `json:"deleted_record_retention,omitempty"`
}

// Expiry sets maximum ages, counted from launch; nil or zero disables.
type Expiry struct {
	EligibleAge *Duration `json:"eligible_age,omitempty"`
	ForcedAge   *Duration `json:"forced_age,omitempty"`
	OnDemandAge *Duration `json:"ondemand_age,omitempty"`
}

// LeaderElection configures the shard's election (see docs/election.md).
type LeaderElection struct {
	Enabled       *bool     `json:"enabled,omitempty"`
	RenewInterval *Duration `json:"renew_interval,omitempty"`
	LeaseDuration *Duration `json:"lease_duration,omitempty"`
	PeerInterval  *Duration `json:"peer_interval,omitempty"`
	PeerLease     *Duration `json:"peer_lease,omitempty"`
}

// ErrorExitJitter bounds the wait before a server that failed exits, so that a supervisor's restarts do not come in step.
type ErrorExitJitter struct {
	MinDelay *Duration `json:"min_delay,omitempty"`
	MaxDelay *Duration `json:"max_delay,omitempty"`
}

// Tenant has no settings of its own yet.
type Tenant struct{}

// LoadBalancer is something that a group's healthy instances are registered with.
type LoadBalancer struct {
	Provider          string   `json:"provider"`
	TargetGroupARNs   []string `json:"target_group_arns,omitempty"`
	InstanceGroupName string   `json:"instance_group_name,omitempty"`
}

// Image is a machine image found by a query, refreshed every image_refresh_interval.
type Image struct {
	Provider string        `json:"provider"`
	Owners   []string      `json:"owners,omitempty"`
	Filters  []ImageFilter `json:"filters,omitempty"`
	Sort     string        `json:"sort,omitempty"`
	Order    string        `json:"order,omitempty"`
	Fallback string        `json:"fallback,omitempty"`
}

// ImageFilter is one name with the values that match.
type ImageFilter struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// Certificate is a template of a certificate issued to an instance. Its strings are Go templates; TTL is in hours.
type Certificate struct {
	Kind         string   `json:"kind"`
	CN           string   `json:"cn,omitempty"`
	Organization []string `json:"organization,omitempty"`
	Country      []string `json:"country,omitempty"`
	Province     []string `json:"province,omitempty"`
	Locality     []string `json:"locality,omitempty"`
	Street       []string `json:"street,omitempty"`
	PostalCode   []string `json:"postal_code,omitempty"`
	DNS          []string `json:"dns,omitempty"`
	IP           []string `json:"ip,omitempty"`
	URI          []string `json:"uri,omitempty"`
	TTL          int      `json:"ttl"`
}

// Defaults are merged under every template.
type Defaults struct {
	Args     map[string]any    `json:"args,omitempty"`
	Vars     map[string]string `json:"vars,omitempty"`
	Userdata *Userdata         `json:"userdata,omitempty"`
}

// Userdata is the boot script of a VM: a Go template.
type Userdata struct {
	// Source is "inline" (Content holds it) or "storage" (Content names an object under files/).
	Source string `json:"source,omitempty"`
	// Encoding is "plain", "base64" or "gzip+base64": what the provider is handed.
	Encoding string `json:"encoding,omitempty"`
	Content  string `json:"content"`
}

// Template says how to make one kind of VM.
type Template struct {
	// Kind is the three-letter prefix of the IDs of its instances.
	Kind          string            `json:"kind"`
	Arch          string            `json:"arch,omitempty"`
	Args          map[string]any    `json:"args,omitempty"`
	Vars          map[string]string `json:"vars,omitempty"`
	Files         map[string]File   `json:"files,omitempty"`
	Userdata      *Userdata         `json:"userdata,omitempty"`
	Size          *int              `json:"size,omitempty"`
	InstanceType  string            `json:"instance_type,omitempty"`
	InstanceTypes []string          `json:"instance_types,omitempty"`
	SubnetPool    string            `json:"subnet_pool,omitempty"`
}

// File is one file that instances of a template receive. Which fields are allowed follows from Kind:
// certificate (Template, Key), secret (Source), storage (Source), env (Vars), json (JSON), string (Content).
type File struct {
	Kind     string            `json:"kind"`
	Template string            `json:"template,omitempty"`
	Key      *FileKey          `json:"key,omitempty"`
	Source   string            `json:"source,omitempty"`
	Vars     map[string]string `json:"vars,omitempty"`
	JSON     any               `json:"json,omitempty"`
	Content  string            `json:"content,omitempty"`
}

// FileKey names the public key, made by the agent, that a certificate is issued for.
type FileKey struct {
	Source string `json:"source"`
	Name   string `json:"name"`
	// Algorithm of the key pair: "ed25519" (default) or "ecdsa-p256".
	Algorithm string `json:"algorithm,omitempty"`
}

// GroupSpec is a group as written: in the shard config (static) or in `groups/{shard}.jsonc` (dynamic, or an override).
type GroupSpec struct {
	Template      string            `json:"template,omitempty"`
	Size          *int              `json:"size,omitempty"`
	InstanceType  string            `json:"instance_type,omitempty"`
	InstanceTypes []string          `json:"instance_types,omitempty"`
	SubnetPool    string            `json:"subnet_pool,omitempty"`
	Vars          map[string]string `json:"vars,omitempty"`
	Args          map[string]any    `json:"args,omitempty"`
	LoadBalancers []string          `json:"load_balancers,omitempty"`
	DrainTimeout  *Duration         `json:"drain_timeout,omitempty"`
	MaxSurge      *int              `json:"max_surge,omitempty"`
	// MaxUnhealthy is a count ("3") or a percentage ("40%").
	MaxUnhealthy string `json:"max_unhealthy,omitempty"`
	// Deleted marks a dynamic group on its way out; it stays until its last instance is gone. Only in groups/.
	Deleted bool `json:"deleted,omitempty"`
}

// GroupKey identifies a group within a shard.
type GroupKey struct{ Tenant, Group string }

func (k GroupKey) String() string { return k.Tenant + "/" + k.Group }

// Group is a group after merging defaults < template < group < override: plain values, nothing left to look up.
// Groups returned by [Shard.Merged] share no memory with their sources.
type Group struct {
	GroupKey
	// Static groups are named by the shard config.
	Static bool
	// Deleted groups are scaled to zero and then forgotten.
	Deleted       bool
	Template      string
	Kind, Arch    string
	Size          int
	InstanceType  string
	InstanceTypes []string // fallbacks, in order, after InstanceType
	SubnetPool    string
	Subnets       []string // of the pool, in order
	Args          map[string]any
	Vars          map[string]string
	Files         map[string]File
	Userdata      Userdata
	LoadBalancers []string
	DrainTimeout  Duration
	MaxSurge      int
	MaxUnhealthy  Limit
	// RuntimeHash and InfraHash: page "Hashes" of docs/configuration.md.
	RuntimeHash, InfraHash string
}
