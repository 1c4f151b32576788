// Package infra defines how the server talks to a cloud or another source of VMs: the Provider interface, its error
// classes and its optional capabilities.
//
// Invariant: every call is idempotent, and all decisions are left to the caller. Implementations live in sub-packages
// and pass infratest.
package infra

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/vmsize"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// State is the state of a VM as the provider reports it.
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

// Alive reports whether the VM runs, is about to run, or has an unknown state. In any other state the VM has ended or
// is about to end.
func (s State) Alive() bool { return s == Pending || s == Running || s == Unknown }

// Owner identifies the cluster and shard that own a VM. It is written as tags, and List filters by both fields.
type Owner struct{ Cluster, Shard string }

// Tags are written on every VM. The leader's decisions use the first block of fields. The second block is for people.
type Tags struct {
	Owner
	Tenant    string
	Instance  ident.ID
	Term      uint64
	InfraHash string

	Group, Template, Kind string
	OnDemand              bool
	CreatedAt             time.Time
	// In a create request, Spot asks for a spot instance. In the description of a VM, Spot means that the VM is a spot
	// instance. Spot and Spare are the only fields of the second block on which the leader's decisions depend.
	Spot bool `json:",omitempty"`
	// Spare means that the VM was created for a warm spare. It stays true when the spare becomes a member.
	Spare bool `json:",omitempty"`
}

// CreateRequest asks for one VM. Tags.Instance is the idempotency key: a repeat with the same bytes returns the same
// VM.
type CreateRequest struct {
	Tags         Tags
	Arch         string
	InstanceType string
	Subnet       string
	Args         map[string]any // merged and rendered, in the provider's own vocabulary
	Userdata     []byte         // holds the registration nonce: never logged
	Hostname     string
	// Sleep is how the VM must be able to sleep: config.SparesStopped or config.SparesSuspended; "": it never sleeps.
	// Some clouds decide when a VM is created whether it can be suspended.
	Sleep string `json:",omitempty"`
}

// VM is one machine as the provider describes it.
type VM struct {
	ProviderID string
	State      State
	Tags       Tags // all tags that could be parsed
	IPv4, IPv6 string
	Hostname   string
	// Addresses are all addresses from which the VM may open connections, private and public, in canonical form. They
	// are empty if the provider does not know them.
	Addresses []string
	// Account is the cloud's account that owns the VM. It is empty if it is not known.
	Account    string
	LaunchedAt time.Time // the provider's time stamp
	// EndReason is the provider's text that says why the VM ended. It is empty if the leader requested the end, or if
	// no reason is known.
	EndReason string
	// Warning describes a problem with the VM's data, for example a tag that cannot be parsed.
	Warning string
}

// Target identifies the VM of an instance for [Provider.Delete].
func Target(owner Owner, instance ident.ID, providerID string) VM {
	return VM{ProviderID: providerID, Tags: Tags{Owner: owner, Instance: instance}}
}

// CheckOwned returns an error of class [Invalid] if the tags that a VM has in the cloud are not those of the given
// owner and instance. A record with a wrong provider ID must not lead to the loss of another team's VM.
func CheckOwned(op string, found, want Tags) error {
	if found.Owner == want.Owner && found.Instance == want.Instance && !want.Instance.IsZero() {
		return nil
	}
	return Errorf(Invalid, op,
		"the VM's tags name instance %q of shard %q in cluster %q, not instance %q of shard %q in "+
			"cluster %q: it stays as it is; if it is the instance's VM, restore its tags", found.Instance, found.Shard,
		found.Cluster, want.Instance, want.Shard, want.Cluster)
}

// SortVMs sorts a list by provider ID and removes duplicates. A cloud can list a VM on two pages while others start or
// end.
func SortVMs(vms []VM) []VM {
	slices.SortFunc(vms, func(a, b VM) int { return cmp.Compare(a.ProviderID, b.ProviderID) })
	return slices.CompactFunc(vms, func(a, b VM) bool { return a.ProviderID == b.ProviderID })
}

// Subnets lists all subnets of a shard once, in order.
func Subnets(shard *config.Shard) []string {
	subnets := slices.Concat(slices.Collect(maps.Values(shard.Server.SubnetPools))...)
	slices.Sort(subnets)
	return slices.Compact(subnets)
}

