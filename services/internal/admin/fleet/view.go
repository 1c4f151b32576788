package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Group is the output form of a group. GroupStatus in operator.proto explains the fields.
type Group struct {
	Name          string            `json:"group"`
	Static        bool              `json:"static"`
	Overridden    bool              `json:"overridden,omitempty" jsonschema:"description=A static group with an entry in the dynamic groups"`
	Deleting      bool              `json:"deleting,omitempty"`
	Template      string            `json:"template"`
	Size          uint32            `json:"size" jsonschema:"description=Desired number of instances"`
	ActualSize    uint32            `json:"actual_size" jsonschema:"description=Instances that count towards size"`
	Healthy       uint32            `json:"healthy"`
	BlockedReason string            `json:"blocked_reason,omitempty" jsonschema:"description=Why the group is not at its size"`
	BlockedSince  time.Time         `json:"blocked_since,omitzero" jsonschema:"description=Since when the group has been blocked as far as the leader knows; the reason may have changed meanwhile"`
	BlockedUntil  time.Time         `json:"blocked_until,omitzero" jsonschema:"description=When the reason in blocked_reason ends because time has passed"`
	Paused        bool              `json:"paused,omitempty" jsonschema:"description=The rollout is paused"`
	RolloutWaits  string            `json:"rollout_waits,omitempty" jsonschema:"description=Why outdated instances are not replaced now"`
	Outdated      uint32            `json:"outdated,omitempty" jsonschema:"description=Instances without the group's infra configuration"`
	InstanceType  string            `json:"instance_type,omitempty"`
	SubnetPool    string            `json:"subnet_pool,omitempty"`
	Kind          string            `json:"kind,omitempty"`
	Arch          string            `json:"arch,omitempty"`
	Vars          map[string]string `json:"vars,omitempty"`
	Spec          json.RawMessage   `json:"spec,omitempty" jsonschema:"description=The group's own settings"`
	Config        json.RawMessage   `json:"config,omitempty" jsonschema:"description=All settings in force: those of the group and those that it inherits"`
	Defaults      []string          `json:"defaults,omitempty" jsonschema:"description=Paths of the settings in config that nobody has set"`
	ETag          string            `json:"etag"`
	RuntimeHash   string            `json:"runtime_hash,omitempty"`
	InfraHash     string            `json:"infra_hash,omitempty"`
	InstanceIDs   []string          `json:"instance_ids,omitempty"`
	ProviderIDs   []string          `json:"provider_ids,omitempty"`
}

// Blocked says why the group does not have its desired size and, if known, until when. It is empty if the group has
// that size, or if the leader can reach it without waiting.
func (g Group) Blocked() string { return reasonUntil(g.BlockedReason, g.BlockedUntil) }

// reasonUntil adds to a reason the time at which the reason ends. If that time is not known (zero), reasonUntil returns
// the reason unchanged.
func reasonUntil(reason string, until time.Time) string {
	if reason == "" || until.IsZero() {
		return reason
	}
	return reason + ", until " + until.UTC().Format(time.RFC3339)
}

func viewGroup(g *nstancev1.GroupStatus) Group {
	view := Group{
		Name: g.GetGroup(), Static: g.GetIsStatic(), Overridden: g.GetIsStatic() && g.GetOverridden(),
		Deleting: g.GetDeleting(), Template: g.GetTemplate(),
		Size: g.GetSize(), ActualSize: g.GetActualSize(), Healthy: g.GetHealthy(), BlockedReason: g.GetBlockedReason(),
		BlockedSince: at(g.GetBlockedSince()), BlockedUntil: at(g.GetBlockedUntil()),
		Paused: g.GetPaused(), RolloutWaits: g.GetRolloutWaits(), Outdated: g.GetOutdated(),
		InstanceType: g.GetInstanceType(), SubnetPool: g.GetSubnetPool(), Kind: g.GetKind(), Arch: g.GetArch(),
		Vars: g.GetVars(), Defaults: g.GetDefaults(),
		ETag: g.GetEtag(), RuntimeHash: g.GetRuntimeHash(), InfraHash: g.GetInfraHash(),
		InstanceIDs: g.GetInstanceIds(), ProviderIDs: g.GetProviderIds(),
	}
	if merged := g.GetMergedJson(); json.Valid([]byte(merged)) {
		view.Config = json.RawMessage(merged)
	}
	if spec := g.GetSpecJson(); json.Valid([]byte(spec)) {
		view.Spec = json.RawMessage(spec)
	}
	return view
}

