package plan

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

const (
	// absenceGrace is how long after its creation a VM may be unknown to the provider, or missing from a complete list,
	// without counting as gone. A cloud may list a new VM late
	// (https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).
	absenceGrace = time.Minute
	// lateDrain is the longest drain that a leader grants when it learns late of a deletion.
	lateDrain = 30 * time.Second
)

// Stopping is the kind of stop that an agent announced.
type Stopping uint8

const (
	NotStopping Stopping = iota
	PowerOff
	Reboot
	Restart
	Upgrade
)

// Report contains what the planner uses of an agent's report.
type Report struct {
	Healthy        bool
	RuntimeHash    string
	FilesFailed    bool // a file could not be stored
	Notice         bool
	NoticeDeadline time.Time // may be zero
	// Recommendation and Maintenance are nil if the agent does not know them.
	Recommendation *bool // whether the cloud recommends replacing the VM
	Maintenance    *Maintenance
	Stopping       Stopping
	HookEnded      bool // the drain hook has ended
	Role           Role // see [Instance]
	// ChecksPending and FailedCheck mean the same as in [Instance].
	ChecksPending bool
	FailedCheck   string
}

// Maintenance is what the cloud has announced for a VM. The zero value means nothing.
type Maintenance struct {
	Kind   string    // in the cloud's words
	Begins time.Time // at the earliest; zero: at any time
}

// ReportEffect says what a report changed.
type ReportEffect struct {
	// Changed means that the plan may change. Otherwise the report only proves that the agent is alive.
	Changed bool
	// Recovered means that the report made the instance healthy, and Failed that it made the instance unhealthy. For
	// the first report, exactly one of them is true.
	Recovered, Failed bool
	// Noticed, PowersOff and Restarts mean that this report is the first with a termination notice, a power-off or a
	// restart.
	Noticed, PowersOff, Restarts bool
	// Recommendation and Maintenance mean that this report changed what is known of the cloud's recommendation or of
	// the maintenance.
	Recommendation, Maintenance bool
	// HookEnded means that this report is the first one after the end of the drain hook.
	HookEnded bool
	// EndsBackoff means that an instance of the group works, so that creations need not wait any longer.
	EndsBackoff bool
	// NoticeCounts means that the instance will be replaced because of the notice, so that [ApplyNotice] counts it.
	NoticeCounts bool
}

// ApplyReport returns the instance after a report that arrived at the time now. Once reported, a termination notice
// stays with the instance, even if later reports lack it, and so does the end of the drain hook.
// Only an instance that is being deleted has run that hook.
func ApplyReport(i Instance, r Report, now time.Time) (Instance, ReportEffect) {
	if i.Rests() && !i.mayHaveWoken(r.Role) {
		i.LastReport, i.RuntimeHash = now, r.RuntimeHash
		return i, ReportEffect{} // its VM falls asleep
	}
	i = ApplyWoken(i, now)
	before, first := i, i.LastReport.IsZero()
	i.Refused = ""
	if r.FailedCheck == "" {
		r.FailedCheck = i.Balancer.Failed // rule 59
	}
	// Rule 53: while health checks are pending, a healthy instance may stay healthy, but an unhealthy one cannot become
	// healthy.
	i.Role = r.Role
	i.Healthy = r.Healthy && r.FailedCheck == "" && (!r.ChecksPending || before.Healthy) && i.hasRole()
	i.EverHealthy = i.EverHealthy || i.Healthy
	i.ChecksPending, i.FailedCheck = r.ChecksPending, r.FailedCheck
	if i.CheckFailedAt = firstTime(before.CheckFailedAt, now); r.FailedCheck == "" {
		i.CheckFailedAt = time.Time{}
	}
	i.RuntimeHash = r.RuntimeHash
	i.FilesFailed = r.FilesFailed
	i.Notice, i.NoticeDeadline = i.Notice || r.Notice, latest(i.NoticeDeadline, r.NoticeDeadline)
	if r.Recommendation != nil {
		i.Recommended = *r.Recommendation
	}
	if r.Maintenance != nil {
		i.Maintenance, i.MaintenanceAt = r.Maintenance.Kind, r.Maintenance.Begins
	}
	i = applyStopping(i, r.Stopping, now)
	i.HookEnded = i.HookEnded || r.HookEnded && i.State == record.Deleting // rule 27
	effect := ReportEffect{
		Changed:     first || i != before,
		Recovered:   i.Healthy && (!before.Healthy || first),
		Failed:      !i.Healthy && (before.Healthy || first),
		Noticed:     i.Notice && !before.Notice,
		PowersOff:   !i.PowerOffAt.IsZero() && before.PowerOffAt.IsZero(),
		Restarts:    !i.RestartingAt.IsZero() && before.RestartingAt.IsZero(),
		HookEnded:   i.HookEnded && !before.HookEnded,
		EndsBackoff: i.Healthy && !before.EverHealthy && i.PreservedAt.IsZero() && i.PromotedAt.IsZero(),

		Recommendation: i.Recommended != before.Recommended,
		Maintenance:    i.Maintenance != before.Maintenance || !i.MaintenanceAt.Equal(before.MaintenanceAt),
	}
	effect.NoticeCounts = effect.Noticed && before.stays()
	if effect.Restarts || effect.Failed && !first {
		i.Lapses = i.Lapses.After(now)
		effect.Changed = true
	}
	i.LastReport = now
	return i, effect
}

