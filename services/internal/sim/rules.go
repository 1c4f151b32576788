package sim

// rule names one thing that must hold, after page 13 of the specification ("What must hold, whatever fails").
type rule string

const (
	ruleOneLeader   rule = "one leader"     // at most one acts at a time
	ruleRisingTerms rule = "rising terms"   // terms only rise
	ruleMayAct      rule = "authority"      // whoever changes something leads
	ruleReservedVM  rule = "reservation"    // no create without a durable reservation of this term
	ruleOneVM       rule = "one VM per ID"  // and one meaning of an ID
	ruleOwnVMs      rule = "own VMs"        // never an instance of another shard, cluster or owner
	ruleSize        rule = "size"           // never above target plus surge plus calls whose answer is unknown
	ruleWave        rule = "wave"           // false unhealthy signals remove no more than max_unhealthy
	ruleOutage      rule = "outage"         // an outage of all servers replaces no VM that runs and can be reached
	ruleReplaced    rule = "replace first"  // what runs goes after its replacement is healthy
	ruleScaledDown  rule = "scale-down"     // no more than was asked, across crashes
	ruleGone        rule = "gone"           // nothing that runs is taken to be gone
	ruleIntent      rule = "durable intent" // no running VM terminated, and no end announced, without it
	// who promised does not take over, and who needs a promise does not act without.
	rulePromise   rule = "promise"
	ruleHeir      rule = "heir"              // in peace there is one, and it leads at once
	ruleProof     rule = "fresh proof"       // no termination without a proof of leadership younger than its intent
	ruleDrain     rule = "drain"             // a drain may take its time, is announced, and ends
	ruleOrphans   rule = "orphans"           // VMs without record die, but not many at once unasked, and not at once
	ruleNewest    rule = "newest config"     // no action from a config older than one that was applied
	ruleOneLife   rule = "one life"          // states, terms and revisions of a record go forward
	ruleOneKey    rule = "one key per nonce" //
	ruleTombstone rule = "tombstone"         // kept for its retention, and only for what is gone
	ruleAcked     rule = "acknowledged"      // what was acknowledged survives
	ruleLeads     rule = "somebody leads"    // within a bounded time after the faults
	ruleAtRest    rule = "desired state"     // reached once faults stop
	ruleQuiet     rule = "quiet"             // and then nothing happens
	rulePatience  rule = "patience"          // nothing is asked for again and again
	ruleAddress   rule = "address"           // ends at the leader
	ruleBalancers rule = "load balancers"    // members are the instances of the groups that name them
	ruleNoPanic   rule = "no panic"          //
	ruleSimulator rule = "simulator's own"   // the simulator does not understand what it sees
	ruleReach     rule = "agents are heard"  // a stream that was acknowledged is one
)
