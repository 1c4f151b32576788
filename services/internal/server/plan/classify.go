package plan

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// class is the state of an instance with regard to its group's size. The constants are in the order of the rules.
type class uint8

const (
	classLeaving   class = iota // never counts
	classPreserved              // never counts, and stays (rule 67)
	classCreating               // counts, but is not available yet
	classLost                   // does not count; its replacement is no surge
	classFailed                 // does not count; its replacement waits for the group's backoff
	// classOnDemandExpired and classOnDemand are on-demand instances. They do not count towards the size.
	classOnDemandExpired
	classOnDemand
	// classExpired and classSilent count towards the size and run. Each is deleted when its replacement is healthy.
	classExpired
	classHeld    // as classSilent, but the unhealthy guard holds: counts and stays
	classSilent  // or with a failing health check or verdict of a load balancer; see classExpired
	classAdvised // rules 65 and 66; see classExpired
	// The next two classes count towards the size, but their instances are not accepted as replacements of others.
	classUnreadyDrifted
	classUnready
	// The next three classes are of healthy instances, and count towards the size. Waves replace them (rule 20).
	classDrifted
	classAged
	classReturning
	classWell
	classes = int(iota)
	// The next three classes are of warm spares, which no other class above the first five contains. Spares of classDue
	// are replaced by new ones (rule 80).
	classSpareDue     = class(classes)
	classSpareUnready = class(classes + 1)
	classSpare        = class(classes + 2)
)

// available reports whether instances of a class are assumed to serve. This includes silent and unhealthy ones, because
// the fault may be outside the instance.
func (c class) available() bool {
	switch c {
	case classExpired, classHeld, classSilent, classAdvised, classDrifted, classAged, classReturning, classWell:
		return true
	}
	return false
}

// facts are properties of one instance that several rules need.
type facts uint32

const (
	factLeaving      facts = 1 << iota // see [Instance.isLeaving] and [group.isRemoved]
	factCreating                       // see [Instance.awaitsCreate]
	factNoticed                        // the cloud will take the VM away
	factPoweringOff                    // the agent announced the machine's shutdown
	factEnded                          // the VM does not run
	factUnregistered                   // the agent never registered
	factOnDemand                       // no group's size asked for it
	// factUnwell: unregistered, unhealthy at its last report, late with the next, or rule 60, 62 or 63.
	factUnwell
	factReplaced    // rule 62
	factFlapping    // rule 63
	factRecommended // rule 65
	factMaintenance // rule 66
	// factTooEarly: under rule 66, the replacement waits for a window or for the maintenance.
	factTooEarly
	factPreserved // rule 67
	factSpare     // rule 77; not while the record of its promotion is being written
)

func (f facts) has(all facts) bool { return f&all == all }

// rule is one row of the classification table.
type rule struct {
	number int // in doc.go
	name   string
	class  class
	// cause is why the rule deletes an instance even if the group is not too large; CauseNone: it does not.
	cause Cause
	// needs are the facts without which the rule does not apply.
	needs facts
	// applies checks the conditions of the rule that are not in `needs`; nil: there are no others. It must not change
	// the group. until is when the answer may change without an event; zero: never.
	applies func(g *group, i subject) (yes bool, until time.Time)
}

// subject is an instance that is being classified.
type subject struct {
	*Instance
	facts
}

