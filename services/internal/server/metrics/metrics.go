// Package metrics defines the names, help texts, and labels of the server's metrics in one place. Labels have few
// values: groups and kinds, never instances. All metrics of a server have the labels cluster and shard.
package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// Stage is one step of a replacement.
type Stage string

// The stages of a replacement, in their order.
const (
	StageDecide   Stage = "decide"   // from the first sign of the loss to the create call
	StageCreate   Stage = "create"   // the create call, until its answer is recorded
	StageBoot     Stage = "boot"     // until the agent's registration arrives
	StageRegister Stage = "register" // the registration, until it is answered
	StageHealthy  Stage = "healthy"  // until the agent reports healthy
)

// Stages lists all stages in their order.
func Stages() []Stage {
	return []Stage{StageDecide, StageCreate, StageBoot, StageRegister, StageHealthy}
}

// LeaderChange says why a server became leader.
type LeaderChange string

// The causes of leader changes.
const (
	LeaderFirst    LeaderChange = "first"    // there was no lock
	LeaderReleased LeaderChange = "released" // the leader before stopped cleanly, or stepped down
	LeaderHeir     LeaderChange = "heir"     // the leader before was lost, and this server was its heir
	LeaderExpired  LeaderChange = "expired"  // the leader before was lost, and its lease ended
)

// LeaderChanges lists all causes.
func LeaderChanges() []LeaderChange {
	return []LeaderChange{LeaderFirst, LeaderReleased, LeaderHeir, LeaderExpired}
}

// Server holds a server's metrics.
type Server struct {
	registry *prometheus.Registry
	// constant are the labels cluster and shard, sorted by name.
	constant atomic.Pointer[[]*dto.LabelPair]

	Leader          prometheus.Gauge
	Heir            prometheus.Gauge
	Term            prometheus.Gauge
	LeaderChanges   *prometheus.CounterVec // by cause
	StandbysRefused prometheus.Counter
	NotHome         prometheus.Gauge
	TermFailures    prometheus.Counter       // terms that could not begin, or ended with an error
	Actions         *prometheus.CounterVec   // by kind
	CreateStart     prometheus.Histogram     // from the start of the plan to the provider's create call
	CreateFailures  *prometheus.CounterVec   // by class
	Replacements    *prometheus.CounterVec   // by cause
	ReplacementTime *prometheus.HistogramVec // by stage
	Notices         *prometheus.CounterVec   // by cause
	PlanDuration    prometheus.Histogram     // of one group
	ProviderCalls   *prometheus.CounterVec   // by call and class
	ProviderLatency *prometheus.HistogramVec // by call
	Throttled       *prometheus.CounterVec   // by call
	StorageTime     *prometheus.HistogramVec // by request
	StorageRequests *prometheus.CounterVec   // by request and result
	Reports         prometheus.Counter
	Registrations   *prometheus.CounterVec // by result
	ConfigRefused   prometheus.Gauge
	Alerts          *prometheus.CounterVec // by kind
}

