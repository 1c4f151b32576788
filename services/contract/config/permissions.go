package config

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/jsonpointer"
	"github.com/nstance-kit/nstance/services/contract/render"
)

// Usage counts the groups and instances that a tenant has or asks for.
type Usage struct {
	// Groups counts dynamic groups, including those that are being deleted.
	Groups int
	// Instances is the sum of the sizes and of preserve.max of all groups, plus the number of on-demand instances.
	Instances int
}

// Add returns the usage with one more group.
func (u Usage) Add(g Group) Usage {
	u.Instances += g.MostInstances()
	if !g.Static {
		u.Groups++
	}
	return u
}

// DeniedError lists the choices of an operator that the shard config does not permit in the operator's tenant.
type DeniedError struct{ Problems Problems }

func (e *DeniedError) Error() string { return e.Problems.Error() }

// CheckQuota returns a problem for each quota that a tenant exceeds after a change. It returns none for a quota if the
// change does not raise the number that the quota limits.
func CheckQuota(s *Shard, tenant string, before, after Usage) Problems {
	c := &checker{s: s}
	c.quota(tenant, "", before, after)
	return c.problems()
}

// MostInstances returns what [Group.MostInstances] returns for a group with the given entry in groups/. The entry may
// be the override of a static group.
func MostInstances(s *Shard, key GroupKey, spec GroupSpec) int {
	static := s.Groups[key.Tenant][key.Group]
	t := s.Templates[cmp.Or(static.Template, spec.Template)]
	largest := 0
	if size := cmp.Or(spec.Size, static.Size, t.Size); size != nil {
		largest = *size
	}
	if size := cmp.Or(static.Size, t.Size); size != nil && spec.Overrides[pathSize].Until != "" {
		largest = max(largest, *size)
	}
	return mostInstances(largest, static, spec, t)
}

// mostInstances returns the largest number of instances of a group without schedules and scaling, or what its schedules
// and its scaling allow, with its spares and the failed instances that it keeps.
func mostInstances(size int, static, spec GroupSpec, t Template) int {
	if s := cmp.Or(spec.Scaling, static.Scaling); s != nil {
		size = s.Max
	}
	for _, schedule := range slices.Concat(static.Schedules, spec.Schedules) {
		size = max(size, schedule.Size)
	}
	return size + deref(cmp.Or(spec.Preserve, static.Preserve, t.Preserve)).Max +
		deref(cmp.Or(spec.Spares, static.Spares)).Count
}

// permissions reports the values of a group that operators of its tenant may not choose. spec is the complete entry in
// groups/: a dynamic group, or the override of a static group. path is the path of the group. permissions returns the
// reasons as one text, or "". A missing template is reported elsewhere.
func (c *checker) permissions(key GroupKey, spec GroupSpec, path string) string {
	known := len(c.found)
	static, isStatic := c.s.Groups[key.Tenant][key.Group]
	name := cmp.Or(static.Template, spec.Template)
	t, ok := c.s.Templates[name]
	if !ok {
		return ""
	}
	switch {
	case !isStatic && !c.s.mayUse(key.Tenant, name):
		c.refuse(ChildPath(path, "template"), name, "tenants", "template %s may not be used by tenant %s", name,
			key.Tenant)
	default:
		c.permittedSize(static, spec, t, name, path)
		c.permittedTypes(static, spec, t, name, path)
		c.permittedVars(static, spec, t, name, path)
		if !isStatic {
			c.permittedPool(spec, t, name, path)
			c.permittedBalancers(spec, t, name, path)
			c.permittedMetrics(spec, path)
			var pointers [][]string
			for _, text := range t.Dynamic.Args {
				if pointer, err := parsePointer(text); err == nil {
					pointers = append(pointers, pointer)
				}
			}
			c.permittedArgs(spec.Args, pointers, name, ChildPath(path, "args"))
		}
	}
	var reasons []string
	for _, f := range c.found[known:] {
		reasons = append(reasons, f.problem().String())
	}
	return strings.Join(reasons, "; ")
}

// refuse reports a choice of an operator that is not permitted. field is the field of the template that would have to
// permit the choice.
func (c *checker) refuse(path, template, field, format string, args ...any) {
	c.add(path, format, args...).hint = "to permit it, change templates." + template + "." + field +
		" in the shard's configuration"
}

// mayUse reports whether a tenant's operators may create groups from a template.
func (s *Shard) mayUse(tenant, template string) bool {
	if t := s.Templates[template]; t.Tenants != nil {
		return slices.Contains(t.Tenants, tenant)
	}
	for _, group := range s.Groups[tenant] {
		if group.Template == template {
			return true
		}
	}
	return false
}

