package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// mergeTree merges JSON objects key by key. A later object takes precedence, and values other than objects are
// replaced. The result shares no memory with the trees. It is nil if it would be empty.
func mergeTree(trees ...map[string]any) map[string]any {
	var out map[string]any
	for _, tree := range trees {
		for key, value := range tree {
			if out == nil {
				out = map[string]any{}
			}
			below, isObject := out[key].(map[string]any)
			if over, ok := value.(map[string]any); ok && isObject && len(over) > 0 {
				out[key] = mergeTree(below, over)
			} else if !ok || !isObject {
				out[key] = cloned(value)
			}
		}
	}
	return out
}

func mergeVars(vars ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, v := range vars {
		maps.Copy(out, v)
	}
	return out
}

// merge makes a group from its template, its spec and, for a static group, an override. It does not set the hashes. The
// shard must have its defaults filled in.
func (s *Shard) merge(key GroupKey, spec GroupSpec, override *GroupSpec) Group {
	t := s.Templates[spec.Template]
	g := Group{
		GroupKey:      key,
		Template:      spec.Template,
		Kind:          t.Kind,
		Arch:          t.Arch,
		InstanceType:  firstOf(spec.InstanceType, t.InstanceType),
		InstanceTypes: slices.Clone(spec.InstanceTypes),
		SubnetPool:    firstOf(spec.SubnetPool, t.SubnetPool),
		Args:          mergeTree(s.Defaults.Args, t.Args, spec.Args),
		Vars:          mergeVars(s.Defaults.Vars, t.Vars, spec.Vars),
		Files:         cloned(t.Files),
		HealthChecks:  cloned(t.HealthChecks),
		LoadBalancers: slices.Clone(spec.LoadBalancers),
		DrainTimeout:  *s.Server.DefaultDrainTimeout,

		LoadBalancerHealth: t.LoadBalancerHealth,
	}
	if len(g.InstanceTypes) == 0 {
		g.InstanceTypes = slices.Clone(t.InstanceTypes)
	}
	g.Subnets = slices.Clone(s.Server.SubnetPools[g.SubnetPool])
	for _, u := range []*Userdata{s.Defaults.Userdata, t.Userdata} {
		if u != nil {
			g.Userdata = *u
		}
	}
	if t.Size != nil {
		g.Size = *t.Size
	}
	if spec.Size != nil {
		g.Size = *spec.Size
	}
	if spec.DrainTimeout != nil {
		g.DrainTimeout = *spec.DrainTimeout
	}
	fill(&spec) // of the group's fields, only max_surge and max_unhealthy have defaults
	g.MaxSurge = *spec.MaxSurge
	g.MaxUnhealthy, _ = ParseLimit(spec.MaxUnhealthy) // validated before
	if spec.Rollout != nil {
		g.Rollout = *spec.Rollout
	}
	if d := spec.Disruption; d != nil {
		g.MaxPerHour = d.MaxPerHour
		for _, text := range d.Windows {
			if w, err := ParseWindow(text); err == nil { // validated before
				g.Windows = append(g.Windows, w)
			}
		}
	}
	if spec.Purchase != nil {
		g.Purchase = *spec.Purchase
	}
	for _, s := range spec.Schedules {
		if parsed, err := s.Parse(); err == nil { // validated before
			g.Schedules = append(g.Schedules, parsed)
		}
	}
	if override != nil {
		if r := override.Rollout; r != nil {
			g.Rollout.Paused = r.Paused
			g.Rollout.Revision = strings.Trim(g.Rollout.Revision+"+"+r.Revision, "+") // a change of either rolls
		}
		if override.Size != nil {
			g.Size = *override.Size
		}
		g.InstanceType = firstOf(override.InstanceType, g.InstanceType)
		maps.Copy(g.Vars, override.Vars)
		spec.Removed, spec.Protected = override.Removed, override.Protected
	}
	g.Removed, g.Protected = instanceIDs(spec.Removed), instanceIDs(spec.Protected)
	return g
}

// instanceIDs parses the IDs in a field that only the server writes.
func instanceIDs(texts []string) (ids []ident.ID) {
	for _, text := range texts {
		if id, err := ident.ParseID(text); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func firstOf(texts ...string) string {
	for _, s := range texts {
		if s != "" {
			return s
		}
	}
	return ""
}