// rules is the classification table: the first rule that applies to an instance determines its class.
var rules = [...]rule{
	{1, "leaving", classLeaving, CauseNone, factLeaving, nil},
	{67, "preserved", classPreserved, CauseNone, factPreserved, (*group).isPreserved},
	{2, "creating", classCreating, CauseNone, factCreating, nil},
	{3, "notice", classLost, CauseNotice, factNoticed, nil},
	{4, "power off", classLost, CausePowerOff, factPoweringOff, func(g *group, i subject) (bool, time.Time) {
		if i.has(factEnded) {
			return true, time.Time{}
		}
		return i.poweredOff(&g.Settings, g.Now)
	}},
	{5, "ended unregistered", classLost, CauseUnregistered, factEnded | factUnregistered, nil},
	{6, "gone", classLost, CauseGone, factEnded, nil},
	{84, "not woken", classLost, CauseNotWoken, factUnwell, (*group).isNotWoken},
	{7, "unregistered", classFailed, CauseUnregistered, factUnregistered, (*group).isRegistrationOverdue},
	{8, "on-demand expired", classOnDemandExpired, CauseExpired, factOnDemand,
		func(g *group, i subject) (bool, time.Time) { return g.isOlder(i.Instance, g.Settings.OnDemandAge) }},
	{9, "on-demand", classOnDemand, CauseNone, factOnDemand, nil},
	{10, "expired", classExpired, CauseExpired, 0, func(g *group, i subject) (bool, time.Time) {
		// An instance that never registered does not expire, because expired instances count as available and this one
		// is not. Rule 7 (registration_timeout) deletes it.
		if i.has(factUnregistered) {
			return false, time.Time{}
		}
		return g.isOlder(i.Instance, g.Settings.ForcedAge)
	}},
	{11, "held", classHeld, CauseNone, factUnwell, func(g *group, i subject) (bool, time.Time) {
		if !g.guarded || g.failed(i.Instance) { // rule 71
			return false, time.Time{}
		}
		unhealthy, until := g.isUnhealthy(i)
		return unhealthy, sooner(until, g.guardedUntil)
	}},
	{12, "silent", classSilent, CauseUnhealthy, factUnwell, (*group).isSilent},
	{52, "failing", classSilent, CauseHealthCheck, factUnwell, (*group).failsCheck},
	{59, "unhealthy in load balancer", classSilent, CauseLoadBalancer, factUnwell,
		func(_ *group, i subject) (bool, time.Time) { return i.Balancer.Failed != "", time.Time{} }},
	{62, "finish", classSilent, CauseFlapping, factUnwell | factReplaced, nil},
	{63, "flapping", classSilent, CauseFlapping, factUnwell | factFlapping, nil},
	{65, "recommended", classAdvised, CauseRecommendation, factRecommended, nil},
	{66, "maintenance", classAdvised, CauseMaintenance, factMaintenance, nil},
	{13, "unready, drifted", classUnreadyDrifted, CauseDrift, factUnwell, (*group).isDrifted},
	{14, "unready", classUnready, CauseNone, factUnwell, nil}, // group.addReports schedules the next missed report
	{15, "drifted", classDrifted, CauseDrift, 0, (*group).isDrifted},
	{16, "aged", classAged, CauseExpired, 0, func(g *group, i subject) (bool, time.Time) {
		if g.isProtected(i.Instance) {
			return false, time.Time{}
		}
		return g.isOlder(i.Instance, g.Settings.EligibleAge)
	}},
	{80, "aged spare", classAged, CauseExpired, factSpare, (*group).isAgedSpare},
	{80, "spare of another state", classDrifted, CauseDrift, factSpare, (*group).isOfOtherState},
	{58, "returning to spot", classReturning, CauseReturnToSpot, 0, (*group).isReturning},
	{77, "spare", classWell, CauseNone, factSpare, nil},
	{17, "well", classWell, CauseNone, 0, nil},
}

// group is a snapshot with its instances classified. Planning does not change it.
type group struct {
	Snapshot
	desired, surge int
	spares         int  // instances that are spares, in any state
	registered     bool // an instance of the group has registered
	booting        bool // an instance has not registered
	// usual is how long a registration usually takes, and lateAfter is when it is late. They are zero if no instance
	// boots. usual is also zero if it is not known.
	usual, lateAfter time.Duration
	guard            Guard
	guarded          bool      // the unhealthy guard holds (rules 26 and 61)
	outside          bool      // see [group.failsOutside]; false without rollback
	guardedUntil     time.Time // when it ends by time alone; zero: unknown
	// anyReportMatters means that the plan may change with any report, for example because an instance is silent.
	anyReportMatters bool
	rows             []uint8 // by instance: index of its rule
	facts            []facts // by instance
	tally            tally
	schedule         Schedule    // when the classification may change
	returning        []*Instance // see [group.findReturning]
	waiting          []bool      // see [group.findWaiting]
	waits            int         // how many of them are true
	// earliestReport is the oldest of the last reports of all instances that report in time. The next report that is
	// due is from that instance. Zero: there are none.
	earliestReport time.Time
}