// Provider creates and deletes VMs. All methods are safe for concurrent use, honor ctx, and return errors that
// [ClassOf] classifies.
type Provider interface {
	// Create asks for a VM and returns it as soon as it has a ProviderID (usually Pending). A repeat with the same
	// request returns the same VM. A request with the same ID and other parameters is a [Conflict]. Any repeat after
	// the VM was deleted is a Conflict too, because an instance ID is for one VM only. [Indeterminate] means that a VM
	// may exist or may still be created: the caller must repeat the same request or look the VM up. Any other class
	// means that this call made no VM.
	Create(ctx context.Context, req CreateRequest) (VM, error)
	// Delete requests the deletion of the VM with vm's ProviderID. It first compares the VM's own tags with vm.Tags, as
	// [CheckOwned] does, and fails with class [Invalid] if the VM belongs to another owner or instance. A nil error
	// means that deletion was requested, not that the VM is gone. Deleting a VM that is gone is not an error.
	Delete(ctx context.Context, vm VM) error
	// Get describes one VM. If the VM is younger than the provider's consistency window, [NotFound] does not prove that
	// the VM is gone.
	Get(ctx context.Context, providerID string) (VM, error)
	// List returns every VM tagged with owner, including terminated VMs while the provider still reports them. If parts
	// of the provider do not answer, such as one of several hosts, it returns the VMs of all others together with a
	// [PartialError]. After any other error, nothing is known. The absence of a VM from a list proves that the VM is
	// gone only if two conditions hold: the part of the provider that had the VM has answered, and a grace period has
	// passed since the VM was created.
	List(ctx context.Context, owner Owner) ([]VM, error)
	// FindByInstance looks up one VM by its instance tag. [NotFound] has the same meaning as for Get.
	FindByInstance(ctx context.Context, owner Owner, id ident.ID) (VM, error)
}

// LeaderNetwork is an optional capability: a fixed address that follows the leader.
type LeaderNetwork interface {
	// Acquire assigns the address to this machine. Repeated calls are cheap and verify the assignment.
	Acquire(ctx context.Context, machineID string) error
	// Release removes the address from this machine if this machine has it.
	Release(ctx context.Context, machineID string) error
}

// MachineEvidence is an optional capability: it reports the state of a server's machine. A standby uses it to find out
// whether the leader's machine still runs.
type MachineEvidence interface {
	// MachineState returns the state of a server's machine. The provider never reuses a machineID.
	MachineState(ctx context.Context, machineID string) (State, error)
}

// SubnetCapacity is an optional capability: it reports which subnets have room.
type SubnetCapacity interface {
	// HasRoom reports for each subnet whether an instance can still be placed there.
	HasRoom(ctx context.Context, subnets []string) (map[string]bool, error)
}

// InstanceTypes is an optional capability: it describes types of VMs.
type InstanceTypes interface {
	// DescribeType returns the size of a type. An error of class [NotFound] or [Invalid] means that there is no such
	// type.
	DescribeType(ctx context.Context, name string) (InstanceType, error)
}

// InstanceType is the size of a type of VMs.
type InstanceType struct {
	CPUs      int
	MemoryMiB int64 // the whole memory, including what firmware and kernel reserve
}

// SizedTypes implements [InstanceTypes] for a provider whose types have their sizes as names.
type SizedTypes struct{}

// DescribeType implements [InstanceTypes].
func (SizedTypes) DescribeType(_ context.Context, name string) (InstanceType, error) {
	size, err := vmsize.Parse(name)
	return InstanceType{CPUs: size.CPUs, MemoryMiB: size.MemoryMiB}, Wrap(Invalid, "describe type", err)
}

// LoadBalancers is an optional capability: it adds VMs to load balancers and removes them. Both methods are idempotent.
// For a VM that is gone or being deleted, Deregister succeeds and Register fails with class [Invalid]. Elastic Load
// Balancing refuses such VMs too ("targets are not in a running state"; RegisterTargets, InvalidTarget). If Register
// accepted such a VM, a late call of a former leader could add it after its removal. Nothing would then ever remove it
// again.
type LoadBalancers interface {
	Register(ctx context.Context, lb string, vm VM) error
	Deregister(ctx context.Context, lb string, vm VM) error
}

// LoadBalancerHealth is an optional capability: load balancers tell which of their members are healthy.
type LoadBalancerHealth interface {
	// MemberHealth returns what a load balancer says about VMs. The keys of the map are provider IDs. MemberHealth
	// leaves out VMs that are not members, that are being removed, or that have no verdict yet. The number of calls to
	// the cloud does not depend on the number of VMs. If MemberHealth fails, no result is valid.
	MemberHealth(ctx context.Context, lb string, vms []VM) (map[string]MemberHealth, error)
}

// MemberHealth is what a load balancer says about one VM.
type MemberHealth struct {
	Healthy bool
	// Reason says in the cloud's words why the VM is not healthy.
	Reason string
}

