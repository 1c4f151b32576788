// Package config owns the shard configuration: its types, strict parsing, defaults, validation, merging, hashing and
// JSON Schema.
//
// One type, [Shard], describes `config/{shard}.jsonc`. The Terraform provider's check at plan time, `nstance-server
// --validate`, the server's loader and the published schema all use it. The package is pure: it reads no files and
// calls no services.
//
// Invariant: every document that [Parse] accepts can be rendered. A document that passes here never fails later because
// of its own content.
package config

import "github.com/nstance-kit/nstance/services/contract/cloud/all"

// Shard is the content of `config/{shard}.jsonc`. Pointers distinguish an unset field from zero. [Shard.WithDefaults]
// fills in unset fields.
//
// The comments of the fields below are the descriptions in the schema and in the reference page. The tag `default`
// holds a field's default. The tag `rule` lists checks of a single field: required, positive (zero is an error),
// nonnegative, enum and empty. "enum=a|b" lists the allowed values. "enum=.clouds" allows the values of the list clouds
// in registry.go. "empty" allows an empty text instead of a duration; the field is then nil.
//
// Checks that involve more than one field are in validate.go and the other files of this package.
type Shard struct {
	// URL of the JSON Schema, for editors. Nstance ignores this field.
	Schema string `json:"$schema,omitempty" support:"hidden"`
	// The cluster that the shard belongs to.
	Cluster Cluster `json:"cluster" rule:"required"`
	// The shard's servers.
	Server Server `json:"server" rule:"required"`
	// The owners of groups, by name, with their quotas. The tenant "default" exists even if it is not listed.
	Tenants map[string]Tenant `json:"tenants,omitempty"`
	// Load balancers that groups can refer to, by name.
	LoadBalancers map[string]LoadBalancer `json:"load_balancers,omitempty"`
	// Machine images, by name. Templates insert an image with `{{ .Image.name }}`. Names are identifiers (letters,
	// digits, underscores).
	Images map[string]Image `json:"images,omitempty"`
	// Templates of the certificates that instances can get, by name. Files refer to a template by this name.
	Certificates map[string]Certificate `json:"certificates,omitempty"`
	// Values that every template inherits.
	Defaults Defaults `json:"defaults,omitzero"`
	// How to make each kind of VM.
	Templates map[string]Template `json:"templates,omitempty"`
	// Static groups by tenant, then by name.
	Groups map[string]map[string]GroupSpec `json:"groups,omitempty"`
	// If true, the leader drains and deletes all instances of the shard, and creates no more.
	Terminating bool `json:"terminating,omitempty"`
}

// Cluster configures what the shards of a cluster share: the cluster's name, its bucket and its secrets.
type Cluster struct {
	// Name of the cluster, at most 30 characters. Shards of one cluster share a CA and secrets.
	ID string `json:"id" rule:"required" support:"plain"`
	// Bucket of the objects that the cluster's shards share, such as the CA. Default: the shard's bucket.
	Storage *Storage `json:"storage,omitempty"`
	// Where the cluster's secrets are kept, and with which key they are sealed.
	Secrets Secrets `json:"secrets,omitzero"`
}

// Storage is the bucket of the objects that all shards of a cluster share.
type Storage struct {
	// Kind of object store.
	Provider string `json:"provider" rule:"required,enum=.object_stores"`
	// Name of the bucket. With the provider file: path of a directory.
	Bucket string `json:"bucket" rule:"required" support:"plain"`
	// Region of the bucket, for stores that have regions.
	Region string `json:"region,omitempty" support:"plain"`
	// Prefix of all keys in the bucket.
	Prefix string `json:"prefix,omitempty" support:"plain"`
	// URL of an S3-compatible store.
	Endpoint string `json:"endpoint,omitempty" support:"origin"`
	// How the servers of another cloud get credentials for the bucket, without a stored key. The servers use the same
	// credentials for secrets and encryption keys in the bucket's cloud. Default: the servers' own credentials.
	Identity *Identity `json:"identity,omitempty"`
}

// Identity is the identity that the servers of another cloud take on in the cloud of the cluster's bucket.
type Identity struct {
	// The clouds' own fields.
	all.Identity
}

