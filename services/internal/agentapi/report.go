package agentapi

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"runtime/debug"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/filegen"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

// IntervalHeader is the response header that tells an agent how often to report, a Go duration.
const IntervalHeader = "nstance-report-interval"

// Bounds of a report.
const (
	maxFiles, maxKeys = 512, 128
	maxName           = 255
	maxText           = 1024
)

type reports = grpc.ClientStreamingServer[nstancev1.ReportHealthRequest, nstancev1.ReportHealthResponse]

// ReportHealth takes an instance's reports for as long as its agent sends some.
func (s *Service) ReportHealth(stream reports) error {
	err := s.hold(stream.Context(), healthStream, func(own string) string { return own }, func(c *call) error {
		interval := c.leader.Interval()
		c.agent.mu.Lock()
		c.slot.interval = interval
		c.agent.mu.Unlock()
		if err := stream.SendHeader(metadata.Pairs(IntervalHeader, interval.String())); err != nil {
			return err
		}
		number, ok := c.leader.World.Connected(c.agent.id)
		if !ok {
			return errDeleted(c.agent.id)
		}
		go s.readAll(c, stream, number)
		return nil
	}, func(*call) error { return nil })
	if errors.Is(err, io.EOF) {
		return stream.SendAndClose(&nstancev1.ReportHealthResponse{})
	}
	return err
}

// readAll reads reports until the stream ends, and ends its handler.
func (s *Service) readAll(c *call, stream reports, number uint64) {
	err := s.read(c, stream, number)
	// When a machine is lost, this is what everybody waits for. A stream that we ended is no loss: the agent comes
	// back, and if it does not, its reports are missed.
	if c.agent.finish(c.slot, err) {
		c.leader.World.Disconnected(c.agent.id, number, reason(err))
	}
}

// reason says in words why a health stream ended.
func reason(err error) string {
	if errors.Is(err, io.EOF) {
		return "by the agent"
	}
	return status.Convert(err).Message()
}

// read hands on one report after the other. It always returns an error: io.EOF when the agent closed the stream. A
// panic is this stream's alone.
func (s *Service) read(c *call, stream reports, number uint64) (err error) {
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
		if !s.takeRepeated(c, message, number, last) {
			if err := s.take(c, message, number, last); err != nil {
				return err
			}
		}
		last = message.GetSequence()
	}
}

// takeRepeated takes a report that leads to nothing, as nearly all do. It answers false, and does nothing, for any
// other. Both this and what it calls fit on the stack that has just read the report: another one is another goroutine,
// which may wake a core that sleeps.
func (s *Service) takeRepeated(c *call, message *nstancev1.ReportHealthRequest, number, last uint64) bool {
	if message.GetInstanceId() != c.agent.name || message.GetSequence() <= last || !message.GetUnchanged() {
		return false
	}
	var report shardstate.Report
	if parseReport(message, &report) != nil || !c.agent.content(report.RuntimeHash, s.Now()) ||
		!c.leader.World.Repeated(c.agent.id, number, &report) {
		return false
	}
	if s.Metrics != nil {
		s.Metrics.Reports.Inc()
	}
	return true
}