// applyStopping records an announced stop with the time of its first announcement. A report without an announcement
// removes the recorded stop.
func applyStopping(i Instance, why Stopping, now time.Time) Instance {
	powerOff, restarting := i.PowerOffAt, i.RestartingAt
	i.PowerOffAt, i.RestartingAt = time.Time{}, time.Time{}
	switch why {
	case PowerOff:
		i.PowerOffAt, i.Reboot = firstTime(powerOff, now), false
	case Reboot, Restart, Upgrade:
		if restarting.IsZero() {
			i.Reboot = why == Reboot
		}
		i.RestartingAt = firstTime(restarting, now)
	default:
		i.Reboot = false
	}
	return i
}

func firstTime(earlier, now time.Time) time.Time {
	if earlier.IsZero() {
		return now
	}
	return earlier
}

// ApplyConnect returns the instance after its agent opened a health stream. Files that were on their way when an older
// stream broke may be lost, so they count as not sent.
func ApplyConnect(i Instance) Instance {
	i.Connected, i.LostAt, i.FilesSent = true, time.Time{}, ""
	return i
}

// ApplyDisconnect returns the instance after its agent's health stream closed.
func ApplyDisconnect(i Instance, now time.Time) Instance {
	i.Connected, i.LostAt = false, now
	return i
}

// ApplyRecord returns the instance after its record was read or written (rule 30). before is the record that this
// leader knew previously. If the write is answered late or no server leads, a leader learns of a deletion when most of
// the drain time has passed. In this case, the leader grants half of the drain time again, at most 30 s, so that
// operators learn of the deletion before the VM ends. A deadline that the leader knows becomes earlier only through an
// explicit deletion or a notice (rule 40). A deadline that the leader itself has postponed never becomes earlier.
func ApplyRecord(i Instance, before, rec *record.Instance, now time.Time) Instance {
	switch {
	case rec.State != record.Deleting:
	case i.State == record.Deleting:
		if rec.DeleteDeadline.Before(before.DeleteDeadline) && !i.DeleteDeadline.After(before.DeleteDeadline) {
			i.DeleteDeadline = rec.DeleteDeadline
		}
	default:
		i.DeleteDeadline = rec.DeleteDeadline
		least := now.Add(min(rec.DeleteDeadline.Sub(rec.DeletingAt)/2, lateDrain))
		if least.After(now) && least.After(rec.DeleteDeadline) {
			i.DeleteDeadline, i.Postponed = least, true
		}
	}
	i.ID, i.State, i.OnDemand, i.Spot = rec.ID, rec.State, rec.OnDemand, rec.Spot
	i.CreatedAt, i.LaunchedAt, i.RegisteredAt = rec.CreatedAt, rec.LaunchedAt, rec.RegisteredAt
	i.InfraHash, i.SubnetID, i.Image, i.ProviderID = rec.InfraHash, rec.SubnetID, rec.Image, rec.ProviderID
	i.DeleteReason, i.DeletingAt = rec.DeleteReason, rec.DeletingAt
	if rec.Preserved != nil {
		i.PreservedAt = rec.Preserved.At
	}
	if rec.Certificate != nil {
		i.CertificateEnds = rec.Certificate.NotAfter
	}
	return applySpare(i, rec, now)
}

// ProviderAnswer is what the provider said about one instance.
type ProviderAnswer struct {
	Asked time.Time
	// Absent means that the provider does not know the VM, or that the VM is missing from a list that should contain it
	// (see [Covered]). The fields below are then zero.
	Absent bool
	// State is ProviderUnknown if the answer does not tell the state.
	State      ProviderState
	ProviderID string
	LaunchedAt time.Time
	EndReason  string // see [Instance]
}

// Covered reports whether a list from the provider would contain the instance's VM if the VM existed. The list lacks
// VMs whose IDs begin with a prefix in unlisted. If there is such a prefix, a VM with an unknown ID may be missing,
// too.
func Covered(i Instance, unlisted []string) bool {
	return len(unlisted) == 0 || i.ProviderID != "" && !slices.ContainsFunc(unlisted, func(prefix string) bool {
		return strings.HasPrefix(i.ProviderID, prefix)
	})
}

// ProviderEffect says what a provider's answer changed.
type ProviderEffect struct {
	// Stale means that the answer is ignored, because the answer to a question that was asked later is already known.
	Stale bool
	// Changed means that the VM's state changed, or is known completely for the first time.
	Changed bool
	// Lost means that the VM ended or is ending, and that no deletion of the instance was decided.
	Lost bool
}