// DeregistrationDelay is an optional capability: load balancers let a removed VM finish its requests, and tell for how
// long. The load balancers of a provider without this capability end the requests immediately.
type DeregistrationDelay interface {
	// DeregistrationDelay returns how long a load balancer lets a removed VM finish its requests. If the load balancer
	// consists of several parts, it is the longest delay of a part. An error of class [NotFound] means that there is no
	// such load balancer.
	DeregistrationDelay(ctx context.Context, lb string) (time.Duration, error)
}

// LoadBalancerMembership is an optional capability: load balancers tell whether a VM is in them.
type LoadBalancerMembership interface {
	// IsMember reports whether a VM is in a load balancer, or was removed from it and may still finish its requests.
	IsMember(ctx context.Context, lb string, vm VM) (bool, error)
}

// UserdataRemover is an optional capability: it removes the userdata, which holds a nonce, from a VM whose agent has
// registered. A provider that cannot change a VM's userdata does not have this capability.
type UserdataRemover interface {
	// RemoveUserdata removes the userdata of an instance's VM. It is idempotent.
	RemoveUserdata(ctx context.Context, owner Owner, id ident.ID) error
}

// Verifier is an optional capability: it compares a configuration with the cloud.
type Verifier interface {
	// Verify checks that everything the configuration names exists in the cloud and can be used as configured. A server
	// does not start after an error of class [Invalid]. Other errors raise an alert.
	Verify(ctx context.Context, shard *config.Shard) error
}

// Digest returns a hash of the request. Two requests with the same digest are equal. The digest is safe to store,
// because it does not reveal the userdata. Digest fails if Args hold a value that JSON cannot represent.
func (r CreateRequest) Digest() (string, error) {
	type plain CreateRequest // without the redacting methods
	raw, err := json.Marshal(plain(r))
	if err != nil {
		return "", fmt.Errorf("digest of create request: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// Order is a create request whose fields were parsed. A is the type of the cloud's arguments.
type Order[A any] struct {
	CreateRequest
	What   string // the operation, for errors
	Size   vmsize.Size
	Args   A
	Digest string
}

// ParseOrder parses a request to a cloud whose instance types are sizes. parseArgs is the parser of the cloud's
// arguments. The host name defaults to the instance ID.
func ParseOrder[A any](ctx context.Context, req CreateRequest, parseArgs func(map[string]any) (A, []cloud.Problem)) (
	Order[A], error) {
	o := Order[A]{CreateRequest: req, What: "create " + req.Tags.Instance.String()}
	if err := ctx.Err(); err != nil {
		return o, Wrap(Indeterminate, o.What, err)
	}
	if req.Tags.Instance.IsZero() {
		return o, Errorf(Invalid, o.What, "no instance ID")
	}
	o.Hostname = cmp.Or(req.Hostname, req.Tags.Instance.String())
	args, problems := parseArgs(req.Args)
	o.Args = args
	err := JoinProblems(problems, "args")
	if err == nil {
		o.Size, err = vmsize.Parse(req.InstanceType)
	}
	if err == nil {
		o.Digest, err = req.Digest()
	}
	return o, Wrap(Invalid, o.What, err)
}

// DecodeArgs copies args, which a cloud's contract has decoded and checked, into the request of the cloud's SDK. The
// error lists all problems that the contract found.
func DecodeArgs(decoded map[string]any, found []cloud.Problem, into any) error {
	if err := JoinProblems(found, "args"); err != nil {
		return err
	}
	// The decoded values have the types of the SDK's fields, and the API and the SDK name the fields alike. So JSON can
	// copy the values.
	text, err := json.Marshal(decoded)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("args: %w", err)
	}
	return nil
}

// String describes the request without userdata and args.
func (r CreateRequest) String() string {
	return fmt.Sprintf("create %s type=%q subnet=%q userdata=[%d bytes]", r.Tags.Instance, r.InstanceType, r.Subnet,
		len(r.Userdata))
}

// GoString returns [CreateRequest.String], so that %#v does not show userdata either.
func (r CreateRequest) GoString() string { return r.String() }

// LogValue returns [CreateRequest.String].
func (r CreateRequest) LogValue() slog.Value { return slog.StringValue(r.String()) }

// MarshalJSON always fails, so that no program stores a request with the nonce in its userdata. Store
// [CreateRequest.Digest] instead.
func (r CreateRequest) MarshalJSON() ([]byte, error) {
	return nil, fmt.Errorf("%s: a create request holds a nonce and is not to be written down", r)
}

// Names of tags. A cloud adds its own prefix to them. [Tags.Values] has the others.
const (
	TagCluster    = "cluster"
	TagShard      = "shard"
	TagInstanceID = "instance-id"
)

// Values returns the tags as texts by their names. They depend only on t, so that a repeated request has the same
// bytes.
func (t Tags) Values() map[string]string {
	values := map[string]string{
		TagCluster: t.Cluster, TagShard: t.Shard, TagInstanceID: t.Instance.String(), "tenant": t.Tenant,
		"term": strconv.FormatUint(t.Term, 10), "infra-hash": t.InfraHash, "group": t.Group, "template": t.Template,
		"kind": t.Kind, "on-demand": strconv.FormatBool(t.OnDemand),
	}
	if !t.CreatedAt.IsZero() {
		values["created-at"] = t.CreatedAt.UTC().Format(time.RFC3339Nano)
	}
	if t.Spot {
		values["spot"] = "true"
	}
	if t.Spare {
		values["spare"] = "true"
	}
	return values
}

// ParseTags parses texts that [Tags.Values] has returned. The function value returns the text with a name, or "". If a
// text cannot be parsed, ParseTags leaves out the field and names it in the warning.
func ParseTags(value func(name string) string) (t Tags, warning string) {
	t = Tags{Owner: Owner{Cluster: value(TagCluster), Shard: value(TagShard)}, Tenant: value("tenant"),
		InfraHash: value("infra-hash"), Group: value("group"), Template: value("template"), Kind: value("kind"),
		OnDemand: value("on-demand") == "true", Spot: value("spot") == "true",
		Spare: value("spare") == "true"}
	var warnings []string
	warn := func(name string, err error) {
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("tag %s: %v", name, err))
		}
	}
	var err error
	t.Instance, err = ident.ParseID(value(TagInstanceID))
	warn(TagInstanceID, err)
	t.Term, err = strconv.ParseUint(value("term"), 10, 64)
	warn("term", err)
	if text := value("on-demand"); text != "true" && text != "false" && text != "" {
		warn("on-demand", fmt.Errorf("%q is neither true nor false", text))
	}
	if text := value("created-at"); text != "" {
		t.CreatedAt, err = time.Parse(time.RFC3339Nano, text)
		t.CreatedAt = t.CreatedAt.UTC()
		warn("created-at", err)
	}
	return t, strings.Join(warnings, "; ")
}

