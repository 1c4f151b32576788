package operatorapi

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-kit/nstance/services/api/messages"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// groupStatus returns the status of a group.
func (c *call) groupStatus(v shardstate.GroupView) *nstancev1.GroupStatus {
	entry, overridden := c.Config.Override(v.GroupKey)
	out := messages.Group(c.Config.Shard(), &v.Group, entry, overridden, c.Now())
	out.Size, out.ActualSize, out.Healthy = uint32(v.Size), uint32(v.Actual), uint32(v.Healthy)
	out.Preserved, out.Outdated, out.ProviderIds = uint32(v.Preserved), uint32(v.Outdated), v.ProviderIDs
	out.BlockedReason, out.BlockedSince, out.BlockedUntil = v.Blocked, timestamp(v.BlockedSince),
		timestamp(v.BlockedUntil)
	out.Paused, out.RolloutWaits = v.Rollout.Paused, v.RolloutWaits
	out.Wait = wait(v.Wait, c.Now())
	if text := v.HaltReason(); text != "" {
		out.Halted = &nstancev1.GroupHalt{At: timestamp(v.Halt.At), Reason: v.Halt.Reason,
			RolledBackTo: timestamp(v.Halt.GoodAt), Message: text}
	}
	if out.BlockedReason == "" && v.Backoff.Failures > 0 && v.Actual < v.Size {
		out.BlockedReason = v.Backoff.Reason
	}
	if d := v.Scaled; d != nil {
		out.Scaling = groupScaling(d)
	}
	if v.Spares.Count+v.SparesThere > 0 {
		out.Spares = &nstancev1.GroupSpares{Count: uint32(v.Spares.Count), Actual: uint32(v.SparesThere),
			Ready: uint32(v.SparesReady), State: cmp.Or(v.Spares.State, config.SparesRunning)}
	}
	for _, id := range v.Instances {
		out.InstanceIds = append(out.InstanceIds, id.String())
	}
	settings := c.Config.Settings(v.GroupKey, time.Time{})
	out.MergedJson, out.Defaults = settings.JSON(), settings.Defaults()
	out.Etag = shardconfig.GroupETag(v.Group, out.GetMergedJson())
	if !v.SizeUntil.IsZero() {
		out.MergedJson = c.Config.Settings(v.GroupKey, c.Now()).JSON()
	}
	return out
}

func groupScaling(d *plan.ScalingDecision) *nstancev1.GroupScaling {
	out := &nstancev1.GroupScaling{Why: d.Why, Wanted: uint32(d.Wanted), LimitedBy: d.LimitedBy,
		Until:   timestamp(d.Until),
		Problem: d.Problem}
	for _, m := range d.Metrics {
		metric := &nstancev1.ScalingMetric{Name: m.Name, Target: float64(m.Target) / 1000, Wanted: uint32(m.Wanted),
			Problem: m.Problem, Total: m.Total}
		if m.Known {
			value := float64(m.Value) / 1000
			metric.Value = &value
		}
		out.Metrics = append(out.Metrics, metric)
	}
	return out
}

// instanceStatus returns the status of an instance.
func (c *call) instanceStatus(v shardstate.InstanceView) *nstancev1.InstanceStatus {
	rec, p := &v.Record, &v.Plan
	provider := c.Config.Shard().Server.Provider
	out := messages.Instance(rec)
	out.ProviderState, out.ProviderId = string(providerState(v)), cmp.Or(rec.ProviderID, p.ProviderID)
	out.Health, out.HealthMessage = health(v, c.Now())
	out.Ipv4, out.Ipv6 = cmp.Or(rec.IPv4, v.VM.IPv4), cmp.Or(rec.IPv6, v.VM.IPv6)
	out.Hostname, out.AgentVersion = cmp.Or(rec.Hostname, v.VM.Hostname), v.Report.Version
	out.LaunchedAt, out.LastReportAt = timestamp(cmp.Or(rec.LaunchedAt, p.LaunchedAt)), timestamp(p.LastReport)
	out.InfraDrift, out.RuntimeDrift = v.InfraDrift, v.RuntimeDrift
	out.DeleteDeadline = timestamp(cmp.Or(p.DeleteDeadline, rec.DeleteDeadline))
	out.Zone, out.Region = provider.Zone, provider.Region
	out.Protected = slices.Contains(v.Protected, rec.ID)
	if rec.Preserved != nil {
		out.PreservedUntil = timestamp(v.PreservedUntil)
	}
	if !p.LastReport.IsZero() {
		out.Metrics = metrics(v.Report.Metrics)
		out.HealthChecks = healthChecks(v.Report.Checks)
		out.Scaling = scalingNumbers(&v)
	}
	return out
}

// scalingNumbers returns the numbers of an instance by which its group is scaled.
func scalingNumbers(v *shardstate.InstanceView) (out []*nstancev1.ScalingMetric) {
	for _, metric := range v.Scaling {
		if metric.Total() {
			continue
		}
		m := &nstancev1.ScalingMetric{Name: metric.Name(), Target: float64(metric.Target())}
		value, problem, _ := v.Report.Metrics.Number(&metric)
		if m.Problem = problem; problem == "" {
			m.Value = &value
		}
		out = append(out, m)
	}
	return out
}