// NewServer registers a server's metrics and those of the process and the Go runtime.
func NewServer(version, shard string) *Server {
	registry := prometheus.NewRegistry()
	auto := promauto.With(registry)
	gauge := func(name, help string) prometheus.Gauge {
		return auto.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return auto.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	s := &Server{
		registry: registry,
		Leader:   gauge("nstance_leader", "1 while this server leads its shard."),
		Heir:     gauge("nstance_heir", "1 while this server is the heir of its shard's leader."),
		Term:     gauge("nstance_term", "Term of the shard's leader as last seen."),
		LeaderChanges: counter("nstance_leader_changes_total", "Terms that this server began, by what ended the term "+
			"before: first (there was none), released (a clean stop), heir or expired (the leader was lost).", "cause"),
		StandbysRefused: auto.NewCounter(prometheus.CounterOpts{Name: "nstance_standbys_refused_total",
			Help: "Connections of standbys that this leader refused because they do not use its bucket."}),
		NotHome: gauge("nstance_not_home", "1 while this server does not stand for election, because its bucket is "+
			"not the home of its shard."),
		TermFailures: auto.NewCounter(prometheus.CounterOpts{Name: "nstance_term_failures_total",
			Help: "Terms of this server that could not begin, or ended with an error."}),
		Actions: counter("nstance_actions_total", "Actions of the plan that the leader started, by kind.", "kind"),
		CreateStart: histogram("nstance_create_start_duration_seconds", "Time from the plan of a create to the call "+
			"of the provider.",
			prometheus.ExponentialBuckets(0.0001, 3, 12)).WithLabelValues().(prometheus.Histogram),
		CreateFailures: counter("nstance_create_failures_total", "Failed creations of instances, by class: an error "+
			"class of the provider, or not permitted.", "class"),
		Replacements: counter("nstance_replacements_total", "Create calls for instances that replace another one, by "+
			"the cause for which it is replaced.", "cause"),
		ReplacementTime: histogram("nstance_replacement_duration_seconds", "Duration of each stage of replacements "+
			"that became healthy: decide, create, boot, register, healthy.",
			prometheus.ExponentialBuckets(0.0005, 3, 14), "stage"),
		Notices: counter("nstance_notices_total", "Notices of the cloud about VMs, by the cause for which an instance "+
			"may be replaced: notice (interruption), recommendation, maintenance.", "cause"),
		PlanDuration: histogram("nstance_plan_duration_seconds", "Time to plan one group.",
			prometheus.ExponentialBuckets(0.00001, 4, 9)).WithLabelValues().(prometheus.Histogram),
		ProviderCalls: counter("nstance_provider_calls_total",
			"Calls to the provider, by call and error class (ok, no capacity, throttled, ...).", "call", "class"),
		ProviderLatency: histogram("nstance_provider_call_duration_seconds", "Duration of calls to the provider.",
			prometheus.ExponentialBuckets(0.001, 3, 10), "call"),
		Throttled: counter("nstance_provider_throttled_total", "Attempts to call the provider's API that the "+
			"provider throttled, by the API's name of the call.", "call"),
		StorageTime: histogram("nstance_storage_request_duration_seconds",
			"Duration of requests to object storage, by request: get, put, delete, list.",
			prometheus.ExponentialBuckets(0.001, 3, 10), "request"),
		StorageRequests: counter("nstance_storage_requests_total", "Requests to object storage, by request and "+
			"result: ok, not_found, conflict, error.", "request", "result"),
		Reports: auto.NewCounter(prometheus.CounterOpts{Name: "nstance_agent_reports_total",
			Help: "Health reports received from agents."}),
		Registrations: counter("nstance_registrations_total", "Registrations of agents and operators, by result "+
			"code.", "result"),
		ConfigRefused: gauge("nstance_config_refused",
			"1 while the newest configuration in the bucket is refused and an older one is in force."),
		Alerts: counter("nstance_alerts_total", "Alerts raised, by kind. An alert whose text changes counts "+
			"again.", "kind"),
	}
	auto.NewGauge(prometheus.GaugeOpts{Name: "nstance_build_info", Help: "1, with the version as label.",
		ConstLabels: prometheus.Labels{"version": version}}).Set(1)
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.zero()
	s.setLabels(prometheus.Labels{"shard": shard})
	return s
}

// zero creates each series whose labels are known, with the value 0. Without that, Prometheus would not see the first
// increase of a series.
func (s *Server) zero() {
	for _, cause := range []plan.Cause{plan.CauseGone, plan.CausePowerOff, plan.CauseNotice,
		plan.CauseRecommendation, plan.CauseMaintenance, plan.CauseUnhealthy,
		plan.CauseHealthCheck, plan.CauseLoadBalancer, plan.CauseFlapping, plan.CauseExpired, plan.CauseDrift,
		plan.CauseReturnToSpot, plan.CauseNotWoken} {
		s.Replacements.WithLabelValues(string(cause))
	}
	for _, cause := range []plan.Cause{plan.CauseNotice, plan.CauseRecommendation, plan.CauseMaintenance} {
		s.Notices.WithLabelValues(string(cause))
	}
	for _, kind := range plan.AlertKinds() {
		s.Alerts.WithLabelValues(string(kind))
	}
	for _, stage := range Stages() {
		s.ReplacementTime.WithLabelValues(string(stage))
	}
	for _, cause := range LeaderChanges() {
		s.LeaderChanges.WithLabelValues(string(cause))
	}
}

// SetCluster sets the label cluster of all metrics. The server knows its cluster only after it has read the
// configuration.
func (s *Server) SetCluster(cluster, shard string) {
	s.setLabels(prometheus.Labels{"cluster": cluster, "shard": shard})
}

func (s *Server) setLabels(labels prometheus.Labels) {
	pairs := prometheus.MakeLabelPairs(prometheus.NewDesc("nstance", "", nil, labels), nil)
	s.constant.Store(&pairs)
}

// Gather implements prometheus.Gatherer. It adds the constant labels.
func (s *Server) Gather() ([]*dto.MetricFamily, error) {
	families, err := s.registry.Gather()
	constant := *s.constant.Load()
	for _, family := range families {
		for _, metric := range family.Metric {
			// The label slice of a metric belongs to the registry, so append to a copy.
			metric.Label = slices.Concat(metric.Label, constant)
			slices.SortFunc(metric.Label, func(a, b *dto.LabelPair) int {
				return cmp.Compare(a.GetName(), b.GetName())
			})
		}
	}
	return families, err
}

// Describe sends the descriptions of all metrics, without the constant labels.
func (s *Server) Describe(out chan<- *prometheus.Desc) { s.registry.Describe(out) }

// Handler serves the metrics in Prometheus' text format.
func (s *Server) Handler() http.Handler {
	return promhttp.HandlerFor(s, promhttp.HandlerOpts{})
}

// ObserveProvider records one call to the provider.
func (s *Server) ObserveProvider(call, class string, took time.Duration) {
	s.ProviderCalls.WithLabelValues(call, class).Inc()
	s.ProviderLatency.WithLabelValues(call).Observe(took.Seconds())
}

// ObserveThrottling counts one throttled attempt at a call of the provider's API.
func (s *Server) ObserveThrottling(call string) { s.Throttled.WithLabelValues(call).Inc() }

// ObserveStorage records one request to object storage.
func (s *Server) ObserveStorage(request, result string, took time.Duration) {
	s.StorageRequests.WithLabelValues(request, result).Inc()
	s.StorageTime.WithLabelValues(request).Observe(took.Seconds())
}

// Shard is what a server knows of its shard at the time of a scrape.
type Shard struct {
	// Leads is true while this server serves as leader. On a standby, only the field CAs is set.
	Leads                                bool
	Groups                               []shardstate.GroupView
	Instances, AgentsConnected, Reserved int
	Alerts                               map[plan.AlertKind]int
	LeaseRemaining                       *time.Duration // nil without an election
	JournalLag                           time.Duration
	ConfigApplied                        time.Time
	CAs                                  []CA
}

// CA is a CA that issues certificates.
type CA struct {
	Name    string // cluster or workload
	Expires time.Time
}

// shardCollector reads the shard at every scrape, so that no event has to update a metric.
type shardCollector struct{ read func() Shard }

// shardDescs has the descriptions of all metrics of the shard.
var shardDescs []*prometheus.Desc

func shardDesc(name, help string, labels ...string) *prometheus.Desc {
	desc := prometheus.NewDesc(name, help, labels, nil)
	shardDescs = append(shardDescs, desc)
	return desc
}

var (
	groupDesired = shardDesc("nstance_group_desired", "Instances that the group should have, while leading.",
		"tenant", "group")
	groupActual = shardDesc("nstance_group_actual",
		"Instances of the group that are not being deleted, without on-demand ones, while leading.", "tenant", "group")
	groupHealthy = shardDesc("nstance_group_healthy",
		"Instances of nstance_group_actual that report healthy, while leading.", "tenant", "group")
	groupPreserved = shardDesc("nstance_group_preserved",
		"Failed instances that the group preserves, while leading. They are not in nstance_group_actual.", "tenant",
		"group")
	groupSpares = shardDesc("nstance_group_spares", "Warm spares of the group, while leading: desired, actual (that "+
		"exist), and ready (that can become members now). They are not in nstance_group_actual.", "tenant", "group",
		"state")
	groupDrifted = shardDesc("nstance_group_drifted", "Instances of nstance_group_actual that differ from the group's "+
		"infrastructure configuration, while leading.", "tenant", "group")
	groupPaused = shardDesc("nstance_group_paused", "1 if the rollouts of the group are paused, while leading.",
		"tenant", "group")
	groupHalted = shardDesc("nstance_group_halted", "1 if the rollout of the group is halted, or the group runs its "+
		"last good configuration because it was, while leading.", "tenant", "group")
	scalingWanted = shardDesc("nstance_group_scaling_wanted",
		"Instances that the metrics of the group ask for, before windows and steps, while leading.", "tenant", "group")
	scalingLimited = shardDesc("nstance_group_scaling_limited", "1 for the field of scaling that keeps the group from "+
		"nstance_group_scaling_wanted, while leading.", "tenant", "group", "field")
	scalingValue = shardDesc("nstance_group_scaling_value", "Average of the metric over the group's instances, or the "+
		"total for query and url, in the unit of nstance_group_scaling_target, while leading.", "tenant", "group",
		"metric")
	scalingTarget = shardDesc("nstance_group_scaling_target",
		"Target of the metric for each instance; percent for cpu and memory, while leading.", "tenant", "group",
		"metric")
	instances  = shardDesc("nstance_instances", "Live instances of the shard; 0 on a standby.")
	groupCount = shardDesc("nstance_groups", "Groups of the shard; 0 on a standby.")
	connected  = shardDesc("nstance_agents_connected", "Agents with an open health stream; 0 on a standby.")
	reserved   = shardDesc("nstance_reservations", "Instance IDs reserved ahead of need; 0 on a standby.")
	alerts     = shardDesc("nstance_alert_active", "Active alerts, by kind, while leading.", "kind")
	leaseLeft  = shardDesc("nstance_lease_remaining_seconds",
		"Time for which this leader may act without another renewal, while leading.")
	journalLag = shardDesc("nstance_journal_lag_seconds", "Age of the oldest event of the journal that is not in the "+
		"bucket yet, while leading; 0 if all are.")
	configApplied = shardDesc("nstance_config_applied_timestamp_seconds",
		"Time when this leader put the present configuration in force, while leading.")
	caExpiry = shardDesc("nstance_ca_expiry_timestamp_seconds", "Expiry of the CA that issues certificates: cluster "+
		"(servers, agents, operators) or, while leading, workload (files).", "ca")
)

// WatchShard adds the metrics of the shard. Every scrape calls read, which must be safe for concurrent use.
func (s *Server) WatchShard(read func() Shard) { s.registry.MustRegister(shardCollector{read}) }

// Describe implements prometheus.Collector.
func (shardCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range shardDescs {
		out <- desc
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Collect implements prometheus.Collector.
func (c shardCollector) Collect(out chan<- prometheus.Metric) {
	shard := c.read()
	set := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	set(instances, float64(shard.Instances))
	set(groupCount, float64(len(shard.Groups)))
	set(connected, float64(shard.AgentsConnected))
	set(reserved, float64(shard.Reserved))
	for _, ca := range shard.CAs {
		set(caExpiry, float64(ca.Expires.Unix()), ca.Name)
	}
	if !shard.Leads {
		return
	}
	for _, g := range shard.Groups {
		set(groupDesired, float64(g.Size), g.GroupKey.Tenant, g.GroupKey.Group)
		set(groupActual, float64(g.Actual), g.GroupKey.Tenant, g.GroupKey.Group)
		set(groupHealthy, float64(g.Healthy), g.GroupKey.Tenant, g.GroupKey.Group)
		set(groupPreserved, float64(g.Preserved), g.GroupKey.Tenant, g.GroupKey.Group)
		if g.Spares.Count+g.SparesThere > 0 {
			set(groupSpares, float64(g.Spares.Count), g.GroupKey.Tenant, g.GroupKey.Group, "desired")
			set(groupSpares, float64(g.SparesThere), g.GroupKey.Tenant, g.GroupKey.Group, "actual")
			set(groupSpares, float64(g.SparesReady), g.GroupKey.Tenant, g.GroupKey.Group, "ready")
		}
		set(groupDrifted, float64(g.Outdated), g.GroupKey.Tenant, g.GroupKey.Group)
		set(groupPaused, oneIf(g.Rollout.Paused), g.GroupKey.Tenant, g.GroupKey.Group)
		set(groupHalted, oneIf(g.Halted), g.GroupKey.Tenant, g.GroupKey.Group)
		if d := g.Scaled; d != nil {
			set(scalingWanted, float64(d.Wanted), g.GroupKey.Tenant, g.GroupKey.Group)
			if d.LimitedBy != "" {
				set(scalingLimited, 1, g.GroupKey.Tenant, g.GroupKey.Group, d.LimitedBy)
			}
			for _, m := range d.Metrics {
				set(scalingTarget, float64(m.Target)/1000, g.GroupKey.Tenant, g.GroupKey.Group, m.Name)
				if m.Known {
					set(scalingValue, float64(m.Value)/1000, g.GroupKey.Tenant, g.GroupKey.Group, m.Name)
				}
			}
		}
	}
	for _, kind := range plan.AlertKinds() {
		set(alerts, float64(shard.Alerts[kind]), string(kind))
	}
	if shard.LeaseRemaining != nil {
		set(leaseLeft, shard.LeaseRemaining.Seconds())
	}
	set(journalLag, shard.JournalLag.Seconds())
	if !shard.ConfigApplied.IsZero() {
		set(configApplied, float64(shard.ConfigApplied.UnixMilli())/1000)
	}
}