// Secrets configures the store of the cluster's secrets and, for object storage, the keys that seal them.
type Secrets struct {
	// Where secrets are kept.
	Provider string `json:"provider,omitempty" default:"object-storage" rule:"enum=.secrets_stores"`
	// Prefix of all names of secrets.
	Prefix string `json:"prefix,omitempty" support:"plain"`
	// Project that holds the secrets, for stores that have projects.
	ProjectID string `json:"project_id,omitempty" support:"plain"`
	// The key that seals (encrypts) secrets in object storage. Required with the provider object-storage.
	EncryptionKey *KeySource `json:"encryption_key,omitempty"`
	// Earlier keys, used only to open secrets sealed before the key was changed.
	OldEncryptionKeys []KeySource `json:"old_encryption_keys,omitempty"`
	// How long a server caches a secret that it has read. 0: not at all.
	CacheTTL *Duration `json:"cache_ttl,omitempty" default:"5m"`
}

// KeySource is the source of a 32-byte encryption key. It never holds the key itself.
type KeySource struct {
	// Where the key is kept.
	Provider string `json:"provider" rule:"required,enum=.key_sources"`
	// Name of the environment variable (default NSTANCE_ENCRYPTION_KEY), path of the file, or name of the secret or
	// parameter.
	Source string `json:"source,omitempty" support:"present"`
	// Project that holds the secret. Needed for stores that have projects, unless source contains the project.
	ProjectID string `json:"project_id,omitempty" support:"hidden"`
}

// Server configures the shard's servers.
type Server struct {
	// Name of the shard. It is part of config/{shard}.jsonc, the key of this configuration in the bucket.
	Shard string `json:"shard" rule:"required" support:"plain"`
	// The provider that makes the VMs.
	Provider Provider `json:"provider" rule:"required"`
	// Addresses that the server listens on.
	Bind Addresses `json:"bind,omitzero"`
	// Addresses that the server tells clients to use. An empty or wildcard host means the address of the machine's
	// primary network interface. The default of each address is the corresponding address in the field bind.
	Advertise Addresses `json:"advertise,omitzero"`
	// A fixed address that moves to whichever server leads.
	LeaderNetwork *LeaderNetwork `json:"leader_network,omitempty"`
	// Lists of the provider's subnets, by name. Templates and groups refer to a list by its name. The server tries the
	// subnets of a list in order until one has capacity.
	SubnetPools map[string][]string `json:"subnet_pools,omitempty" rule:"required" support:"plain"`
	// The subnet pools that dynamic groups may use. A dynamic group must use one of them even if it takes the pool from
	// its template. Default: every pool. An empty list allows none.
	DynamicSubnetPools []string `json:"dynamic_subnet_pools,omitzero" support:"plain"`
	// How long one request to the provider or the bucket may take.
	RequestTimeout *Duration `json:"request_timeout,omitempty" default:"30s" rule:"positive"`
	// Least time between two create calls to the provider. 0: only the provider's own limit applies.
	CreateRateLimit *Duration `json:"create_rate_limit,omitempty" default:"0s"`
	// Whether an agent may register and connect only from an address of its VM. The check is skipped if the provider
	// does not know the VM's addresses. Set it to false if agents reach the servers through NAT or a proxy.
	CheckRegistrationAddress *bool `json:"check_registration_address,omitempty" default:"true"`
	// Proof of a VM's identity. The agent must send it with its nonce when it registers. Default: none.
	Attestation *Attestation `json:"attestation,omitempty"`
	// Time between two health reports of an agent.
	HealthCheckInterval *Duration `json:"health_check_interval,omitempty" default:"60s" rule:"positive"`
	// How long a VM may be drained before it is terminated, for groups without drain_timeout. 0: no drain.
	DefaultDrainTimeout *Duration `json:"default_drain_timeout,omitempty" default:"5m"`
	// How long the journal, the shard's history, is kept in the bucket.
	JournalRetention *Duration `json:"journal_retention,omitempty" default:"720h" rule:"positive"`
	// Time between two look-ups of an image. 0: a leader looks each image up only once.
	ImageRefresh *Duration `json:"image_refresh_interval,omitempty" default:"6h"`
	// How long a server may take to stop cleanly.
	ShutdownTimeout *Duration `json:"shutdown_timeout,omitempty" default:"10s" rule:"positive"`
	// When an agent announces that its VM powers off, the leader waits until the provider reports the VM's end, but at
	// most for this time. Then the leader replaces the VM. 0: immediately, without asking the provider.
	ShutdownGrace *Duration `json:"shutdown_grace,omitempty" default:"0s"`
	// Removal of old tombstones, and of VMs without a record.
	GarbageCollection GarbageCollection `json:"garbage_collection,omitzero"`
	// Maximum ages of instances.
	Expiry Expiry `json:"expiry,omitzero"`
	// How the shard's servers elect their leader.
	LeaderElection LeaderElection `json:"leader_election,omitzero"`
	// How long a server that failed waits before it exits, so that supervised servers do not restart at the same time.
	ErrorExitJitter ErrorExitJitter `json:"error_exit_jitter,omitzero"`
}

