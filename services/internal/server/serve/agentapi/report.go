package agentapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

const (
	// IntervalHeader is the response header with the time between two reports, as a Go duration.
	IntervalHeader = "nstance-report-interval"
	// EndpointsHeader is the response header with the addresses of the leader's agent service, host:port separated by
	// commas.
	EndpointsHeader = "nstance-agent-endpoints"
	// RenewHeader is the response header that asks the agent to renew its certificate early, because the CA is being
	// rotated. Its value is the period over which agents spread their renewals, as a Go duration.
	RenewHeader = "nstance-renew-within"
	// KeyRequestsHeader is the response header that tells agents not to open a stream for key requests. It is always
	// "with-files". See ReceiveFilesRequest.
	KeyRequestsHeader = "nstance-key-requests"
)

// Limits of a report.
const (
	maxFiles, maxKeys = 512, 128
	maxName           = 255
	maxText           = 1024
	maxVersion        = 128
	maxChecks         = config.MaxHealthChecks
	maxCheckReason    = 256
	maxHookError      = 256
	maxNumbers        = config.MaxScalingMetrics
	maxNumberProblem  = 256
)

type reports = grpc.ClientStreamingServer[nstancev1.ReportHealthRequest, nstancev1.ReportHealthResponse]

// ReportHealth takes the reports of an instance until its agent or the server ends the stream.
func (s *Service) ReportHealth(stream reports) error {
	err := s.serveStream(stream.Context(), healthStream, func(own string) string { return own }, func(c *call) error {
		c.agent.mu.Lock() // Configured compares it with what holds then
		told := c.leader.session()
		c.stream.header = told
		c.agent.mu.Unlock()
		header := metadata.Pairs(IntervalHeader, told.interval.String(), EndpointsHeader, told.endpoints,
			KeyRequestsHeader, "with-files")
		if c.mustRenew() {
			header.Set(RenewHeader, c.leader.renewWithin().String())
		}
		if err := stream.SendHeader(header); err != nil {
			return err
		}
		c.agent.mu.Lock()
		c.agent.outdated = false
		c.agent.mu.Unlock()
		number, ok := c.leader.State.Connected(c.agent.id)
		if !ok {
			return errDeleted(c.agent.id)
		}
		s.noteCaller(c)
		go s.readReports(c, stream, number)
		go s.forgetPreviousKey(c)
		return nil
	}, func(*call) error { return nil })
	if errors.Is(err, io.EOF) {
		return stream.SendAndClose(&nstancev1.ReportHealthResponse{})
	}
	return err
}

// mustRenew reports whether the caller's certificate was issued before the current step of a CA rotation.
func (c *call) mustRenew() bool {
	rec, _, ok := c.leader.State.Record(c.agent.id)
	return ok && mayBeCertified(&rec) == nil && rec.Certificate != nil && rec.Certificate.Trust != c.leader.Issuer.Trust
}

// readReports takes reports until the stream ends, then ends the stream's handler. It also calls State.Disconnected,
// because a broken connection is the first sign of a lost machine. If the server itself ended the stream, or its
// leadership has ended, readReports does not call it: that says nothing about the machine.
func (s *Service) readReports(c *call, stream reports, number uint64) {
	err := s.takeReports(c, stream, number)
	if c.agent.endStream(c.stream, err) && c.leader.Context.Err() == nil {
		c.leader.State.Disconnected(c.agent.id, number, endReason(err))
	}
}

// endReason describes why a health stream ended.
func endReason(err error) string {
	if errors.Is(err, io.EOF) {
		return "by the agent"
	}
	return status.Convert(err).Message()
}

// takeReports takes one report after the other. It always returns an error: io.EOF if the agent closed the stream. A
// panic ends only this stream.
func (s *Service) takeReports(c *call, stream reports, number uint64) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.Log.Error("taking a report panicked", "instance", c.agent.name, "error", fmt.Sprint(cause), "stack",
				string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	for last := uint64(0); ; {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.takeReport(stream.Context(), c, message, number, last); err != nil {
			return err
		}
		last = message.GetSequence()
	}
}

