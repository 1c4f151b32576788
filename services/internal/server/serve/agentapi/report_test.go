package agentapi

import (
	"math"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

func FuzzParseReport(f *testing.F) {
	nan := math.NaN()
	for _, m := range []*nstancev1.ReportHealthRequest{
		{},
		{Sequence: 1, Healthy: true, Metrics: &nstancev1.Metrics{Cpu: nan, NetworkReceiveRate: &nan}},
		{Files: []*nstancev1.FileState{{Name: "a", Sha256: strings.Repeat("0", 64),
			NotAfter: &timestamppb.Timestamp{Seconds: 1}}}},
		{Keys: []*nstancev1.KeyState{{Name: "a", Error: "x"}}, Ipv4: "10.0.0.1", Hostname: "a"},
		{Unchanged: true, Stopping: nstancev1.StoppingReason_STOPPING_REASON_REBOOT,
			Termination: &nstancev1.TerminationNotice{Deadline: &timestamppb.Timestamp{Seconds: math.MaxInt64}}},
		{Unchanged: true, Drain: &nstancev1.DrainReport{Error: "exit status 1: no\x1b"}},
		{Drain: &nstancev1.DrainReport{}},
	} {
		bytes, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		var m nstancev1.ReportHealthRequest
		if proto.Unmarshal(bytes, &m) != nil {
			return
		}
		var r shardstate.Report
		if err := parseReport(&m, &r); err != nil {
			if field, _, ok := strings.Cut(err.Error(), ":"); !ok || strings.ContainsAny(field, "\n\x00") {
				t.Errorf("the error names no field: %q", err)
			}
			return
		}
		if (r.Files == nil) != m.GetUnchanged() || (r.Keys == nil) != m.GetUnchanged() {
			t.Errorf("unchanged %v, files %v, keys %v", m.GetUnchanged(), r.Files, r.Keys)
		}
		if r.Metrics.CPU < 0 || r.Metrics.CPU > 1 || r.Metrics.CPU != r.Metrics.CPU ||
			r.Metrics.ReceiveRate != r.Metrics.ReceiveRate {
			t.Errorf("metrics %+v", r.Metrics)
		}
		if r.HookEnded != (m.GetDrain() != nil) || len(r.HookError) > maxHookError ||
			strings.ContainsFunc(r.HookError, unicode.IsControl) || !utf8.ValidString(r.HookError) {
			t.Errorf("drain hook: %v, %q", r.HookEnded, r.HookError)
		}
		if len(r.Message) > maxText || !utf8.ValidString(r.Message) || len(r.Files) > maxFiles ||
			len(r.Keys) > maxKeys {
			t.Errorf("out of bounds: %+v", r)
		}
	})
}

// TestMetricsThatAreNoNumbers checks that such metrics count as unknown, and not as those of an idle VM.
func TestMetricsThatAreNoNumbers(t *testing.T) {
	for cpu, known := range map[float64]bool{math.NaN(): false, -1: false, math.Inf(-1): false, 0: true, 2: true} {
		var r shardstate.Report
		err := parseReport(&nstancev1.ReportHealthRequest{Metrics: &nstancev1.Metrics{Cpu: cpu, MemoryTotalBytes: 1},
			Unchanged: true}, &r)
		if err != nil || (r.Metrics.MemoryTotal > 0) != known || r.Metrics.CPU < 0 || r.Metrics.CPU > 1 {
			t.Errorf("cpu %v: %+v, %v", cpu, r.Metrics, err)
		}
	}
}
