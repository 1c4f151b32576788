package drain

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// result is how a drain ended.
type result string

const (
	drained  result = "drained"
	deadline result = "deadline" // pods were left when the time was over
	noNode   result = "no_node"  // there was nothing to drain (any more)
	failed   result = "failed"   // Kubernetes could not be asked until the time was over
	dropped  result = "dropped"  // nobody waits for it any more; not counted
)

type instruments struct {
	active   prometheus.Gauge
	duration *prometheus.HistogramVec // result
}

// register makes the instruments, or finds those that an earlier manager of this process made.
func register(registry prometheus.Registerer) (*instruments, error) {
	i := &instruments{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "nstance_operator_drains_active",
			Help: "Drains of Nodes going on."}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "nstance_operator_drain_duration_seconds",
			Help:    "From a drain that is seen to be pending to its acknowledgement, by result.",
			Buckets: prometheus.ExponentialBuckets(0.1, 3, 10)}, []string{"result"}),
	}
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
