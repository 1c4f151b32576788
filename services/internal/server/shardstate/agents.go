package shardstate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Report is what an agent last reported about its VM.
type Report struct {
	Healthy     bool
	Message     string
	Version     string
	RuntimeHash string
	// Files and Keys are nil if the files, key pairs and health checks are the same as in the previous report.
	Files []FileState
	Keys  []KeyState
	// Checks are the health checks, sorted by name. It is nil if the agent runs none. ChecksVersion identifies the
	// definitions of these checks.
	Checks        []CheckState
	ChecksVersion string
	// Notice is true if the cloud announced that it will terminate the VM. NoticeDeadline is the announced time, or
	// zero if that is unknown.
	Notice         bool
	NoticeDeadline time.Time
	// Recommendation says whether the cloud recommends replacing the VM. Maintenance is what the cloud has announced.
	// They are nil if the agent does not know them.
	Recommendation *bool
	Maintenance    *plan.Maintenance
	Stopping       plan.Stopping
	// HookEnded means that the drain hook has ended. HookError says why it failed.
	HookEnded bool
	HookError string
	// Role is the role that the agent has taken. It is "" if the agent has none yet, or is older than roles.
	Role       plan.Role
	Metrics    Metrics
	IPv4, IPv6 string
	Hostname   string
}

// FileState is the state of one file on an instance.
type FileState struct {
	Name, SHA256, Error string
	NotBefore, NotAfter time.Time // for certificates only
}

// KeyState is the state of one key pair on an instance.
type KeyState struct{ Name, SHA256, Error string }

// CheckStatus is the status of a health check.
type CheckStatus string

const (
	CheckStarting CheckStatus = "starting" // it has neither passed nor failed yet
	CheckPassing  CheckStatus = "passing"
	CheckFailing  CheckStatus = "failing"
)

// CheckState is the state of one health check on an instance.
type CheckState struct {
	Name   string
	Status CheckStatus
	Reason string // why it fails
}

// failedCheck returns the first health check that fails, with its reason, or "".
func (r *Report) failedCheck() string {
	for _, c := range r.Checks {
		switch {
		case c.Status != CheckFailing:
		case c.Reason == "":
			return c.Name
		default:
			return c.Name + ": " + c.Reason
		}
	}
	return ""
}

// checksPending reports whether some health check has no result yet. This is also the case if the agent does not run
// the given version of the checks. It returns false for an agent that cannot run health checks.
func (r *Report) checksPending(version string) bool {
	return r.Checks != nil && (r.ChecksVersion != version && version != "" ||
		slices.ContainsFunc(r.Checks, func(c CheckState) bool { return c.Status == CheckStarting }))
}

// Metrics are measurements of a VM. A negative rate or limit means unknown.
type Metrics struct {
	CPU                            float32
	MemoryUsed, MemoryTotal        uint64
	ReceiveRate, TransmitRate      float32
	ConntrackEntries, ConntrackMax int64
	VM                             []VMNumber
}

// VMNumber is a number that the agent read from a program on the VM.
type VMNumber struct {
	ID      uint64 // see config.ScalingVM.ID
	Value   float64
	Problem string // why the value is unknown
	Pending bool   // true: the agent has not read it yet
}

// Connected records that an agent opened a health stream, and returns the number of the stream. A newer stream replaces
// an older one. Connected returns false if the instance does not exist in this State.
func (s *State) Connected(id ident.ID) (stream uint64, ok bool) {
	s.mu.Lock()
	inst := s.instances[id]
	if inst == nil {
		s.mu.Unlock()
		return 0, false
	}
	inst.stream++
	stream = inst.stream
	inst.plan = plan.ApplyConnect(inst.plan)
	if s.silenceFrom.IsZero() {
		s.silenceFrom = s.opts.Now()
		for key := range s.groups {
			s.dirty[key] = struct{}{}
		}
	}
	s.touch(inst.group)
	s.mu.Unlock()
	s.opts.Wake()
	return stream, true
}

// Disconnected records that a health stream closed. It ignores a stream that a newer one replaced.
func (s *State) Disconnected(id ident.ID, stream uint64, reason string) {
	s.mu.Lock()
	inst := s.instances[id]
	if inst == nil || inst.stream != stream || !inst.plan.Connected {
		s.mu.Unlock()
		return
	}
	inst.plan = plan.ApplyDisconnect(inst.plan, s.opts.Now())
	s.touch(inst.group)
	var events []InstanceEvent
	if inst.plan.DeletingAt.IsZero() && !inst.plan.Rests() {
		events = append(events, s.event(inst, EventLost, "stream closed: "+reason))
	}
	s.mu.Unlock()
	s.opts.Wake()
	s.emit(events)
}