func (g *group) class(n int) class {
	c := rules[g.rows[n]].class
	if g.facts[n].has(factSpare) {
		return spareClass(c)
	}
	return c
}

// cause returns why instance n is deleted even if the group is not too large, or CauseNone.
func (g *group) cause(n int) Cause {
	if g.Instances[n].OnDemand && g.class(n) == classOnDemand && g.emptying() {
		return g.scaleDownCause()
	}
	return rules[g.rows[n]].cause
}

// tally counts managed instances.
type tally struct {
	of [classes]int
	// running counts the registered instances that run, even silent ones that are being deleted. late counts those that
	// the guard counts as silent or failing. unhealthy counts those that are replaced unless the guard forbids it.
	running, late, unhealthy int
	// failing counts instances that run or never registered, and whose deletion is not recorded yet. If they were
	// replaced before the record is written, there could be more VMs than size and surge allow.
	failing int
	// draining counts the leaving instances that run and whose termination the provider has not accepted yet. marking
	// counts the instances whose deletion is being recorded.
	draining, marking int
}

// replaceFirst counts the instances that are deleted only when a replacement is healthy (rule 19).
func (t *tally) replaceFirst() int {
	return t.of[classExpired] + t.of[classSilent] + t.of[classAdvised]
}

// rotating counts the healthy instances that waves are to replace (rule 20).
func (t *tally) rotating() int { return t.of[classDrifted] + t.of[classAged] + t.of[classReturning] }

func (t *tally) available() (n int) {
	for c, count := range t.of {
		if class(c).available() {
			n += count
		}
	}
	return n
}

// unavailable counts instances that count towards the size, but are not available yet.
func (t *tally) unavailable() int {
	return t.of[classCreating] + t.of[classUnready] + t.of[classUnreadyDrifted]
}

// total counts towards the size.
func (t *tally) total() int { return t.available() + t.unavailable() }

// classifyGroup classifies every instance. Before that, it evaluates the unhealthy guard for the group.
func classifyGroup(s Snapshot) *group {
	size, until := s.Group.SizeAt(s.Now) // rule 51
	g := &group{Snapshot: s, desired: max(0, size), surge: max(1, s.Group.MaxSurge),
		rows: make([]uint8, len(s.Instances)), facts: make([]facts, len(s.Instances))}
	g.planAgainAt(until)
	if g.emptying() {
		g.desired = 0
	}
	for n := range g.Instances {
		i := &g.Instances[n]
		g.facts[n] = g.factsOf(i)
		if g.facts[n].has(factSpare) {
			g.spares++
		}
		g.registered = g.registered || g.facts[n]&(factUnregistered|factPreserved) == 0 && !g.Instances[n].Rests()
		g.booting = g.booting || g.facts[n]&(factUnregistered|factLeaving) == factUnregistered
	}
	if g.booting {
		g.usual = g.usualRegistration()
		g.lateAfter = lateAfter(g.usual, g.Settings.RegistrationTimeout)
	}
	g.outside = g.rollsBack() && g.failsOutside()
	g.findReplaced()
	g.findAdvised()
	for n := range g.Instances {
		g.addSilence(subject{&g.Instances[n], g.facts[n]})
	}
	g.guard = s.Guard.After(g.tally.late > s.Group.MaxUnhealthy.Of(g.tally.running), RecoveryTime(s.Settings, &s.Group),
		s.Settings.RegistrationTimeout, s.Now)
	g.guarded, g.guardedUntil = g.guardHolds()
	g.planAgainAt(g.guardedUntil)
	g.planAgainAt(g.findReturning())
	for n := range g.Instances {
		i := subject{&g.Instances[n], g.facts[n]}
		row, until := g.classify(i)
		g.rows[n] = row
		g.planAgainAt(until)
		g.addReports(i, rules[row].class)
		if !i.OnDemand && !i.has(factSpare) {
			g.addToTally(i.Instance, row)
		}
	}
	g.tally.of[classCreating] += g.PendingCreates
	if !g.earliestReport.IsZero() {
		g.schedule.NextPlan = sooner(g.schedule.NextPlan, overdueAfter(g.earliestReport, g.Settings.HealthInterval))
	}
	return g
}

