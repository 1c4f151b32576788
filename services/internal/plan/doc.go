// Package plan decides what a shard's leader does next. It is the only place where such decisions are made.
//
// Everything here is pure: no clock, randomness, context, logger or I/O. The same snapshot always gives the same
// decision. Planning is level-triggered: each pass derives its actions from the current state, and work that is
// already under way is part of that state. Nothing is deleted on incomplete knowledge.
//
// [Next] plans one group, [CollectGarbage] plans what concerns the whole shard. The Apply functions in transitions.go
// say how a report, a record or a provider's answer changes what is known of an instance; callers only store the
// result.
//
// # Rules
//
// Each instance is classified by the first of rules 1 to 17 that applies (classify.go). Rules 52 and 59 stand between
// 12 and 13, rule 58 before 17. The other rules from 18 on say what follows. The code and the tests name a rule by its
// number.
//
//	 1 leaving            The deletion is durable or being written. The instance does not count.
//	 2 creating           The create call has no recorded answer yet. The instance counts, but serves nobody.
//	 3 notice             The cloud announced that it will take the VM away. Lost.
//	 4 power off          The agent announced a power-off, and the VM ended or shutdown_grace is over. Lost.
//	 5 ended unregistered The VM ended before its agent registered. Lost, and a failed creation.
//	 6 gone               The provider says that the VM ended or is ending. Lost.
//	 7 unregistered       The agent did not register in time. A failed creation.
//	 8 on-demand expired  An on-demand instance reached ondemand_age.
//	 9 on-demand          Any other on-demand instance. It is never counted, rotated or replaced.
//	10 expired            The instance reached forced_age. Replaced first.
//	11 held               As rule 12, 52 or 59, but the unhealthy guard holds (rules 26 and 61).
//	12 silent             Three reports are missed, or the agent was never healthy in its time. Replaced first.
//	13 unready, drifted   As rule 14, with an outdated infra configuration or in a subnet that left the pool.
//	14 unready            Booting, not heard of by this leader yet, late, unhealthy or new to its load balancers
//	                      (rule 60). It counts, but proves nothing.
//	15 drifted            Healthy, with an outdated infra configuration or in a subnet that left the pool. Rotated.
//	16 aged               Healthy, older than eligible_age. Rotated.
//	17 well               Healthy and as configured.
//
//	18 replace lost       A lost instance is deleted and replaced immediately, without using max_surge (replace.go).
//	19 replace first      Expired and silent instances are deleted only when a replacement is healthy. At most
//	                      max_surge replacements are under way (replace.go, size.go).
//	20 rotate             Up to max_surge drifted or aged instances, a wave, get their replacements first while the
//	                      group is steady (rollout.go).
//	21 deadline           A deletion gets the group's drain time-out, or the deadline of a notice if that is earlier
//	                      (replace.go).
//	22 scale down         A surplus of available instances is deleted: silent ones first, then those of a kind of
//	                      which the group has too many (rule 56), then those that would be replaced anyway, then the
//	                      oldest (size.go).
//	23 surplus unready    A surplus of unready instances is deleted beyond what replacements may add: those of a kind
//	                      of which the group has too many first. One that has not registered yet stays if the group
//	                      needs its kind (size.go).
//	24 wait for agents    A new leader removes no instance that it has not heard of, until the registration time-out
//	                      is over (size.go).
//	25 backoff            A group with failed creations waits 1 s to 5 min, then creates fewer at a time (backoff.go).
//	26 unhealthy guard    While more than max_unhealthy of a group, or 40 % of the shard, is silent, fails a health
//	                      check or is unhealthy in a load balancer, no such instance is replaced and no registration
//	                      is overdue (guard.go).
//	27 drain              A running VM is drained until an operator acknowledges or the deadline comes (drain.go).
//	28 terminate          Then it is terminated; again after a minute if the provider still has it (drain.go).
//	29 forget             An instance whose VM is gone becomes a tombstone (drain.go).
//	30 late deletion      A leader that learns late of a deletion grants part of the drain time (transitions.go).
//	31 ask                The provider is asked about instances that are late, powering off or terminating
//	                      (question.go).
//	32 maintain           An instance that stays is registered with its load balancers and gets its files
//	                      (maintain.go).
//	33 time to come back  Silence counts once every agent had time to come back to a new leader (silence.go).
//
//	34 settle             A leftover reservation is settled: adopted if its VM exists, otherwise a tombstone
//	                      (collect.go).
//	35 orphans            A VM without a record is terminated after two direct reads of the record's key (collect.go).
//	36 many orphans       More than 2 orphans and more than 5 % of the shard stop collection until a person confirms
//	                      them (collect.go).
//	37 strays             A VM whose record is a tombstone is terminated (collect.go).
//	38 tombstones         A tombstone is removed after its retention, if a later list does not show its VM. That of an
//	                      unused reservation is kept for at most 2 min (collect.go).
//
//	39 pace notices       Agents report notices, and an agent may lie. Per hour, a group replaces as many instances
//	                      with a notice as its size immediately: the cloud may reclaim all of them once. From the
//	                      next one on it backs off as in rule 25 until the hour is over, even if instances are
//	                      healthy (backoff.go, transitions.go).
//	40 explicit deletion  A deletion that a person or an operator requests shortens a drain that is under way to the
//	                      group's present drain time-out from now. Nothing prolongs a drain (transitions.go).
//
//	41 pace creates       After a throttled create call, all create calls of the shard keep a distance: 250 ms, half
//	                      as much again with each throttled answer, 5 % less with each other answer. It ends a minute
//	                      after the last throttled answer (pace.go).
//	42 take turns         Of the calls that wait, those that a group lacks come before replacements of instances that
//	                      still run; then the groups take turns (pace.go).
//	43 create late        Meanwhile a group has at most 4 calls waiting of either kind, and starts no replacement of
//	                      an instance that still runs before what any group lacks (pace.go).
//
//	44 chosen removal     An operator may lower the size and choose the instance in one durable step. The chosen
//	                      instance is leaving (rule 1), so that rules 22 and 23 remove no other (classify.go).
//
//	45 pause              No wave starts while the rollout is paused (rollout.go).
//	46 canary             Until as many instances as canary have the present configuration and are registered for
//	                      bake_time, a wave has only the canaries (rollout.go).
//	47 halt               After halt_on_failures instances with the present configuration that failed to register or
//	                      became unhealthy, no wave of drifted instances starts. A change of the group's
//	                      configuration, or a person, starts the rollout again. A new leader counts from zero
//	                      (rollout.go).
//	48 delete first       With max_unavailable, a wave has up to that many instances. They are deleted before their
//	                      replacements are healthy, unready ones first. Instances that the guard holds use up that
//	                      number. If they use up all of it, rule 20 applies (rollout.go).
//	49 windows            No wave starts outside the windows of disruption.windows (rollout.go).
//	50 per hour           A wave has at most max_per_hour instances less those that were created within the hour for
//	                      any reason. Their records survive a fail-over (rollout.go).
//	51 schedule           The schedule that began last sets the group's size (classify.go).
//
//	52 failing            A health check fails. Replaced first. An instance that was never healthy has until the end
//	                      of registration_timeout and of the longest start_period (classify.go).
//	53 checks first       A new instance is healthy when all its health checks have passed. While a running instance
//	                      has not run changed checks yet, its health stays as it is (transitions.go).
//	54 protected          An instance that a person protects is neither drifted nor aged (rules 13, 15, 16), and a
//	                      scale-down does not choose it while it is well (rules 22, 23). Lost, silent and expired
//	                      ones are replaced all the same, and a group that is emptied protects nothing (classify.go).
//	55 image              With on_image_change, an instance is drifted too if the query of its image finds another
//	                      one. A leader that has found none replaces nothing (classify.go).
//	56 purchase           With purchase, on_demand_base instances of the size are bought on demand, and spot_percent
//	                      percent of the others, rounded down, as spot instances. A new instance is bought as the
//	                      others lack, first on demand up to the base (purchase.go).
//	57 fallback           With fallback on_demand, a spot instance is bought on demand if the provider lacks spot
//	                      capacity in all its placements. Otherwise the group backs off (rule 25) (purchase.go).
//	58 return to spot     With return_to_spot, as many of the oldest instances as were bought on demand beyond rule 56
//	                      are replaced by spot instances, in waves as those of rule 20. They are that old, and spot
//	                      capacity was not refused for that long. Such a replacement has no fallback, and without
//	                      capacity the group does not back off (purchase.go, rollout.go).
//	59 load balancer      With load_balancer_health, a load balancer called the instance unhealthy twice in a row.
//	                      Replaced first. The verdict counts once the load balancers have called the instance healthy,
//	                      or when registration_timeout and the longest start_period have passed since this leader
//	                      registered it with them. A question without an answer changes nothing (balancer.go).
//	60 balancer first     With load_balancer_health, a new instance takes the place of no other until its load
//	                      balancers have called it healthy. If they do not answer, it waits for registration_timeout
//	                      and the longest start_period. A new leader takes instances that are older as they are
//	                      (balancer.go).
//	61 time to recover    When the share of rule 26 falls to its limit, the guard goes on until every instance had
//	                      time to recover: to report, to run its health checks, and with load_balancer_health
//	                      registration_timeout and the longest start_period. If the share exceeds the limit and falls
//	                      again within registration_timeout, that time begins again. Afterwards it does not begin for
//	                      registration_timeout, so that instances that fail and recover again and again cannot keep
//	                      the guard up (guard.go).
package plan
