package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Wait says in one plain sentence what a group or an instance waits for. The command line, the HTTP API, the web page,
// the operator and events show this sentence.
type Wait struct {
	Parts []Part
	// Until is when the first thing in the sentence ends at the latest; zero: unknown.
	Until time.Time
	// Resting means that nothing is awaited: the group has its size, and all its instances are healthy and up to date.
	// Only [Explain] returns a sentence for a resting group.
	Resting bool
}

// Part is a part of a [Wait]: an instance, a time of day, a time in which a person may want to see how long ago it was,
// a duration, or else a text.
type Part struct {
	Text      string
	Instance  ident.ID
	At, Since time.Time
	Took      time.Duration
}

// Words returns the part in words. The part Since depends on the present time.
func (p Part) Words(now time.Time) string {
	switch {
	case !p.Instance.IsZero():
		id := p.Instance.String()
		return id[:3] + "…" + id[len(id)-6:]
	case !p.At.IsZero() && p.At.UTC().YearDay() == now.UTC().YearDay() && p.At.Sub(now).Abs() < 24*time.Hour:
		return p.At.UTC().Format("15:04:05")
	case !p.At.IsZero():
		return p.At.UTC().Format("2006-01-02 15:04:05")
	case !p.Since.IsZero():
		return inWords(now.Sub(p.Since))
	case p.Took > 0:
		return inWords(p.Took)
	}
	return p.Text
}

// Words returns the sentence. It has no capital letter and no full stop, so that it can follow a name and a colon.
// Times are in UTC.
func (w Wait) Words(now time.Time) string {
	var b strings.Builder
	for _, p := range w.Parts {
		b.WriteString(p.Words(now))
	}
	return b.String()
}

// Same reports whether two sentences say the same, apart from an estimate.
func (w Wait) Same(other Wait) bool {
	if w.Resting != other.Resting || len(w.Parts) != len(other.Parts) {
		return false
	}
	for n, p := range w.Parts {
		o := other.Parts[n]
		if p.Text != o.Text || p.Instance != o.Instance || !p.At.Equal(o.At) || !p.Since.Equal(o.Since) {
			return false
		}
	}
	return true
}

// inWords returns a duration, such as "0.9 s", "2 min 30 s" or "19 min".
func inWords(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return strconv.FormatFloat(max(0, d).Seconds(), 'f', 1, 64) + " s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d.Round(time.Second)/time.Second)
	case d < 10*time.Minute && d.Round(time.Second)%time.Minute != 0:
		d = d.Round(time.Second)
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d.Round(time.Minute)/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d.Round(time.Hour)/time.Hour)
	}
	return fmt.Sprintf("%d days", d.Round(24*time.Hour)/(24*time.Hour))
}

// stage is what an instance does next. The constants are in the order in which a sentence names them.
type stage uint8

const (
	stageLate stage = iota // as stageRegistering, but later than usual
	stageRegistering
	stageCreating
	stagePromoting
	stageWaking
	stageUnhealthy // not healthy yet
	stageBalancer
	stageReturning // has not reported to this leader
	stageSilent
	stageRestarting
	stagePoweringOff
	stageReplacing // deleted when a replacement is healthy
	stageDraining
	stageDeleting
	stageTerminating
	stageRetrying
	stagePreserving
	stageMaintaining
	stageSleeping
	stageAsking
	stages    = int(iota)
	stageNone = stage(stages)
)