// factsOf returns the facts about an instance.
func (g *group) factsOf(i *Instance) (f facts) {
	set := func(fact facts, is bool) {
		if is {
			f |= fact
		}
	}
	registered := !i.RegisteredAt.IsZero()
	set(factLeaving, i.isLeaving() || g.isRemoved(i))
	set(factCreating, i.awaitsCreate() || i.Work == Promoting)
	set(factSpare, i.isSpare())
	set(factNoticed, i.Notice)
	set(factPoweringOff, !i.PowerOffAt.IsZero())
	set(factEnded, i.ended(i.providerState()))
	set(factUnregistered, !registered)
	set(factOnDemand, i.OnDemand)
	set(factPreserved, !i.PreservedAt.IsZero())
	if i.Rests() {
		set(factUnwell, i.Waking())
		return f // its agent is not there
	}
	set(factUnwell, !registered || !i.reportsInTime(&g.Settings, g.Now))
	awaits, until := g.awaitsBalancer(i)
	set(factUnwell, awaits)
	g.planAgainAt(until)
	flaps, until := g.isFlapping(i)
	set(factUnwell|factFlapping, flaps)
	g.planAgainAt(until)
	return f
}

// planAgainAt notes a time at which the classification may change; zero: none.
func (g *group) planAgainAt(at time.Time) {
	if !at.IsZero() {
		g.schedule = g.schedule.with(at)
	}
}

// classify returns the first rule that applies. until is when another rule may apply even without an event.
func (g *group) classify(i subject) (row uint8, until time.Time) {
	for n := range rules {
		r := &rules[n]
		if !i.has(r.needs) {
			continue
		}
		if r.applies == nil {
			return uint8(n), until
		}
		yes, change := r.applies(g, i)
		if !change.IsZero() {
			until = sooner(until, change)
		}
		if yes {
			return uint8(n), until
		}
	}
	panic("unreachable: the last rule always applies")
}

// addSilence counts an instance for the unhealthy guard. Why an instance of rule 71 fails is known: its configuration.
func (g *group) addSilence(i subject) {
	if i.OnDemand || i.has(factSpare) || g.failed(i.Instance) {
		return
	}
	running, late, until := i.countSilence(&g.Settings, g.SilenceFrom, g.Now, !i.has(factUnwell))
	g.planAgainAt(until)
	if !running {
		return
	}
	unhealthy := late
	if !i.isLeaving() { // factLeaving includes removed instances, which countSilence judges by their state
		unhealthy, until = g.isUnhealthy(i)
		g.planAgainAt(until)
	}
	g.tally.running++
	if late || unhealthy {
		g.tally.late++
	}
	if unhealthy {
		g.tally.unhealthy++
	}
}

// addReports notes when the next report of an instance is overdue, or sets anyReportMatters.
func (g *group) addReports(i subject, c class) {
	switch {
	case c == classPreserved || c == classCreating && i.Work != Promoting || c == classLost ||
		i.RegisteredAt.IsZero() || i.Asleep():
	case c == classLeaving:
		g.anyReportMatters = g.anyReportMatters || !g.SilenceFrom.IsZero()
	case !i.has(factUnwell):
		g.earliestReport = sooner(g.earliestReport, i.LastReport)
	default:
		g.anyReportMatters = true
	}
}

