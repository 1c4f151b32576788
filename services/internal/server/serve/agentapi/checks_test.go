package agentapi_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// checked configures the group with the given runtime hash and two health checks: an HTTP request, and the given
// command. If there is no command, the group has no health checks.
func (l *testLeader) checked(hash string, command ...string) {
	interval, timeout, three, one := config.Duration(10*time.Second), config.Duration(5*time.Second), 3, 1
	check := config.HealthCheck{Interval: &interval, Timeout: &timeout, FailureThreshold: &three,
		SuccessThreshold: &one, StartPeriod: config.Duration(time.Minute)}
	l.group.RuntimeHash, l.group.HealthChecks = hash, map[string]config.HealthCheck{}
	if len(command) > 0 {
		db, web := check, check
		db.Exec, web.HTTP = command, &config.HealthRequest{Port: 8080, Path: "/healthz", Status: 204}
		l.group.HealthChecks = map[string]config.HealthCheck{"web": web, "db": db}
	}
	l.Configure(l.group)
}

// checkStream opens a stream of files. It tells the server which version of the health checks the agent already has.
func (c *client) checkStream(version string) filesStream {
	c.t.Helper()
	stream, err := c.ReceiveFiles(c.t.Context(), &nstancev1.ReceiveFilesRequest{InstanceId: c.id.String(),
		WithHealthChecks: true, HealthChecksVersion: version})
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// receiveChecks returns the next message of a stream, which must hold health checks.
func receiveChecks(t *testing.T, stream filesStream) *nstancev1.HealthChecks {
	t.Helper()
	message, err := stream.Recv()
	if err != nil || message.GetHealthChecks() == nil {
		t.Fatalf("no health checks: %v, %v", message, err)
	}
	return message.GetHealthChecks()
}

// TestHealthChecksAreSent checks that an agent receives its health checks at the start of its stream, unless it has
// their current version. When they change, it receives them again. An agent that does not ask for health checks
// receives none.
func TestHealthChecksAreSent(t *testing.T) {
	w := newTestLeader(t)
	w.checked("v1", "pg_isready", "-q")
	c := w.agent(t)
	stream := c.checkStream("")
	want := &nstancev1.HealthChecks{Version: "v1", Checks: []*nstancev1.HealthCheck{
		{Name: "db", Probe: &nstancev1.HealthCheck_Exec{Exec: &nstancev1.ExecProbe{
			Command: []string{"pg_isready", "-q"}}}},
		{Name: "web", Probe: &nstancev1.HealthCheck_Http{Http: &nstancev1.HttpProbe{Port: 8080, Path: "/healthz",
			Status: 204}}},
	}}
	for _, check := range want.GetChecks() {
		check.Interval, check.Timeout = durationpb.New(10*time.Second), durationpb.New(5*time.Second)
		check.StartPeriod, check.FailureThreshold, check.SuccessThreshold = durationpb.New(time.Minute), 3, 1
	}
	if diff := cmp.Diff(want, receiveChecks(t, stream), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	w.checked("v2", "true")
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	if got := receiveChecks(t, stream); got.GetVersion() != "v2" ||
		got.GetChecks()[0].GetExec().GetCommand()[0] != "true" {
		t.Errorf("%v", got)
	}
	if b := receive(t, stream); b.commit == nil {
		t.Error("no files follow the changed checks")
	}

	has := c.again().checkStream("v2")
	w.checked("v3")
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	if got := receiveChecks(t, has); got.GetVersion() != "" || len(got.GetChecks()) != 0 {
		t.Errorf("an agent that has checks gets %v when the group has none", got)
	}

	old := w.agent(t)
	w.checked("v4", "true")
	files := old.files()
	if err := old.push(); err != nil {
		t.Fatal(err)
	}
	if b := receive(t, files); b.commit == nil { // fails at a message that is no file
		t.Error("no batch")
	}
}

// TestReportedHealthChecks checks how reports of health checks change the health of an instance.
func TestReportedHealthChecks(t *testing.T) {
	w := newTestLeader(t)
	w.checked("v1", "true")
	c := w.agent(t)
	r := c.reports()
	report := func(version, status string, reason string) {
		t.Helper()
		r.send(func(m *nstancev1.ReportHealthRequest) {
			states := []*nstancev1.HealthCheckState{{Name: "web", Reason: reason,
				Status: nstancev1.HealthCheckState_Status(nstancev1.HealthCheckState_Status_value["STATUS_"+status])}}
			if version == "" {
				states = nil
			}
			m.HealthChecks = &nstancev1.HealthCheckReport{Version: version, States: states}
		})
	}
	want := func(what string, healthy bool, failed string) {
		t.Helper()
		view, _ := w.State.Instance(c.id)
		if view.Plan.Healthy != healthy || view.Plan.FailedCheck != failed {
			t.Errorf("%s: healthy %v, failed check %q", what, view.Plan.Healthy, view.Plan.FailedCheck)
		}
	}
	report("", "", "")
	want("without the checks", false, "")
	report("v1", "STARTING", "")
	want("starting", false, "")
	report("v1", "PASSING", "")
	want("passing", true, "")
	report("v1", "FAILING", "refused")
	want("failing", false, "web: refused")
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Unchanged = true })
	want("an unchanged report", false, "web: refused")
	if view, _ := w.State.Instance(c.id); view.UnhealthyReason() != "health check web: refused" {
		t.Errorf("the reason is %q", view.UnhealthyReason())
	}
	report("v1", "PASSING", "")
	w.checked("v2", "false")
	report("v1", "PASSING", "")
	want("the checks changed, and the agent has not got them yet", true, "")
	if n := w.Events(c.id, shardstate.EventUnhealthy); n != 2 { // at the start, and when the check failed
		t.Errorf("%d events about an unhealthy instance, want 2", n)
	}

	old := w.agent(t)
	old.reports().send(nil)
	if view, _ := w.State.Instance(old.id); !view.Plan.Healthy {
		t.Error("an agent that knows no health checks is not healthy")
	}
}

// TestHostileHealthChecks sends reports with health checks that no genuine agent would send. The server must refuse
// these reports with a clear error.
func TestHostileHealthChecks(t *testing.T) {
	w := newTestLeader(t)
	many := make([]*nstancev1.HealthCheckState, config.MaxHealthChecks+1)
	for i := range many {
		many[i] = &nstancev1.HealthCheckState{Name: "web", Status: nstancev1.HealthCheckState_STATUS_PASSING}
	}
	one := func(name, reason string, status nstancev1.HealthCheckState_Status) *nstancev1.HealthCheckReport {
		return &nstancev1.HealthCheckReport{States: []*nstancev1.HealthCheckState{{Name: name, Reason: reason,
			Status: status}}}
	}
	for want, report := range map[string]*nstancev1.HealthCheckReport{
		"health_checks.states: 33 of them, at most 32 are allowed":  {States: many},
		"health_checks.states[0].status: 0 is unknown":              one("web", "", 0),
		"health_checks.states[0].name: ":                            one("../web", "", 2),
		"health_checks.states[0].reason: has a control character":   one("web", "a\nb", 3),
		"health_checks.states[0].reason: 257 bytes, at most 256":    one("web", string(make([]byte, 257)), 3),
		"health_checks.version: 129 bytes, at most 128 are allowed": {Version: string(make([]byte, 129))},
	} {
		c := w.agent(t)
		r := c.reports()
		if err := r.Send(&nstancev1.ReportHealthRequest{InstanceId: c.id.String(), Sequence: 1, Healthy: true,
			HealthChecks: report}); err != nil {
			t.Fatal(err)
		}
		wants(t, want, r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.InvalidArgument, want)
	}
}