// stageWords say what one instance, or several, do in a stage.
var stageWords = [stages]struct{ one, many string }{
	stageLate:        {" has not registered", " have not registered"},
	stageRegistering: {" has not registered", " have not registered"},
	stageCreating:    {" is being created", " are being created"},
	stagePromoting:   {" becomes a member", " become members"},
	stageWaking:      {" is being woken", " are being woken"},
	stageSleeping:    {" falls asleep", " fall asleep"},
	stageUnhealthy:   {" is not healthy yet", " are not healthy yet"},
	stageBalancer: {" waits until its load balancers call it healthy",
		" wait until their load balancers call them healthy"},
	stageReturning:   {" has not reported to this leader yet", " have not reported to this leader yet"},
	stageSilent:      {" has not reported", " have not reported"},
	stageRestarting:  {" restarts", " restart"},
	stagePoweringOff: {" powers off", " power off"},
	stageReplacing:   {" is deleted when its replacement is healthy", " are deleted when replacements are healthy"},
	stageDraining:    {" drains", " drain"},
	stageDeleting:    {" is being deleted", " are being deleted"},
	stageTerminating: {" is being terminated", " are being terminated"},
	stageRetrying:    {": the last attempt at its next step failed", ": the last attempts at their next steps failed"},
	stagePreserving:  {" is being preserved", " are being preserved"},
	stageMaintaining: {" gets its files, or joins its load balancers", " get their files, or join their load " +
		"balancers"},
	stageAsking: {" is being looked up at the provider", " are being looked up at the provider"},
}

// step is the stage of one instance: since when, until when, and why.
type step struct {
	stage        stage
	since, until time.Time
	why          string
}

// stageCount counts the instances in a stage, with the earliest of their times.
type stageCount struct {
	step
	n     int
	first ident.ID
	last  time.Time // the latest of the times until
}

func (c *stageCount) add(id ident.ID, s step) {
	if c.n++; c.n == 1 {
		c.step, c.first, c.last = s, id, s.until
		return
	}
	c.why, c.since, c.until, c.last = "", sooner(c.since, s.since), sooner(c.until, s.until), latest(c.last, s.until)
}

// stepOf returns what an instance does next. action is the action that is planned for it now, if any.
func (g *group) stepOf(n int, action Kind) step {
	i, f, c := &g.Instances[n], g.facts[n], g.class(n)
	busy := i.Work
	if busy == Idle {
		busy = workOf[action]
	}
	switch {
	case busy == Preserving:
		return step{stage: stagePreserving}
	case busy == MarkingDeleting:
		return step{stage: stageDeleting}
	case busy == Terminating || busy == Forgetting:
		return step{stage: stageTerminating, since: i.TerminateRequested}
	case busy == Promoting:
		return step{stage: stagePromoting}
	case busy == Creating || i.awaitsCreate():
		return step{stage: stageCreating, since: i.CreatedAt}
	case busy == Idle && g.retriesAt(i).After(g.Now):
		return step{stage: stageRetrying, until: g.retriesAt(i)}
	case i.State == record.Deleting:
		if part, until := g.participant(i); part != "" && i.TerminateRequested.IsZero() {
			return step{stage: stageDraining, since: i.DeletingAt, until: until, why: part}
		}
		return step{stage: stageTerminating, since: i.TerminateRequested}
	case f.has(factLeaving), c == classLost, c == classFailed, c == classOnDemandExpired:
		return step{stage: stageDeleting}
	case busy == Sleeping, i.Asleep() && !i.sleeps() && c != classSpareDue:
		return step{stage: stageSleeping, since: i.AsleepAt}
	case i.Waking():
		return step{stage: stageWaking, since: i.PromotedAt}
	case c == classPreserved && busy == Maintaining:
		return step{stage: stageMaintaining}
	case c == classPreserved || c == classHeld:
		return step{stage: stageNone}
	case f.has(factUnregistered):
		s := step{stage: stageRegistering}
		if s.since = i.launched(); g.late(n) {
			s.stage = stageLate
		}
		_, s.until = g.isRegistrationOverdue(subject{i, f})
		return s
	case !i.PowerOffAt.IsZero():
		_, until := i.poweredOff(&g.Settings, g.Now)
		return step{stage: stagePoweringOff, until: until}
	case c == classExpired || c == classSilent || c == classAdvised || c == classSpareDue:
		return step{stage: stageReplacing, why: g.reason(i, g.cause(n))}
	case f.has(factUnwell):
		return g.unwellStep(i, f)
	case busy == Maintaining:
		return step{stage: stageMaintaining}
	case i.Asking || action == Ask:
		return step{stage: stageAsking}
	}
	return step{stage: stageNone}
}