// Instance is the output form of an instance. InstanceStatus in operator.proto explains the fields.
type Instance struct {
	ID                  string    `json:"instance_id"`
	Group               string    `json:"group,omitempty"`
	Template            string    `json:"template,omitempty"`
	Kind                string    `json:"kind,omitempty"`
	OnDemand            bool      `json:"on_demand,omitempty"`
	State               string    `json:"state,omitempty" jsonschema:"description=reserved or created or registered or deleting or deleted"`
	Health              string    `json:"health,omitempty" jsonschema:"description=healthy or unhealthy or silent or unregistered or unknown or stopping"`
	HealthMessage       string    `json:"health_message,omitempty"`
	ProviderState       string    `json:"provider_state,omitempty"`
	ProviderID          string    `json:"provider_id,omitempty"`
	InstanceType        string    `json:"instance_type,omitempty"`
	IPv4                string    `json:"ipv4,omitempty"`
	IPv6                string    `json:"ipv6,omitempty"`
	Hostname            string    `json:"hostname,omitempty"`
	Zone                string    `json:"zone,omitempty"`
	Region              string    `json:"region,omitempty"`
	SubnetID            string    `json:"subnet_id,omitempty"`
	Image               string    `json:"image,omitempty"`
	CreatedAt           time.Time `json:"created_at,omitzero"`
	LaunchedAt          time.Time `json:"launched_at,omitzero" jsonschema:"description=By the provider's clock"`
	RegisteredAt        time.Time `json:"registered_at,omitzero"`
	LastReportAt        time.Time `json:"last_report_at,omitzero"`
	DeletedAt           time.Time `json:"deleted_at,omitzero"`
	DeleteReason        string    `json:"delete_reason,omitempty"`
	DeleteDeadline      time.Time `json:"delete_deadline,omitzero"`
	CertificateNotAfter time.Time `json:"certificate_not_after,omitzero"`
	InfraDrift          bool      `json:"infra_drift,omitempty"`
	RuntimeDrift        bool      `json:"runtime_drift,omitempty"`
	Protected           bool      `json:"protected,omitempty" jsonschema:"description=A person protects the instance from rollouts and eligible_age and scale-downs"`
	AgentVersion        string    `json:"agent_version,omitempty"`
	Term                uint64    `json:"term,omitempty"`
	Metrics             *Metrics  `json:"metrics,omitempty"`
	HealthChecks        []Check   `json:"health_checks,omitempty" jsonschema:"description=Health checks as the agent last reported them"`
}

// Check is the state of one health check.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status" jsonschema:"enum=starting,enum=passing,enum=failing"`
	Reason string `json:"reason,omitempty" jsonschema:"description=Why the check fails"`
}

func viewChecks(states []*nstancev1.HealthCheckState) []Check {
	var checks []Check
	for _, s := range states {
		checks = append(checks, Check{s.GetName(), enumName(s.GetStatus(), "STATUS_"), s.GetReason()})
	}
	return checks
}

// Metrics are the metrics that an agent reported last.
type Metrics struct {
	CPU                 float64  `json:"cpu" jsonschema:"description=Share of CPU in use from 0 to 1"`
	MemoryUsedBytes     uint64   `json:"memory_used_bytes"`
	MemoryTotalBytes    uint64   `json:"memory_total_bytes"`
	NetworkReceiveRate  *float64 `json:"network_receive_rate,omitempty" jsonschema:"description=Bytes per second"`
	NetworkTransmitRate *float64 `json:"network_transmit_rate,omitempty" jsonschema:"description=Bytes per second"`
	ConntrackEntries    *uint64  `json:"conntrack_entries,omitempty"`
	ConntrackLimit      *uint64  `json:"conntrack_limit,omitempty"`
}

func viewInstance(i *nstancev1.InstanceStatus) Instance {
	view := Instance{
		ID: i.GetInstanceId(), Group: i.GetGroup(), Template: i.GetTemplate(), Kind: i.GetKind(),
		OnDemand: i.GetOnDemand(), State: i.GetState(),
		Health: i.GetHealth(), HealthMessage: i.GetHealthMessage(), ProviderState: i.GetProviderState(),
		ProviderID:   i.GetProviderId(),
		InstanceType: i.GetInstanceType(), IPv4: i.GetIpv4(), IPv6: i.GetIpv6(), Hostname: i.GetHostname(),
		Zone: i.GetZone(), Region: i.GetRegion(),
		SubnetID: i.GetSubnetId(), Image: i.GetImage(), CreatedAt: at(i.GetCreatedAt()),
		LaunchedAt: at(i.GetLaunchedAt()), RegisteredAt: at(i.GetRegisteredAt()),
		LastReportAt: at(i.GetLastReportAt()), DeletedAt: at(i.GetDeletedAt()), DeleteReason: i.GetDeleteReason(),
		DeleteDeadline:      at(i.GetDeleteDeadline()),
		CertificateNotAfter: at(i.GetCertificateNotAfter()), InfraDrift: i.GetInfraDrift(),
		Protected: i.GetProtected(), RuntimeDrift: i.GetRuntimeDrift(),
		HealthChecks: viewChecks(i.GetHealthChecks()), AgentVersion: i.GetAgentVersion(), Term: i.GetTerm(),
	}
	if m := i.GetMetrics(); m != nil {
		view.Metrics = &Metrics{m.GetCpu(), m.GetMemoryUsedBytes(), m.GetMemoryTotalBytes(), m.NetworkReceiveRate,
			m.NetworkTransmitRate, m.ConntrackEntries, m.ConntrackLimit}
	}
	return view
}

