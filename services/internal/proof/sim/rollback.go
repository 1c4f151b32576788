package sim

import (
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// trial is a group that people give a bad configuration, so that its rollout halts and undoes itself. In most Worlds no
// group is one.
type trial struct {
	group *spec
	// bad is the value of the group's field infra that makes a bad configuration; 0: none yet. Agents of instances with
	// this configuration never register.
	bad int
	// made holds the instances that a server asked the provider for with the bad configuration.
	made map[ident.ID]bool
	// rolledBack means that the last leader that applied a configuration ran the good one.
	rolledBack bool
	kept       bool // the group keeps the bad configuration, and must run the good one until the end
}

// ofTrials are the faults and actions of planTrial.
var ofTrials = []odds{{goodConfig, 1}, {badConfig, 1}, {fixedConfig, 1}, {killedUndoing, 1}}

// planTrial plans, in one of four Worlds, a good configuration of a group with on_halt: rollback, then a bad one, and
// in half of these Worlds a correction. Meanwhile, leaders are killed as they store what is known of the rollout. All
// this has its own streams of random numbers, so that other Worlds do not depend on it.
func (w *World) planTrial() {
	p, moment := &w.people, w.roll("trial")
	d := dice{moment.state}
	if d.IntN(4) != 0 {
		return
	}
	p.trial = &trial{group: p.groups[d.IntN(len(p.groups))], made: map[ident.ID]bool{}}
	if g := p.trial.group; g.scaling != nil {
		g.scaling = nil
		p.apply()
	}
	at := d.between(minute, 4*minute)
	w.sched.after(at, func() { w.strikeTrial(moment.state+1, goodConfig) })
	at += d.between(5*minute, 12*minute)
	w.sched.after(at, func() { w.strikeTrial(moment.state+2, badConfig) })
	fixed := at + d.between(6*minute, 12*minute)
	if d.IntN(2) == 0 {
		w.sched.after(fixed, func() { w.strikeTrial(moment.state+3, fixedConfig) })
	}
	killed := d.between(minute, 3*minute)
	for n := uint64(0); killed < w.opts.Faulty; n++ {
		kill := w.roll("trial kill", n)
		own := dice{kill.state}
		task := []string{"halt_rollout", "halt_rollout", "end_halt", "store_good_config", "mark_deleting",
			"create"}[own.IntN(6)]
		w.sched.after(killed, func() { w.killDuring(kill.state, killedUndoing, task, &own) })
		killed += own.between(minute, 6*minute)
	}
}

func (w *World) strikeTrial(moment uint64, k Kind) {
	p := &w.people
	g := p.trial.group
	if !w.faults.admit(moment, k) {
		return
	}
	g.absent, g.schedules, g.disruption = false, nil, config.Disruption{}
	g.rollout = config.Rollout{HaltOnFailures: 1, OnHalt: config.OnHaltRollback}
	g.size = max(2, g.size)
	g.infra++
	if k == badConfig {
		p.trial.bad = g.infra
	}
	p.apply()
	w.faults.about("version %d: group %s: size %d, infra %d", p.version, g.key, g.size, g.infra)
}

// isBad reports whether an instance has the bad configuration of the World's trial.
func (p *people) isBad(id ident.ID) bool { return p.trial != nil && p.trial.made[id] }

// asks notes a create call.
func (t *trial) asks(req infra.CreateRequest) {
	if t != nil && t.bad != 0 && req.Tags.Tenant == t.group.key.Tenant && req.Tags.Group == t.group.key.Group &&
		fmt.Sprint(req.Args["image"]) == fmt.Sprint(t.bad) {
		t.made[req.Tags.Instance] = true
	}
}

// applied notes the groups that a leader puts in force.
func (t *trial) applied(groups map[config.GroupKey]config.Group) {
	if t != nil {
		g, ok := groups[t.group.key]
		t.rolledBack = ok && g.RolledBack() && g.Halt.GoodFailedAt.IsZero()
	}
}

// settle ends the trial. If the group runs its good configuration in place of the bad one, it must go on with that, so
// it keeps its options. Otherwise, people correct the configuration.
func (t *trial) settle() {
	g := t.group
	if t.bad == 0 || g.infra != t.bad || g.absent {
		return
	}
	if t.rolledBack && g.rollout.OnHalt == config.OnHaltRollback && g.rollout.HaltOnFailures > 0 {
		g.disruption = config.Disruption{}
		g.rollout.Paused, g.rollout.Canary, g.rollout.BakeTime = false, 0, 0
		t.kept = true
		return
	}
	g.infra++
}

// checkTrial checks the group at rest: it still runs its good configuration if it did when the faults ended, and no
// instance has the bad one.
func (w *World) checkTrial(t *term) {
	tr := w.people.trial
	if tr == nil || tr.group.absent {
		return
	}
	if g := t.groups[tr.group.key]; tr.kept && !g.RolledBack() {
		w.fail(ruleHalt, "%s has left its good configuration", g.GroupKey)
	}
	for _, d := range w.bucket.order {
		if d.counts() && !d.OnDemand && w.people.isBad(d.ID) && !t.protects(d.key(), d) {
			w.fail(ruleAtRest, "%s has the bad configuration: %s", d.ID, w.describe(d.key()))
		}
	}
}

// checkGood checks that a configuration that is about to be stored as good is that of all instances of the group.
func (w *World) checkGood(t *term, key config.GroupKey) {
	g, ok := t.groups[key]
	if !ok || t.server.fooled || w.recentlyFooled() || w.sched.now.Sub(t.beforeAt) < minute ||
		t.server.pausedUntil.Equal(w.sched.now) {
		return
	}
	for _, d := range w.bucket.order {
		if d.counts() && !d.OnDemand && d.key() == key && !t.unseen(d) && w.sched.now.Sub(d.since) > time.Minute &&
			!t.current(g, d) && !t.protects(key, d) {
			w.fail(ruleHalt, "the configuration of %s is stored as good, and %s has another", key, d.ID)
		}
		if d.counts() && d.key() == key && t.current(g, d) && w.people.isBad(d.ID) {
			w.fail(ruleHalt, "a bad configuration of %s is stored as good: %s", key, w.describe(key))
		}
	}
}
