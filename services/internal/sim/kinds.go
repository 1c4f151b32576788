package sim

// Kind names one way in which things go wrong, or one thing that people do meanwhile.
type Kind string

// Faults of one request to the bucket or the provider.
const (
	bucketRefused  Kind = "bucket refuses"       // no effect; the caller cannot know
	bucketLost     Kind = "bucket answer lost"   // effect, no answer
	bucketLate     Kind = "bucket write late"    // takes effect many requests later
	bucketSlow     Kind = "bucket slow"          //
	bucketStale    Kind = "bucket list stale"    //
	bucketRepeated Kind = "bucket write twice"   // sent again below the caller, who hears the second answer
	cloudFails     Kind = "provider fails"       // no effect; the caller cannot know
	cloudThrottles Kind = "provider throttles"   //
	cloudLost      Kind = "provider answer lost" //
	cloudLate      Kind = "provider call late"   // takes effect up to 40 s later
	cloudSlow      Kind = "provider slow"        //
	cloudLag       Kind = "provider view old"    // answers from the past
	cloudFull      Kind = "no capacity"          //
	cloudRepeated  Kind = "provider call twice"  //
	crashBefore    Kind = "crash before effect"  // of the request under way
	crashAfter     Kind = "crash after effect"   //
	pauseAtCall    Kind = "pause at call"        // longer than the lease, between the last check and the effect
	timerLate      Kind = "timer late"           // of the election, up to a twentieth of the lease
	lockLate       Kind = "lock write late"      // as any other, and more often
)

// Faults of messages between servers, and of their connections.
const (
	messageLost  Kind = "message lost"
	messageLate  Kind = "message late" // up to four promises: overtaken by others
	messageTwice Kind = "message twice"
	linkLost     Kind = "link lost"
	linkFlaps    Kind = "link flaps"
	peersCut     Kind = "peers cut off" // from one or all others; what is sent meanwhile is lost, or arrives afterwards
	peersOneWay  Kind = "peers cut one way"
	peersLossy   Kind = "peers lossy"
	peersSlow    Kind = "peers slow"
	heirKilled   Kind = "heir killed"
	heirPaused   Kind = "heir paused"
	pairKilled   Kind = "leader and heir killed" // one, and within two promises the other
	pairCut      Kind = "leader and heir cut from bucket"
)

// Faults of servers and their networks and clocks.
const (
	killed9     Kind = "server killed"
	killedMach  Kind = "machine terminated"
	killedAll   Kind = "all servers killed"
	stopped     Kind = "server stopped" // SIGTERM
	paused      Kind = "server paused"  // SIGSTOP or suspension: clocks go on
	frozen      Kind = "clock stopped"  // paused, and its clock with it
	cutBoth     Kind = "cut off"        // from bucket and provider
	cutBucket   Kind = "cut from bucket"
	cutCloud    Kind = "cut from provider"
	cutAnswers  Kind = "answers cut" // requests arrive, answers do not
	deafened    Kind = "cut from agents"
	clockStep   Kind = "time of day steps"
	lockRemoved Kind = "lock removed"
	wiped       Kind = "everything deleted" // every process, cache and VM at once
)

// Faults of VMs and agents.
const (
	lostVM      Kind = "VM lost"
	lostAll     Kind = "all VMs lost"
	agentMute   Kind = "agents mute"
	allMute     Kind = "all agents mute"
	agentSick   Kind = "agents unwell"
	notice      Kind = "spot notice"
	powerOff    Kind = "power off"
	reboot      Kind = "reboot"
	stranger    Kind = "VM without record"
	subnetFull  Kind = "subnet full"
	addressGone Kind = "address taken"
	agentBroken Kind = "agent never comes"
	answerGone  Kind = "registration lost"
	thief       Kind = "nonce stolen"
)

// What people and the operator do.
const (
	resize       Kind = "size changed"
	newInfra     Kind = "infra changed"
	newRuntime   Kind = "runtime changed"
	groupGone    Kind = "group added or removed"
	rebalance    Kind = "balancers changed"
	expiryOn     Kind = "expiry switched"
	emptying     Kind = "shard emptied"
	invalid      Kind = "invalid config"
	groupChanged Kind = "operator changes group"
	madeOne      Kind = "operator creates"
	removedOne   Kind = "operator deletes"
	watchCut     Kind = "watch cut"
	neverDrains  Kind = "operator drains not"
)