// Config is the state of a shard's active configuration according to its leader.
type Config struct {
	Cluster      string    `json:"cluster_id,omitempty"`
	Leader       string    `json:"leader_id,omitempty"`
	Term         uint64    `json:"term,omitempty"`
	ETag         string    `json:"etag,omitempty"`
	LastModified time.Time `json:"last_modified,omitzero"`
	Size         uint64    `json:"size,omitempty" jsonschema:"description=Bytes"`
	Generation   uint64    `json:"generation,omitempty" jsonschema:"description=Number of configurations that this leader has applied since it took over"`
	RefusedETag  string    `json:"refused_etag,omitempty" jsonschema:"description=ETag of a newer configuration that was refused"`
	Problems     []Problem `json:"problems,omitempty" jsonschema:"description=Problems of the refused configuration"`
}

// Problem is one problem of a configuration.
type Problem struct {
	Path    string `json:"path,omitempty" jsonschema:"description=JSON path of the field"`
	Line    uint32 `json:"line,omitempty"`
	Column  uint32 `json:"column,omitempty"`
	Message string `json:"message"`
}

func viewConfig(c *nstancev1.GetConfigStatusResponse) Config {
	return Config{
		Cluster: c.GetClusterId(), Leader: c.GetLeaderId(), Term: c.GetTerm(), ETag: c.GetEtag(),
		LastModified: at(c.GetLastModified()), Size: c.GetSize(),
		Generation: c.GetGeneration(), RefusedETag: c.GetRefusedEtag(), Problems: viewProblems(c.GetProblems()),
	}
}

func viewProblems(problems []*nstancev1.ConfigProblem) []Problem {
	var out []Problem
	for _, p := range problems {
		out = append(out, Problem{p.GetPath(), p.GetLine(), p.GetColumn(), p.GetMessage()})
	}
	return out
}

// Refresh is a leader's answer to the request to read its configuration.
type Refresh struct {
	Result     string    `json:"result,omitempty" jsonschema:"enum=updated,enum=unchanged,enum=invalid"`
	ETag       string    `json:"etag,omitempty"`
	Restarting bool      `json:"restarting,omitempty" jsonschema:"description=The server restarts by itself to apply the configuration"`
	Problems   []Problem `json:"problems,omitempty"`
}

func viewRefresh(r *nstancev1.RefreshConfigResponse) Refresh {
	return Refresh{
		Result: enumName(r.GetResult(), "REFRESH_RESULT_"), ETag: r.GetEtag(),
		Restarting: r.GetRestarting(),
		Problems:   viewProblems(r.GetProblems()),
	}
}

// Event is an event in a shard. If Snapshot is set, the event describes state from before the watch began. Times are
// from the server's clock.
type Event struct {
	Shard string `json:"shard"`
	// Stream is "instance", "group", or "error".
	Stream string `json:"stream"`
	// Type is the name of the protocol's event type in lower case. For errors it is "error" or "resolved".
	Type     string    `json:"type"`
	At       time.Time `json:"at,omitzero"`
	Snapshot bool      `json:"snapshot,omitempty"`
	// Group and ID identify the subject of the event.
	Group    string    `json:"group,omitempty"`
	ID       string    `json:"instance_id,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Replaces string    `json:"replaces,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"`
	Drain    bool      `json:"drain,omitempty"`
	// Kind of an error.
	Kind string `json:"kind,omitempty"`
	// Instance and GroupStatus are the states of the instance and of the group at the time of the event.
	Instance    *Instance `json:"instance,omitempty"`
	GroupStatus *Group    `json:"group_status,omitempty"`
}

func viewInstanceEvent(shard string, e *nstancev1.InstanceEvent) Event {
	event := Event{
		Shard: shard, Stream: "instance", Type: enumName(e.GetType(), "TYPE_"),
		At:    at(e.GetAt()),
		Group: e.GetInstance().GetGroup(), ID: e.GetInstance().GetInstanceId(), Reason: e.GetReason(),
		Replaces: e.GetReplaces(),
		Deadline: at(e.GetDeadline()), Drain: e.GetDrain(),
	}
	if e.GetInstance() != nil {
		view := viewInstance(e.GetInstance())
		event.Instance = &view
	}
	return event
}

func viewGroupEvent(shard string, e *nstancev1.GroupEvent) Event {
	event := Event{Shard: shard, Stream: "group", Type: enumName(e.GetType(), "TYPE_"), Group: e.GetGroup()}
	if e.GetStatus() != nil {
		view := viewGroup(e.GetStatus())
		event.Group, event.Reason, event.GroupStatus = view.Name, view.BlockedReason, &view
	}
	return event
}

func viewErrorEvent(shard string, e *nstancev1.ErrorEvent) Event {
	event := Event{Shard: shard, Stream: "error", Type: "error", At: at(e.GetAt()), Group: e.GetGroup(),
		ID: e.GetInstanceId(), Reason: e.GetMessage(), Kind: e.GetKind()}
	if e.GetResolved() {
		event.Type = "resolved"
	}
	return event
}

func at(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// enumName returns the name of an enum value of the protocol in lower case, without the prefix for the enum.
func enumName(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}