// Attestation configures how an agent proves on which VM it runs.
type Attestation struct {
	// Kind of proof. aws-iid is EC2's instance identity document with its RSA-2048 signature. gcp-identity-token is the
	// identity token of a Compute Engine VM; the VM needs a service account.
	Method string `json:"method" rule:"required,enum=.attestations"`
	// For aws-iid only: certificates that may have signed the proof, in PEM. Take the RSA-2048 certificate of the
	// shard's region: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/regions-certs.html. gcp-identity-token needs
	// none, because Google publishes its keys.
	Certificates string `json:"certificates,omitempty" support:"hidden"`
	// Whether one call may create several VMs of a group. They get the same boot script, and attestation tells them
	// apart. Set it when all servers of the shard and the agents in all images are of a version that knows it.
	Batches bool `json:"batches,omitempty"`
}

// Provider configures the source of the shard's VMs. The provider itself defines and checks Options.
type Provider struct {
	// Name of the provider.
	Kind string `json:"kind" rule:"required,enum=.clouds"`
	// Region of the shard, for clouds that have regions.
	Region string `json:"region,omitempty" support:"plain"`
	// Zone of the shard, for clouds that have zones.
	Zone string `json:"zone,omitempty" support:"plain"`
	// Settings specific to the provider.
	Options map[string]string `json:"options,omitempty" support:"present"`
}

// Addresses are host:port pairs of the five listeners.
type Addresses struct {
	// Address for health checks and metrics (HTTP).
	Health string `json:"health_addr,omitempty" default:"0.0.0.0:8990" support:"plain"`
	// Address for connections between the shard's servers.
	Election string `json:"election_addr,omitempty" default:"0.0.0.0:8991" support:"plain"`
	// Address for registrations of agents and operators (gRPC, TLS).
	Registration string `json:"registration_addr,omitempty" default:"0.0.0.0:8992" support:"plain"`
	// Address for calls of operators (gRPC, mutual TLS).
	Operator string `json:"operator_addr,omitempty" default:"0.0.0.0:8993" support:"plain"`
	// Address for calls of agents (gRPC, mutual TLS).
	Agent string `json:"agent_addr,omitempty" default:"0.0.0.0:8994" support:"plain"`
}

// LeaderNetwork configures the fixed address that moves to each new leader.
type LeaderNetwork struct {
	// The IPv4 address that moves to the leader.
	IPv4 string `json:"ipv4,omitempty" support:"plain"`
	// The IPv6 address that moves to the leader.
	IPv6 string `json:"ipv6,omitempty" support:"plain"`
	// DNS name of the fixed address. The server tells clients this name instead of the address, so that they find the
	// leader after the address has changed.
	DNSName string `json:"dns_name,omitempty" support:"plain"`
	// How the address moves to the leader. Required for every provider except AWS, for which there is only one way.
	// alias (Google Cloud): the leader moves an alias address to its VM. load_balancer (Google Cloud): the address is
	// that of an internal passthrough load balancer, whose health check finds the leader. arp (your own hardware): the
	// leader has the address on its network interface and announces it by ARP or NDP.
	Kind string `json:"kind,omitempty" rule:"enum=.leader_networks"`
	// The clouds' own fields.
	all.LeaderNetwork
}