// unwellStep returns what an instance does that registered, but is not healthy.
func (g *group) unwellStep(i *Instance, f facts) step {
	quiet := i.quietUntil(g.Settings.HealthInterval)
	awaits, balanced := g.awaitsBalancer(i)
	silentAt, _ := i.silentAt(&g.Settings, g.SilenceFrom)
	switch {
	case quiet.After(g.Now):
		return step{stage: stageRestarting, since: i.RestartingAt, until: quiet}
	case i.LastReport.IsZero():
		return step{stage: stageReturning, until: silentAt}
	case !i.Healthy:
		s := step{stage: stageUnhealthy, since: i.RegisteredAt, why: i.FailedCheck}
		if !i.EverHealthy {
			_, s.until = reached(g.healthyBy(subject{i, f}), g.Now)
		}
		if s.why == "" && i.ChecksPending {
			s.why = "its health checks have not passed yet"
		}
		return s
	case awaits && i.reportsInTime(&g.Settings, g.Now):
		return step{stage: stageBalancer, until: balanced}
	}
	return step{stage: stageSilent, since: i.LastReport, until: silentAt}
}

// workOf is the work that an action begins, if the group's sentence names it.
var workOf = map[Kind]Work{Mark: MarkingDeleting, Preserve: Preserving, Drain: Draining, Terminate: Terminating,
	Forget: Forgetting, PushFiles: Maintaining, Register: Maintaining, Settle: Creating,
	Promote: Promoting, Sleep: Sleeping, Wake: Waking}

// retriesAt returns when a failed step of an instance is tried again; zero: none failed.
func (g *group) retriesAt(i *Instance) time.Time {
	_, at := retryReady(i.ID, i.Failed, g.Now)
	if i.State == record.Registered && !i.isLeaving() {
		_, files := retryReady(i.ID, i.MaintenanceFailed, g.Now)
		at = sooner(at, files)
	}
	_, asked := retryReady(i.ID, i.AskFailed, g.Now)
	return sooner(at, asked)
}

// wait returns the sentence of the group. out is what the group's plan contains.
func (g *group) wait(out *steps) Wait {
	var counts [stages]stageCount
	creates, spares, promotes, next, storing := 0, g.PendingSpares, 0, 0, g.StoringRollout
	for k := range out.actions {
		switch out.actions[k].Kind {
		case Create:
			if out.actions[k].Spare {
				spares++
			} else {
				creates++
			}
		case Promote:
			promotes++
			next++
		case Halt, EndHalt, KeepGood:
			storing = true
		case RaiseError, ResolveError:
		default:
			next++
		}
	}
	actions := g.actionsOf(out, next)
	for n := range g.Instances {
		var action Kind
		for len(actions) > 0 && actions[0].at == n {
			action, actions = actions[0].kind, actions[1:]
		}
		if g.idles(n) && action == "" {
			continue
		}
		if s := g.stepOf(n, action); s.stage != stageNone {
			counts[s.stage].add(g.Instances[n].ID, s)
		}
	}
	for range creates + spares + g.PendingCreates {
		counts[stageCreating].add(ident.ID{}, step{})
	}
	creates += promotes
	w := sentence{now: g.Now}
	g.sayBlocked(&w, out, creates)
	for k := range counts {
		if c := &counts[k]; c.n > 0 && w.clauses < 2 {
			g.say(&w, stage(k), c)
		}
	}
	g.sayRollout(&w, out, creates)
	if storing && w.clauses == 0 {
		w.clause(time.Time{}).text("the state of the rollout is being stored")
	}
	if w.clauses == 0 && g.atRest() {
		return Wait{Resting: true}
	}
	if w.clauses == 0 && !g.sparesRest() {
		g.saySpares(&w)
	}
	if w.clauses == 0 {
		g.sayNext(&w)
	}
	return w.Wait
}