// Reported records one report. It returns false for a stream that was replaced and for an instance that is gone. A
// report that changes nothing does not mark the group as dirty.
func (s *State) Reported(id ident.ID, stream uint64, report Report) bool {
	now := s.opts.Now()
	s.mu.Lock()
	inst := s.instances[id]
	if inst == nil || inst.stream != stream {
		s.mu.Unlock()
		return false
	}
	if report.Files == nil {
		report.Files = inst.report.Files
		report.Checks, report.ChecksVersion = inst.report.Checks, inst.report.ChecksVersion
	}
	if report.Keys == nil {
		report.Keys = inst.report.Keys
	}
	inst.report = report
	group := inst.group
	filesFailed := slices.ContainsFunc(report.Files, func(f FileState) bool { return f.Error != "" })
	pending := report.checksPending(group.HealthChecksVersion()) ||
		plan.AwaitsFiles(&inst.plan, report.RuntimeHash, filesFailed, group.RuntimeHash)
	next, effect := plan.ApplyReport(inst.plan, plan.Report{Healthy: report.Healthy, RuntimeHash: report.RuntimeHash,
		FilesFailed: filesFailed,
		Notice:      report.Notice, NoticeDeadline: report.NoticeDeadline, Stopping: report.Stopping,
		Recommendation: report.Recommendation, Maintenance: report.Maintenance,
		HookEnded: report.HookEnded, Role: report.Role,
		ChecksPending: pending, FailedCheck: report.failedCheck()}, now)
	inst.plan = next
	events := s.reportEvents(inst, effect)
	changed := effect.Changed
	if effect.EndsBackoff && group.backoff.Failures+group.spareBackoff.Failures > 0 {
		group.backoff, group.spareBackoff, changed = plan.Backoff{}, plan.Backoff{}, true
	}
	if effect.NoticeCounts {
		group.notices = plan.ApplyNotice(group.notices, &group.Group, now)
	}
	if changed {
		s.touch(inst.group)
	}
	s.mu.Unlock()
	if changed {
		s.opts.Wake()
	}
	s.emit(events)
	return true
}

// maxRefusal is the longest text about a refusal that the State keeps, in bytes.
const maxRefusal = 512

// Refused records why the leader refused a call of an instance's agent, or, with "", that it accepted the agent. It
// ignores refusals while an agent is connected.
func (s *State) Refused(id ident.ID, why string) {
	if len(why) > maxRefusal {
		why = strings.ToValidUTF8(why[:maxRefusal], "")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if inst := s.instances[id]; inst != nil && (why == "" || !inst.plan.Connected) {
		inst.plan.Refused = why
	}
}

// HookImpossible records that the instance's agent is too old to run the drain hook, so that the drain does not wait
// for it.
func (s *State) HookImpossible(id ident.ID) {
	s.mu.Lock()
	var events []InstanceEvent
	if inst := s.instances[id]; inst != nil && !inst.plan.HookEnded {
		inst.plan.HookEnded = true
		events = append(events, s.event(inst, EventDrainHook, "the drain hook did not run: the agent is too old"))
		s.touch(inst.group)
	}
	s.mu.Unlock()
	for _, event := range events {
		s.Publish(event)
	}
	s.opts.Wake()
}

// unhealthyReason says why an instance is not healthy.
func unhealthyReason(p *plan.Instance, report *Report) string {
	switch {
	case p.FailedCheck != "" && p.FailedCheck == p.Balancer.Failed:
		return "unhealthy in " + p.FailedCheck
	case p.FailedCheck != "":
		return "health check " + p.FailedCheck
	case report.Healthy && p.ChecksPending:
		return "its health checks have not passed yet"
	}
	return report.Message
}

// Advice says what the cloud has announced for an instance's VM apart from its end, or "".
func Advice(p *plan.Instance) string {
	r, m := recommendation(p), maintenance(p)
	if r == "" || m == "" {
		return r + m
	}
	return r + "; " + m
}

func recommendation(p *plan.Instance) string {
	if !p.Recommended {
		return ""
	}
	return "the cloud recommends replacing its VM"
}

func maintenance(p *plan.Instance) string {
	switch {
	case p.Maintenance == "":
		return ""
	case p.MaintenanceAt.IsZero():
		return fmt.Sprintf("the cloud has announced maintenance of its VM (%s)", p.Maintenance)
	}
	return fmt.Sprintf("the cloud has announced maintenance of its VM (%s) for %s", p.Maintenance,
		p.MaintenanceAt.UTC().Format(time.RFC3339))
}

// reportEvents returns the events that follow from a report. Call with mu held.
func (s *State) reportEvents(inst *instance, effect plan.ReportEffect) (events []InstanceEvent) {
	add := func(follows bool, typ InstanceEventType, reason string) {
		if follows {
			events = append(events, s.event(inst, typ, reason))
		}
	}
	// A notice that was withdrawn is no cause.
	addNotice := func(follows, stands bool, typ InstanceEventType, cause plan.Cause, reason string) {
		if add(follows, typ, reason); follows && stands {
			events[len(events)-1].Cause = cause
		}
	}
	add(effect.Recovered, EventHealthy, "")
	add(effect.Failed, EventUnhealthy, unhealthyReason(&inst.plan, &inst.report))
	p := &inst.plan
	addNotice(effect.Noticed, true, EventNotice, plan.CauseNotice, "termination notice")
	addNotice(effect.Recommendation, p.Recommended, EventRecommendation, plan.CauseRecommendation, cmp.Or(
		recommendation(p), "the cloud no longer recommends replacing its VM"))
	addNotice(effect.Maintenance, p.Maintenance != "", EventMaintenance, plan.CauseMaintenance, cmp.Or(maintenance(p),
		"the cloud has withdrawn the maintenance of its VM"))
	add(effect.PowersOff, EventNotice, "powering off")
	add(effect.Restarts, EventNotice, "restarting")
	hook := "the drain hook succeeded"
	if inst.report.HookError != "" {
		hook = "the drain hook failed: " + inst.report.HookError
	}
	add(effect.HookEnded, EventDrainHook, hook)
	return events
}
