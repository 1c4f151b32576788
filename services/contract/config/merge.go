package config

import (
	"iter"
	"maps"
	"slices"

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

// leaves yields the values in a JSON tree that are neither objects nor lists, each with its path below the given one.
// Members are in the order of their names.
func leaves(tree any, path string) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) { eachLeaf(tree, path, yield) }
}

func eachLeaf(tree any, path string, yield func(string, any) bool) (more bool) {
	more = true
	switch v := tree.(type) {
	case map[string]any:
		for _, name := range sortedKeys(v) {
			more = more && eachLeaf(v[name], ChildPath(path, name), yield)
		}
	case []any:
		for i, value := range v {
			more = more && eachLeaf(value, element(path, i), yield)
		}
	default:
		return yield(path, v)
	}
	return more
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
	full := s.settings(spec, override).spec
	g := Group{
		GroupKey:      key,
		Template:      full.Template,
		Kind:          t.Kind,
		Arch:          t.Arch,
		Size:          deref(full.Size),
		InstanceType:  full.InstanceType,
		InstanceTypes: full.InstanceTypes,
		SubnetPool:    full.SubnetPool,
		Args:          full.Args,
		Vars:          full.Vars,
		Files:         cloned(t.Files),
		HealthChecks:  cloned(t.HealthChecks),
		Drain:         cloned(t.Drain),
		LoadBalancers: full.LoadBalancers,
		DrainTimeout:  deref(full.DrainTimeout),
		MaxSurge:      deref(full.MaxSurge),
		Rollout:       deref(full.Rollout),
		Preserve:      deref(full.Preserve),
		Purchase:      deref(full.Purchase),
		Scaling:       full.Scaling,
		Spares:        deref(full.Spares),

		LoadBalancerHealth: t.LoadBalancerHealth,
	}
	g.Subnets = slices.Clone(s.Server.SubnetPools[g.SubnetPool])
	for _, u := range []*Userdata{s.Defaults.Userdata, t.Userdata} {
		if u != nil {
			g.Userdata = *u
		}
	}
	g.MaxUnhealthy, _ = ParseLimit(full.MaxUnhealthy) // validated before
	if d := full.Disruption; d != nil {
		g.MaxPerHour, g.IgnoreMaintenance = d.MaxPerHour, d.OnMaintenance == OnNoticeIgnore
		for _, text := range d.Windows {
			if w, err := ParseWindow(text); err == nil { // validated before
				g.Windows = append(g.Windows, w)
			}
		}
	}
	for _, s := range full.Schedules {
		if parsed, err := s.Parse(); err == nil { // validated before
			g.Schedules = append(g.Schedules, parsed)
		}
	}
	if override != nil {
		size := override.Overrides[pathSize]
		if g.SizeUntil = size.until(); !g.SizeUntil.IsZero() {
			g.ConfiguredSize = deref(s.settings(spec, nil).spec.Size)
		}
		g.SizeHeld = override.SizeHeld()
		full = *override // only the server sets these, in groups/
	}
	g.Removed, g.Protected = instanceIDs(full.Removed), instanceIDs(full.Protected)
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