// takeReport takes one report. last is the sequence number of the previous one.
func (s *Service) takeReport(ctx context.Context, c *call, message *nstancev1.ReportHealthRequest,
	number, last uint64) error {
	if message.GetInstanceId() != c.agent.name {
		return errForeign(c.agent.id)
	}
	if message.GetSequence() <= last {
		return status.Errorf(codes.InvalidArgument, "sequence: %d after %d", message.GetSequence(), last)
	}
	if c.leader.Addresses.Doubtful(c.agent.id, c.caller.from) {
		err := c.leader.Addresses.Check(ctx, c.agent.id, c.caller.from)
		if status.Code(err) == codes.PermissionDenied {
			return s.checkCaller(ctx, c) // it raises the alert too
		}
	}
	var report shardstate.Report
	if err := parseReport(message, &report); err != nil {
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	if remaining := message.GetTermination().GetRemaining(); remaining != nil {
		// Rounded, because every report repeats the notice, and each travels for another time.
		report.NoticeDeadline = s.Now().Add(min(max(0, remaining.AsDuration()), maxRemaining)).Round(time.Second)
	}
	if !c.leader.State.Reported(c.agent.id, number, report) {
		return status.Error(codes.Aborted, "this stream no longer speaks for the instance")
	}
	if report.Notice && !c.noticed {
		c.noticed = true
		s.Log.Info("termination notice", "tenant", c.group.Tenant, "group", c.group.Group, "instance", c.agent.name,
			"source", transport.PeerAddress(ctx).String(), "deadline", report.NoticeDeadline)
	}
	s.resolveShared(c)
	s.sendFilesIfDue(c, &report)
	if report.Role == plan.RoleSpare { // a member stays one, so most reports need no look at the record
		if rec, _, ok := c.leader.State.Record(c.agent.id); ok && plan.RoleOf(&rec) != plan.RoleSpare {
			s.Role(c.agent.id) // the leader learned of the promotion from the bucket
		}
	}
	if s.Metrics != nil {
		s.Metrics.Reports.Inc()
	}
	return nil
}

// sendFilesIfDue wakes the stream of files if, after this report, plan.FilesDue decides that files are due.
func (s *Service) sendFilesIfDue(c *call, report *shardstate.Report) {
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if report.Keys != nil {
		a.forgetKeys(report.Keys)
	}
	if a.claimsMissing && report.Hostname+report.IPv4+report.IPv6 != "" {
		a.claimsMissing = false
		a.wakeStream(filesStream)
	}
	var files plan.FilesReport
	if report.Files != nil || a.sentHash != "" && report.RuntimeHash != a.sentHash {
		group, ok := c.leader.State.Group(c.group)
		if !ok || group.RuntimeHash == "" {
			return
		}
		files = plan.FilesReport{Reported: report.RuntimeHash, Sent: a.sentHash, Current: group.RuntimeHash}
		if report.Files != nil {
			files.Full, files.Recheck = true, c.leader.RecheckFiles
			files.Complete, files.RenewAt = a.compareFiles(report, &group)
		}
	}
	var due bool
	if a.files, due = plan.FilesDue(a.files, files, s.Now()); due {
		a.wakeStream(filesStream)
	}
	if report.Files == nil && !s.Now().Before(a.sentAt.Add(plan.FilesSettle)) {
		a.forgetUnconfirmed()
	}
}

// compareFiles compares the files that the instance has with the files of its group, and with the files that the server
// sent. complete means that no file is missing or wrong. renewAt is when the first of the instance's certificates is
// due for renewal. The caller must hold mu.
func (a *agent) compareFiles(report *shardstate.Report, group *config.Group) (complete bool, renewAt time.Time) {
	good, failed := 0, false
	for _, file := range group.Files {
		// A certificate is of no use without its key. The next batch lacks the certificate, and requests a key.
		if report.Keys != nil && file.Kind == "certificate" && file.Key != nil &&
			!slices.ContainsFunc(report.Keys, func(k shardstate.KeyState) bool { return k.Name == file.Key.Name }) {
			failed = true
		}
	}
	for i := range report.Files {
		f := &report.Files[i]
		file, known := group.Files[f.Name]
		sent := a.sent[f.Name]
		if sent != nil {
			sent.unconfirmed = false
		}
		if file.Kind == "certificate" && f.Error == "" && !f.NotAfter.IsZero() {
			if due := filegen.Due(f.NotBefore, f.NotAfter); renewAt.IsZero() || due.Before(renewAt) {
				renewAt = due
			}
		}
		switch {
		case f.Error != "" || known && sent != nil && sent.SHA256 != f.SHA256:
			failed = true
		case known:
			good++
		}
	}
	return !failed && good >= len(group.Files), renewAt
}

// forgetUnconfirmed forgets the files of the last batch that the agent has not confirmed. An agent that stored a file
// of the batch reports its files. An agent that reports long after the batch, but not its files, stored none of them,
// and the next batch must contain them all. The caller must hold mu.
func (a *agent) forgetUnconfirmed() {
	maps.DeleteFunc(a.sent, func(_ string, sent *sentFile) bool { return sent.unconfirmed })
}

// forgetKeys forgets submitted keys that the agent no longer has. The caller must hold mu.
func (a *agent) forgetKeys(keys []shardstate.KeyState) {
	for name, pkix := range a.keys {
		if !slices.ContainsFunc(keys, func(k shardstate.KeyState) bool {
			return k.Name == name && k.SHA256 == filegen.Sum(pkix)
		}) {
			delete(a.keys, name)
		}
	}
}

// maxRemaining is the longest time from a report to the deadline of a termination notice.
const maxRemaining = 24 * time.Hour

const (
	// oldRecommendation is the kind of termination notice by which agents of an earlier version report a
	// recommendation.
	oldRecommendation = "rebalance"
	// maxMaintenance is the maximum length of the kind of a maintenance, in bytes.
	maxMaintenance = 64
)

// parseReport checks a report and reads it into r. The error contains the name of the invalid field.
func parseReport(m *nstancev1.ReportHealthRequest, r *shardstate.Report) error {
	*r = shardstate.Report{Healthy: m.GetHealthy(), Message: m.GetMessage(), Version: m.GetAgentVersion(),
		RuntimeHash: m.GetRuntimeHash(),
		IPv4:        m.GetIpv4(), IPv6: m.GetIpv6(), Hostname: m.GetHostname()}
	if err := cmp.Or(checkText("message", r.Message, maxText), checkText("agent_version", r.Version, maxVersion),
		checkText("runtime_hash", r.RuntimeHash, maxVersion),
		checkText("hostname", r.Hostname, 253)); err != nil {
		return err
	}
	var err error
	if r.IPv4, err = ident.ParseIPv4(r.IPv4); err != nil {
		return fmt.Errorf("ipv4: %w", err)
	}
	if r.IPv6, err = ident.ParseIPv6(r.IPv6); err != nil {
		return fmt.Errorf("ipv6: %w", err)
	}
	if notice := m.GetTermination(); notice.GetKind() == oldRecommendation {
		r.Recommendation = new(true)
	} else if notice != nil {
		r.Notice = true
		if err := checkText("termination.kind", notice.GetKind(), maxVersion); err != nil {
			return err
		}
		if r.NoticeDeadline, err = parseTime(notice.GetDeadline()); err != nil {
			return fmt.Errorf("termination.deadline: %w", err)
		}
	}
	if m.GetRecommendation() != nil {
		r.Recommendation = new(m.GetRecommendation().GetReplace())
	}
	if work := m.GetMaintenance(); work != nil {
		r.Maintenance = &plan.Maintenance{Kind: work.GetKind()}
		if err := checkLine("maintenance.kind", work.GetKind(), maxMaintenance); err != nil {
			return err
		}
		if r.Maintenance.Begins, err = parseTime(work.GetBegins()); err != nil {
			return fmt.Errorf("maintenance.begins: %w", err)
		}
	}
	switch m.GetStopping() {
	case nstancev1.StoppingReason_STOPPING_REASON_UNSPECIFIED:
	case nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF:
		r.Stopping = plan.PowerOff
	case nstancev1.StoppingReason_STOPPING_REASON_REBOOT:
		r.Stopping = plan.Reboot
	case nstancev1.StoppingReason_STOPPING_REASON_RESTART:
		r.Stopping = plan.Restart
	case nstancev1.StoppingReason_STOPPING_REASON_UPGRADE:
		r.Stopping = plan.Upgrade
	default:
		return fmt.Errorf("stopping: reason %d is unknown", m.GetStopping())
	}
	switch m.GetRole() {
	case nstancev1.InstanceRole_INSTANCE_ROLE_UNSPECIFIED:
	case nstancev1.InstanceRole_INSTANCE_ROLE_SPARE:
		r.Role = plan.RoleSpare
	case nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER:
		r.Role = plan.RoleMember
	default:
		return fmt.Errorf("role: %d is unknown", m.GetRole())
	}
	if drain := m.GetDrain(); drain != nil {
		r.HookEnded, r.HookError = true, drain.GetError()
		if err := checkLine("drain.error", r.HookError, maxHookError); err != nil {
			return err
		}
	}
	// Metrics with a share that is no number are unknown. As an idle VM, it would make its group smaller (rule 76).
	if metrics := m.GetMetrics(); metrics != nil && metrics.GetCpu() >= 0 {
		r.Metrics = parseMetrics(metrics)
	}
	if r.Metrics.VM, err = parseNumbers(m.GetVmNumbers()); err != nil {
		return err
	}
	if m.GetUnchanged() {
		return nil
	}
	return parseStates(m, r)
}

// parseNumbers reads the numbers of programs on the VM. It also takes those that the group does not ask for, because
// the list may have changed since the agent read them. [shardstate.Metrics.Number] ignores them.
func parseNumbers(numbers []*nstancev1.VmNumberState) ([]shardstate.VMNumber, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	if len(numbers) > maxNumbers {
		return nil, fmt.Errorf("vm_numbers: %d of them, at most %d are allowed", len(numbers), maxNumbers)
	}
	out := make([]shardstate.VMNumber, len(numbers))
	for i, n := range numbers {
		out[i] = shardstate.VMNumber{ID: n.GetId(), Value: n.GetValue(), Problem: n.GetProblem(),
			Pending: n.GetResult() == nil}
		if err := checkLine(fmt.Sprintf("vm_numbers[%d].problem", i), n.GetProblem(), maxNumberProblem); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func checkText(field, value string, limit int) error {
	switch {
	case len(value) > limit:
		return fmt.Errorf("%s: %d bytes, at most %d are allowed", field, len(value), limit)
	case !utf8.ValidString(value):
		return fmt.Errorf("%s: is not UTF-8", field)
	}
	return nil
}

// checkLine is like checkText for a text of one line.
func checkLine(field, value string, limit int) error {
	if err := checkText(field, value, limit); err != nil {
		return err
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s: has a control character", field)
	}
	return nil
}

func parseStates(m *nstancev1.ReportHealthRequest, r *shardstate.Report) error {
	if len(m.GetFiles()) > maxFiles || len(m.GetKeys()) > maxKeys {
		return fmt.Errorf("files, keys: %d and %d of them, at most %d and %d are allowed", len(m.GetFiles()),
			len(m.GetKeys()), maxFiles, maxKeys)
	}
	r.Files, r.Keys = make([]shardstate.FileState, len(m.GetFiles())), make([]shardstate.KeyState, len(m.GetKeys()))
	for i, f := range m.GetFiles() {
		if err := checkState(f.GetName(), f.GetSha256(), f.GetError()); err != nil {
			return fmt.Errorf("files[%d].%w", i, err)
		}
		state := shardstate.FileState{Name: f.GetName(), SHA256: f.GetSha256(), Error: f.GetError()}
		var err error
		if state.NotBefore, err = parseTime(f.GetNotBefore()); err != nil {
			return fmt.Errorf("files[%d].not_before: %w", i, err)
		}
		if state.NotAfter, err = parseTime(f.GetNotAfter()); err != nil {
			return fmt.Errorf("files[%d].not_after: %w", i, err)
		}
		r.Files[i] = state
	}
	for i, k := range m.GetKeys() {
		if err := checkState(k.GetName(), k.GetSha256(), k.GetError()); err != nil {
			return fmt.Errorf("keys[%d].%w", i, err)
		}
		r.Keys[i] = shardstate.KeyState{Name: k.GetName(), SHA256: k.GetSha256(), Error: k.GetError()}
	}
	return parseChecks(m.GetHealthChecks(), r)
}

// parseChecks reads the states of health checks into r. An agent that runs no checks sends no report of checks.
func parseChecks(m *nstancev1.HealthCheckReport, r *shardstate.Report) error {
	if m == nil {
		return nil
	}
	if len(m.GetStates()) > maxChecks {
		return fmt.Errorf("health_checks.states: %d of them, at most %d are allowed", len(m.GetStates()), maxChecks)
	}
	r.Checks, r.ChecksVersion = make([]shardstate.CheckState, len(m.GetStates())), m.GetVersion()
	if err := checkText("health_checks.version", r.ChecksVersion, maxVersion); err != nil {
		return err
	}
	for i, c := range m.GetStates() {
		if err := ident.ValidateName(c.GetName()); err != nil {
			return fmt.Errorf("health_checks.states[%d].name: %w", i, err)
		}
		reason := fmt.Sprintf("health_checks.states[%d].reason", i)
		if err := checkLine(reason, c.GetReason(), maxCheckReason); err != nil {
			return err
		}
		state := shardstate.CheckState{Name: c.GetName(), Reason: c.GetReason()}
		switch c.GetStatus() {
		case nstancev1.HealthCheckState_STATUS_STARTING:
			state.Status = shardstate.CheckStarting
		case nstancev1.HealthCheckState_STATUS_PASSING:
			state.Status = shardstate.CheckPassing
		case nstancev1.HealthCheckState_STATUS_FAILING:
			state.Status = shardstate.CheckFailing
		default:
			return fmt.Errorf("health_checks.states[%d].status: %d is unknown", i, c.GetStatus())
		}
		r.Checks[i] = state
	}
	slices.SortFunc(r.Checks, func(a, b shardstate.CheckState) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func checkState(name, sum, message string) error {
	switch {
	case name == "" || len(name) > maxName || !utf8.ValidString(name):
		return fmt.Errorf("name: want 1 to %d bytes of UTF-8", maxName)
	case sum == "" && message == "":
		return errors.New("sha256: is empty, and so is error")
	case sum != "" && !isSum(sum):
		return errors.New("sha256: want 64 hexadecimal characters in lower case")
	case len(message) > maxText || !utf8.ValidString(message):
		return fmt.Errorf("error: want at most %d bytes of UTF-8", maxText)
	}
	return nil
}

func isSum(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 64
}

// parseTime reads a time stamp. A missing time stamp is the zero time.
func parseTime(t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, errors.New("is not a valid time")
	}
	return t.AsTime(), nil
}

func parseMetrics(m *nstancev1.Metrics) shardstate.Metrics {
	out := shardstate.Metrics{CPU: float32(min(m.GetCpu(), 1)), MemoryUsed: m.GetMemoryUsedBytes(),
		MemoryTotal: m.GetMemoryTotalBytes(),
		ReceiveRate: -1, TransmitRate: -1, ConntrackEntries: -1, ConntrackMax: -1}
	if m.NetworkReceiveRate != nil {
		out.ReceiveRate = parseRate(*m.NetworkReceiveRate)
	}
	if m.NetworkTransmitRate != nil {
		out.TransmitRate = parseRate(*m.NetworkTransmitRate)
	}
	if m.ConntrackEntries != nil {
		out.ConntrackEntries = int64(min(*m.ConntrackEntries, math.MaxInt64))
	}
	if m.ConntrackLimit != nil {
		out.ConntrackMax = int64(min(*m.ConntrackLimit, math.MaxInt64))
	}
	return out
}

func parseRate(x float64) float32 {
	if !(x >= 0) || math.IsInf(x, 0) {
		return -1
	}
	return float32(x)
}