// checkStatuses maps the statuses of health checks to those of the protocol.
var checkStatuses = map[shardstate.CheckStatus]nstancev1.HealthCheckState_Status{
	shardstate.CheckStarting: nstancev1.HealthCheckState_STATUS_STARTING,
	shardstate.CheckPassing:  nstancev1.HealthCheckState_STATUS_PASSING,
	shardstate.CheckFailing:  nstancev1.HealthCheckState_STATUS_FAILING,
}

func healthChecks(checks []shardstate.CheckState) (out []*nstancev1.HealthCheckState) {
	for _, c := range checks {
		out = append(out, &nstancev1.HealthCheckState{Name: c.Name, Status: checkStatuses[c.Status], Reason: c.Reason})
	}
	return out
}

// deletedStatus returns the status of an instance that has no record any more.
func deletedStatus(id ident.ID, group string) *nstancev1.InstanceStatus {
	return &nstancev1.InstanceStatus{InstanceId: id.String(), Group: group, Kind: id.Prefix(),
		State:         string(record.Deleted),
		ProviderState: string(infra.Deleted), Health: healthUnknown}
}

// The values of an instance's health.
const (
	healthHealthy      = "healthy"
	healthUnhealthy    = "unhealthy"
	healthSilent       = "silent"       // it reported before, but its stream is gone or three reports are missing
	healthUnregistered = "unregistered" // its agent has not registered yet
	healthUnknown      = "unknown"      // registered, but without a report in this leadership; or deleted
	healthStopping     = "stopping"     // its agent announced that the machine shuts down or restarts
	healthAsleep       = "asleep"       // it is a spare whose VM sleeps, or falls asleep
)

func health(v shardstate.InstanceView, now time.Time) (state, message string) {
	p := &v.Plan
	switch {
	case v.Record.State == record.Deleted:
		return healthUnknown, ""
	case v.Record.RegisteredAt.IsZero():
		return healthUnregistered, lastRefused(p)
	case p.Asleep() && p.DeletingAt.IsZero():
		return healthAsleep, ""
	case p.Waking() && p.DeletingAt.IsZero():
		return healthUnknown, join("its VM is being woken", lastRefused(p))
	case !p.PowerOffAt.IsZero():
		return healthStopping, "the machine powers off"
	case !p.RestartingAt.IsZero() && p.Reboot:
		return healthStopping, "the machine reboots"
	case !p.RestartingAt.IsZero():
		return healthStopping, "the agent restarts"
	case !p.Connected && !p.LostAt.IsZero():
		return healthSilent, join("its stream was lost", lastRefused(p))
	case p.LastReport.IsZero():
		return healthUnknown, lastRefused(p)
	case now.Sub(p.LastReport) > 3*v.Settings.HealthInterval:
		return healthSilent, join("reports are missing", lastRefused(p))
	case p.Notice:
		state, message = healthUnhealthy, "termination notice"
		if p.Healthy {
			state = healthHealthy
		}
		return state, message
	case p.Healthy:
		return healthHealthy, join(shardstate.Advice(p), v.Report.Message)
	}
	return healthUnhealthy, join(v.UnhealthyReason(), shardstate.Advice(p))
}

// lastRefused says why the leader last refused an instance's agent, or "".
func lastRefused(p *plan.Instance) string {
	if p.Refused == "" {
		return ""
	}
	return "its agent was last refused: " + p.Refused
}

func join(message, more string) string {
	if message == "" || more == "" {
		return message + more
	}
	return message + "; " + more
}

// providerState returns the state of the VM in the provider's last answer. It returns Deleted if the instance is
// deleted or its VM is gone, and Unknown if there was no answer.
func providerState(v shardstate.InstanceView) infra.State {
	switch {
	case v.Record.State == record.Deleted, v.Plan.Provider.Value == plan.ProviderGone:
		return infra.Deleted
	case v.VM.State == "":
		return infra.Unknown
	case v.Plan.Provider.Value == plan.ProviderRunning && (v.VM.State == infra.Stopping || v.VM.State == infra.Stopped):
		return infra.Running // the agent has reported since the VM was woken, and the provider was not asked again
	}
	return v.VM.State
}

func metrics(m shardstate.Metrics) *nstancev1.Metrics {
	out := &nstancev1.Metrics{Cpu: float64(m.CPU), MemoryUsedBytes: m.MemoryUsed, MemoryTotalBytes: m.MemoryTotal}
	if m.ReceiveRate >= 0 {
		rate := float64(m.ReceiveRate)
		out.NetworkReceiveRate = &rate
	}
	if m.TransmitRate >= 0 {
		rate := float64(m.TransmitRate)
		out.NetworkTransmitRate = &rate
	}
	if m.ConntrackEntries >= 0 && m.ConntrackMax >= 0 {
		entries, limit := uint64(m.ConntrackEntries), uint64(m.ConntrackMax)
		out.ConntrackEntries, out.ConntrackLimit = &entries, &limit
	}
	return out
}

func timestamp(at time.Time) *timestamppb.Timestamp { return messages.Timestamp(at) }
