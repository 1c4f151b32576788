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
// Each instance is classified by one rule: the first that applies of rules 1, 67, 2 to 6, 84, 7 to 12, 52, 59, 62, 63,
// 65, 66, 13 to 16, 80, 58, 77 and 17, in this order (classify.go). All other rules say what the leader does with the
// instances. The code and the tests name a rule by its number.
//
//	 1 leaving            The instance's deletion is recorded or being recorded. It does not count towards the size.
//	 2 creating           No answer to the instance's create call is recorded yet. It counts towards the size, but
//	                      does not serve yet.
//	 3 notice             The cloud announced that it will take the VM away. The instance is replaced immediately
//	                      (rule 18).
//	 4 power off          The agent announced a power-off, and the VM ended or shutdown_grace is over. The instance is
//	                      replaced immediately (rule 18).
//	 5 ended unregistered The VM ended before its agent registered. The instance is replaced (rule 18), and its
//	                      creation has failed (rule 25).
//	 6 gone               The provider says that the VM ended or is ending. The instance is replaced immediately (rule
//	                      18).
//	 7 unregistered       The agent did not register within registration_timeout. This is a failed creation (rule 25).
//	 8 on-demand expired  An on-demand instance reached ondemand_age. It is deleted.
//	 9 on-demand          Any other on-demand instance. It does not count towards the size, and is never replaced.
//	10 expired            The instance reached forced_age. It is deleted when a replacement is healthy (rule 19).
//	11 held               The instance is silent, unhealthy or flapping (rules 12, 52, 59, 62, 63), but the unhealthy
//	                      guard forbids its replacement (rules 26, 61).
//	12 silent             The agent missed three reports, or registered but did not become healthy in time. The
//	                      instance is deleted when a replacement is healthy (rule 19).
//	13 unready, drifted   The instance is unready (rule 14), and has an outdated infra configuration or a subnet that
//	                      left the pool.
//	14 unready            The instance is booting, late, unhealthy or new to its load balancers (rule 60), or this
//	                      leader has not heard of it yet. It counts towards the size, but no other instance is deleted
//	                      in its favour.
//	15 drifted            The instance is healthy, but has an outdated infra configuration or a subnet that left the
//	                      pool. It is replaced in a wave (rule 20).
//	16 aged               The instance is healthy and older than eligible_age. It is replaced in a wave (rule 20).
//	17 well               The instance is healthy and as configured.
//
//	18 replace lost       A lost instance (rules 3 to 6) is deleted and replaced immediately. max_surge does not limit
//	                      this (replace.go).
//
//	19 replace first      An instance of rule 10, 12, 52, 59, 62, 63, 65 or 66 is deleted only when a replacement is
//	                      healthy. At most max_surge such replacements are under way (replace.go, size.go).
//	20 rotate             Drifted and aged instances are replaced in waves of up to max_surge. Each is deleted when a
//	                      replacement is healthy. A wave starts only while the group has its size, and no instance of
//	                      it is silent or booting. Instances that are draining count towards max_surge (rollout.go).
//	21 deadline           A drain may take the group's drain time-out, or until the deadline of the cloud's notice if
//	                      that is earlier (replace.go).
//	22 scale down         If more instances are available than the size, the surplus is deleted: silent ones first,
//	                      then those of a kind (spot or on demand) of which the group has too many (rule 56), then
//	                      those of rules 65 and 66, then those that would be replaced anyway, then the oldest
//	                      (size.go).
//	23 surplus unready    If a group has more instances than its size and its replacements need, unready ones are
//	                      deleted: first those of a kind (spot or on demand) of which it has too many. An instance
//	                      that has not registered yet stays if the group needs its kind. A registered one stays while
//	                      fewer others than the size have registered (size.go).
//	24 wait for agents    For registration_timeout after a takeover, the leader deletes no instance as surplus before
//	                      it has heard from its agent (size.go).
//	25 backoff            After failed creations, a group creates nothing for 1 s to 5 min, then fewer instances at a
//	                      time (backoff.go).
//	26 unhealthy guard    While more than max_unhealthy of a group, or more than three instances and 40 % of the
//	                      shard, are silent, fail a health check or are unhealthy in a load balancer, no such instance
//	                      is replaced, and no registration is overdue (rule 7) (guard.go).
//	27 drain              Before its termination, a running VM is drained until all who take part are done, at the
//	                      longest until the deadline (rule 21). An operator of the tenant takes part if it is or was
//	                      connected during the drain, until it acknowledges the drain. The drain hook of a registered
//	                      instance takes part until its agent reports the hook's end, and the group's load balancers
//	                      until their deregistration delay is over. If nobody takes part, the VM is not drained
//	                      (drain.go).
//	28 terminate          After the drain, the VM is terminated. If the provider still has it a minute later, it is
//	                      terminated again (drain.go).
//	29 forget             When the VM of a deleted instance is gone, the instance's record becomes a tombstone
//	                      (drain.go).
//	30 late deletion      If a leader learns of a deletion when most of the drain time is over, it grants half of that
//	                      time again, at most 30 s (transitions.go).
//	31 ask                The leader asks the provider about VMs that power off or terminate, about those that fall
//	                      asleep or wake, and about those with a late agent (question.go).
//	32 maintain           An instance that is not being deleted is registered with its load balancers, and gets its
//	                      files (maintain.go).
//	33 time to come back  After a takeover, an instance counts as silent only when its agent had enough time to
//	                      connect to the new leader (silence.go).
//
//	34 settle             A reservation that an earlier leader left becomes an instance if its VM exists, otherwise a
//	                      tombstone (collect.go).
//	35 orphans            A VM without a record is terminated after two direct reads have not found its record
//	                      (collect.go).
//	36 many orphans       If there are more than 2 orphans (rule 35), and more than 5 % of the shard's VMs are
//	                      orphans, none is terminated until a person confirms them. After a restore
//	                      (nstance-admin cluster restore), any number of orphans waits for the first confirmation, and
//	                      VMs whose record is a tombstone wait too (collect.go).
//	37 strays             A VM whose record is a tombstone is terminated (collect.go).
//	38 tombstones         A tombstone is removed when deleted_record_retention is over and a later list of VMs does
//	                      not have its VM. The tombstone of an unused reservation is kept for at most 2 min
//	                      (collect.go).
//
//	39 pace notices       Agents report the cloud's notices (rule 3), and an agent may lie. Per hour, a group
//	                      immediately replaces as many instances with a notice as its size, because the cloud may
//	                      reclaim all of them once. After that many it backs off as in rule 25 until the hour is over,
//	                      even if instances are healthy. Likewise, a group creates at most as many replacements under
//	                      rules 65 and 66 per hour as its size (backoff.go, advised.go, transitions.go).
//	40 shorter drain      If a person or an operator requests the deletion of an instance that is draining already,
//	                      the rest of the drain takes at most the group's present drain time-out. If the cloud
//	                      announces during a drain that it takes the VM away, the drain ends at that time at the
//	                      latest. Nothing prolongs a drain (drain.go, transitions.go).
//
//	41 pace creates       After the provider has throttled a create call, the leader leaves time between all create
//	                      calls of the shard: 250 ms at first, half as much again after each throttled answer, 5 %
//	                      less after each other answer. This ends a minute after the last throttled answer (pace.go).
//	42 take turns         Of the create calls that wait (rule 41), those for instances that a group lacks come before
//	                      replacements of instances that still run. Among equals, the groups take turns (pace.go).
//	43 create late        While create calls wait (rule 41), each group has at most 4 waiting calls of each kind (rule
//	                      42). No group starts to replace an instance that still runs while any group lacks instances
//	                      (pace.go).
//
//	44 chosen removal     An operator may lower the size and choose the instance to delete in one durable step. The
//	                      chosen instance is leaving (rule 1), so that rules 22 and 23 delete no other (classify.go).
//
//	45 pause              No wave (rule 20) starts while the group's rollout is paused (rollout.go).
//	46 canary             Waves (rule 20) first give the present configuration to as many instances as canary. Other
//	                      instances follow when that many healthy instances with it have been registered for bake_time
//	                      (rollout.go).
//	47 halt               When halt_on_failures instances with the present configuration have failed to register or
//	                      become unhealthy, no wave of drifted instances starts. A change of the group's
//	                      configuration, or a person, starts the rollout again. A new leader counts from zero, but
//	                      knows of a halt (rule 70) (halt.go).
//	48 delete first       With max_unavailable, a wave (rule 20) deletes up to that many instances before their
//	                      replacements are healthy, unready ones first. Instances that the unhealthy guard holds (rule
//	                      11) use up that number. If they use up all of it, instances are replaced as in rule 20
//	                      (rollout.go).
//	49 windows            No wave (rule 20) starts outside the times in disruption.windows (rollout.go).
//	50 per hour           A wave (rule 20) has at most max_per_hour instances, less those that the group created
//	                      within the last hour for any reason. A new leader knows those from their records
//	                      (rollout.go).
//	51 schedule           The entry of schedules that began last sets the group's size (classify.go).
//
//	52 failing            A health check of the instance fails. It is deleted when a replacement is healthy (rule 19).
//	                      For an instance that was never healthy, this counts after registration_timeout and the
//	                      longest start_period (classify.go).
//	53 checks first       A new instance is healthy only when all its health checks have passed. When the checks of a
//	                      running instance change, its health stays as it is until it has run the new ones
//	                      (transitions.go).
//	54 protected          An instance that a person protects is neither drifted nor aged (rules 13, 15, 16), is not
//	                      replaced because of a recommendation or maintenance (rules 65, 66), and a scale-down does
//	                      not choose it while it is well (rules 22, 23). If it is lost, silent or expired, it is
//	                      replaced all the same. In a group that is emptied, protection has no effect (classify.go).
//	55 image              With on_image_change, an instance is drifted (rule 15) also if the query of its image finds
//	                      another image. A leader whose query has found none yet replaces nothing for this reason
//	                      (classify.go).
//	56 purchase           With purchase, on_demand_base instances of the size are bought on demand. Of the others,
//	                      spot_percent percent, rounded down, are spot instances, and the rest is on demand. A new
//	                      instance is bought in the way that the group lacks, first on demand up to the base
//	                      (purchase.go).
//	57 fallback           With fallback on_demand, a spot instance is bought on demand if the provider has no spot
//	                      capacity for any of its instance types and subnets. Without this fallback, the group backs
//	                      off (rule 25) (purchase.go).
//	58 return to spot     With return_to_spot, spot instances replace instances that were bought on demand beyond rule
//	                      56, the oldest first, in waves as in rule 20. An instance is due when it is that old and the
//	                      provider has not refused spot capacity for that long. Such a replacement does not fall back
//	                      (rule 57), and does not make the group back off (purchase.go, rollout.go).
//	59 load balancer      With load_balancer_health, a load balancer called the instance unhealthy twice in a row. It
//	                      is deleted when a replacement is healthy (rule 19). This counts only after the load
//	                      balancers have called the instance healthy, or when registration_timeout and the longest
//	                      start_period have passed since this leader registered it with them. A query without an
//	                      answer changes nothing (balancer.go).
//	60 balancer first     With load_balancer_health, a new instance takes the place of no other until its load
//	                      balancers have called it healthy. If they do not answer, it waits for registration_timeout
//	                      and the longest start_period. A new leader does not apply this to instances whose wait was
//	                      over before its takeover (balancer.go).
//	61 time to recover    When no more instances are silent or unhealthy than rule 26 allows, the guard still holds
//	                      until every instance had time to recover: to report, to run its health checks, and with
//	                      load_balancer_health, registration_timeout and the longest start_period. If the limit is
//	                      exceeded again within registration_timeout, that time begins again. Afterwards it does not
//	                      begin for registration_timeout, so that instances that fail and recover again and again
//	                      cannot keep the guard up (guard.go).
//
//	62 finish             A replacement under rule 12, 52, 59 or 63 is finished even if the replaced instance recovers
//	                      meanwhile: that instance is deleted when the replacement is healthy (rule 19). It stays if
//	                      the VM of the replacement ends, or the replacement does not register in time. A new leader
//	                      does not know which replacements were under way: it treats the new instance as surplus (rule
//	                      23), and the next failure of the old one begins another replacement (flapping.go).
//	63 flapping           An instance that restarted or became unhealthy 5 times within an hour is deleted when a
//	                      replacement is healthy (rule 19), even if it is healthy now. A protected instance stays
//	                      (rule 54). A new leader counts from zero (flapping.go).
//
//	64 operators return   For 30 s after a leader begins to serve, and after the tenant's last operator was
//	                      disconnected, a drain that no operator has acknowledged waits, because an operator may
//	                      connect again (drain.go).
//
//	65 recommended        With on_recommendation replace, the cloud recommends replacing the VM of the instance. It is
//	                      deleted when a replacement is healthy (rule 19). A drifted instance is replaced in a wave
//	                      instead (rule 15). The replacement does not fall back (rule 57). If the provider refuses it,
//	                      the instance stays, and only replacements under rules 65 and 66 back off as in rule 25
//	                      (advised.go).
//	66 maintenance        The cloud has announced maintenance of the instance's VM. Unless on_maintenance is ignore,
//	                      the instance is deleted when a replacement is healthy (rule 19). The replacement begins
//	                      while a window is open (rule 49), at the latest so long before the maintenance that it can
//	                      register, become healthy and the old instance can drain: registration_timeout, the longest
//	                      start_period and the drain time-out, for each of the waves of max_surge that have to come
//	                      before. Draining instances count towards max_surge. Maintenance without a time may begin at
//	                      any time (advised.go).
//
//	67 preserve           With preserve, an instance of the size whose VM runs is preserved where rule 7, 12, 52, 59,
//	                      62 or 63 would delete it, as long as the group preserves fewer than preserve.max. It has
//	                      failed as if it were deleted (rules 25, 47). It leaves its load balancers, and does not
//	                      count towards the size (preserve.go).
//	68 preserved until    A preserved instance is deleted when preserve.for is over, when it is released, when its VM
//	                      ends, and when the group or the shard is emptied. If more instances are preserved than
//	                      preserve.max, those that were preserved first are deleted (preserve.go).
//	69 as it failed       A preserved instance gets no files and joins no load balancer, even if it recovers or
//	                      registers late. It does not count for the unhealthy guard (rule 26), and a healthy report
//	                      of it ends no backoff (rule 25) (next.go, silence.go, transitions.go).
//	70 durable halt       A halt (rule 47) is stored, so that later leaders keep it. Silent instances that the
//	                      unhealthy guard holds (rule 11) do not count here, because their network may have failed.
//	                      The halt ends when the group's infra or runtime configuration or its subnets change, when a
//	                      person resumes the rollout, or when all instances have the configuration and are healthy.
//	                      With on_image_change, it also ends when the query finds another image. Another size does not
//	                      end it. While so many instances of other groups are silent or failing that the shard's limit
//	                      of rule 26 is exceeded, no halt is stored (halt.go).
//	71 rollback           With on_halt rollback, a halted group returns to its good configuration (rule 72) until the
//	                      halt ends: new instances are made from it, and instances of the failed configuration are
//	                      outdated (rules 13, 15). The unhealthy guard neither counts nor holds these (rules 7, 11,
//	                      26), unless instances of the good configuration, or as many of other groups as in rule 70,
//	                      fail too. If instances of the good configuration fail too, the group keeps it, and the
//	                      rollout is halted (halt.go).
//	72 good               With on_halt rollback, the group's configuration is stored as its good one when all
//	                      instances have it and are healthy: for bake_time, and at least for the time in which a fault
//	                      shows in their reports and health checks. Until then, failures halt the rollout (rule 47)
//	                      even if no instance is outdated (halt.go).
//
//	73 scaling            With scaling, the leader chooses the size about every 15 s. For each metric it computes the
//	                      size with which the average of the healthy instances would be at the target, and takes the
//	                      largest. Within the tolerance the size stays. Instances that boot count as idle when the
//	                      group would grow, and not at all when it would shrink. Unknown values, and those of
//	                      instances that have been healthy for less than a report, count as idle when it would grow,
//	                      and as the target when it would shrink. The metrics query and url are numbers of the whole
//	                      group, so that the size is the number divided by the target, rounded up. These are the rules
//	                      of the Horizontal Pod Autoscaler of Kubernetes (scaling.go).
//	74 scaling windows    The group grows only to the smallest size that was asked for within up.stabilization, and
//	                      shrinks only to the largest within down.stabilization. Under a new leader it grows and
//	                      shrinks only when the time has passed (scaling.go).
//	75 scaling steps      A change of the size is at most up.max_step or down.max_step, and at least one instance. Two
//	                      changes are at least 10 s apart (scaling.go).
//	76 scaling blind      If more than half of a metric's values are unknown, no instance is ready, or a query or URL
//	                      cannot be read, the size stays. Other metrics may still let the group grow (scaling.go).
//
//	77 spares             With spares, a group keeps spares.count instances ready that do not count towards the size
//	                      and join no load balancer. They are classified like other instances, but not for the group's
//	                      unhealthy guard (rule 26), and are not preserved (rule 67). They are bought like the next
//	                      instances of the group (rules 56, 57). A group of size 0, and one that is emptied, has none
//	                      (spares.go).
//	78 promote            Before a group creates a member, spares take the places: of instances that it lacks (rules
//	                      18, 22), then of those that are replaced first or in a wave (rules 19, 20). Only spares that
//	                      are healthy, have the present configuration and are not due (rule 80) become members: first
//	                      those that run, then those that sleep (rule 82), the oldest of each first, and only if they
//	                      were bought in the way that the group lacks (rules 56, 57). The instance then counts as
//	                      created and registered now (rules 46, 50, 72), and is unready until its agent has the role
//	                      and is healthy. No backoff and no pace delays this (rules 25, 41) (spares.go, replace.go).
//	79 refill             When no instance is lacking that could not be created, new spares are created as far as
//	                      rules 25, 41 and 43 permit, after all other create calls of the shard. Failed creations of
//	                      spares delay only creations of spares, which then go on one by one (spares.go).
//	80 renew              A spare that would be replaced if it were a member (rules 10, 12, 13, 15, 16, 52, 63, 65,
//	                      66), has reached spares.max_age, or was created with another spares.state, becomes no
//	                      member. So does a spare that sleeps when two thirds of the time until the expiry of its
//	                      agent's certificate have passed. It is deleted when a new spare is ready. One such spare is
//	                      renewed at a time. While the rollout is halted (rule 47), outdated spares stay (spares.go,
//	                      sleep.go).
//	81 surplus spares     If there are more spares than rule 77 asks for, the surplus is deleted: those that are due
//	                      first, then unready ones, then the oldest. A ready spare that a person protects stays
//	                      (spares.go).
//
//	82 sleep              With spares.state stopped or suspended, a spare is put to sleep when it is ready (rule 78),
//	                      its agent has reported its role, all its health checks have passed, and it has the files of
//	                      the group. The decision is recorded first. From then on, the spare needs no reports, a VM
//	                      that stops is not lost, and what its agent still reports does not matter. It is put to sleep
//	                      again if its VM still runs after 10 min. While it falls asleep, it becomes no member. For 10
//	                      min after rule 84 applied in the group, its spares stay awake (sleep.go).
//	83 wake               When a spare that sleeps becomes a member (rule 78), its VM is woken, again and again until
//	                      it runs. The member is unready until its agent reports from the woken VM, and has the files
//	                      of the group. It is silent (rule 12) if there is no report for registration_timeout after it
//	                      became a member. For a minute after the VM was woken, it does not matter if the provider
//	                      still says that it sleeps. A new leader also wakes members that were woken at most 10 min
//	                      ago (sleep.go).
//	84 not woken          The provider cannot wake the VM of a member (rule 83), or the VM still sleeps when
//	                      request_timeout has passed since it became a member. The instance is replaced immediately
//	                      (rule 18). It has not failed (rules 25, 47) (sleep.go).
package plan
