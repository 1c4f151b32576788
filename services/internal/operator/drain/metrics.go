package drain

import (
	"errors"
	"fmt"

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

type drainMetrics struct {
	active   prometheus.Gauge
	duration *prometheus.HistogramVec // result
}

func newMetrics() *drainMetrics {
	return &drainMetrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "nstance_operator_drains_active",
			Help: "Node drains in progress."}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "nstance_operator_drain_duration_seconds",
			Help: "Time from the start of a drain to its acknowledgement, by result: drained, deadline, no_node, " +
				"failed.",
			Buckets: prometheus.ExponentialBuckets(0.1, 3, 10)}, []string{"result"}),
	}
}

// DescribeMetrics sends the descriptions of this package's metrics, for docs/reference/metrics.md.
func DescribeMetrics(out chan<- *prometheus.Desc) {
	m := newMetrics()
	m.active.Describe(out)
	m.duration.Describe(out)
}

// registerMetrics registers the metrics and returns them. If an earlier manager in this process has registered them,
// registerMetrics returns the registered metrics.
func registerMetrics(registry prometheus.Registerer) (*drainMetrics, error) {
	i := newMetrics()
	var there prometheus.AlreadyRegisteredError
	if err := registry.Register(i.active); errors.As(err, &there) {
		i.active = there.ExistingCollector.(prometheus.Gauge)
	} else if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if err := registry.Register(i.duration); errors.As(err, &there) {
		i.duration = there.ExistingCollector.(*prometheus.HistogramVec)
	} else if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return i, nil
}
