package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Verdict is how the planner classifies one instance, for display.
type Verdict struct {
	Instance ident.ID
	// Rule is the number of the first rule of the classification table that applies, and RuleName its name.
	Rule     int
	RuleName string
	// Cause is why the instance is deleted even if the group is not too large, or CauseNone.
	Cause Cause
	// Until is when another rule may apply even if nothing happens until then; zero: never.
	Until time.Time
	// DrainWaits says whom the drain of the instance waits for (rule 27); "": nobody.
	DrainWaits string
	// Wait says what the instance waits for.
	Wait Wait
	// Late means that the instance has not registered, although others of the group usually had by then.
	Late bool
}

// Explanation is the plan of a group with the verdicts that lead to it.
type Explanation struct {
	Decision
	// Desired is the number of instances that the plan aims at. In a group that is being emptied, it differs from the
	// group's size.
	Desired int
	// Guarded means that the unhealthy guard forbids replacements (rules 26 and 61).
	Guarded bool
	// Verdicts has one entry for each instance, in the order of the snapshot.
	Verdicts []Verdict
	// Says is the Wait of the Decision, also for a resting group.
	Says Wait
	// Progress is how far the group's rollout is.
	Progress Progress
}

// Explain plans a group as [Next] does, and says how every instance is classified. It allocates more than Next.
func Explain(s Snapshot) Explanation {
	g := classifyGroup(s)
	e := Explanation{Decision: Next(s), Desired: g.desired, Guarded: g.guarded, Verdicts: make([]Verdict, len(g.rows)),
		Progress: g.progress()}
	if e.Says = e.Wait; e.Says.Resting {
		e.Says = g.restingWait()
	}
	actions := map[ident.ID]Kind{}
	for _, a := range e.Actions {
		if a.Kind != RaiseError && a.Kind != ResolveError && (a.Kind != Ask || actions[a.Instance] == "") {
			actions[a.Instance] = a.Kind
		}
	}
	for n := range g.Instances {
		_, until := g.classify(subject{&g.Instances[n], g.facts[n]})
		row := &rules[g.rows[n]]
		e.Verdicts[n] = Verdict{Instance: g.Instances[n].ID, Rule: row.number, RuleName: row.name,
			Cause: g.cause(n), Until: until, Wait: g.waitOf(n, actions[g.Instances[n].ID], &e.Decision)}
		e.Verdicts[n].Late = g.booting && g.late(n)
		if i := &g.Instances[n]; i.State == record.Deleting && i.TerminateRequested.IsZero() {
			e.Verdicts[n].DrainWaits, _ = g.participant(i)
		}
	}
	return e
}

// String returns the name of the work, or "" for Idle.
func (w Work) String() string {
	return [...]string{Idle: "", Creating: "creating", MarkingDeleting: "marking deleting", Draining: "draining",
		Terminating: "terminating", Forgetting: "forgetting", Maintaining: "maintaining",
		Preserving: "preserving", Promoting: "promoting",
		Sleeping: "putting to sleep", Waking: "waking"}[w]
}