// GarbageCollection sets the times after which orphans and tombstones are removed.
type GarbageCollection struct {
	// Time between two comparisons of the instances' records with the provider's VMs.
	Interval *Duration `json:"interval,omitempty" default:"2m" rule:"positive"`
	// How long a new VM may take until its agent registers.
	RegistrationTimeout *Duration `json:"registration_timeout,omitempty" default:"5m" rule:"positive"`
	// How long the record of a deleted instance (its tombstone) is kept.
	DeletedRecordRetention *Duration `json:"deleted_record_retention,omitempty" default:"30m" rule:"positive"`
}

// Expiry sets maximum ages, counted from launch. nil or zero disables a maximum.
type Expiry struct {
	// Age from which a healthy instance is replaced, in waves of up to max_surge. Empty or 0: never.
	EligibleAge *Duration `json:"eligible_age,omitempty" rule:"empty"`
	// Age at which an instance is replaced in any case. Empty or 0: never.
	ForcedAge *Duration `json:"forced_age,omitempty" rule:"empty"`
	// Age at which an on-demand instance is deleted. Empty or 0: never.
	OnDemandAge *Duration `json:"ondemand_age,omitempty" rule:"empty"`
}

// LeaderElection configures the shard's election (see docs/concepts/election.md).
type LeaderElection struct {
	// Whether the servers elect a leader. false: the server leads without a lock, for development with one server.
	Enabled *bool `json:"enabled,omitempty" default:"true"`
	// How often a leader without an heir renews its lock. A leader with an heir renews it every 30 s.
	RenewInterval *Duration `json:"renew_interval,omitempty" default:"5s" rule:"positive"`
	// How long the lock of a leader without an heir is valid after a renewal, at least twice renew_interval. The lock
	// of a leader with an heir is valid for 90 s.
	LeaseDuration *Duration `json:"lease_duration,omitempty" default:"10s" rule:"positive"`
	// How often the leader asks its heir for a promise not to take over.
	PeerInterval *Duration `json:"peer_interval,omitempty" default:"250ms" rule:"positive"`
	// How long a promise of the heir is valid. It must be at least twice peer_interval. 0: the leader has no heir.
	PeerLease *Duration `json:"peer_lease,omitempty" default:"1s"`
}

// ErrorExitJitter bounds the wait before a failed server exits. The wait is random, so that a supervisor does not
// restart several servers at the same time.
type ErrorExitJitter struct {
	// Shortest wait before a failed server exits.
	MinDelay *Duration `json:"min_delay,omitempty" default:"10s"`
	// Longest wait before a failed server exits.
	MaxDelay *Duration `json:"max_delay,omitempty" default:"40s"`
}

// Tenant is an owner of groups. Its quotas bound what its operators can ask for.
type Tenant struct {
	// Limit of the instances that the tenant's operators can request: for all groups of the tenant, the sum of the
	// sizes and of preserve.max, and the number of on-demand instances. Default: no limit.
	MaxInstances *int `json:"max_instances,omitempty" rule:"nonnegative"`
	// Limit of the groups that the tenant's operators can create. Default: no limit.
	MaxGroups *int `json:"max_groups,omitempty" rule:"nonnegative"`
}

// LoadBalancer is a load balancer. If a group refers to it, the group's healthy instances are registered with it.
type LoadBalancer struct {
	// The cloud of the load balancer.
	Provider string `json:"provider" rule:"required,enum=.load_balancers"`
	// The clouds' own fields.
	all.LoadBalancer
}

// Image is a machine image that is found by a query. The query is repeated every image_refresh_interval.
type Image struct {
	// Where the image is looked up.
	Provider string `json:"provider" rule:"required,enum=.images"`
	// Accounts or projects that own the images to consider. Google Cloud requires them.
	Owners []string `json:"owners,omitempty" support:"hidden"`
	// Filters that an image must match. An image matches a filter if it has at least one of the filter's values.
	Filters []ImageFilter `json:"filters,omitempty"`
	// Key by which the matching images are sorted, in the direction of the field "order". The first image is used.
	Sort string `json:"sort,omitempty" default:"creation-date" rule:"enum=creation-date|name"`
	// Sort order.
	Order string `json:"order,omitempty" default:"desc" rule:"enum=asc|desc"`
	// Image to use until a look-up finds one.
	Fallback string `json:"fallback,omitempty" support:"hidden"`
}