func (c *checker) permittedSize(static, spec GroupSpec, t Template, name, path string) {
	if t.Dynamic.MaxSize == nil {
		return
	}
	most := max(*t.Dynamic.MaxSize, *cmp.Or(static.Size, t.Size))
	if static.Scaling != nil {
		most = max(most, static.Scaling.Max) // the leader chooses sizes up to it
	}
	check := func(at string, size int) {
		if size > most {
			c.refuse(at, name, "dynamic.max_size", "%d is more than %d, the largest permitted size", size, most)
		}
	}
	for i, s := range spec.Schedules {
		check(element(ChildPath(path, "schedules"), i)+".size", s.Size)
	}
	check(ChildPath(path, "scaling")+".max", deref(spec.Scaling).Max)
	check(ChildPath(path, "spares")+".count", deref(spec.Spares).Count)
	check(ChildPath(path, "size"), deref(spec.Size))
}

func (c *checker) permittedTypes(static, spec GroupSpec, t Template, name, path string) {
	own := slices.Concat(t.InstanceTypes, static.InstanceTypes, []string{t.InstanceType, static.InstanceType})
	check := func(at, instanceType string) {
		if instanceType != "" && !slices.Contains(own, instanceType) &&
			!slices.ContainsFunc(t.Dynamic.InstanceTypes, func(glob string) bool {
				return matchesGlob(glob, instanceType)
			}) {
			c.refuse(at, name, "dynamic.instance_types", "%s is not a permitted instance type", quote(instanceType))
		}
	}
	check(ChildPath(path, "instance_type"), spec.InstanceType)
	for i, instanceType := range spec.InstanceTypes {
		check(element(ChildPath(path, "instance_types"), i), instanceType)
	}
}

// matchesGlob reports whether a text matches a valid pattern of [path.Match].
func matchesGlob(glob, text string) bool {
	ok, err := path.Match(glob, text)
	return ok && err == nil
}

func (c *checker) permittedPool(spec GroupSpec, t Template, name, path string) {
	at, all := ChildPath(path, "subnet_pool"), c.s.Server.DynamicSubnetPools
	pool := cmp.Or(spec.SubnetPool, t.SubnetPool)
	chosen := t.Dynamic.SubnetPools
	if chosen == nil {
		chosen = all
	}
	switch {
	case pool == "":
	case pool != t.SubnetPool && !slices.Contains(chosen, pool):
		c.refuse(at, name, "dynamic.subnet_pools", "%s is not a permitted subnet pool", quote(pool))
	case all != nil && !slices.Contains(all, pool):
		c.add(at, "%s is not among the pools of dynamic groups", quote(pool)).hint =
			"to permit it, change server.dynamic_subnet_pools in the shard's configuration"
	}
}

func (c *checker) permittedBalancers(spec GroupSpec, t Template, name, path string) {
	for i, balancer := range spec.LoadBalancers {
		if !slices.Contains(t.Dynamic.LoadBalancers, balancer) {
			c.refuse(element(ChildPath(path, "load_balancers"), i), name, "dynamic.load_balancers",
				"%s is not a permitted load balancer", quote(balancer))
		}
	}
}

// permittedMetrics reports the metrics that the leader reads from a URL. It may send requests, and a secret with them,
// only to what the shard config names.
func (c *checker) permittedMetrics(spec GroupSpec, path string) {
	if spec.Scaling == nil {
		return
	}
	for i, m := range spec.Scaling.Metrics {
		if m.Total() {
			c.add(element(ChildPath(path, "scaling")+".metrics", i)+"."+m.fields()[0],
				"is only for groups in the shard's configuration: the leader reads no URL that an operator has chosen")
		}
	}
}

// permittedArgs reports the arguments that no pointer in pointers permits. A pointer cannot lead into a list, because a
// merge replaces each list as a whole.
func (c *checker) permittedArgs(args map[string]any, pointers [][]string, name, path string) {
	for _, member := range sortedKeys(args) {
		var below [][]string
		permitted := false
		for _, pointer := range pointers {
			if pointer[0] == member {
				below, permitted = append(below, pointer[1:]), permitted || len(pointer) == 1
			}
		}
		object, _ := args[member].(map[string]any)
		switch at := ChildPath(path, member); {
		case permitted:
		case len(object) > 0 && len(below) > 0:
			c.permittedArgs(object, below, name, at)
		default:
			c.refuse(at, name, "dynamic.args", "may not be set by operators")
		}
	}
}

// permittedVars reports the variables that operators may not set. If the template does not list the permitted
// variables, operators may set any variable, except one that chooses a cloud resource, an object of the bucket, or the
// subject of a certificate.
func (c *checker) permittedVars(static, spec GroupSpec, t Template, name, path string) {
	if len(spec.Vars) == 0 {
		return
	}
	var reserved map[string]bool
	var all bool
	if t.Dynamic.Vars == nil {
		reserved, all = c.s.reservedVars(static, t)
	}
	for _, variable := range sortedKeys(spec.Vars) {
		at := ChildPath(ChildPath(path, "vars"), variable)
		switch {
		case t.Dynamic.Vars == nil && (all || reserved[variable]):
			c.refuse(at, name, "dynamic.vars",
				"is used in arguments, certificates or keys of stored objects, and may not be set by operators")
		case t.Dynamic.Vars != nil && !slices.Contains(t.Dynamic.Vars, variable):
			c.refuse(at, name, "dynamic.vars", "may not be set by operators")
		}
	}
}

