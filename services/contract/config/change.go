package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Change describes the effects of a new configuration on the instances of a shard.
type Change struct {
	// groups are static groups, by name (tenant/name), and templates are templates whose dynamic groups are affected.
	groups, templates effects
	// empty, shrink, fewer and renewed list static groups by name, sorted. Groups in empty were removed, groups in
	// shrink have a smaller size, and groups in fewer have fewer spares. In groups in renewed, spares wait in another
	// way, or may be too old.
	empty, shrink, fewer, renewed []string

	created, spares map[string]int // new instances and new spares by static group
	// scaling are sentences about groups whose scaling changes.
	scaling    []string
	terminates bool
	// subnetsUnknown means that the new pools contain subnets that are not known yet. So a group in the list "leave"
	// may keep all its subnets.
	subnetsUnknown bool
	// moves is the old and the new zone, if the shard moves to another zone.
	moves [2]string
}

// effects lists what a change affects, by name, sorted: roll if the infra hash changed, push if only the runtime hash
// changed, and leave if the infra hash is unchanged and the pool loses a subnet. Instances in that subnet are replaced.
type effects struct{ roll, push, leave []string }

// add adds a name to the lists that a change from before to after belongs to.
func (e *effects) add(name string, before, after Group, subnetsUnknown bool) {
	if after.InfraHash != before.InfraHash {
		e.roll = append(e.roll, name)
		return
	}
	if losesSubnet(before, after, subnetsUnknown) {
		e.leave = append(e.leave, name)
	}
	if after.RuntimeHash != before.RuntimeHash {
		e.push = append(e.push, name)
	}
}

// ChangeOf compares two configurations, which must be valid. subnetsUnknown means that pools of the new configuration
// lack the subnets that are not known yet.
func ChangeOf(before, after *Shard, subnetsUnknown bool) Change {
	out := Change{terminates: after.Terminating && !before.Terminating, subnetsUnknown: subnetsUnknown}
	if a, b := before.Server.Provider, after.Server.Provider; a.Zone != b.Zone || a.Region != b.Region {
		out.moves = [2]string{strings.TrimSpace(a.Region + " " + a.Zone), strings.TrimSpace(b.Region + " " + b.Zone)}
	}
	from, _ := before.Merged(Groups{})
	to, _ := after.Merged(Groups{})
	out.created, out.spares = map[string]int{}, map[string]int{}
	for key, g := range to {
		if n := g.Size - from[key].Size; n > 0 {
			out.created[key.String()] = n
		}
		if n := spares(g) - spares(from[key]); n > 0 {
			out.spares[key.String()] = n
		}
		if text := ScalingChange(from[key].Scaling, g.Scaling); text != "" {
			out.scaling = append(out.scaling, fmt.Sprintf("In group %s, %s.", key, text))
		}
	}
	for key, old := range from {
		g, still := to[key]
		if still && g.Size < old.Size && !after.Terminating {
			out.shrink = append(out.shrink, key.String())
		}
		if still && spares(g) < spares(old) && !after.Terminating {
			out.fewer = append(out.fewer, key.String())
		}
		if still && min(spares(g), spares(old)) > 0 && (g.Spares.Sleep() != old.Spares.Sleep() ||
			g.Spares.MaxAge > 0 && (old.Spares.MaxAge == 0 || g.Spares.MaxAge < old.Spares.MaxAge)) {
			out.renewed = append(out.renewed, key.String())
		}
		if still {
			out.groups.add(key.String(), old, g, subnetsUnknown)
		} else {
			out.empty = append(out.empty, key.String())
		}
	}
	newTemplates := ofTemplates(after)
	for name, old := range ofTemplates(before) {
		if g, still := newTemplates[name]; still {
			out.templates.add(name, old, g, subnetsUnknown)
		}
	}
	for _, list := range [][]string{out.scaling, out.empty, out.shrink, out.fewer, out.renewed, out.groups.roll,
		out.groups.push, out.groups.leave, out.templates.roll, out.templates.push, out.templates.leave} {
		slices.Sort(list)
	}
	return out
}

// Restarting returns the changed settings that servers read only when they start. A leader restarts to apply them. Both
// configurations must have their defaults filled in.
func Restarting(before, after *Shard) (settings []string) {
	a, b := &before.Server, &after.Server
	for _, setting := range []struct {
		name          string
		before, after any
	}{
		{"cluster", before.Cluster, after.Cluster}, {"server.shard", a.Shard, b.Shard},
		{"server.provider", a.Provider, b.Provider}, {"server.bind", a.Bind, b.Bind},
		{"server.advertise", a.Advertise, b.Advertise},
		{"server.leader_network", a.LeaderNetwork, b.LeaderNetwork},
		{"server.leader_election", a.LeaderElection, b.LeaderElection},
	} {
		if !reflect.DeepEqual(setting.before, setting.after) {
			settings = append(settings, setting.name)
		}
	}
	return settings
}