// Images is an optional capability: it looks up a machine image by a query.
type Images interface {
	Resolve(ctx context.Context, q ImageQuery) (string, error)
}

// ImageQuery has the fields of an image entry in the shard configuration.
type ImageQuery struct {
	Owners  []string
	Filters map[string][]string
	Sort    string
	Newest  bool
}

// String describes the query in one line.
func (q ImageQuery) String() string {
	var parts []string
	if len(q.Owners) > 0 {
		parts = append(parts, "owned by "+strings.Join(q.Owners, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(q.Filters)) {
		parts = append(parts, name+" = "+strings.Join(q.Filters[name], " | "))
	}
	return "(" + strings.Join(parts, "; ") + ")"
}

// Image is one of the images that match a query.
type Image struct {
	ID, Name  string
	CreatedAt time.Time
}

// Choose returns the ID of the image that is first in the order of the query. It fails as [NotFound] if there is none.
func (q ImageQuery) Choose(what string, images []Image) (string, error) {
	compare := func(a, b Image) int { return a.CreatedAt.Compare(b.CreatedAt) }
	switch q.Sort {
	case "", "creation-date":
	case "name":
		compare = func(a, b Image) int { return cmp.Compare(a.Name, b.Name) }
	default:
		return "", Errorf(Invalid, what, "images cannot be sorted by %q", q.Sort)
	}
	if len(images) == 0 {
		return "", Errorf(NotFound, what, "no available image matches")
	}
	order := func(a, b Image) int { return cmp.Or(compare(a, b), cmp.Compare(a.ID, b.ID)) }
	if q.Newest {
		return slices.MaxFunc(images, order).ID, nil
	}
	return slices.MinFunc(images, order).ID, nil
}

// Answers checks with the kernel that an address belongs to this machine, and that it can be used: a program can listen
// on it and connect to it. The check sends no packets to other machines.
func Answers(ctx context.Context, addr netip.Addr) error {
	var cfg net.ListenConfig
	listener, err := cfg.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return fmt.Errorf("%s cannot be used yet: %w", addr, err)
	}
	defer listener.Close()
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", listener.Addr().String())
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", addr, err)
	}
	return conn.Close()
}