// reservedVars returns the variables that a group's arguments, certificates and object keys refer to. all is true if
// one of these texts may refer to any variable, as in {{ index .Vars "name" }}.
func (s *Shard) reservedVars(static GroupSpec, t Template) (names map[string]bool, all bool) {
	names = map[string]bool{}
	text := func(text string) {
		// A template that does not compile is reported elsewhere.
		if compiled, err := render.Compile("", text); err == nil {
			for _, name := range compiled.Vars() {
				names[name] = true
			}
			all = all || compiled.ReadsAllVars()
		}
	}
	for _, value := range leaves(mergeTree(s.Defaults.Args, t.Args, static.Args), "") {
		if value, ok := value.(string); ok {
			text(value)
		}
	}
	if u := cmp.Or(t.Userdata, s.Defaults.Userdata); u != nil && u.Source == "storage" {
		text(u.Content)
	}
	for _, file := range t.Files {
		text(file.Source)
		cert := s.Certificates[file.Template]
		for _, value := range slices.Concat([]string{cert.CN}, cert.Organization, cert.Country, cert.Province,
			cert.Locality, cert.Street, cert.PostalCode, cert.DNS, cert.IP, cert.URI) {
			text(value)
		}
	}
	return names, all
}

// quota reports what [CheckQuota] returns. path is the path of the tenant's groups, or "" if only one group is checked.
func (c *checker) quota(tenant, path string, before, after Usage) {
	limits := c.s.Tenants[tenant]
	for _, q := range []struct {
		field, unit   string
		path          string
		most          *int
		before, after int
	}{
		{"max_groups", "dynamic groups", cmp.Or(path, "group"), limits.MaxGroups, before.Groups, after.Groups},
		{"max_instances", "instances", cmp.Or(path, "size"), limits.MaxInstances, before.Instances, after.Instances},
	} {
		if q.most != nil && q.after > *q.most && q.after > q.before {
			c.add(q.path, "tenant %s would have %d %s, at most %d are permitted", tenant, q.after, q.unit,
				*q.most).hint = "to permit more, change tenants." + tenant + "." + q.field +
				" in the shard's configuration"
		}
	}
}

// dynamic checks the template's field "dynamic", which lists what operators may choose. at is the path of that field.
func (c *checker) dynamic(t Template, at string) {
	p := t.Dynamic
	c.distinct(p.Args, at+".args")
	args := mergeTree(c.s.Defaults.Args, t.Args)
	for i, text := range p.Args {
		pointer, err := parsePointer(text)
		if err == nil {
			err = reachable(args, pointer)
		}
		if text != "" {
			c.err(element(at+".args", i), err)
		}
	}
	c.distinct(p.InstanceTypes, at+".instance_types")
	for i, glob := range p.InstanceTypes {
		if _, err := path.Match(glob, ""); err != nil {
			c.add(element(at+".instance_types", i), "%s is not a pattern such as \"t4g.*\"", quote(glob))
		}
	}
	c.distinct(p.SubnetPools, at+".subnet_pools")
	for i, pool := range p.SubnetPools {
		c.pool(element(at+".subnet_pools", i), pool)
	}
	c.distinct(p.LoadBalancers, at+".load_balancers")
	for i, name := range p.LoadBalancers {
		if name != "" {
			reference(c, element(at+".load_balancers", i), "load balancer", name, c.s.LoadBalancers, "load_balancers")
		}
	}
	c.distinct(p.Vars, at+".vars")
}

// reachable returns an error for a pointer that leads into something other than an object. A merge replaces lists as a
// whole, so a pointer cannot name an element of a list.
func reachable(args map[string]any, pointer []string) error {
	for _, name := range pointer[:len(pointer)-1] {
		value, ok := args[name]
		if !ok {
			return nil
		}
		below, isObject := value.(map[string]any)
		if !isObject {
			return errors.New(quote(name) + " is not an object in the template: permit it as a whole")
		}
		args = below
	}
	return nil
}

var errPointer = errors.New(`is not a JSON pointer to an argument, such as "/MetadataOptions/HttpTokens"`)

// parsePointer splits a JSON pointer to an argument into the names of members. It returns at least one name.
func parsePointer(text string) ([]string, error) {
	names, err := jsonpointer.Parse(text)
	if err != nil || len(names) == 0 {
		return nil, errPointer
	}
	return names, nil
}
