package shards

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics measures the calls. All other metrics are computed from the state of the shards at each collection.
type metrics struct {
	calls *prometheus.HistogramVec
}

var (
	reachableDesc = prometheus.NewDesc("nstance_operator_shard_reachable",
		"1 if the shard's leader is reachable, else 0.",
		[]string{"shard"}, nil)
	instancesDesc = prometheus.NewDesc("nstance_operator_instances",
		"Instances of the group that are not deleted, as reported by the shard's leader.", []string{"shard", "group"},
		nil)
)

func newMetrics() *metrics {
	return &metrics{calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "nstance_operator_rpc_duration_seconds", Help: "Duration of calls to the leaders of shards.",
		Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
	}, []string{"shard", "method", "code"})}
}

func (m *metrics) observeCall(shard, method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(shard, method, code.String()).Observe(took.Seconds())
}

func (m *metrics) dropShard(shard string) {
	m.calls.DeletePartialMatch(prometheus.Labels{"shard": shard})
}

var _ prometheus.Collector = (*Set)(nil)

// Describe implements prometheus.Collector.
func (s *Set) Describe(out chan<- *prometheus.Desc) {
	out <- reachableDesc
	out <- instancesDesc
	s.metrics.calls.Describe(out)
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(out chan<- prometheus.Metric) {
	for _, one := range s.All() {
		id := one.ID()
		reachable := 0.0
		if one.State().Reachable {
			reachable = 1
		}
		out <- prometheus.MustNewConstMetric(reachableDesc, prometheus.GaugeValue, reachable, id)
		for group, n := range one.(*shard).counts() {
			out <- prometheus.MustNewConstMetric(instancesDesc, prometheus.GaugeValue, float64(n), id, group)
		}
	}
	s.metrics.calls.Collect(out)
}