// odds is how often something happens in a world that has it.
type odds struct {
	kind Kind
	most float64 // of a request's: the largest chance; of the others: the weight among them
}

// Faults by where they are decided, in a fixed order: it is part of what a seed means.
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
	ofAgents   = []odds{{agentBroken, 0.05}, {answerGone, 0.1}, {thief, 0.02}}
	ofTimes    = []odds{
		{killed9, 2}, {killedMach, 1}, {killedAll, 1}, {stopped, 1}, {paused, 2}, {frozen, 1}, {cutBoth, 1},
		{cutBucket, 0.5}, {cutCloud, 0.5},
		{cutAnswers, 0.5}, {deafened, 1}, {clockStep, 0.3}, {lockRemoved, 0.3}, {wiped, 0.4},
		{lostVM, 3}, {lostAll, 1}, {agentMute, 1.5}, {allMute, 0.7}, {agentSick, 0.7}, {notice, 0.7}, {powerOff, 0.7},
		{reboot, 0.7}, {stranger, 0.7},
		{subnetFull, 0.5}, {addressGone, 0.5},
		{resize, 1.5}, {newInfra, 0.6}, {newRuntime, 0.6}, {groupGone, 0.5}, {rebalance, 0.5}, {expiryOn, 0.4},
		{emptying, 0.4}, {invalid, 0.4},
		{groupChanged, 0.8}, {madeOne, 0.8}, {removedOne, 0.8}, {watchCut, 0.5}, {neverDrains, 0.3},
		{linkLost, 0.5}, {linkFlaps, 0.5}, {peersCut, 1}, {peersOneWay, 1}, {peersLossy, 0.5}, {peersSlow, 0.5},
		{heirKilled, 1}, {heirPaused, 1},
		{pairKilled, 0.5}, {pairCut, 0.5},
	}
)

// ofHeirs are the kinds that a world without heirs does not have.
var ofHeirs = []Kind{messageLost, messageLate, messageTwice, linkLost, linkFlaps, peersCut, peersOneWay, peersLossy,
	peersSlow, heirKilled, heirPaused, pairKilled, pairCut}

// Kinds lists every kind, in order.
func Kinds() []Kind {
	var kinds []Kind
	for _, all := range [][]odds{ofRequests, ofAgents, ofMessages, ofTimes} {
		for _, o := range all {
			kinds = append(kinds, o.kind)
		}
	}
	return kinds
}

// rates are the odds of one world: a random subset of the kinds, each at a rate of its own ("Swarm Testing", Groce et
// al., ISSTA 2012: what all faults together never reach, some of them alone do).
type rates struct {
	of    map[Kind]float64
	total float64 // of those at times
	// request holds the odds of a request's faults by their place in ofRequests, so that a request looks nothing up.
	request, message []float64 // and of a message's
}

func (w *World) drawRates() rates {
	d := w.dice("rates")
	r := rates{of: map[Kind]float64{}}
	share := 0.3 + 0.6*d.Float64() // of the kinds that this world has
	for _, all := range [][]odds{ofRequests, ofAgents, ofMessages, ofTimes} {
		for _, o := range all {
			has, rate := d.chance(share), d.Float64()
			if has {
				r.of[o.kind] = rate * o.most
			}
		}
	}
	if d.chance(0.5) { // when both lists lie there is nothing left to know a record by
		delete(r.of, bucketStale)
	} else {
		delete(r.of, cloudLag)
	}
	if r.of[bucketStale] > 0 {
		delete(r.of, lockRemoved) // the highest term is then read from a list
	}
	if w.promise == 0 {
		for _, k := range ofHeirs {
			delete(r.of, k)
		}
	}
	if w.mixed() { // who knows nothing of heirs cannot know how long a lock was that it never saw
		delete(r.of, lockRemoved)
	}
	for _, o := range ofMessages {
		r.message = append(r.message, r.of[o.kind])
	}
	for _, o := range ofRequests {
		r.request = append(r.request, r.of[o.kind])
	}
	for _, o := range ofTimes {
		r.total += r.of[o.kind]
	}
	return r
}

// pick returns one of the kinds that happen at times, "" in a world without.
func (r *rates) pick(d *dice) Kind {
	at := d.Float64() * r.total
	for _, o := range ofTimes {
		if at -= r.of[o.kind]; at < 0 {
			return o.kind
		}
	}
	return ""
}
