package agent

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// counts counts what an agent has done since its start.
type counts struct {
	sessions, reports atomic.Uint64
	lastReport        atomic.Int64 // Unix time in milliseconds; 0: none
}

// reported counts a report that was sent.
func (c *counts) reported(now time.Time) {
	c.reports.Add(1)
	c.lastReport.Store(now.UnixMilli())
}

// Metric describes a metric of the agent. A metric whose name ends in _total is a counter. All other metrics are
// gauges.
type Metric struct {
	Name, Help string
	Labels     []string
	// read returns the values of the metric's labels, and the metric's value. If the metric has no value yet, ok is
	// false.
	read func(c *Client) (labels []string, value float64, ok bool)
}

// Metrics lists the metrics of the agent. The agent implements them itself, because a metrics library would make its
// binary 0.8 MB larger.
func Metrics() []Metric {
	number := func(read func(c *Client) float64) func(*Client) ([]string, float64, bool) {
		return func(c *Client) ([]string, float64, bool) { return nil, read(c), true }
	}
	flag := func(read func(c *Client) bool) func(*Client) ([]string, float64, bool) {
		return number(func(c *Client) float64 {
			if read(c) {
				return 1
			}
			return 0
		})
	}
	return []Metric{
		{"nstance_agent_build_info", "1, with the version as label.", []string{"version"},
			func(c *Client) ([]string, float64, bool) { return []string{c.Version}, 1, true }},
		{"nstance_agent_certificate_expiry_timestamp_seconds", "Expiry of the agent's certificate.", nil,
			func(c *Client) ([]string, float64, bool) {
				cert := c.cert.Load()
				if cert == nil {
					return nil, 0, false
				}
				return nil, float64(cert.Leaf.NotAfter.Unix()), true
			}},
		{"nstance_agent_connected", "1 while the agent has a session that the leader accepted.", nil,
			flag((*Client).Connected)},
		{"nstance_agent_healthy", "1 while GET /healthz answers 200.", nil,
			flag(func(c *Client) bool { return c.Health() == nil })},
		{"nstance_agent_last_report_timestamp_seconds", "Time when the last report was sent.", nil,
			func(c *Client) ([]string, float64, bool) {
				at := c.counts.lastReport.Load()
				return nil, float64(at) / 1000, at != 0
			}},
		{"nstance_agent_reports_total", "Reports that were sent.", nil,
			number(func(c *Client) float64 { return float64(c.counts.reports.Load()) })},
		{"nstance_agent_sessions_total", "Sessions that a leader accepted.", nil,
			number(func(c *Client) float64 { return float64(c.counts.sessions.Load()) })},
	}
}

// serveMetrics answers GET /metrics in Prometheus' text format.
func (c *Client) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = io.WriteString(w, c.metricsText()) // the client is gone
}

// metricsText returns the metrics in Prometheus' text format.
func (c *Client) metricsText() string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var b strings.Builder
	for _, m := range Metrics() {
		values, value, ok := m.read(c)
		if !ok {
			continue
		}
		kind := "gauge"
		if strings.HasSuffix(m.Name, "_total") {
			kind = "counter"
		}
		var labels []string
		for i, name := range m.Labels {
			labels = append(labels, name+`="`+escape.Replace(values[i])+`"`)
		}
		text := ""
		if len(labels) > 0 {
			text = "{" + strings.Join(labels, ",") + "}"
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s%s %s\n", m.Name, m.Help, m.Name, kind, m.Name, text,
			strconv.FormatFloat(value, 'f', -1, 64))
	}
	return b.String()
}
