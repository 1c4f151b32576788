package config

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// GroupSpec is a group as written in the shard config (static), or in `groups/{shard}.jsonc` (dynamic, or an override).
type GroupSpec struct {
	// Name of the template that the group's instances are made from. Required, except in overrides of static groups.
	Template string `json:"template,omitempty" support:"plain"`
	// Number of instances. Default: that of the template.
	Size *int `json:"size,omitempty" rule:"nonnegative"`
	// Type of the VMs. Default: that of the template.
	InstanceType string `json:"instance_type,omitempty" support:"plain"`
	// Types to try, in order, when the provider has no capacity for instance_type. Default: those of the template.
	InstanceTypes []string `json:"instance_types,omitempty" support:"plain"`
	// Pool that the VMs' subnets are taken from. Default: that of the template.
	SubnetPool string `json:"subnet_pool,omitempty" support:"plain"`
	// Values for templates: `{{ .Vars.name }}`. They override those of the template.
	Vars map[string]string `json:"vars,omitempty" support:"present"`
	// Arguments of the provider's create call. They override those of the template. Strings inside are Go templates.
	Args map[string]any `json:"args,omitempty" support:"present"`
	// Names of the load balancers that healthy instances are registered with. A drain waits for their deregistration
	// delay.
	LoadBalancers []string `json:"load_balancers,omitempty" support:"plain"`
	// How long an instance may be drained before it is terminated. 0: no drain. Default: server.default_drain_timeout.
	DrainTimeout *Duration `json:"drain_timeout,omitempty"`
	// How many instances above its size the group may have while some are replaced.
	MaxSurge *int `json:"max_surge,omitempty" default:"1" rule:"positive"`
	// How many running instances may be silent or unhealthy at the same time before the leader stops replacing them: a
	// count ("3"), or a percentage ("40%"). A percentage allows at least 2.
	MaxUnhealthy string `json:"max_unhealthy,omitempty" default:"40%" support:"plain"`
	// How instances with an outdated configuration are replaced.
	Rollout *Rollout `json:"rollout,omitempty"`
	// When, and how often, the leader may replace healthy instances that are outdated or old. Lost and unhealthy
	// instances are always replaced.
	Disruption *Disruption `json:"disruption,omitempty"`
	// How many failed instances are kept, with their VMs, so that a person can find out why they failed. Default: that
	// of the template.
	Preserve *Preserve `json:"preserve,omitempty"`
	// How the group's VMs are bought: as spot instances or on demand. Only for providers with a spot market. Default:
	// on demand. Instances that an operator creates on demand are not affected.
	Purchase *Purchase `json:"purchase,omitempty"`
	// Instances that are kept ready, and take the place of lost, unhealthy or lacking ones without a boot. They do not
	// count towards the size, but cost as much as others.
	Spares *Spares `json:"spares,omitempty"`
	// Lets the leader choose the size by numbers of the group's VMs. The field size is then the first size. Not for
	// groups whose size Kubernetes chooses.
	Scaling *Scaling `json:"scaling,omitempty"`
	// Sizes that apply from certain times on. The entry whose time came most recently sets the group's size. Before the
	// first such time, the field size applies. An operator cannot change the size of a group with schedules. With
	// scaling, schedules set scaling.min instead.
	Schedules []Schedule `json:"schedules,omitempty"`
	// Marks a dynamic group that is being deleted. The group stays in groups/{shard}.jsonc until its last instance is
	// gone. Only the server sets this, in that file.
	Deleted bool `json:"deleted,omitempty"`
	// IDs of instances that an operator chose for deletion when it lowered the size. Only the server sets this, in
	// groups/{shard}.jsonc.
	Removed []string `json:"removed,omitempty" support:"plain"`
	// IDs of instances that a person protects from rollouts, eligible_age and a smaller size. Only the server sets
	// this, in groups/{shard}.jsonc.
	Protected []string `json:"protected,omitempty" support:"plain"`
	// Records of the fields of a static group that operators have set, by path. Only the server sets this, in
	// groups/{shard}.jsonc.
	Overrides map[string]Override `json:"overrides,omitempty" support:"present"`
}

