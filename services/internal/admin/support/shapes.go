package support

import "strings"

// Kind is a kind of document. Each kind has a shape, which says what the bundle shows of the document.
type Kind string

// The kinds of documents. The comments say what a document of the kind contains.
const (
	Configuration Kind = "configuration"  // config.Shard, as JSON
	DynamicGroups Kind = "dynamic groups" // the content of groups/, as JSON
	Doctor        Kind = "doctor"         // the findings of nstance-admin doctor
	Status        Kind = "status"         // fleet.StatusAnswer
	Groups        Kind = "groups"         // fleet.GroupsAnswer
	Explanations  Kind = "explanations"   // a list of fleet.ExplanationAnswer
	Events        Kind = "events"         // ListEventsResponse
	Lock          Kind = "lock"           // record.Lock
	ServerReport  Kind = "server report"  // record.ServerReport
	Objects       Kind = "objects"        // a list of names, sizes and times
)

// shapes has the shape of each kind. A field that is not here is not in the bundle. A test checks that every field of
// the configuration and of dynamic groups is here.
var shapes = map[Kind]shape{
	Configuration: configurationShape(),
	DynamicGroups: shape{}.with("", plain, "$version $term $revision").withGroup("*.*."),
	Doctor: shape{}.with("", plain, "shard").with("findings.*.", plain, "ok").
		with("findings.*.", words, "check result next"),
	Status: shape{}.with("", plain, `cluster_id leader_id version term leader_since lease_left heir_id standby_ids.*
		groups instances agents_connected`).with("", present, "refused_etag").withProblems("").withErrors("errors.*."),
	Groups: shape{}.with("groups.*.", plain, `group is_static overridden deleting size actual_size healthy
		blocked_since blocked_until paused outdated kind arch defaults.* instance_ids.*
		provider_ids.*`).
		with("groups.*.", words, "blocked_reason rollout_waits").with("groups.*.", present, "spec").
		withGroup("groups.*.merged."),
	Explanations: shape{}.with("*.", plain, `group planned_at term desired unhealthy_guard next_plan_at
		rollout_until blocked_until actions.*.kind actions.*.instance_id actions.*.replaces actions.*.cause
		actions.*.deadline instances.*.instance_id instances.*.rule instances.*.rule_name instances.*.cause
		instances.*.until instances.*.work instances.*.drain_deadline`).
		with("*.", words, "blocked_reason rollout_waits actions.*.reason instances.*.failed_check instances.*.refused").
		withErrors("*.errors.*."),
	Events: shape{}.with("events.*.", plain, `at kind group instance_id replaces cause took_seconds term
		position`).with("events.*.", words, "actor message"),
	Lock: shape{}.with("", plain, `schema leader_id incarnation machine term revision lease_ms renew_ms heir.id
		heir.incarnation released renewed_at addresses.election addresses.registration addresses.operator
		addresses.agent`),
	ServerReport: shape{}.with("", plain, "schema generation machine reported_at").with("", words, "problem"),
	Objects:      shape{}.with("*.", plain, "key size modified").with("*.", words, "foreign_key"),
}

// with adds fields to the shape and returns the shape. The path of a field is `prefix` and then a name in the list
// `fields`. Each field gets the treatment t.
func (s shape) with(prefix string, t *treatment, fields string) shape {
	for field := range strings.FieldsSeq(fields) {
		s[prefix+field] = t
	}
	return s
}

// withErrors adds the fields of an ErrorEvent to the shape.
func (s shape) withErrors(prefix string) shape {
	return s.with(prefix, plain, "at group instance_id kind resolved").with(prefix, words, "message")
}

// withProblems adds the problems of a refused configuration to the shape.
func (s shape) withProblems(prefix string) shape {
	return s.with(prefix, plain, "problems.*.line problems.*.column").
		with(prefix, words, "problems.*.path problems.*.message")
}

// withGroup adds the fields of a config.GroupSpec to the shape.
func (s shape) withGroup(prefix string) shape {
	return s.with(prefix, plain, `template size instance_type instance_types.* subnet_pool load_balancers.*
		drain_timeout max_surge max_unhealthy rollout.paused rollout.canary rollout.bake_time rollout.halt_on_failures
		rollout.max_unavailable rollout.on_image_change disruption.windows.* disruption.max_per_hour
		purchase.spot_percent purchase.on_demand_base purchase.fallback purchase.return_to_spot schedules.*.cron
		schedules.*.timezone schedules.*.size deleted removed.* protected.*`).
		with(prefix, present, "vars.* args.* rollout.revision")
}

func configurationShape() shape {
	s := shape{}.
		with("cluster.", plain, `id storage.provider storage.bucket storage.region storage.prefix secrets.provider
			secrets.prefix secrets.project_id secrets.cache_ttl secrets.encryption_key.provider
			secrets.old_encryption_keys.*.provider`).
		with("cluster.storage.", origin, "endpoint").
		with("cluster.secrets.", present, "encryption_key.source old_encryption_keys.*.source").
		with("server.", plain, `shard provider.kind provider.region provider.zone bind.health_addr bind.election_addr
			bind.registration_addr bind.operator_addr bind.agent_addr advertise.health_addr advertise.election_addr
			advertise.registration_addr advertise.operator_addr advertise.agent_addr leader_network.ipv4
			leader_network.ipv6 leader_network.dns_name leader_network.kind subnet_pools.*.* dynamic_subnet_pools.*
			request_timeout create_rate_limit check_registration_address attestation.method health_check_interval
			default_drain_timeout journal_retention image_refresh_interval shutdown_timeout shutdown_grace
			garbage_collection.interval garbage_collection.registration_timeout
			garbage_collection.deleted_record_retention expiry.eligible_age expiry.forced_age expiry.ondemand_age
			leader_election.enabled leader_election.renew_interval leader_election.lease_duration
			leader_election.peer_interval leader_election.peer_lease error_exit_jitter.min_delay
			error_exit_jitter.max_delay`).
		with("server.provider.", present, "options.*").
		with("", plain, `tenants.*.max_instances tenants.*.max_groups load_balancers.*.provider images.*.provider
			images.*.sort images.*.order certificates.*.kind certificates.*.ttl terminating`).
		with("defaults.", present, "args.* vars.* userdata.content").
		with("defaults.", plain, "userdata.source userdata.encoding").
		with("templates.*.", present, `args.* vars.* userdata.content files.*.vars.* files.*.json files.*.content
			files.*.source health_checks.*.exec health_checks.*.http.path`).
		with("templates.*.", plain, `kind arch size instance_type instance_types.* subnet_pool tenants.* userdata.source
			userdata.encoding files.*.kind files.*.template files.*.key.source files.*.key.algorithm
			load_balancer_health health_checks.*.http.port health_checks.*.http.status health_checks.*.interval
			health_checks.*.timeout health_checks.*.failure_threshold health_checks.*.success_threshold
			health_checks.*.start_period
			dynamic.max_size dynamic.instance_types.* dynamic.subnet_pools.* dynamic.load_balancers.*`).
		with("templates.*.", leftOut, "files.*.key.name dynamic.args dynamic.vars").
		with("", leftOut, `$schema cluster.secrets.encryption_key.project_id
			cluster.secrets.old_encryption_keys.*.project_id server.leader_network.interface_id
			server.leader_network.secondary_range server.attestation.certificates load_balancers.*.target_group_arns
			load_balancers.*.instance_group_name load_balancers.*.backend_service_names images.*.owners
			images.*.filters images.*.fallback`).
		with("certificates.*.", leftOut, "cn organization country province locality street postal_code dns ip uri")
	return s.withGroup("groups.*.*.")
}