// ApplyProviderAnswer returns the instance after an answer of the provider. An absent VM counts as gone if it is older
// than a minute and the result of its create call is known. A younger absent VM keeps its last known state.
func ApplyProviderAnswer(i Instance, a ProviderAnswer) (Instance, ProviderEffect) {
	if a.Asked.Before(i.Provider.At) {
		return i, ProviderEffect{Stale: true}
	}
	before := i.Provider
	state := a.State
	if a.Absent {
		state = ProviderGone
		if i.awaitsCreate() || a.Asked.Before(latest(i.CreatedAt, i.LaunchedAt).Add(absenceGrace)) {
			state = before.Value
		}
	}
	if state == ProviderUnknown || i.Woken && state.asleep() && a.Asked.Before(i.WakeRequested.Add(absenceGrace)) {
		state = before.Value // in the second case, a cloud may show the change late
	}
	if i.LaunchedAt.IsZero() {
		i.LaunchedAt = a.LaunchedAt
	}
	if i.ProviderID == "" {
		i.ProviderID = a.ProviderID
	}
	if a.EndReason != "" {
		i.EndReason = a.EndReason
	}
	i.Provider = Observed[ProviderState]{Value: state, Complete: before.Complete || !a.Absent || state != before.Value,
		At: a.Asked}
	changed := i.Provider.Value != before.Value || i.Provider.Complete != before.Complete
	return i, ProviderEffect{
		Changed: changed,
		Lost:    changed && i.ended(state) && !i.ended(before.Value) && i.DeletingAt.IsZero(),
	}
}

// ApplyWorkResult returns the instance after the leader has finished an action on it. failed means that the action
// failed.
func ApplyWorkResult(i Instance, failed bool, now time.Time) Instance {
	if i.Work == Maintaining || i.Work == Sleeping || i.Work == Waking {
		i.MaintenanceFailed = i.MaintenanceFailed.After(failed, now)
	} else {
		i.Failed = i.Failed.After(failed, now)
	}
	i.Work = Idle
	return i
}

// ApplyAskResult returns the instance after a question to the provider. failed means that the provider did not answer.
func ApplyAskResult(i Instance, failed bool, now time.Time) Instance {
	i.AskFailed = i.AskFailed.After(failed, now)
	i.Asking = false
	return i
}

// After returns the failures in a row after one more attempt.
func (f Failure) After(failed bool, now time.Time) Failure {
	if failed {
		return Failure{At: now, Count: f.Count + 1}
	}
	return Failure{}
}

// ApplyCreateFailure returns a group's backoff after a failed creation. Concurrent creations often fail together, so
// failures during the backoff do not count again.
func ApplyCreateFailure(b Backoff, key config.GroupKey, reason string, now time.Time) Backoff {
	b.Reason = reason
	if b.Failures == 0 || !now.Before(b.Until(key)) {
		b.Failures++
		b.Last = now
	}
	return b
}

// ApplyNotice returns a group's count of notices after one more notice (rule 39). Only the notices beyond the group's
// size within an hour make creations wait.
func ApplyNotice(n Notices, group *config.Group, now time.Time) Notices {
	if n.Count == 0 || n.over(now) {
		n = Notices{Since: now}
	}
	n.Count++
	if n.Count > max(1, group.Size) {
		n.Backoff = ApplyCreateFailure(n.Backoff, group.GroupKey, reasonManyNotices, now)
	}
	return n
}

// EndsBackoff reports whether a change of a group's configuration affects what is created. Such a change ends the
// group's backoff and its count of notices.
func EndsBackoff(before, after *config.Group) bool {
	// A size that the leader chose by itself (rule 73) proves no more room than the former one.
	chosen := after.Scaling != nil && !after.SizeHeld
	return before.Size != after.Size && !chosen || before.Deleted != after.Deleted ||
		before.RuntimeHash != after.RuntimeHash ||
		before.InfraHash != after.InfraHash || before.Template != after.Template || before.Refused != after.Refused ||
		before.Purchase != after.Purchase || before.RolledBack() != after.RolledBack() ||
		!slices.Equal(before.InstanceTypes, after.InstanceTypes) ||
		!slices.Equal(before.Subnets, after.Subnets)
}

// Deletion is the intent to delete an instance.
type Deletion struct {
	Reason string
	Cause  Cause
	// Deadline is when the drain ends at the latest; zero: no drain.
	Deadline time.Time
}

// RequestDelete records the intent to delete an instance. It returns false if it changed nothing. The deadline of an
// instance that is already leaving never becomes later. Only an explicit deletion and a notice make it earlier (rule
// 40).
func RequestDelete(rec *record.Instance, d Deletion, now time.Time) bool {
	if d.Deadline.IsZero() {
		d.Deadline = now
	}
	switch {
	case rec.State == record.Deleted:
		return false
	case rec.State != record.Deleting:
		rec.State, rec.DeletingAt, rec.DeleteReason, rec.DeleteDeadline = record.Deleting, now, d.Reason, d.Deadline
		return true
	case (d.Cause == CauseRequested || d.Cause == CauseNotice) && d.Deadline.Before(rec.DeleteDeadline):
		rec.DeleteDeadline = d.Deadline
		return true
	}
	return false
}

// CountsAsFailedCreation reports whether a deletion counts towards its group's backoff.
func (d Deletion) CountsAsFailedCreation() bool { return d.Cause == CauseUnregistered }
