// Package metrics defines the names, help texts, and labels of the server's metrics in one place. Labels have few
// values: groups and kinds, never instances.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server holds a server's metrics.
type Server struct {
	registry *prometheus.Registry

	Leader          prometheus.Gauge
	Term            prometheus.Gauge
	Actions         *prometheus.CounterVec   // by kind
	CreateLatency   prometheus.Histogram     // from the start of the plan to the provider's create call
	PlanDuration    prometheus.Histogram     // of one group
	ProviderCalls   *prometheus.CounterVec   // by call and class
	ProviderLatency *prometheus.HistogramVec // by call
	Throttled       *prometheus.CounterVec   // by call
	Reports         prometheus.Counter
	Registrations   *prometheus.CounterVec // by result
	ConfigRefused   prometheus.Gauge
	Errors          *prometheus.CounterVec // by kind
}

// NewServer registers the server's metrics and those of the process and the Go runtime.
func NewServer(version string) *Server {
	registry := prometheus.NewRegistry()
	auto := promauto.With(registry)
	s := &Server{
		registry: registry,
		Leader: auto.NewGauge(prometheus.GaugeOpts{Name: "nstance_leader",
			Help: "1 while this server leads its shard."}),
		Term: auto.NewGauge(prometheus.GaugeOpts{Name: "nstance_term",
			Help: "Term of the shard's leader as last seen."}),
		Actions: auto.NewCounterVec(prometheus.CounterOpts{Name: "nstance_actions_total",
			Help: "Actions started, by kind."}, []string{"kind"}),
		CreateLatency: auto.NewHistogram(prometheus.HistogramOpts{Name: "nstance_create_latency_seconds",
			Help: "From a planned create to the provider's call.", Buckets: prometheus.ExponentialBuckets(0.0001, 3,
				12)}),
		PlanDuration: auto.NewHistogram(prometheus.HistogramOpts{Name: "nstance_plan_duration_seconds",
			Help: "Time to plan one group.", Buckets: prometheus.ExponentialBuckets(0.00001, 4, 9)}),
		ProviderCalls: auto.NewCounterVec(prometheus.CounterOpts{Name: "nstance_provider_calls_total",
			Help: "Calls to the provider, by call and error class (ok, capacity, throttled, ...)."},
			[]string{"call", "class"}),
		ProviderLatency: auto.NewHistogramVec(prometheus.HistogramOpts{Name: "nstance_provider_call_seconds",
			Help: "Duration of calls to the provider.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 10)},
			[]string{"call"}),
		Throttled: auto.NewCounterVec(prometheus.CounterOpts{Name: "nstance_provider_throttled_total",
			Help: "Attempts at calls of the provider's API that were turned away because of too many, by the API's " +
				"name of the call."}, []string{"call"}),
		Reports: auto.NewCounter(prometheus.CounterOpts{Name: "nstance_agent_reports_total",
			Help: "Health reports received."}),
		Registrations: auto.NewCounterVec(prometheus.CounterOpts{Name: "nstance_registrations_total",
			Help: "Registrations, by result code."},
			[]string{"result"}),
		ConfigRefused: auto.NewGauge(prometheus.GaugeOpts{Name: "nstance_config_refused",
			Help: "1 while the newest configuration in the bucket is refused and an older one is in force."}),
		Errors: auto.NewCounterVec(prometheus.CounterOpts{Name: "nstance_errors_total",
			Help: "Error events raised, by kind (throttling and back-off included)."},
			[]string{"kind"}),
	}
	auto.NewGauge(prometheus.GaugeOpts{Name: "nstance_build_info", Help: "1, with the version as label.",
		ConstLabels: prometheus.Labels{"version": version}}).Set(1)
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return s
}

// Handler serves the metrics in Prometheus' text format.
func (s *Server) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
}

// Watch adds a gauge. Every scrape calls read, which must be cheap and safe for concurrent use.
func (s *Server) Watch(name, help string, read func() float64) {
	s.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
}

// WatchRequests adds the counter of one kind of object storage requests: get, put, delete, or list. Every scrape calls
// read, which must be cheap and safe for concurrent use.
func (s *Server) WatchRequests(kind string, read func() uint64) {
	s.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "nstance_storage_requests_total",
		Help: "Requests to object storage, by kind.", ConstLabels: prometheus.Labels{"request": kind}}, func() float64 {
		return float64(read())
	}))
}

// ObserveProvider records one call to the provider.
func (s *Server) ObserveProvider(call, class string, took time.Duration) {
	s.ProviderCalls.WithLabelValues(call, class).Inc()
	s.ProviderLatency.WithLabelValues(call).Observe(took.Seconds())
}

// ObserveThrottling counts one throttled attempt at a call of the provider's API.
func (s *Server) ObserveThrottling(call string) { s.Throttled.WithLabelValues(call).Inc() }