// ImageFilter is a filter for images: its name, and the values that match it.
type ImageFilter struct {
	// Name of the filter, as the provider calls it.
	Name string `json:"name" rule:"required" support:"hidden"`
	// The values that match the filter; * stands for any characters where the provider allows it.
	Values []string `json:"values,omitempty" rule:"required" support:"hidden"`
}

// Certificate is a template of a certificate issued to an instance. Its strings are Go templates; TTL is in hours.
type Certificate struct {
	// What the certificate is for.
	Kind string `json:"kind" rule:"required,enum=client|server"`
	// Common name.
	CN string `json:"cn,omitempty" support:"hidden"`
	// Organizations.
	Organization []string `json:"organization,omitempty" support:"hidden"`
	// Countries.
	Country []string `json:"country,omitempty" support:"hidden"`
	// Provinces or states.
	Province []string `json:"province,omitempty" support:"hidden"`
	// Cities.
	Locality []string `json:"locality,omitempty" support:"hidden"`
	// Street addresses.
	Street []string `json:"street,omitempty" support:"hidden"`
	// Postal codes.
	PostalCode []string `json:"postal_code,omitempty" support:"hidden"`
	// DNS names.
	DNS []string `json:"dns,omitempty" support:"hidden"`
	// IP addresses.
	IP []string `json:"ip,omitempty" support:"hidden"`
	// URIs.
	URI []string `json:"uri,omitempty" support:"hidden"`
	// Validity in hours, at most 2160 (90 days). The certificate is renewed after two thirds of it.
	TTL int `json:"ttl" rule:"required,positive"`
}

// Defaults are values that a template inherits unless it sets them itself.
type Defaults struct {
	// Arguments of the provider's create call.
	Args map[string]any `json:"args,omitempty" support:"present"`
	// Values for templates: `{{ .Vars.name }}`.
	Vars map[string]string `json:"vars,omitempty" support:"present"`
	// Boot script, for templates without one.
	Userdata *Userdata `json:"userdata,omitempty"`
}

// Userdata is the boot script of a VM: a Go template.
type Userdata struct {
	// Where the script is. inline: content is the script. storage: content is the key of an object under files/.
	Source string `json:"source,omitempty" default:"inline" rule:"enum=inline|storage"`
	// Encoding in which the provider receives the script.
	Encoding string `json:"encoding,omitempty" default:"plain" rule:"enum=plain|base64|gzip+base64"`
	// The script itself, or the key of the object with the script.
	Content string `json:"content,omitempty" support:"present"`
}