// idles reports whether nothing is awaited of an instance: most instances, most of the time.
func (g *group) idles(n int) bool {
	i := &g.Instances[n]
	return (g.class(n) == classWell || g.class(n) == classSpare) && i.Work == Idle && i.State == record.Registered &&
		!g.fallsAsleep(n) && !i.Asking && i.PowerOffAt.IsZero() &&
		i.Failed.Count+i.MaintenanceFailed.Count+i.AskFailed.Count == 0
}

// actionOf is the kind of an action and the index of its instance.
type actionOf struct {
	at   int
	kind Kind
}

// actionsOf returns the n actions that concern instances, in the order of the instances. The last one of an instance is
// what it does next.
func (g *group) actionsOf(out *steps, n int) []actionOf {
	if n == 0 {
		return nil
	}
	actions := make([]actionOf, 0, n)
	next := 0 // most actions are in the order of the instances
	for k := range out.actions {
		a := &out.actions[k]
		if a.Instance.IsZero() || a.Kind == RaiseError || a.Kind == ResolveError {
			continue
		}
		at, found := next, next < len(g.Instances) && g.Instances[next].ID == a.Instance
		if !found {
			at, found = g.find(a.Instance)
		}
		if found {
			actions, next = append(actions, actionOf{at, a.Kind}), at+1
		}
	}
	slices.SortStableFunc(actions, func(a, b actionOf) int {
		if a.at != b.at || (a.kind == Ask) == (b.kind == Ask) {
			return cmp.Compare(a.at, b.at)
		}
		if a.kind == Ask { // another action of the instance takes precedence
			return -1
		}
		return 1
	})
	return actions
}

// atRest reports whether the group has its size, and nothing is to be done for any of its instances.
func (g *group) atRest() bool {
	t := &g.tally
	calm := t.of[classWell] + t.of[classAged] + t.of[classReturning] // aged ones are left if waves are not permitted
	return t.total() == g.desired && calm == g.desired && t.rotating() == 0 && t.of[classLeaving] == 0 &&
		t.failing == 0 && g.sparesRest()
}

// sayBlocked adds why the group has not its size, or why unhealthy instances stay.
func (g *group) sayBlocked(w *sentence, out *steps, creates int) {
	if g.guarded && g.tally.unhealthy > 0 {
		w.clause(g.guardedUntil).text(g.guardReason() + " (rule " + strconv.Itoa(g.guardRule()) +
			")").until(g.guardedUntil)
	}
	if out.blocked == "" {
		return
	}
	w.clause(out.blockedUntil)
	switch lacking := g.desired - g.tally.total() - creates; {
	case lacking > 0:
		w.text(counted(lacking, "more instance"))
		if out.blockedUntil.After(g.Now) {
			w.text(" at ").at(out.blockedUntil)
		}
		w.text(": " + out.blocked)
	case lacking == 0 || g.tally.total() == g.desired:
		w.text("no more replacements now: " + out.blocked).until(out.blockedUntil)
	default:
		w.text(out.blocked).until(out.blockedUntil)
	}
}