// take takes one report. last is the sequence number of the one before.
func (s *Service) take(c *call, message *nstancev1.ReportHealthRequest, number, last uint64) error {
	if message.GetInstanceId() != c.agent.name {
		return errForeign(c.agent.id)
	}
	if message.GetSequence() <= last {
		return status.Errorf(codes.InvalidArgument, "sequence: %d after %d", message.GetSequence(), last)
	}
	var report shardstate.Report
	if err := parseReport(message, &report); err != nil {
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	if !c.leader.World.Reported(c.agent.id, number, report) {
		return status.Error(codes.Aborted, "this stream does not speak for the instance any more")
	}
	s.look(c, &report)
	if s.Metrics != nil {
		s.Metrics.Reports.Inc()
	}
	return nil
}

// look finds out, after a report, whether the instance lacks files, and has them sent. A configuration that has changed
// is the planner's to notice.
func (s *Service) look(c *call, report *shardstate.Report) {
	a, now := c.agent, s.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if report.Keys != nil {
		a.prune(report.Keys)
	}
	if report.Files != nil || a.want != "" && report.RuntimeHash != a.want {
		group, ok := c.leader.World.Group(c.group)
		if !ok || group.RuntimeHash == "" {
			return
		}
		if report.Files != nil {
			a.reported(report.Files, &group)
		}
		if ours := report.RuntimeHash == group.RuntimeHash || a.want == group.RuntimeHash; ours {
			needy := report.RuntimeHash != group.RuntimeHash || report.Files == nil && a.needy || report.Files != nil &&
				a.lacks(report.Files, &group)
			if !needy {
				a.failures, a.retryAt = 0, time.Time{}
			}
			a.needy = needy
		}
	}
	if a.wants(now) {
		a.again(now)
		a.nudge(filesStream)
	}
}

// content reports whether look would find nothing to do after a report without files and keys.
func (a *agent) content(hash string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return (a.want == "" || a.want == hash) && !a.wants(now)
}

// wants reports whether files are missing or due, and it is time to send them. Call with mu held.
func (a *agent) wants(now time.Time) bool {
	due := !a.renewAt.IsZero() && !now.Before(a.renewAt)
	return (a.needy || due) && !now.Before(a.retryAt)
}

// again puts off the next attempt of the same. Call with mu held.
func (a *agent) again(now time.Time) {
	a.retryAt = now.Add(min(30*time.Second<<min(a.failures, 10), time.Hour))
	a.failures++
}

// reported takes a full list of the instance's files. Call with mu held.
func (a *agent) reported(files []shardstate.FileState, group *config.Group) {
	a.renewAt = time.Time{}
	for i := range files {
		f := &files[i]
		if sent, ok := a.sent[f.Name]; ok {
			sent.pending = false
		}
		if group.Files[f.Name].Kind == "certificate" && f.Error == "" && !f.NotAfter.IsZero() {
			if due := filegen.Due(f.NotBefore, f.NotAfter); a.renewAt.IsZero() || due.Before(a.renewAt) {
				a.renewAt = due
			}
		}
	}
}

// lacks reports whether a full list of the instance's files is not what it should be. Call with mu held.
func (a *agent) lacks(files []shardstate.FileState, group *config.Group) bool {
	good := 0
	for i := range files {
		f := &files[i]
		if f.Error != "" {
			return true
		}
		if _, ours := group.Files[f.Name]; !ours {
			continue
		}
		if sent, ok := a.sent[f.Name]; ok && sent.SHA256 != f.SHA256 {
			return true
		}
		good++
	}
	return good < len(group.Files)
}

// prune forgets handed-in keys that the agent no longer has. Call with mu held.
func (a *agent) prune(keys []shardstate.KeyState) {
	for name, pkix := range a.keys {
		if !has(keys, name, pkix) {
			delete(a.keys, name)
		}
	}
}

func has(keys []shardstate.KeyState, name string, pkix []byte) bool {
	for i := range keys {
		if keys[i].Name == name {
			return keys[i].SHA256 == sum(pkix)
		}
	}
	return false
}

// parseReport checks a report and reads it into r. Its error names the field.
func parseReport(m *nstancev1.ReportHealthRequest, r *shardstate.Report) error {
	*r = shardstate.Report{Healthy: m.GetHealthy(), Message: m.GetMessage(), Version: m.GetAgentVersion(),
		RuntimeHash: m.GetRuntimeHash(),
		IPv4:        m.GetIpv4(), IPv6: m.GetIpv6(), Hostname: m.GetHostname()}
	if err := cmp.Or(checkText("message", r.Message, maxText), checkText("agent_version", r.Version, 128),
		checkText("runtime_hash", r.RuntimeHash, 128),
		checkText("hostname", r.Hostname, 253), checkAddress("ipv4", r.IPv4),
		checkAddress("ipv6", r.IPv6)); err != nil {
		return err
	}
	if notice := m.GetTermination(); notice != nil {
		r.Notice = true
		var err error
		if r.NoticeDeadline, err = parseTime(notice.GetDeadline()); err != nil {
			return fmt.Errorf("termination.deadline: %w", err)
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
	if metrics := m.GetMetrics(); metrics != nil {
		r.Metrics = parseMetrics(metrics)
	}
	if m.GetUnchanged() {
		return nil
	}
	return parseStates(m, r)
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

// checkAddress lets an address that is not known be empty.
func checkAddress(field, value string) error {
	if value == "" {
		return nil
	}
	if _, err := netip.ParseAddr(value); err != nil {
		return fmt.Errorf("%s: is not an address", field)
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

// parseTime reads a time stamp; none is the zero time.
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
	out := shardstate.Metrics{CPU: share(m.GetCpu()), MemoryUsed: m.GetMemoryUsedBytes(),
		MemoryTotal: m.GetMemoryTotalBytes(),
		ReceiveRate: -1, TransmitRate: -1, ConntrackEntries: -1, ConntrackMax: -1}
	if m.NetworkReceiveRate != nil {
		out.ReceiveRate = rate(*m.NetworkReceiveRate)
	}
	if m.NetworkTransmitRate != nil {
		out.TransmitRate = rate(*m.NetworkTransmitRate)
	}
	if m.ConntrackEntries != nil {
		out.ConntrackEntries = int64(min(*m.ConntrackEntries, math.MaxInt64))
	}
	if m.ConntrackLimit != nil {
		out.ConntrackMax = int64(min(*m.ConntrackLimit, math.MaxInt64))
	}
	return out
}

func share(x float64) float32 {
	if !(x >= 0) { // NaN too
		return 0
	}
	return float32(min(x, 1))
}

func rate(x float64) float32 {
	if !(x >= 0) || math.IsInf(x, 0) {
		return -1
	}
	return float32(x)
}