// Template describes how to make one kind of VM.
type Template struct {
	// Three lower-case letters with which the IDs of the template's instances start. opr is reserved for operators.
	Kind string `json:"kind" rule:"required" support:"plain"`
	// Processor architecture.
	Arch string `json:"arch" rule:"required,enum=arm64|amd64"`
	// Arguments of the provider's create call. They override the arguments in defaults. Strings inside are Go
	// templates.
	Args map[string]any `json:"args,omitempty" support:"present"`
	// Values for templates: `{{ .Vars.name }}`. They override the values in defaults.
	Vars map[string]string `json:"vars,omitempty" support:"present"`
	// Files that the instances receive, by file name.
	Files map[string]File `json:"files,omitempty"`
	// Health checks, by name: commands or HTTP requests with which agents check what runs on the template's instances.
	// An instance with a failed check is unhealthy and is replaced.
	HealthChecks map[string]HealthCheck `json:"health_checks,omitempty"`
	// Command that the agent runs once before its VM is terminated, for example to finish work. The VM's drain waits
	// for it.
	Drain *DrainHook `json:"drain,omitempty"`
	// Whether the leader also replaces instances that a load balancer of their group reports as unhealthy. It treats
	// such a report like a failed health check. If true, every group of this template must set load_balancers.
	LoadBalancerHealth bool `json:"load_balancer_health,omitempty"`
	// Boot script. Default: defaults.userdata.
	Userdata *Userdata `json:"userdata,omitempty"`
	// Failed instances that are kept for a person to look at, for groups without preserve.
	Preserve *Preserve `json:"preserve,omitempty"`
	// Number of instances, for groups without size.
	Size *int `json:"size,omitempty" default:"1" rule:"nonnegative"`
	// Type of the VMs, for groups without instance_type.
	InstanceType string `json:"instance_type,omitempty" support:"plain"`
	// Types to try, in order, when the provider has no capacity for instance_type.
	InstanceTypes []string `json:"instance_types,omitempty" support:"plain"`
	// Pool that the VMs' subnets are taken from, for groups without subnet_pool.
	SubnetPool string `json:"subnet_pool,omitempty" support:"plain"`
	// Tenants whose operators may create groups from the template. Default: the tenants that have a static group made
	// from the template. An empty list allows none.
	Tenants []string `json:"tenants,omitzero" support:"plain"`
	// What operators may choose for groups of the template, in addition to the template's own instance types and subnet
	// pool. This field also limits the size and the variables that operators may set.
	Dynamic Permissions `json:"dynamic,omitzero"`
}

// Permissions lists what operators may choose for the dynamic groups of a template. MaxSize, InstanceTypes and Vars
// also limit the changes that operators make to static groups of the template.
type Permissions struct {
	// JSON pointers (RFC 6901) to the arguments that operators may set, such as "/MetadataOptions/HttpTokens". Each
	// pointer also permits everything below it. Default: none.
	Args []string `json:"args,omitempty" support:"hidden"`
	// Instance types that operators may choose, in addition to those of the template and the static group. Each is a
	// name, or a pattern such as "t4g.*": * stands for any characters, ? for one.
	InstanceTypes []string `json:"instance_types,omitempty" support:"plain"`
	// Largest size that operators may give a group. Default: no limit.
	MaxSize *int `json:"max_size,omitempty" rule:"nonnegative"`
	// Subnet pools that operators may choose, in addition to that of the template. Default: those of
	// server.dynamic_subnet_pools. An empty list allows none.
	SubnetPools []string `json:"subnet_pools,omitzero" support:"plain"`
	// Load balancers that operators may name. Default: none.
	LoadBalancers []string `json:"load_balancers,omitempty" support:"plain"`
	// Variables that operators may set. Default: all variables except those that the template uses in arguments,
	// certificates or keys of stored objects.
	Vars []string `json:"vars,omitzero" support:"hidden"`
}

// File is one file that instances of a template receive. Kind determines the allowed fields: certificate (Template,
// Key), secret (Source), storage (Source), env (Vars), json (JSON), string (Content).
type File struct {
	// What the content is made of.
	Kind string `json:"kind" rule:"required,enum=certificate|secret|storage|env|json|string"`
	// For kind certificate: name of the certificate template.
	Template string `json:"template,omitempty" support:"plain"`
	// For kind certificate: the public key that the certificate contains.
	Key *FileKey `json:"key,omitempty"`
	// For kind secret: the secret's name in the secrets store. For kind storage: a template of the object's key, which
	// begins with files/.
	Source string `json:"source,omitempty" support:"present"`
	// For kind env: templates of the values, by the variable's name.
	Vars map[string]string `json:"vars,omitempty" support:"present"`
	// For kind json: the document. Strings inside are Go templates.
	JSON any `json:"json,omitempty" support:"present"`
	// For kind string: a template of the content.
	Content string `json:"content,omitempty" support:"present"`
}

// FileKey identifies the public key for which a certificate is issued. The agent makes the key.
type FileKey struct {
	// Program that makes the key pair.
	Source string `json:"source" rule:"required,enum=agent"`
	// File name of the public key; it ends in .pub.
	Name string `json:"name" rule:"required" support:"hidden"`
	// Algorithm of the key pair.
	Algorithm string `json:"algorithm,omitempty" default:"ed25519" rule:"enum=ed25519|ecdsa-p256"`
}
