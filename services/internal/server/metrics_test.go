package server

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/journal/traces"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/metrics"
)

// TestMetricsOfAShard checks the metrics of a leader: those of its groups, CAs and bucket, and the reason for the
// change of leader.
func TestMetricsOfAShard(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	p := r.start(testKey)
	p.await("two VMs", func() bool { return r.running() == 2 })
	const shard = `cluster="test",shard="a"`
	group := func(name string) string {
		return name + `{cluster="test",group="g",shard="a",tenant="default"}`
	}
	// The VMs of this fake cloud have no agents, so none is healthy.
	for name, want := range map[string]string{
		group("nstance_group_desired"):                                            "2",
		group("nstance_group_actual"):                                             "2",
		group("nstance_group_healthy"):                                            "0",
		group("nstance_group_drifted"):                                            "0",
		group("nstance_group_preserved"):                                          "0",
		group("nstance_group_paused"):                                             "0",
		group("nstance_group_halted"):                                             "0",
		`nstance_leader_changes_total{cause="first",cluster="test",shard="a"}`:    "1",
		`nstance_leader_changes_total{cause="released",cluster="test",shard="a"}`: "0",
		`nstance_alert_active{cluster="test",kind="backoff",shard="a"}`:           "0",
		`nstance_heir{` + shard + `}`:                                             "0",
		`nstance_term_failures_total{` + shard + `}`:                              "0",
	} {
		p.await(name+" "+want, func() bool { return p.metric(name) == want })
	}
	for _, name := range []string{"cluster", "workload"} {
		text := p.metric(`nstance_ca_expiry_timestamp_seconds{ca="` + name + `",` + shard + `}`)
		if at := unixTime(t, text); !at.After(time.Now()) || time.Until(at) > 20*366*24*time.Hour {
			t.Errorf("the %s CA expires %s, at %v", name, text, at)
		}
	}
	at := unixTime(t, p.metric(`nstance_config_applied_timestamp_seconds{`+shard+`}`))
	if time.Since(at) > time.Minute {
		t.Errorf("the configuration was applied at %v", at)
	}
	if left := p.metric(`nstance_lease_remaining_seconds{` + shard + `}`); left == "" || left == "0" {
		t.Errorf("the lease ends in %q s", left)
	}
	for _, request := range []string{"get", "put", "list"} {
		count := p.metric(`nstance_storage_request_duration_seconds_count{cluster="test",request="` + request +
			`",shard="a"}`)
		if count == "" || count == "0" {
			t.Errorf("%q requests of kind %s were measured", count, request)
		}
	}
	if n := p.metric(`nstance_storage_requests_total{cluster="test",request="get",result="not_found",shard="a"}`); n ==
		"" {
		t.Error("the first read of the lock found nothing, and is not counted so")
	}
	_ = p.end()
	next := r.start(testKey)
	next.await("a leader after a clean stop", func() bool {
		return next.metric(`nstance_leader_changes_total{cause="released",cluster="test",shard="a"}`) == "1"
	})
}

// unixTime parses the value of a metric that contains a point in time.
func unixTime(t *testing.T, text string) time.Time {
	t.Helper()
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return time.UnixMilli(int64(seconds * 1000))
}