// addToTally counts a managed instance.
func (g *group) addToTally(i *Instance, row uint8) {
	if !i.PreservedAt.IsZero() {
		return // nor does it count when it is deleted later
	}
	t, r := &g.tally, &rules[row]
	t.of[r.class]++
	if r.cause == CauseUnregistered {
		t.failing++
	}
	if r.class != classLeaving {
		return
	}
	off, until := i.poweredOff(&g.Settings, g.Now)
	ended := off || !i.runs()
	marking := i.Work == MarkingDeleting || i.Work == Preserving
	if marking {
		t.marking++
		g.planAgainAt(until)
	}
	if marking && !i.Notice && (i.RegisteredAt.IsZero() || !ended) {
		t.failing++
	}
	if i.runs() && i.TerminateRequested.IsZero() {
		t.draining++
	}
}

// isLeaving reports whether the intent to delete is durable, or is being written. An instance also leaves its group
// while the intent to preserve it is being written.
func (i *Instance) isLeaving() bool {
	switch i.Work {
	case MarkingDeleting, Draining, Terminating, Forgetting:
		return true
	case Preserving:
		return i.PreservedAt.IsZero()
	}
	return i.State == record.Deleting || i.State == record.Deleted
}

// isRemoved is rule 44: the group's stored entry lists the instance as removed, so its deletion is durable.
func (g *group) isRemoved(i *Instance) bool {
	return len(g.Group.Removed) > 0 && slices.Contains(g.Group.Removed, i.ID) && !i.awaitsCreate()
}

// awaitsCreate reports whether the leader does not know yet if the VM exists. It can learn this only from the answer to
// the create call, or from the action Settle.
func (i *Instance) awaitsCreate() bool {
	return i.State == record.Reserved || i.Work == Creating && i.State == record.Created
}

// providerState is the VM's state according to the provider. An incomplete answer never counts as ProviderGone.
func (i *Instance) providerState() ProviderState {
	if i.Provider.Value == ProviderGone && !i.Provider.Complete {
		return ProviderUnknown
	}
	return i.Provider.Value
}

// runs reports whether the VM may still run, according to the provider's last answer.
func (i *Instance) runs() bool { return !i.providerState().Ended() }

// Ended reports whether a VM in this state runs no more, or is about to stop.
func (s ProviderState) Ended() bool {
	switch s {
	case ProviderStopping, ProviderGoing, ProviderStopped, ProviderFailed, ProviderGone:
		return true
	}
	return false
}

// launched returns the time from which the VM's age counts.
func (i *Instance) launched() time.Time {
	if i.LaunchedAt.IsZero() {
		return i.CreatedAt
	}
	return i.LaunchedAt
}

// Counts reports whether an instance counts towards its group's size, judged by its own state alone. It counts if it is
// managed and neither a spare, preserved nor leaving nor lost.
func Counts(i *Instance) bool { return !i.isSpare() && i.stays() }

// CountsAsSpare reports whether an instance counts towards the spares of its group, judged by its own state alone.
func CountsAsSpare(i *Instance) bool { return i.isSpare() && i.stays() }

// stays reports whether an instance is managed and neither preserved nor leaving nor lost.
func (i *Instance) stays() bool {
	if i.OnDemand || !i.PreservedAt.IsZero() || i.isLeaving() {
		return false
	}
	return i.awaitsCreate() || !i.ended(i.providerState()) && !i.Notice
}

// isRegistrationOverdue is rule 7. While the unhealthy guard holds, only on-demand instances and those of rule 71 can
// be overdue.
func (g *group) isRegistrationOverdue(i subject) (bool, time.Time) {
	from, ok := g.registersFrom(i.Instance)
	if !ok {
		return false, time.Time{}
	}
	overdue, until := reached(from.Add(g.Settings.RegistrationTimeout), g.Now)
	return overdue && (i.OnDemand || !g.guarded || g.failed(i.Instance)), until
}