// Rollout says how the instances of a group are replaced after a change of their configuration: in waves of up to
// max_surge instances. A wave begins when the group is at its size and all instances of the former wave are healthy.
type Rollout struct {
	// Stops the rollout. Lost and unhealthy instances are still replaced, with the new configuration.
	Paused bool `json:"paused,omitempty"`
	// Number of canaries, the instances that get a new configuration first. The others are replaced when all canaries
	// are healthy and have been registered for bake_time. 0: no canaries.
	Canary int `json:"canary,omitempty" rule:"nonnegative"`
	// How long the canaries must have been registered before other instances are replaced.
	BakeTime Duration `json:"bake_time,omitempty"`
	// Stops the rollout when this many instances with the new configuration failed to register or became unhealthy; 0:
	// never. A new configuration, or `nstance-admin group resume`, restarts the rollout.
	HaltOnFailures int `json:"halt_on_failures,omitempty" rule:"nonnegative"`
	// What a halt does. stop: the other instances keep the former configuration. rollback: the group returns to the
	// last configuration with which a whole rollout finished, and keeps it until its configuration changes again.
	// Needs halt_on_failures. Default: stop.
	OnHalt string `json:"on_halt,omitempty" rule:"enum=stop|rollback"`
	// How many instances a wave deletes before their replacements are healthy. 0: a wave replaces max_surge instances,
	// and deletes an instance only when the replacement is healthy.
	MaxUnavailable int `json:"max_unavailable,omitempty" rule:"nonnegative"`
	// Any text. A change of it replaces all instances. `nstance-admin group roll` sets it.
	Revision string `json:"revision,omitempty" support:"present"`
	// Whether running instances are replaced when the query of their image finds another image. If false, only new
	// instances get that image.
	OnImageChange bool `json:"on_image_change,omitempty"`
}

// Disruption limits the replacement of healthy instances that have an outdated configuration or have reached their
// eligible_age. It does not limit the replacement of instances that are lost or unhealthy, or have reached their
// forced_age.
type Disruption struct {
	// When waves of replacements may begin: weekdays, times of day and a time zone, such as "Mon-Fri 09:00-17:00
	// Europe/Berlin" or "Sat,Sun 22:00-04:00 UTC". A range of times may cross midnight. Default: at any time.
	Windows []string `json:"windows,omitempty" support:"plain"`
	// A wave begins or grows only while the group has created fewer instances than this number in the last hour.
	// Replacements of lost instances, and instances that a larger size added, count too. 0: no limit.
	MaxPerHour int `json:"max_per_hour,omitempty" rule:"nonnegative"`
	// What happens to an instance for whose VM the cloud has announced maintenance. replace: while a window is open, or
	// in time before the maintenance begins, a new instance takes its place. ignore: it stays.
	OnMaintenance string `json:"on_maintenance,omitempty" default:"replace" rule:"enum=replace|ignore"`
}

// The values of [Disruption.OnMaintenance] and [Purchase.OnRecommendation].
const (
	OnNoticeReplace = "replace"
	OnNoticeIgnore  = "ignore"
)

// Preserve says how many instances that failed are kept instead of terminated. An instance has failed if its agent did
// not register in time, or if it is replaced because it is silent or unhealthy. Its VM keeps running, but the instance
// leaves its load balancers, does not count towards the size, and is replaced. A change of these fields replaces no
// instance.
type Preserve struct {
	// How many failed instances are kept at a time, at most 100. While so many are kept, further ones are terminated.
	// With a lower number, those that were kept first are terminated. 0: none.
	Max int `json:"max,omitempty" rule:"nonnegative"`
	// How long each of them is kept, at most 30d. It is then drained and terminated. Required with max.
	For Duration `json:"for,omitempty"`
}

