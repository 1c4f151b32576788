package config

import (
	"fmt"
	"reflect"
	"strings"
)

// ScalingChange says in words what a change of a group's scaling means for its size. It returns "" if nothing changes.
// Both policies must have their defaults filled in; nil means that a group has none.
func ScalingChange(before, after *Scaling) string {
	switch {
	case reflect.DeepEqual(before, after):
		return ""
	case before == nil:
		return fmt.Sprintf("the leader chooses the size from now on, between %d and %d", deref(after.Min), after.Max)
	case after == nil:
		return "the leader no longer chooses the size"
	}
	var parts []string
	if deref(before.Min) != deref(after.Min) || before.Max != after.Max {
		parts = append(parts, fmt.Sprintf("between %d and %d instead of between %d and %d", deref(after.Min), after.Max,
			deref(before.Min), before.Max))
	}
	var fields []string
	for _, f := range []struct {
		name          string
		before, after any
	}{{"metrics", before.Metrics, after.Metrics}, {"up", before.Up, after.Up}, {"down", before.Down, after.Down},
		{"tolerance", before.Tolerance, after.Tolerance}} {
		if !reflect.DeepEqual(f.before, f.after) {
			fields = append(fields, f.name)
		}
	}
	if len(fields) > 0 {
		parts = append(parts, "by another "+strings.Join(fields, ", "))
	}
	return "the leader chooses the size " + strings.Join(parts, ", and ")
}
