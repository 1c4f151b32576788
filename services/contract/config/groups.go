package config

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Groups is the content of `groups/{shard}.jsonc`: dynamic groups, and overrides of static groups.
type Groups struct {
	// Term is the term of the leader that wrote this version. Revision counts the writes, so that no two versions have
	// the same bytes.
	Term, Revision uint64
	// Tenants holds the groups by tenant and then by name.
	Tenants map[string]map[string]GroupSpec
}

// Get returns the entry of one group.
func (g Groups) Get(key GroupKey) (GroupSpec, bool) {
	spec, ok := g.Tenants[key.Tenant][key.Group]
	return spec, ok
}

// serverFields lists the fields of an entry in groups/ that only the server sets.
var serverFields = []string{"deleted", "removed", "protected", "overrides"}

// Override returns the fields of an entry in groups/ that apply to a static group: those that operators may change in
// whole or in part, and those that only the server sets.
func (s GroupSpec) Override() GroupSpec {
	return withFields[GroupSpec](s, func(name string) bool {
		return name != "deleted" && slices.Contains(serverFields, name) ||
			slices.ContainsFunc(operatorFields, func(path string) bool { return within(path, name) })
	})
}

// restricted returns the paths of the fields that an override of a static group contains but must not contain.
func restricted(spec GroupSpec) []string { return PatchOf(spec).Restricted() }

// Merged returns every group of the shard, static and dynamic, with all inherited values. The shard must be valid. If
// the shard is terminating, every size is 0.
//
// Warnings list the parts of groups/ that are ignored. An error means that a group can no longer be made from this
// shard config. For example, its template, pool or tenant was removed, or the config no longer permits what an operator
// chose. Callers should refuse such a config. The result still contains the group, with its size and all values that
// are known. So its instances still belong to a group and are not deleted, but no new instances of the group can be
// created (see [Group.Refused]).
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
			if override != nil && !c.s.Terminating {
				g.Refused = c.permissions(key, *override, ChildPath(ChildPath("", tenant), name))
			}
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
	total := map[string]Usage{}
	for key, g := range out {
		if c.s.Terminating {
			g.FixSize(0)
		}
		total[key.Tenant] = total[key.Tenant].Add(g)
		g.RuntimeHash, g.InfraHash = c.s.runtimeHash(g), infraHash(g)
		out[key] = g
	}
	for _, tenant := range sortedKeys(dynamic.Tenants) {
		c.quota(tenant, ChildPath("", tenant), Usage{}, total[tenant])
	}
	return out, c.problems()
}

// override returns the changes that an entry in groups/ makes to a static group, or nil if there are none.
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
	override := c.s.Current(key, entry, time.Time{})
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
		// Do not check a group that is being deleted, or whose shard is being terminated. The group is drained and
		// removed, even if its template has changed or is gone.
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
	g := c.s.merge(key, spec, nil)
	g.Refused = c.permissions(key, spec, path)
	return g, true
}

// CheckUpsert reports why the API must refuse to create or change a group. spec is the complete new entry in groups/.
// The error is a [*DeniedError] if the shard config does not permit the group, and else a [Problems]. The paths of the
// problems are relative to the group. The shard must be valid.
func CheckUpsert(s *Shard, key GroupKey, spec GroupSpec) error {
	c := &checker{s: s.WithDefaults(), rendered: map[string]bool{}}
	// If the tenant has no permission, report no other problem: it could reveal a template of another tenant.
	if c.permissions(key, spec, "") != "" {
		return &DeniedError{c.problems()}
	}
	c.tenant(key.Tenant, "")
	c.err("", ident.ValidateName(key.Group))
	c.fields(reflect.ValueOf(spec), "")
	c.group(spec, "")
	if static, ok := c.s.Groups[key.Tenant][key.Group]; ok {
		for _, name := range restricted(spec) {
			c.add(name, "cannot be changed: group %s is static, only %s can be", key,
				strings.Join(operatorFields, ", "))
		}
		if scaling := static.Scaling; spec.Size != nil && scaling != nil {
			c.scalable(*scaling, *spec.Size, "size")
		} else if spec.Size != nil && len(static.Schedules) > 0 {
			c.add("size", "cannot be changed: the schedules of group %s set it", key).hint =
				"change them in the shard config"
		}
		if len(c.found) == 0 {
			c.rendersWith(key, static, spec, "")
		}
	} else {
		if spec.Deleted {
			c.add("deleted", "is the server's own mark")
		}
		c.inShard(key, spec, "")
	}
	return c.problems().Err()
}