// Purchase says how many instances of a group are bought as spot instances, which the cloud may take away. A change of
// these fields does not replace instances. Later, instances are replaced only because of return_to_spot.
type Purchase struct {
	// Percentage of spot instances, from 1 to 100. The first on_demand_base instances of the group do not count. The
	// number of spot instances is rounded down.
	SpotPercent int `json:"spot_percent" rule:"required"`
	// How many instances are bought on demand before any spot instance.
	OnDemandBase int `json:"on_demand_base,omitempty" rule:"nonnegative"`
	// What is bought while the provider has no spot capacity. on_demand: on-demand instances. none: nothing, so that
	// the group waits for capacity. Default: none.
	Fallback string `json:"fallback,omitempty" rule:"enum=none|on_demand"`
	// Time after which a spot instance replaces one that was bought on demand for lack of spot capacity. It counts from
	// the instance's start, or from the provider's last lack of spot capacity if that is later. The fields rollout and
	// disruption limit such replacements, too. 0: never.
	ReturnToSpot Duration `json:"return_to_spot,omitempty"`
	// What happens to a spot instance that the cloud recommends replacing, because its risk of interruption is
	// elevated. ignore: it stays. replace: a new spot instance takes its place, if there is capacity.
	OnRecommendation string `json:"on_recommendation,omitempty" default:"ignore" rule:"enum=ignore|replace"`
}

// FallbackOnDemand is the value of [Purchase.Fallback] that buys VMs on demand while there is no spot capacity.
const FallbackOnDemand = "on_demand"

// Spares says how many warm spares a group has. A spare is an instance that has booted, registered and passed its
// health checks, but does not count towards the size and is in no load balancer. If the group lacks an instance, a
// spare becomes a member of the group, and another spare is created. A group of size 0 has no spares. A change of these
// fields replaces no instance.
type Spares struct {
	// Number of spares.
	Count int `json:"count" rule:"nonnegative"`
	// How spares wait. running: their VMs run. stopped: their VMs are shut down once they have passed their health
	// checks, and boot when they are needed. suspended: their VMs are suspended with their memory, and resume when they
	// are needed. Which of them are possible depends on the provider.
	State string `json:"state,omitempty" default:"running" rule:"enum=running|stopped|suspended"`
	// Age at which a spare is replaced by a new one; 0: never. The ages eligible_age and forced_age hold for spares,
	// too.
	MaxAge Duration `json:"max_age,omitempty"`
}

// The values of [Spares.State].
const (
	SparesRunning   = "running"   // the VMs of spares run
	SparesStopped   = "stopped"   // they are shut down, and boot when they are woken
	SparesSuspended = "suspended" // they are suspended with their memory, and resume when they are woken
)

// Sleep returns how the VMs of spares sleep: SparesStopped, SparesSuspended, or "" if they run.
func (s Spares) Sleep() string {
	if s.State == SparesStopped || s.State == SparesSuspended {
		return s.State
	}
	return ""
}

// Scaling lets the leader choose a group's size. About every 15 s it compares the metrics with their targets and
// computes the size with which they would be at their targets, as the Horizontal Pod Autoscaler of Kubernetes does. If
// there are several metrics, the largest size counts.
type Scaling struct {
	// Smallest number of instances. 0 needs a metric query or url, because a group without instances tells no other
	// numbers.
	Min *int `json:"min,omitempty" default:"1" rule:"nonnegative"`
	// Largest number of instances.
	Max int `json:"max" rule:"required,positive"`
	// Numbers that decide on the size, and their targets: 1 to 10.
	Metrics []ScalingMetric `json:"metrics,omitempty" rule:"required"`
	// How the group grows.
	Up ScaleUp `json:"up,omitzero"`
	// How the group shrinks.
	Down ScaleDown `json:"down,omitzero"`
	// By how much a metric may differ from its target without a change of the size.
	Tolerance string `json:"tolerance,omitempty" default:"10%" support:"plain"`
}

// ScalingMetric is a number and its target: exactly one of the fields.
type ScalingMetric struct {
	// Processor time in use, as the agents report it.
	CPU *ScalingShare `json:"cpu,omitempty"`
	// Memory in use, as the agents report it.
	Memory *ScalingShare `json:"memory,omitempty"`
	// Traffic of the network interface that the agents watch: bytes per second, received or sent, whichever is more.
	Network *ScalingRate `json:"network,omitempty"`
	// A number that something on the VM serves over HTTP. The agents read it.
	VM *ScalingVM `json:"vm,omitempty"`
	// The result of a query to Prometheus. The leader reads it. Only for groups in the shard's configuration.
	Query *ScalingQuery `json:"query,omitempty"`
	// A number in the answer of a URL. The leader reads it. Only for groups in the shard's configuration.
	URL *ScalingURL `json:"url,omitempty"`
}