// TestLeaderChanges checks the metric that counts the reasons for a change of leader. A new leader derives the reason
// from the previous leader's lock.
func TestLeaderChanges(t *testing.T) {
	lock := func(change func(*record.Lock)) *record.Lock {
		l := &record.Lock{LeaderID: "other", Incarnation: "other", Term: 7}
		change(l)
		return l
	}
	for want, before := range map[metrics.LeaderChange]*record.Lock{
		metrics.LeaderFirst:    {},
		metrics.LeaderReleased: lock(func(l *record.Lock) { l.Released = true }),
		metrics.LeaderHeir:     lock(func(l *record.Lock) { l.Heir.Incarnation = "self" }),
		metrics.LeaderExpired:  lock(func(l *record.Lock) { l.Heir.Incarnation = "third" }),
	} {
		s := newServer(Config{})
		s.incarnation = "self"
		s.watchElection(lease.Status{Role: election.Standby, Holder: *before})
		heir := 0.0
		if want == metrics.LeaderHeir {
			heir = 1
		}
		if got := testutil.ToFloat64(s.metrics.Heir); got != heir {
			t.Errorf("%s: nstance_heir is %v before, want %v", want, got, heir)
		}
		own := record.Lock{LeaderID: "self", Incarnation: "self", Term: 8}
		for range 2 { // the status changes again while the server leads
			own.Revision++
			s.watchElection(lease.Status{Role: election.Leader, Term: 8, Holder: own})
		}
		for _, cause := range metrics.LeaderChanges() {
			count := 0.0
			if cause == want {
				count = 1
			}
			if got := testutil.ToFloat64(s.metrics.LeaderChanges.WithLabelValues(string(cause))); got != count {
				t.Errorf("%s: %s is counted %v times, want %v", want, cause, got, count)
			}
		}
	}
}

// TestReplacementsAreMeasured checks that the events of a replacement are logged, counted by cause, measured by stage,
// and traced.
func TestReplacementsAreMeasured(t *testing.T) {
	s := newServer(Config{})
	var logged strings.Builder
	s.log = slog.New(slog.NewTextHandler(&logged, nil))
	exported := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		exported <- string(body)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	var err error
	if s.traces, err = traces.Open(t.Context(), os.Getenv, "nstance-server", "test",
		slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	s.recordStored("test")([]record.Event{
		{Kind: record.EventInstanceLost, Instance: "old", At: at(0)},
		{Kind: record.EventInstanceCreating, Instance: "new", Replaces: "old", Cause: "gone", At: at(2)},
		{Kind: record.EventInstanceCreated, Instance: "new", At: at(1002)},
		{Kind: record.EventInstanceRegistered, Instance: "new", TookSeconds: 0.5, At: at(21_502)},
		{Kind: record.EventInstanceHealthy, Instance: "new", At: at(23_502)},
		{Kind: record.EventInstanceCreating, Instance: "first", At: at(0)},
		{Kind: record.EventInstanceHealthy, Instance: "first", At: at(0)},
		{Kind: record.EventInstanceMaintenance, Instance: "first", Cause: "maintenance", At: at(0)},
		{Kind: record.EventInstanceMaintenance, Instance: "first", Message: "withdrawn", At: at(0)},
	})
	if n := testutil.ToFloat64(s.metrics.Notices.WithLabelValues("maintenance")); n != 1 {
		t.Errorf("counted %v announcements of maintenance, want 1", n)
	}
	if n := testutil.ToFloat64(s.metrics.Replacements.WithLabelValues("gone")); n != 1 {
		t.Errorf("counted %v replacements of instances that are gone, want 1", n)
	}
	if !strings.Contains(logged.String(), "level=INFO msg=event kind=instance_creating at=2026-01-02T15:04:05.002Z "+
		"instance=new replaces=old cause=gone\n") {
		t.Errorf("logged:\n%s", logged.String())
	}
	s.traces.Close()
	if trace := <-exported; !strings.Contains(trace, "replacement") || !strings.Contains(trace, "old") {
		t.Errorf("the trace of the replacement is %q", trace)
	}
	families, err := s.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"decide": 0.002, "create": 1, "boot": 20, "register": 0.5, "healthy": 2}
	for _, family := range families {
		if family.GetName() != "nstance_replacement_duration_seconds" {
			continue
		}
		for _, metric := range family.GetMetric() {
			var stage string
			for _, label := range metric.GetLabel() {
				if label.GetName() == "stage" {
					stage = label.GetValue()
				}
			}
			sum := metric.GetHistogram().GetSampleSum()
			if n := metric.GetHistogram().GetSampleCount(); n != 1 || sum < want[stage]-1e-6 || sum > want[stage]+1e-6 {
				t.Errorf("stage %s: %d values, %v s, want 1, %v s", stage, n, sum, want[stage])
			}
			delete(want, stage)
		}
	}
	if len(want) > 0 {
		t.Errorf("not measured: %v", want)
	}
}
