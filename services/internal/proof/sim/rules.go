package sim

// rule is the name of a property that must hold, regardless of faults.
type rule string

const (
	ruleOneLeader   rule = "one leader"     // at most one server acts at a time
	ruleRisingTerms rule = "rising terms"   // terms only rise
	ruleMayAct      rule = "authority"      // only the leader changes anything
	ruleReservedVM  rule = "reservation"    // no create without a durable reservation of this term
	ruleOneVM       rule = "one VM per ID"  // and one meaning of an ID
	ruleOwnVMs      rule = "own VMs"        // never an instance of another shard, cluster or owner
	ruleSize        rule = "size"           // at most target plus surge plus calls without a known answer
	ruleWave        rule = "wave"           // false unhealthy reports remove at most max_unhealthy
	ruleChecks      rule = "health check"   // an instance whose health check fails is replaced once faults stop
	ruleRecovery    rule = "recovery"       // an instance that recovers from a common fault is not replaced
	ruleOutage      rule = "outage"         // an outage of all servers replaces no running, reachable VM
	ruleReplaced    rule = "replace first"  // a running instance goes after its replacement is healthy
	ruleScaledDown  rule = "scale-down"     // no more than requested, across crashes
	ruleGone        rule = "gone"           // no running VM is treated as gone
	ruleIntent      rule = "durable intent" // no running VM is terminated or announced as ending without it
	// A server that has promised not to take over keeps the promise. A leader with an heir acts only while it has this
	// promise from the heir.
	rulePromise   rule = "promise"
	ruleHeir      rule = "heir"          // without faults there is one, and it takes over soon
	ruleProof     rule = "fresh proof"   // no termination without a proof of leadership newer than its intent
	ruleDrain     rule = "drain"         // a drain has its time, is announced, and ends
	ruleOrphans   rule = "orphans"       // VMs without a record end, after a delay, and many only if confirmed
	ruleNewest    rule = "newest config" // no action from a configuration older than an applied one
	ruleOneLife   rule = "one life"      // states, terms and revisions of a record only advance
	ruleOneKey    rule = "one key per nonce"
	ruleTombstone rule = "tombstone"       // kept for its retention, and only for VMs that are gone
	ruleAcked     rule = "acknowledged"    // acknowledged changes survive
	ruleLeads     rule = "a server leads"  // within a bounded time after the faults
	ruleAtRest    rule = "desired state"   // reached once faults stop
	ruleQuiet     rule = "quiet"           // nothing changes after that
	rulePatience  rule = "patience"        // no request is repeated without a backoff
	ruleAddress   rule = "address"         // it ends at the leader
	rulePause     rule = "pause"           // no outdated instance is replaced while the rollout is paused
	ruleCanary    rule = "canary"          // nor before the canaries have run for bake_time
	ruleImage     rule = "image"           // only on_image_change replaces an instance whose image is outdated
	ruleProtected rule = "protected"       // a protected instance is neither rotated nor scaled down while it is well
	rulePurchase  rule = "purchase"        // groups buy spot instances and others as their options say
	ruleHalt      rule = "halt"            // nor after halt_on_failures failures
	ruleWindows   rule = "windows"         // nor outside the disruption windows
	rulePerHour   rule = "per hour"        // nor more than max_per_hour
	ruleAdvised   rule = "advised"         // nor because of advice that it ignores, nor too early for maintenance
	ruleVerdict   rule = "balancer health" // verdicts of load balancers replace instances, and new ones wait for them
	ruleBalancers rule = "load balancers"  // members are the instances of the groups that name them
	ruleFinish    rule = "finish"          // a replacement is finished even if the replaced instance recovers
	ruleSlow      rule = "slow bucket"     // a leader keeps its lease while the latency of the bucket permits it
	ruleHome      rule = "home"            // no server leads in a copy of the bucket
	ruleScaling   rule = "scaling"         // chosen sizes keep their limits, windows and pauses, and end right
	rulePreserve  rule = "preserve"        // at most preserve.max failed instances are kept, and for preserve.for
	ruleSpares    rule = "spares"          // at most spares.count, each becomes a member once, and only if one lacks
	ruleNoPanic   rule = "no panic"
	ruleSimulator rule = "simulator's own" // the simulator does not understand what it observes
)