// ScalingVM is a number that an agent reads from its VM, from 127.0.0.1: a metric of Prometheus, or a number in a JSON
// document.
type ScalingVM struct {
	// Name of the metric in messages and plots. The metrics of a group have different names.
	Name string `json:"name,omitempty" default:"vm" support:"plain"`
	// Port of the request on the loopback address, from 1 to 65535.
	Port int `json:"port" rule:"required"`
	// Path and query of the request.
	Path string `json:"path,omitempty" default:"/metrics" support:"present"`
	// Name of a metric in the text format of Prometheus. If it has several series, their sum counts.
	Metric string `json:"metric,omitempty" support:"plain"`
	// In place of metric: JSON pointer (RFC 6901) to a number in a JSON document, such as "/requests/waiting".
	JSON string `json:"json,omitempty" support:"plain"`
	// Average of the instances to aim at.
	Target int `json:"target" rule:"required,positive"`
}

// ScalingQuery is the result of a query to Prometheus: a scalar, or a vector of one series. It is a number of the whole
// group.
type ScalingQuery struct {
	// Name of the metric in messages and plots. The metrics of a group have different names.
	Name string `json:"name,omitempty" default:"query" support:"plain"`
	// URL of Prometheus, or of a service with its API: https, or http to a loopback address.
	Prometheus string `json:"prometheus" rule:"required" support:"origin"`
	// Query in PromQL, such as "sum(queue_depth)".
	Query string `json:"query" rule:"required" support:"present"`
	// What one instance can do. The group gets as many instances as the number has targets.
	Target int `json:"target" rule:"required,positive"`
	// Bearer token of the request. Default: none.
	Token *TokenSource `json:"token,omitempty"`
}

// ScalingURL is a number in the answer to a GET request. It is a number of the whole group.
type ScalingURL struct {
	// Name of the metric in messages and plots. The metrics of a group have different names.
	Name string `json:"name,omitempty" default:"url" support:"plain"`
	// URL of the request: https, or http to a loopback address.
	URL string `json:"url" rule:"required" support:"origin"`
	// JSON pointer (RFC 6901) to a number in the answer, such as "/waiting". Default: the answer is only a number.
	JSON string `json:"json,omitempty" support:"plain"`
	// What one instance can do. The group gets as many instances as the number has targets.
	Target int `json:"target" rule:"required,positive"`
	// Bearer token of the request. Default: none.
	Token *TokenSource `json:"token,omitempty"`
}

// TokenSource says where a token is kept. It never holds the token itself.
type TokenSource struct {
	// Kind of the source.
	Kind string `json:"kind" rule:"required,enum=secret"`
	// The secret's name in the secrets store.
	Source string `json:"source" rule:"required" support:"present"`
}

// ScalingShare is the target of a metric that is a share of what a VM has.
type ScalingShare struct {
	// Average of the instances to aim at, such as "60%".
	Target string `json:"target" rule:"required" support:"plain"`
}

// ScalingRate is the target of a metric in bytes per second.
type ScalingRate struct {
	// Average of the instances to aim at, in bytes per second.
	Target int `json:"target" rule:"required,positive"`
}

// ScaleUp says how a group grows.
type ScaleUp struct {
	// The group grows only to the smallest size that the metrics asked for within this time. A new leader enlarges no
	// group before this time has passed.
	Stabilization Duration `json:"stabilization,omitempty"`
	// By how much a change may enlarge the group: instances ("4"), or a percentage of its size ("100%").
	MaxStep string `json:"max_step,omitempty" default:"100%" support:"plain"`
}

