package plan

// rotationSlot is rule 20: one if a drifted or aged instance gets its replacement now. That happens one at a time per
// group, while the group is at its size and no instance is draining, silent or booting. Drift does not wait for
// instances that the guard holds or that are unhealthy because of the outdated configuration: rotation is the cure.
func (g *group) rotationSlot() int {
	t := &g.tally
	steady := t.draining == 0 && t.replaceFirst() == 0 && t.of[classFailed] == 0 && t.total() == g.desired
	switch {
	case !steady || t.of[classUnready]+t.of[classCreating] > 0:
		return 0
	case t.of[classDrifted]+t.of[classUnreadyDrifted] > 0:
		return 1
	case t.of[classAged] > 0 && t.of[classHeld] == 0:
		return 1
	}
	return 0
}
