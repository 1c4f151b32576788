package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Shard is what a server knows of its shard at the time of a scrape.
type Shard struct {
	// Leads is true while this server serves as leader. On a standby, only the field CAs is set.
	Leads                                bool
	Groups                               []Group
	Instances, AgentsConnected, Reserved int
	Alerts                               map[plan.AlertKind]int
	LeaseRemaining                       *time.Duration // nil without an election
	JournalLag                           time.Duration
	ConfigApplied                        time.Time
	CAs                                  []CA
}

// Group is what a leader knows of a group.
type Group struct {
	Tenant, Name                      string
	Desired, Actual, Healthy, Drifted int
	Paused                            bool
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
	groupDrifted = shardDesc("nstance_group_drifted", "Instances of nstance_group_actual that differ from the group's "+
		"infrastructure configuration, while leading.", "tenant", "group")
	groupPaused = shardDesc("nstance_group_paused", "1 if the rollouts of the group are paused, while leading.",
		"tenant", "group")
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
		set(groupDesired, float64(g.Desired), g.Tenant, g.Name)
		set(groupActual, float64(g.Actual), g.Tenant, g.Name)
		set(groupHealthy, float64(g.Healthy), g.Tenant, g.Name)
		set(groupDrifted, float64(g.Drifted), g.Tenant, g.Name)
		paused := 0.0
		if g.Paused {
			paused = 1
		}
		set(groupPaused, paused, g.Tenant, g.Name)
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
