package agent_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nstance-kit/nstance/services/internal/agent"
)

// checkMetrics checks the metrics of an agent that is connected and has sent one report.
func checkMetrics(t *testing.T, addr string) {
	t.Helper()
	answer, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", answer.Status, err)
	}
	problems, err := promlint.New(strings.NewReader(string(body))).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("the metrics are not in Prometheus' format: %v, %v\n%s", problems, err, body)
	}
	for _, line := range []string{`nstance_agent_build_info{version="process"} 1`, "nstance_agent_connected 1",
		"nstance_agent_healthy 1", "nstance_agent_reports_total 1", "nstance_agent_sessions_total 1"} {
		if !strings.Contains("\n"+string(body), "\n"+line+"\n") {
			t.Errorf("the metrics lack %q:\n%s", line, body)
		}
	}
	for name, want := range map[string]time.Duration{"nstance_agent_last_report_timestamp_seconds": time.Minute,
		"nstance_agent_certificate_expiry_timestamp_seconds": 366 * 24 * time.Hour} {
		_, rest, _ := strings.Cut("\n"+string(body), "\n"+name+" ")
		value, _, _ := strings.Cut(rest, "\n")
		seconds, err := strconv.ParseFloat(value, 64)
		if off := time.Until(time.Unix(int64(seconds), 0)).Abs(); err != nil || off > want {
			t.Errorf("%s is %q, %v from now, want at most %v", name, value, off, want)
		}
	}
	for _, m := range agent.Metrics() {
		if !strings.Contains(string(body), "# HELP "+m.Name+" "+m.Help+"\n") {
			t.Errorf("%s is missing, although its value is known", m.Name)
		}
	}
}
