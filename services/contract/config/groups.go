package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Groups is `groups/{shard}.jsonc`: dynamic groups, and overrides of static ones.
type Groups struct {
	// Term of the leader that wrote this version, and the count of writes, so that no two versions have the same bytes.
	Term, Revision uint64
	// Tenants holds the groups by tenant, then by name.
	Tenants map[string]map[string]GroupSpec
}

// Get returns one group's entry.
func (g Groups) Get(key GroupKey) (GroupSpec, bool) {
	spec, ok := g.Tenants[key.Tenant][key.Group]
	return spec, ok
}

// overridable are the fields of a static group that an entry in groups/ may set.
var overridable = []string{"size", "instance_type", "vars"}

// restricted returns the names of the fields that an entry sets although it may not.
func restricted(spec GroupSpec) []string {
	var out []string
	v := reflect.ValueOf(spec)
	for _, f := range fieldsOf(v.Type()) {
		if !isZero(f.in(v)) && !slices.Contains(overridable, f.name) {
			out = append(out, f.name)
		}
	}
	return out
}

// Merged returns every group of the shard, static and dynamic, with all that it takes from elsewhere. The shard must be
// valid. If it is terminating, every size is 0.
//
// Warnings tell of parts of groups/ that are ignored. An error means that a dynamic group cannot be made any more from
// this shard config (its template, pool, tenant … is gone): a config that takes something away from a running group
// should be refused, like one that is invalid. Such a group is in the result all the same, with its size and what else
// can be said of it, so that its instances do not seem to belong to no group; more of them cannot be created.
func (s *Shard) Merged(dynamic Groups) (map[GroupKey]Group, Problems) {
	c := &checker{s: s.WithDefaults(), rendered: map[string]bool{}}
	out := map[GroupKey]Group{}
	for tenant, groups := range c.s.Groups {
		for name, spec := range groups {
			key := GroupKey{tenant, name}
			var override *GroupSpec
			if entry, ok := dynamic.Get(key); ok {
				override = c.override(key, spec, entry)
			}
			g := c.s.merge(key, spec, override)
			g.Static = true
			out[key] = g
		}
	}
	for _, tenant := range sortedKeys(dynamic.Tenants) {
		for _, name := range sortedKeys(dynamic.Tenants[tenant]) {
			key := GroupKey{tenant, name}
			if _, static := out[key]; static {
				continue
			}
			if g, ok := c.dynamicGroup(key, dynamic.Tenants[tenant][name]); ok {
				out[key] = g
			}
		}
	}
	for key, g := range out {
		if c.s.Terminating {
			g.Size = 0
		}
		g.RuntimeHash, g.InfraHash = c.s.runtimeHash(g), infraHash(g)
		out[key] = g
	}
	return out, c.problems()
}

// override returns what an entry in groups/ changes about a static group; nil for nothing.
func (c *checker) override(key GroupKey, static, entry GroupSpec) *GroupSpec {
	path := ChildPath(ChildPath("", key.Tenant), key.Group)
	if entry.Deleted {
		c.add(path,
			"is being deleted as a dynamic group, but the shard config has it: the entry is ignored").warning = true
		return nil
	}
	for _, name := range restricted(entry) {
		c.add(ChildPath(path, name), "is ignored: the group is static").warning = true
	}
	override := GroupSpec{Size: entry.Size, InstanceType: entry.InstanceType, Vars: entry.Vars}
	c.rendersWith(key, static, override, path)
	return &override
}

// rendersWith renders a static group with an override.
func (c *checker) rendersWith(key GroupKey, static, override GroupSpec, path string) {
	if c.s.Terminating {
		return
	}
	spec := static
	spec.Vars = mergeVars(static.Vars, override.Vars)
	c.render(c.s.merge(key, static, &override), spec, path, false)
}

func (c *checker) dynamicGroup(key GroupKey, spec GroupSpec) (Group, bool) {
	path := ChildPath(ChildPath("", key.Tenant), key.Group)
	if spec.Deleted || c.s.Terminating {
		// Enough to drain and forget it, whatever has become of its template.
		g := c.s.merge(key, spec, nil)
		g.Deleted, g.Size = spec.Deleted, 0
		return g, spec.Template != "" || spec.Deleted
	}
	if spec.Template == "" {
		c.add(path, "overrides a group that the shard config does not have: the entry is ignored").warning = true
		return Group{}, false
	}
	c.tenant(key.Tenant, path)
	c.group(spec, path)
	c.inShard(key, spec, path)
	c.dynamic(spec, path)
	return c.s.merge(key, spec, nil), true
}

// CheckUpsert reports why a group may not be created or changed through the API to what spec says, the whole of its
// entry in groups/. The error is a [Problems] whose paths are the group's own fields. The shard must be valid.
func CheckUpsert(s *Shard, key GroupKey, spec GroupSpec) error {
	c := &checker{s: s.WithDefaults(), rendered: map[string]bool{}}
	if c.json(spec.Args, "args", 0); len(c.found) > 0 {
		return c.problems().Err()
	}
	c.tenant(key.Tenant, "")
	c.err("", ident.ValidateName(key.Group))
	c.fields(reflect.ValueOf(spec), "")
	c.group(spec, "")
	if static, ok := c.s.Groups[key.Tenant][key.Group]; ok {
		for _, name := range restricted(spec) {
			c.add(name, "cannot be changed: group %s is static, only %s can be", key, strings.Join(overridable, ", "))
		}
		if len(c.found) == 0 {
			c.rendersWith(key, static, spec, "")
		}
	} else {
		if spec.Deleted {
			c.add("deleted", "is the server's own mark")
		}
		c.inShard(key, spec, "")
		c.dynamic(spec, "")
	}
	return c.problems().Err()
}
