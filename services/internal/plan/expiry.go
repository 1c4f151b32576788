package plan

// age: forced_age and ondemand_age end an instance regardless of what else goes on; eligible_age only makes it one that
// may be replaced, one at a time. Ages count from launch; zero never ends anything. A managed instance that has never
// registered has no age: it serves nobody, so it must not stand in for one that does, and the time that its
// registration may take ends it.
func (p *planner) age(i *Instance) mark {
	launched := i.launched()
	if launched.IsZero() {
		return 0
	}
	s := &p.Settings
	if i.OnDemand {
		if s.OnDemandAge > 0 && p.reached(launched.Add(s.OnDemandAge)) {
			return markForced
		}
		return 0
	}
	if i.RegisteredAt.IsZero() {
		return 0
	}
	var m mark
	if s.ForcedAge > 0 && p.reached(launched.Add(s.ForcedAge)) {
		m |= markForced
	}
	if s.EligibleAge > 0 && p.reached(launched.Add(s.EligibleAge)) {
		m |= markAged
	}
	return m
}

// drift: an instance that was made from another infra configuration than the group's is to be rotated, on-demand ones
// excepted.
func (p *planner) drift(i *Instance) mark {
	if i.OnDemand || i.InfraHash == "" || p.Group.InfraHash == "" || i.InfraHash == p.Group.InfraHash {
		return 0
	}
	return markDrifted
}

// softSlot is one when an instance that merely may go (drifted, or past eligible_age) gets its replacement now: one at
// a time per group, when the group is at its size and nothing is draining, unhealthy or booting. Drift does not wait
// for instances that the guard holds or that are not well themselves because of the configuration that is being
// replaced: rotating them is the cure.
func (p *planner) softSlot() int {
	t := &p.tally
	steady := t.draining == 0 && t.hard() == 0 && t.of[classFailed] == 0 && t.total() == p.desired
	switch {
	case !steady || t.of[classUncertain] > t.softUncertain:
		return 0
	case t.of[classDrifted]+t.softUncertain > 0:
		return 1
	case t.of[classAged] > 0 && t.of[classGuarded] == 0:
		return 1
	}
	return 0
}