// losesSubnet reports whether a group has a subnet before a change but not after it. Unknown subnets count as new ones.
// The result is false if the group has no subnets after the change and none is unknown.
func losesSubnet(before, after Group, subnetsUnknown bool) bool {
	return (subnetsUnknown || len(after.Subnets) > 0) && slices.ContainsFunc(before.Subnets, func(subnet string) bool {
		return !slices.Contains(after.Subnets, subnet)
	})
}

// Rolling returns the static groups in which instances are replaced. The result is sorted.
func (c Change) Rolling() []string {
	return slices.Sorted(slices.Values(slices.Concat(c.groups.roll, c.groups.leave)))
}

// spares returns how many spares a group has. A group of size 0 has none.
func spares(g Group) int {
	if g.Size == 0 {
		return 0
	}
	return g.Spares.Count
}

// Destructive reports whether instances are replaced or deleted.
func (c Change) Destructive() bool {
	return c.certain() || len(c.groups.leave)+len(c.templates.leave) > 0
}

// certain reports whether instances are replaced or deleted for another reason than a subnet that leaves its pool.
func (c Change) certain() bool {
	return len(c.groups.roll)+len(c.templates.roll)+len(c.empty)+len(c.shrink)+len(c.fewer) > 0 || c.terminates ||
		c.moves != [2]string{}
}

// uncertain reports whether it is not known which subnets leave their pool.
func (c Change) uncertain() bool {
	return c.subnetsUnknown && len(c.groups.leave)+len(c.templates.leave) > 0 && c.moves == [2]string{}
}

// ofTemplates returns one group for each template, by the template's name. The group has only the template's own
// values.
func ofTemplates(s *Shard) map[string]Group {
	sample := *s
	groups := map[string]GroupSpec{}
	for name := range maps.Keys(s.Templates) {
		groups[name] = GroupSpec{Template: name}
	}
	sample.Groups = map[string]map[string]GroupSpec{"default": groups}
	merged, _ := sample.Merged(Groups{})
	out := map[string]Group{}
	for key, g := range merged {
		out[key.Group] = g
	}
	return out
}

// Warning returns the text of a warning in Terraform's plan: how the change affects running instances. Both results are
// "" if it affects none.
func (c Change) Warning() (summary, detail string) {
	var lines []string
	say := func(format, rest string, names, templates []string) {
		if len(names) > 0 {
			lines = append(lines, fmt.Sprintf(format, strings.Join(names, ", ")))
		}
		if len(templates) > 0 {
			lines = append(lines, fmt.Sprintf(rest, strings.Join(templates, ", ")))
		}
	}
	say("Instances that were made from another configuration are replaced, in waves of up to max_surge, in the "+
		"groups: %s.",
		"Likewise in dynamic groups with the templates: %s.", c.groups.roll, c.templates.roll)
	if c.moves != [2]string{} {
		lines = append(lines, fmt.Sprintf("The shard moves from %q to %q: all its instances are replaced, in waves of "+
			"up to max_surge, and those in the old place end.", c.moves[0], c.moves[1]))
	}
	leave := "Instances in subnets that leave their pool are replaced, in waves of up to max_surge, in the groups: %s."
	if c.uncertain() {
		leave = "The subnets of these groups are known only after apply. An added subnet replaces no instance. " +
			"Instances " +
			"in subnets that leave their pool are replaced, in waves of up to max_surge: %s."
	}
	say(leave, "Likewise in dynamic groups with the templates: %s.", c.groups.leave, c.templates.leave)
	say("Files are pushed to running instances of the groups: %s.",
		"Likewise in dynamic groups with the templates: %s.", c.groups.push, c.templates.push)
	say("Instances are drained and deleted, unless there is a dynamic group of that name, in the groups that are "+
		"removed: %s.", "", c.empty, nil)
	say("Instances are drained and deleted, unless the size was changed at run time, in the groups that get smaller: "+
		"%s.", "", c.shrink, nil)
	say("Spares are deleted in the groups: %s.", "", c.fewer, nil)
	say("Spares that wait in another way, or are older than max_age, are replaced, one at a time, in the groups: %s.",
		"", c.renewed, nil)
	if c.terminates {
		lines = append(lines, "The shard is emptied: terminating is set.")
	}
	total := 0
	for _, of := range []struct {
		text   string
		counts map[string]int
	}{{"Instances are created, unless the size was changed at run time: %s.", c.created}, {"Spares are created: %s.",
		c.spares}} {
		var groups []string
		for _, name := range sortedKeys(of.counts) {
			total += of.counts[name]
			groups = append(groups, fmt.Sprintf("%d in %s", of.counts[name], name))
		}
		say(of.text, "", groups, nil)
	}
	others := len(lines)
	lines = append(lines, c.scaling...)
	switch {
	case len(lines) == 0:
		return "", ""
	case others == 0:
		summary = "The leader will choose sizes in another way"
	case c.uncertain() && !c.certain():
		summary = "Instances may be replaced"
	case c.Destructive():
		summary = "Instances will be replaced or deleted"
	case len(c.renewed) > 0:
		summary = "Spares will be replaced"
	case total > 0:
		summary = fmt.Sprintf("%d instances will be created", total)
	default:
		summary = "Files will be pushed to running instances"
	}
	return summary, strings.Join(lines, "\n")
}
