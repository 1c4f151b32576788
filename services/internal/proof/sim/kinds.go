package sim

// Kind names one kind of fault, or one kind of action by people.
type Kind string

// Faults of one request to the bucket or the provider.
const (
	bucketRefused  Kind = "bucket refuses"     // no effect; the caller cannot know
	bucketLost     Kind = "bucket answer lost" // takes effect; no answer
	bucketLate     Kind = "bucket write late"  // takes effect many requests later
	bucketSlow     Kind = "bucket slow"
	bucketStale    Kind = "bucket list stale"
	bucketRepeated Kind = "bucket write twice" // the client repeats the write and returns the second answer
	cloudFails     Kind = "provider fails"     // no effect; the caller cannot know
	cloudThrottles Kind = "provider throttles"
	cloudLost      Kind = "provider answer lost"
	cloudLate      Kind = "provider call late" // takes effect up to 40 s later
	cloudSlow      Kind = "provider slow"
	cloudLag       Kind = "provider view old" // an outdated answer
	cloudFull      Kind = "no capacity"
	cloudRepeated  Kind = "provider call twice"
	spotScarce     Kind = "no spot capacity"    // for up to ten minutes
	crashBefore    Kind = "crash before effect" // before the current request takes effect
	crashAfter     Kind = "crash after effect"
	pauseAtCall    Kind = "pause at call"   // for half a lease to three leases, between the last check and the effect
	timerLate      Kind = "timer late"      // an election timer, by up to a twentieth of the lease
	lockLate       Kind = "lock write late" // like other late writes, but more often
)

// Faults of messages between servers, and of their connections.
const (
	messageLost  Kind = "message lost"
	messageLate  Kind = "message late" // by up to four promises, so that later messages overtake it
	messageTwice Kind = "message twice"
	linkLost     Kind = "link lost"
	linkFlaps    Kind = "link flaps"
	peersCut     Kind = "peers cut off" // from one or all others; messages sent meanwhile are lost or arrive later
	peersOneWay  Kind = "peers cut one way"
	peersLossy   Kind = "peers lossy"
	peersSlow    Kind = "peers slow"
	heirKilled   Kind = "heir killed"
	heirPaused   Kind = "heir paused"
	pairKilled   Kind = "leader and heir killed" // the second within two promises of the first
	pairCut      Kind = "leader and heir cut from bucket"
)

// Faults of servers and their networks and clocks.
const (
	killed9      Kind = "server killed"
	killedMach   Kind = "machine terminated"
	killedAll    Kind = "all servers killed"
	stopped      Kind = "server stopped" // SIGTERM
	paused       Kind = "server paused"  // SIGSTOP or suspension: clocks keep running
	frozen       Kind = "clock stopped"  // paused, and its clock stops too
	cutBoth      Kind = "cut off"        // from the bucket and the provider
	cutBucket    Kind = "cut from bucket"
	cutCloud     Kind = "cut from provider"
	cutAnswers   Kind = "answers cut" // requests arrive, answers do not
	deafened     Kind = "cut from agents"
	clockStep    Kind = "time of day steps"
	lockRemoved  Kind = "lock removed"
	bucketCrawls Kind = "bucket slow for minutes" // for all servers
	wiped        Kind = "everything deleted"      // every process, cache and VM at the same time
)

// Faults of VMs and agents.
const (
	lostVM      Kind = "VM lost"
	lostAll     Kind = "all VMs lost"
	agentMute   Kind = "agents mute"
	allMute     Kind = "all agents mute"
	allCutOff   Kind = "all agents cut off" // they come back one after the other
	agentSick   Kind = "agents unwell"
	checkFails  Kind = "health check fails"            // on one VM, until it is replaced
	checksDown  Kind = "health check fails everywhere" // on new VMs too
	refused     Kind = "load balancer refuses"         // one VM, until it is replaced
	refusedAll  Kind = "load balancer refuses all"     // for some minutes, new VMs too
	neverServes Kind = "load balancer refuses new"     // a VM from its start on
	notice      Kind = "spot notice"
	recommended Kind = "recommendation" // or its end
	maintained  Kind = "maintenance"    // which ends the VM, or its withdrawal
	powerOff    Kind = "power off"
	reboot      Kind = "reboot"
	agentFlaps  Kind = "agent flaps" // falls silent again and again
	stranger    Kind = "VM without record"
	subnetFull  Kind = "subnet full"
	addressGone Kind = "address taken"
	agentBroken Kind = "agent never comes"
	answerGone  Kind = "registration lost"
	thief       Kind = "nonce stolen"
	versionBad  Kind = "bad version"
)