// isUnhealthy reports whether rule 12 (silent), 52 (failing), 59 (unhealthy in a load balancer), 62 (finish) or 63
// (flapping) applies.
func (g *group) isUnhealthy(i subject) (bool, time.Time) {
	if i.has(factReplaced) || i.has(factFlapping) {
		return true, time.Time{}
	}
	silent, until := g.isSilent(i)
	if silent || i.FailedCheck == "" {
		return silent, until
	}
	if i.Balancer.Failed != "" {
		return true, time.Time{}
	}
	failing, due := g.failsCheck(i)
	return failing, sooner(until, due)
}

// isSilent is rule 12: the instance missed three reports, or it reports but did not become healthy in time.
func (g *group) isSilent(i subject) (bool, time.Time) {
	if i.has(factUnregistered) || !i.has(factUnwell) {
		return false, time.Time{}
	}
	silentAt, ok := i.silentAt(&g.Settings, g.SilenceFrom)
	var until time.Time
	if ok {
		var silent bool
		if silent, until = reached(silentAt, g.Now); silent {
			return true, time.Time{}
		}
	}
	if i.LastReport.IsZero() || i.Healthy || i.EverHealthy || i.FailedCheck != "" {
		return false, until
	}
	neverHealthy, due := reached(g.healthyBy(i), g.Now)
	return neverHealthy, sooner(until, due)
}

// failsCheck is rule 52: a health check fails. For an instance that was never healthy, this counts only after
// [group.healthyBy], because its program may still be starting. If the program never starts, the wait also prevents
// replacements in quick succession.
func (g *group) failsCheck(i subject) (bool, time.Time) {
	switch {
	case i.FailedCheck == "" || i.has(factUnregistered):
		return false, time.Time{}
	case i.FailedCheck == i.Balancer.Failed: // rule 59
		return false, time.Time{}
	case i.EverHealthy:
		return true, time.Time{}
	}
	return reached(g.healthyBy(i), g.Now)
}

// healthyBy returns when an instance must be healthy: [StartGrace] after the latest of its registration, its promotion
// (rule 78) and SilenceFrom.
func (g *group) healthyBy(i subject) time.Time {
	return latest(i.servesFrom(), g.SilenceFrom).Add(StartGrace(g.Settings, &g.Group))
}

// isOlder reports whether an instance was launched longer ago than the given age. For age zero, it returns false.
func (g *group) isOlder(i *Instance, age time.Duration) (bool, time.Time) {
	if age <= 0 {
		return false, time.Time{}
	}
	launched := i.launched()
	if launched.IsZero() {
		return false, time.Time{}
	}
	return reached(launched.Add(age), g.Now)
}

// isProtected is rule 54: a person excluded the instance from voluntary replacement and from a scale-down. In a group
// that is being emptied, no instance is protected.
func (g *group) isProtected(i *Instance) bool {
	return len(g.Group.Protected) > 0 && slices.Contains(g.Group.Protected, i.ID) && !g.emptying()
}

// isDrifted reports whether an instance was made from another infra configuration than the group's, is in a subnet that
// the group's pool no longer has, or has an outdated image. A protected instance is never drifted.
func (g *group) isDrifted(i subject) (bool, time.Time) {
	return !g.isProtected(i.Instance) && Drifted(&g.Group, g.Image, i.Instance), time.Time{}
}

// Drifted reports whether an instance differs from its group's configuration. image is the Image of [Snapshot]. The
// infra hash does not cover the pool's subnets, so added or reordered subnets cause no replacement.
func Drifted(group *config.Group, image string, i *Instance) bool {
	return i.InfraHash != "" && group.InfraHash != "" && i.InfraHash != group.InfraHash ||
		i.SubnetID != "" && len(group.Subnets) > 0 && !slices.Contains(group.Subnets, i.SubnetID) ||
		hasOldImage(group, image, i)
}

// hasOldImage is rule 55: it reports whether the query of the group's image finds an image other than that of the
// instance. If one of the two images is unknown, the instance does not count as outdated.
func hasOldImage(group *config.Group, image string, i *Instance) bool {
	return group.Rollout.OnImageChange && image != "" && i.Image != "" && i.Image != image
}