// say adds what the instances of a stage do.
func (g *group) say(w *sentence, of stage, c *stageCount) {
	w.clause(c.until)
	words, it, are, noun := stageWords[of].many, "they", " are", "instance"
	if of <= stageCreating {
		noun = "VM"
	}
	if c.n == 1 {
		words, it, are = stageWords[of].one, "it", " is"
	}
	if c.n == 1 && !c.first.IsZero() {
		w.id(c.first)
	} else {
		w.text(counted(c.n, noun))
	}
	w.text(words)
	then := func(does string) {
		if c.until.After(g.Now) {
			w.text("; " + it + does + " at ").at(c.until)
		}
	}
	switch of {
	case stageLate, stageRegistering:
		w.text(" for ").since(c.since)
		if usual := g.usual; usual > 0 {
			w.text(" (usually ").took(usual).text(")")
		}
		if !g.guarded {
			then(are + " replaced")
		}
	case stageUnhealthy:
		if c.why != "" {
			w.text(": " + c.why)
		}
		if !g.guarded {
			then(are + " replaced")
		}
	case stageSilent:
		w.text(" for ").since(c.since)
		if are = " counts"; c.n > 1 {
			are = " count"
		}
		then(are + " as unhealthy")
	case stageReturning, stageRestarting:
		if are = " has"; c.n > 1 {
			are = " have"
		}
		if c.last.After(g.Now) {
			w.text("; " + it + are + " time until ").at(c.last)
		}
	case stagePoweringOff:
		then(are + " replaced")
	case stageReplacing:
		if c.why != "" {
			w.text(": " + c.why)
		}
	case stageDraining:
		w.until(c.last)
		if c.why != "" {
			w.text(": " + c.why)
		}
	case stageTerminating, stageWaking, stageSleeping:
		if !c.since.IsZero() {
			w.text(" (for ").since(c.since).text(")")
		}
	case stageRetrying:
		w.text("; the next is at ").at(c.until)
	case stageBalancer:
		w.until(c.last)
	}
}

// sayRollout adds how many instances a rollout still has to replace, or why it waits.
func (g *group) sayRollout(w *sentence, out *steps, creates int) {
	t := &g.tally
	left := t.rotating() + t.of[classUnreadyDrifted] + g.waits
	left = max(0, left-max(0, t.total()+creates-g.desired))
	switch {
	case out.rollout != "" && left == 0:
		w.clause(out.rolloutUntil).text(out.rollout).until(out.rolloutUntil)
	case out.rollout != "":
		w.clause(out.rolloutUntil).text(counted(left, "instance") + " to replace: " +
			out.rollout).until(out.rolloutUntil)
	case left > 0 && w.clauses == 0:
		w.clause(time.Time{}).text(counted(left, "instance") + " to replace")
	case left > 0:
		w.text(fmt.Sprintf("; then %d more", left))
		if d := g.progress().Left; d > 0 {
			w.text(", about ").took(d)
		}
	}
}

// sayNext adds when the group is planned again.
func (g *group) sayNext(w *sentence) {
	at := g.schedule.NextIfReporting
	if w.clause(at).text("the group is planned again"); at.IsZero() {
		w.text(" when something happens")
	} else {
		w.text(" at ").at(at)
	}
}

// sentence is a [Wait] that is being written.
type sentence struct {
	Wait
	now     time.Time
	clauses int
}

// clause begins a clause. until is when what it says ends.
func (w *sentence) clause(until time.Time) *sentence {
	if w.clauses++; w.clauses == 1 {
		w.Parts, w.Until = make([]Part, 0, 8), until
		return w
	}
	return w.text("; ")
}

func (w *sentence) text(text string) *sentence {
	if n := len(w.Parts); n > 0 && w.Parts[n-1] == (Part{Text: w.Parts[n-1].Text}) {
		w.Parts[n-1].Text += text
		return w
	}
	w.Parts = append(w.Parts, Part{Text: text})
	return w
}

func (w *sentence) id(id ident.ID) *sentence { w.Parts = append(w.Parts, Part{Instance: id}); return w }

func (w *sentence) at(t time.Time) *sentence { w.Parts = append(w.Parts, Part{At: t}); return w }

func (w *sentence) since(t time.Time) *sentence { w.Parts = append(w.Parts, Part{Since: t}); return w }

func (w *sentence) took(d time.Duration) *sentence {
	w.Parts = append(w.Parts, Part{Took: d})
	return w
}