// Actions of people and of the operator.
const (
	bucketCopied    Kind = "bucket copied" // and a server uses the copy
	resize          Kind = "size changed"
	newInfra        Kind = "infra changed"
	newRuntime      Kind = "runtime changed"
	newRollout      Kind = "rollout changed"
	newImage        Kind = "new image"
	groupGone       Kind = "group added or removed"
	rebalance       Kind = "balancers changed"
	expiryOn        Kind = "expiry switched"
	emptying        Kind = "shard emptied"
	invalid         Kind = "invalid config"
	groupChanged    Kind = "operator changes group"
	madeOne         Kind = "operator creates"
	removedOne      Kind = "operator deletes"
	protectedOne    Kind = "operator protects" // or ends that
	watchCut        Kind = "watch cut"
	neverDrains     Kind = "operator drains not"
	failsKept       Kind = "VM to keep fails" // its health check
	released        Kind = "operator releases"
	newPreserve     Kind = "preserve changed"
	goodConfig      Kind = "trial of a good configuration"
	badConfig       Kind = "trial of a bad configuration"
	fixedConfig     Kind = "bad configuration corrected"
	killedUndoing   Kind = "leader killed during a trial"
	killedKeeping        = "leader killed while it preserves"
	sizeHeld        Kind = "operator holds a size"
	metricsLie      Kind = "numbers lie" // of some agents or all
	metricsGone     Kind = "no numbers"
	killedScaling   Kind = "leader killed while it scales"
	memberLost      Kind = "VM lost beside spares"
	newSpares       Kind = "spares changed"
	killedPromoting Kind = "leader killed while it promotes"
	killedSleeping  Kind = "leader killed while it puts to sleep"
	killedWaking    Kind = "leader killed while it wakes"
	noSleep         Kind = "VMs do not sleep"
	noWake          Kind = "VMs do not wake"
	sleeperLost     Kind = "VM lost in its sleep"
)

// odds says how often a kind of fault occurs in a World that has this kind.
type odds struct {
	kind Kind
	most float64 // for requests the largest probability, for other kinds the relative weight
}

