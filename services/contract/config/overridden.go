package config

import (
	"fmt"
	"slices"
)

// Overridden describes the changes from before to after that have no effect on static groups, because an operator set
// another value at run time. There is one line for each group and field.
func Overridden(before, after *Shard, overrides Groups) []string {
	from, _ := before.Merged(Groups{})
	to, _ := after.Merged(Groups{})
	var lines []string
	for key, g := range to {
		override, ok := overrides.Tenants[key.Tenant][key.Group]
		old, existed := from[key]
		if !ok || !existed {
			continue
		}
		add := func(field string, old, configured, set any) {
			if old != configured {
				lines = append(lines,
					fmt.Sprintf("The change of %s in group %s from %v to %v has no effect: an operator "+
						"set %v at run time. To end this override, run \"nstance-admin group delete %s --shard "+
						"%s\". It keeps "+
						"a group of the "+
						"configuration.", field, key, old, configured, set, key.Group, after.Server.Shard))
			}
		}
		if override.Size != nil {
			add("size", old.Size, g.Size, *override.Size)
		}
		if override.InstanceType != "" {
			add("instance_type", firstOf(old.InstanceType, "none"), firstOf(g.InstanceType, "none"),
				override.InstanceType)
		}
		for name, value := range override.Vars {
			add("variable "+name, quote(old.Vars[name]), quote(g.Vars[name]), quote(value))
		}
	}
	slices.Sort(lines)
	return lines
}
