package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Overridden describes the changes from before to after of fields of static groups that operators have set, one line
// for each group and field. kept are the changes without effect, because the operator's value is pinned. ended are the
// changes that end the operator's value.
func Overridden(before, after *Shard, overrides Groups) (kept, ended []string) {
	before, after = before.WithDefaults(), after.WithDefaults()
	for tenant, groups := range overrides.Tenants {
		for name, entry := range groups {
			key := GroupKey{tenant, name}
			if _, stays := after.Groups[tenant][name]; !stays {
				continue
			}
			configured := after.configuredValues(key)
			for _, f := range before.SetFields(key, entry, time.Time{}) {
				to := configured[f.Path]
				if f.Path == pathSize && f.byScaling() {
					scaling := after.Groups[tenant][name].Scaling
					size := deref(entry.Size)
					switch {
					case scaling != nil && size > scaling.Max:
						ended = append(ended, fmt.Sprintf("Group %s gets at most %d instances: its size changes from "+
							"%d to %d.", key, scaling.Max, size, scaling.Max))
					case scaling != nil && size < deref(scaling.Min):
						ended = append(ended, fmt.Sprintf("Group %s gets at least %d instances: its size changes from "+
							"%d to %d.", key, *scaling.Min, size, *scaling.Min))
					case scaling == nil:
						ended = append(ended,
							fmt.Sprintf("Group %s no longer has scaling: its size changes from %s to %s.",
								key, valueText(f.Value), valueText(to)))
					case !reflect.DeepEqual(f.Configured, to):
						kept = append(kept,
							fmt.Sprintf("The change of size in group %s from %s to %s has no effect: the "+
								"leader has scaled the group to %s.", key, valueText(f.Configured), valueText(to),
								valueText(f.Value)))
					}
					continue
				}
				if f.Path == pathRevision || reflect.DeepEqual(f.Configured, to) {
					continue
				}
				who := cmp.Or(f.By, "an operator")
				if f.At != "" {
					who += " (at " + f.At + ")"
				}
				change := fmt.Sprintf("The change of %s in group %s from %s to %s", f.Path, key,
					valueText(f.Configured), valueText(to))
				if !f.Pinned {
					ended = append(ended, fmt.Sprintf("%s ends the value %s, which %s set.", change, valueText(f.Value),
						who))
					continue
				}
				kept = append(kept, fmt.Sprintf("%s has no effect: %s set %s and pinned it. To end this override, run "+
					"\"nstance-admin group reset %s --shard %s\".", change, who, valueText(f.Value), name,
					after.Server.Shard))
			}
		}
	}
	slices.Sort(kept)
	slices.Sort(ended)
	return kept, ended
}

// valueText returns a value of a setting as JSON, or "none".
func valueText(value any) string {
	text, err := json.Marshal(value)
	if value == nil || err != nil {
		return "none"
	}
	return string(text)
}
