package drain

import (
	"github.com/prometheus/client_golang/prometheus"
)

// result is the outcome of a drain.
type result string

const (
	drained  result = "drained"
	deadline result = "deadline" // pods were left at the deadline
	noNode   result = "no_node"  // the instance has no Node
	failed   result = "failed"   // the Kubernetes API failed until the deadline
	dropped  result = "dropped"  // the drain is no longer pending; not counted
)

// Metrics are the metrics of drains.
type Metrics struct {
	active   prometheus.Gauge
	duration *prometheus.HistogramVec // result
}

// NewMetrics returns metrics without values.
func NewMetrics() *Metrics {
	return &Metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "nstance_operator_drains_active",
			Help: "Node drains in progress."}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "nstance_operator_drain_duration_seconds",
			Help: "Time from the start of a drain to its acknowledgement, by result: drained, deadline, no_node, " +
				"failed.",
			Buckets: prometheus.ExponentialBuckets(0.1, 3, 10)}, []string{"result"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.active.Describe(out)
	m.duration.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.active.Collect(out)
	m.duration.Collect(out)
}