// ScaleDown says how a group shrinks.
type ScaleDown struct {
	// The group shrinks only to the largest size that the metrics asked for within this time. A new leader shrinks no
	// group before this time has passed.
	Stabilization *Duration `json:"stabilization,omitempty" default:"5m"`
	// By how much a change may make the group smaller: instances ("4"), or a percentage of its size ("25%").
	MaxStep string `json:"max_step,omitempty" default:"25%" support:"plain"`
}

// Schedule is a size that a group has from certain times on.
type Schedule struct {
	// Times from which the size applies: minute, hour, day of month, month and weekday, as in cron. A time that does
	// not exist on a day, because the clock is set forward, is skipped on that day.
	Cron string `json:"cron" rule:"required" support:"plain"`
	// Time zone of the times, such as "Europe/Berlin".
	Timezone string `json:"timezone,omitempty" default:"UTC" support:"plain"`
	// Number of instances from these times on.
	Size int `json:"size" rule:"nonnegative"`
}

// HealthCheck is one check of what runs on a VM: a command or an HTTP request, exactly one of them.
type HealthCheck struct {
	// Command and its arguments, which run without a shell. The check passes if the exit status is 0. The command runs
	// as the agent's user, with PATH as its only environment variable.
	Exec []string `json:"exec,omitempty" support:"present"`
	// HTTP GET request to the VM itself.
	HTTP *HealthRequest `json:"http,omitempty"`
	// Time between the starts of two runs, at least 1s.
	Interval *Duration `json:"interval,omitempty" default:"10s" rule:"positive"`
	// How long a run may take, at most the interval. When this time is over, the agent kills the command and its
	// children.
	Timeout *Duration `json:"timeout,omitempty" default:"5s" rule:"positive"`
	// Failed runs in a row after which the check fails.
	FailureThreshold *int `json:"failure_threshold,omitempty" default:"3" rule:"positive"`
	// Successful runs in a row after which the check passes.
	SuccessThreshold *int `json:"success_threshold,omitempty" default:"1" rule:"positive"`
	// Time in which failed runs do not count towards failure_threshold. It begins when the agent receives the check.
	// The first successful run ends it.
	StartPeriod Duration `json:"start_period,omitempty"`
}

// DrainHook is a command that an agent runs once when its VM is drained.
type DrainHook struct {
	// Command and its arguments, which run without a shell. The command runs as the agent's user. Its environment has
	// only PATH, NSTANCE_DRAIN_REASON (why the VM is deleted) and NSTANCE_DRAIN_DEADLINE (when the command is killed,
	// in RFC 3339). If the command fails, the drain goes on.
	Exec []string `json:"exec" rule:"required" support:"present"`
	// How long the command may run, at most the group's drain_timeout. When this time or the drain is over, the agent
	// kills the command and its children.
	Timeout *Duration `json:"timeout,omitempty" default:"2m" rule:"positive"`
}

// HealthRequest is a GET request to the VM itself. It follows no redirects.
type HealthRequest struct {
	// Port of the request on the loopback address, from 1 to 65535.
	Port int `json:"port" rule:"required"`
	// Path and query of the request.
	Path string `json:"path,omitempty" default:"/" support:"present"`
	// Status of a successful answer, from 100 to 599.
	Status int `json:"status,omitempty" default:"200"`
}

// GroupKey identifies a group within a shard.
type GroupKey struct{ Tenant, Group string }

func (k GroupKey) String() string { return k.Tenant + "/" + k.Group }