// These lists contain the kinds of faults. The code decides on the faults of each list in one place. Do not change the
// order in a list: the same seed would then produce other faults.
var (
	ofRequests = []odds{
		{bucketRefused, 0.1}, {bucketLost, 0.05}, {bucketLate, 0.02}, {bucketSlow, 0.05}, {bucketStale, 0.3},
		{bucketRepeated, 0.02},
		{cloudFails, 0.1}, {cloudThrottles, 0.1}, {cloudLost, 0.05}, {cloudLate, 0.02}, {cloudSlow, 0.1},
		{cloudLag, 0.1}, {cloudFull, 0.2},
		{cloudRepeated, 0.05}, {crashBefore, 0.005}, {crashAfter, 0.005}, {pauseAtCall, 0.003}, {timerLate, 0.1},
		{lockLate, 0.2},
	}
	ofMessages = []odds{{messageLost, 0.01}, {messageLate, 0.01}, {messageTwice, 0.005}}
	ofAgents   = []odds{{agentBroken, 0.05}, {answerGone, 0.1}, {thief, 0.02}, {versionBad, 0.5}, {neverServes, 0.1}}
	ofTimes    = []odds{
		{killed9, 2}, {killedMach, 1}, {killedAll, 1}, {stopped, 1}, {paused, 2}, {frozen, 1}, {cutBoth, 1},
		{cutBucket, 0.5}, {cutCloud, 0.5},
		{cutAnswers, 0.5}, {deafened, 1}, {clockStep, 0.3}, {lockRemoved, 0.3}, {wiped, 0.4},
		{lostVM, 3}, {lostAll, 1}, {agentMute, 1.5}, {allMute, 0.7}, {agentSick, 0.7}, {checkFails, 0.7},
		{checksDown, 0.5}, {notice, 0.7}, {powerOff, 0.7},
		{reboot, 0.7}, {stranger, 0.7},
		{subnetFull, 0.5}, {addressGone, 0.5},
		{resize, 1.5}, {newInfra, 1.2}, {newRuntime, 0.6}, {groupGone, 0.5}, {rebalance, 0.5}, {expiryOn, 0.4},
		{emptying, 0.4}, {invalid, 0.4},
		{groupChanged, 0.8}, {madeOne, 0.8}, {removedOne, 0.8}, {watchCut, 0.5}, {neverDrains, 0.3},
		{linkLost, 0.5}, {linkFlaps, 0.5}, {peersCut, 1}, {peersOneWay, 1}, {peersLossy, 0.5}, {peersSlow, 0.5},
		{heirKilled, 1}, {heirPaused, 1},
		{pairKilled, 0.5}, {pairCut, 0.5}, {newRollout, 1.5}, {newImage, 0.6},
		{protectedOne, 1.5}, {spotScarce, 2}, {allCutOff, 0.5},
		{refused, 0.7}, {refusedAll, 0.5}, {agentFlaps, 0.7}, {bucketCrawls, 0.7},
		{recommended, 0.7}, {maintained, 0.7},
	}
)

// ofHeirs are the kinds of faults that occur only in a World with heirs.
var ofHeirs = []Kind{messageLost, messageLate, messageTwice, linkLost, linkFlaps, peersCut, peersOneWay, peersLossy,
	peersSlow, heirKilled, heirPaused, pairKilled, pairCut}

// Kinds returns all kinds, in a fixed order.
func Kinds() []Kind {
	var kinds []Kind
	kinds = append(kinds, bucketCopied) // planCopies decides on it
	for _, all := range [][]odds{ofRequests, ofAgents, ofMessages, ofTimes, ofPreserved, ofTrials, ofScaled} {
		for _, o := range all {
			kinds = append(kinds, o.kind)
		}
	}
	return kinds
}

// rates are the odds of one World: a random subset of the kinds, each with its own rate. Some bugs are reached only
// when other kinds of faults are absent ("Swarm Testing", Groce et al., ISSTA 2012).
type rates struct {
	of    map[Kind]float64
	total float64 // weight of all kinds in ofTimes
}

func (w *World) drawRates() rates {
	d := w.dice("rates")
	r := rates{of: map[Kind]float64{}}
	share := 0.3 + 0.6*d.Float64() // the share of kinds that this World has
	for _, all := range [][]odds{ofRequests, ofAgents, ofMessages, ofTimes} {
		for _, o := range all {
			has, rate := d.chance(share), d.Float64()
			if has {
				r.of[o.kind] = rate * o.most
			}
		}
	}
	if d.chance(0.5) { // if both lists omit entries, no source can reveal a record
		delete(r.of, bucketStale)
	} else {
		delete(r.of, cloudLag)
	}
	if r.of[bucketStale] > 0 {
		delete(r.of, lockRemoved) // without the lock, the highest term is read from a list
	}
	if w.promise == 0 {
		for _, k := range ofHeirs {
			delete(r.of, k)
		}
	}
	if w.mixed() { // a server that knows of no heirs cannot know the lease of a lock it never saw
		delete(r.of, lockRemoved)
	}
	if w.opts.Limited {
		r.of[newInfra], r.of[newRollout] = 6, 3
	}
	for _, o := range ofTimes {
		r.total += r.of[o.kind]
	}
	return r
}

// pick returns a random one of the kinds in the list ofTimes, or "" if this World has none of them.
func (r *rates) pick(d *dice) Kind {
	at := d.Float64() * r.total
	for _, o := range ofTimes {
		if at -= r.of[o.kind]; at < 0 {
			return o.kind
		}
	}
	return ""
}