// until adds the end of what was said, if it is known and ahead.
func (w *sentence) until(t time.Time) *sentence {
	if t.After(w.now) {
		w.text(" until ").at(t)
	}
	return w
}

// counted returns a number with a noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// restingWait returns the sentence of a group that waits for nothing: it also says what the time alone changes next.
func (g *group) restingWait() Wait {
	w := sentence{now: g.Now}
	switch w.clause(time.Time{}); g.desired {
	case 0:
		w.text("the group has no instances, as configured")
	case 1:
		w.text("the instance is healthy and up to date")
	default:
		w.text("all " + counted(g.desired, "instance") + " are healthy and up to date")
	}
	if spares := g.spareWords(); spares != "" {
		w.text("; " + spares)
	}
	if size, at := g.Group.SizeAt(g.Now); !at.IsZero() && !g.emptying() {
		if next, _ := g.Group.SizeAt(at); next != size {
			w.text("; the size becomes " + strconv.Itoa(next) + " at ").at(at)
		}
	}
	first, what, until := -1, "", time.Time{}
	for n := range g.Instances {
		if says, at := g.ends(n); !at.IsZero() && (first < 0 || at.Before(until)) {
			first, what, until = n, says, at
		}
	}
	if first >= 0 {
		w.text("; ").id(g.Instances[first].ID).text(what).at(until)
	}
	w.Resting = true
	return w.Wait
}

// ends says what the time alone does to an instance for which nothing is to be done, and when.
func (g *group) ends(n int) (says string, at time.Time) {
	i := &g.Instances[n]
	if until := PreservedUntil(&g.Group, i); !until.IsZero() {
		return " is preserved until ", until
	}
	if i.OnDemand {
		_, at = g.isOlder(i, g.Settings.OnDemandAge)
		return " reaches ondemand_age at ", at
	}
	if i.isSpare() && !g.isProtected(i) {
		if _, at = g.isOlder(i, g.Group.Spares.MaxAge.D()); !at.IsZero() {
			return " reaches spares.max_age at ", at
		}
	}
	if _, at = g.isOlder(i, g.Settings.EligibleAge); !at.IsZero() && !g.isProtected(i) {
		return " reaches eligible_age at ", at
	}
	_, at = g.isOlder(i, g.Settings.ForcedAge)
	return " reaches forced_age at ", at
}

// waitOf returns the sentence of one instance.
func (g *group) waitOf(n int, action Kind, out *Decision) Wait {
	i, w := &g.Instances[n], sentence{now: g.Now}
	if s := g.stepOf(n, action); s.stage != stageNone {
		var c stageCount
		c.add(i.ID, s)
		g.say(&w, s.stage, &c)
		return w.Wait
	}
	w.clause(time.Time{}).id(i.ID)
	switch c := g.class(n); {
	case c == classHeld:
		w.text(" stays: " + g.guardReason()).until(g.guardedUntil)
		return w.Wait
	case c == classDrifted || c == classUnreadyDrifted || c == classAged || c == classReturning:
		w.text(" is to be replaced: " + g.reason(i, g.cause(n)))
		if out.Rollout != "" {
			w.text("; " + out.Rollout).until(out.RolloutUntil)
		}
		return w.Wait
	case c == classPreserved:
	case c == classOnDemand:
		w.text(" is on demand, and stays until it is deleted")
	case c == classSpare && i.sleeps():
		w.text(" is a spare, asleep and ready to become a member")
	case c == classSpare:
		w.text(" is a spare, and ready to become a member")
	case g.isProtected(i):
		w.text(" is healthy and protected")
	default:
		w.text(" is healthy and up to date")
	}
	w.Resting = true
	if says, at := g.ends(n); !at.IsZero() {
		if c := g.class(n); c != classPreserved {
			says = "; it" + says
		}
		w.text(says).at(at)
	}
	return w.Wait
}
