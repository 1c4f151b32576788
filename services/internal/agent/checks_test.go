package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// healthChecks returns an event that replaces the agent's checks. The server sends such events on the stream of files.
// The new list has one check, or no check if name is "".
func healthChecks(version, name string) *nstancev1.ReceiveFilesResponse {
	checks := &nstancev1.HealthChecks{Version: version}
	if name != "" {
		checks.Checks = []*nstancev1.HealthCheck{{Name: name, Interval: durationpb.New(10 * time.Second),
			Timeout: durationpb.New(time.Second), FailureThreshold: 2, SuccessThreshold: 1,
			Probe: &nstancev1.HealthCheck_Http{Http: &nstancev1.HttpProbe{Port: 80, Path: "/", Status: 200}}}}
	}
	return &nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_HealthChecks{HealthChecks: checks}}
}

// TestHealthChecks checks that an agent runs the checks that it receives, reports a changed status immediately, and
// keeps the checks when it connects again.
func TestHealthChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		s.interval = "1m"
		stopServer := s.start(t, n.listen(address))
		defer func() { stopServer() }()
		failure := make(chan string, 1)
		failure <- ""
		o := newMemories(t, s).options(s, n)
		o.Probe = func(context.Context, *nstancev1.HealthCheck) string {
			reason := <-failure
			failure <- reason
			return reason
		}
		_, stop := run(t, o)
		defer stop()
		type request = nstancev1.ReportHealthRequest
		has := func(version string, status nstancev1.HealthCheckState_Status) func(*request) bool {
			return func(r *request) bool {
				c := r.GetHealthChecks()
				return c != nil && c.GetVersion() == version && len(c.GetStates()) == 1 &&
					c.GetStates()[0].GetStatus() == status
			}
		}
		s.next(t, "support of health checks", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetHealthChecks() != nil && r.GetHealthChecks().GetVersion() == ""
		})
		s.fileSends <- healthChecks("v1", "web")
		before := time.Now()
		s.next(t, "a passing check", has("v1", nstancev1.HealthCheckState_STATUS_PASSING))
		if took := time.Since(before); took > time.Second {
			t.Errorf("the first result is reported after %v", took)
		}
		<-failure
		failure <- "refused"
		before = time.Now()
		report := s.next(t, "a failing check", has("v1", nstancev1.HealthCheckState_STATUS_FAILING))
		if took := time.Since(before); took > 20*time.Second {
			t.Errorf("two failed runs are reported after %v", took)
		}
		if !report.GetHealthy() || report.GetHealthChecks().GetStates()[0].GetReason() != "refused" {
			t.Errorf("%v", report)
		}
		unchanged := s.next(t, "no change", func(r *nstancev1.ReportHealthRequest) bool { return r.GetUnchanged() })
		if unchanged.GetHealthChecks() != nil {
			t.Errorf("an unchanged report repeats the checks: %v", unchanged)
		}

		stopServer()
		s.set(func() { s.asked = nil })
		stopServer = s.start(t, n.listen(address))
		s.next(t, "the same state on a new stream", has("v1", nstancev1.HealthCheckState_STATUS_FAILING))
		synctest.Wait()
		asked := get(s, func() *nstancev1.ReceiveFilesRequest { return s.asked })
		if !asked.GetWithHealthChecks() || asked.GetHealthChecksVersion() != "v1" {
			t.Errorf("the agent asks for its files with %v", asked)
		}
		s.fileSends <- healthChecks("", "")
		s.next(t, "no checks", func(r *nstancev1.ReportHealthRequest) bool {
			return r.GetHealthChecks() != nil && len(r.GetHealthChecks().GetStates()) == 0
		})
	})
}

// TestWithoutProbe checks that an agent without a probe neither asks for health checks nor reports any.
func TestWithoutProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		stopServer := s.start(t, n.listen(address))
		defer stopServer()
		s.set(func() { s.firstFiles = []*nstancev1.ReceiveFilesResponse{healthChecks("v1", "web")} })
		_, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		report := s.next(t, "sequence 2", func(r *nstancev1.ReportHealthRequest) bool { return r.GetSequence() == 2 })
		if report.GetHealthChecks() != nil || get(s, func() *nstancev1.ReceiveFilesRequest { return s.asked }).
			GetWithHealthChecks() {
			t.Errorf("%v", report)
		}
	})
}