// Group is the result of a merge: the defaults, overridden by the template, the group, and the group's override. It
// holds plain values and no references to look up. Groups returned by [Shard.Merged] share no memory with their
// sources.
type Group struct {
	GroupKey
	// Static means that the group is in the shard config.
	Static bool
	// Deleted means that the group is being deleted: it is scaled to zero and then removed.
	Deleted bool
	// Removed are instances to delete because an operator lowered the size and chose them.
	Removed []ident.ID `json:",omitempty"`
	// Protected are instances that no rollout replaces and no smaller size deletes.
	Protected  []ident.ID `json:",omitempty"`
	Template   string
	Kind, Arch string
	Size       int
	// SizeUntil is the time at which an operator's size ends; zero: never.
	SizeUntil time.Time `json:",omitzero"`
	// ConfiguredSize is the size from the time SizeUntil on.
	ConfiguredSize int `json:",omitempty"`
	InstanceType   string
	InstanceTypes  []string // fallbacks, in order, after InstanceType
	SubnetPool     string
	Subnets        []string // of the pool, in order
	Args           map[string]any
	Vars           map[string]string
	Files          map[string]File
	// HealthChecks are those of the template, with their defaults.
	HealthChecks map[string]HealthCheck `json:",omitempty"`
	// Drain is that of the template, with its defaults; nil: none.
	Drain         *DrainHook `json:",omitempty"`
	Userdata      Userdata
	LoadBalancers []string
	// LoadBalancerHealth is that of the template.
	LoadBalancerHealth bool `json:",omitempty"`

	DrainTimeout Duration
	MaxSurge     int
	MaxUnhealthy Limit
	Rollout      Rollout
	// Windows are the times at which waves may begin; nil: any time.
	Windows []Window `json:",omitempty"`
	// MaxPerHour is that of [Disruption].
	MaxPerHour int `json:",omitempty"`
	// IgnoreMaintenance means that on_maintenance of [Disruption] is "ignore".
	IgnoreMaintenance bool `json:",omitempty"`
	// Preserve says which failed instances are kept. The zero value means none.
	Preserve Preserve `json:",omitzero"`
	// Purchase is how the VMs are bought. The zero value means on demand.
	Purchase Purchase `json:",omitzero"`
	// Spares are the warm spares of the group. The zero value means none.
	Spares Spares `json:",omitzero"`
	// Scaling, with its defaults, lets the leader choose the size; nil: it does not.
	Scaling *Scaling `json:",omitempty"`
	// SizeHeld means that an operator has pinned the size, or set it until SizeUntil, so that the leader keeps it.
	SizeHeld bool `json:",omitempty"`
	// Schedules change the size; see [Group.SizeAt].
	Schedules []SizeSchedule `json:",omitempty"`
	// Certificates are those of the good configuration to which the group has returned. They take the place of those of
	// the shard config.
	Certificates map[string]Certificate `json:",omitempty"`
	// Images are those of the good configuration to which the group has returned, by name.
	Images map[string]string `json:",omitempty"`
	// Halt is the durable halt of the group's rollout; nil: none. Only the server that leads sets it.
	Halt *Halt `json:",omitempty"`
	// Good identifies the stored good configuration; zero: none. Only the server that leads sets it.
	Good record.GroupVersion `json:",omitzero"`
	// Refused says what an operator chose although the shard config no longer permits it, or "". A refused group keeps
	// its VMs. The server creates no VM for it.
	Refused string
	// RuntimeHash and InfraHash are explained in docs/reference/configuration.md, section "Hashes".
	RuntimeHash, InfraHash string
}

// HealthChecksVersion identifies the health checks that the group's instances run; "" if there are none.
func (g *Group) HealthChecksVersion() string {
	if len(g.HealthChecks) == 0 {
		return ""
	}
	return g.RuntimeHash
}

// StartPeriod returns the longest start period of the group's health checks.
func (g *Group) StartPeriod() (longest time.Duration) {
	for _, check := range g.HealthChecks {
		longest = max(longest, check.StartPeriod.D())
	}
	return longest
}

// PassTime returns how long it takes at most until all health checks of a group have passed, if every run succeeds.
func (g *Group) PassTime() (longest time.Duration) {
	for _, check := range g.HealthChecks {
		passes := check.Interval.D()
		if check.SuccessThreshold != nil {
			passes *= time.Duration(*check.SuccessThreshold)
		}
		longest = max(longest, passes+check.Timeout.D())
	}
	return longest
}

// FailTime returns how long it takes at most until a health check of a group has failed, if every run of it fails.
func (g *Group) FailTime() (longest time.Duration) {
	for _, check := range g.HealthChecks {
		runs := int64(1)
		if check.FailureThreshold != nil {
			runs = int64(*check.FailureThreshold)
		}
		longest = max(longest, check.StartPeriod.D()+time.Duration(runs*int64(check.Interval.D()))+check.Timeout.D())
	}
	return longest
}
