package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/render"
)

// groups checks the static groups, and renders every template.
func (c *checker) groups() {
	used := map[string]bool{}
	for _, tenant := range sortedKeys(c.s.Groups) {
		path := ChildPath("groups", tenant)
		c.tenant(tenant, path)
		var total Usage
		for _, name := range sortedKeys(c.s.Groups[tenant]) {
			spec, at := c.s.Groups[tenant][name], ChildPath(path, name)
			c.key(at, ident.ValidateName(name))
			c.group(spec, at)
			if spec.Deleted {
				c.add(at+".deleted", "is for dynamic groups, in groups/; remove the group instead")
			}
			if len(spec.Removed) > 0 {
				c.add(at+".removed", "is written by the server, in groups/")
			}
			if len(spec.Protected) > 0 {
				c.add(at+".protected", "is written by the server, in groups/")
			}
			if len(spec.Overrides) > 0 {
				c.add(at+".overrides", "is written by the server, in groups/")
			}
			used[spec.Template] = true
			c.inShard(GroupKey{tenant, name}, spec, at)
			if t, ok := c.s.Templates[spec.Template]; ok {
				total.Instances += mostInstances(*cmp.Or(spec.Size, t.Size), spec, GroupSpec{}, t)
			}
		}
		c.quota(tenant, ChildPath("tenants", tenant), Usage{}, total)
	}
	for _, name := range sortedKeys(c.s.Templates) {
		if !used[name] {
			// Do not report missing variables: a dynamic group that is created later may set them.
			spec := GroupSpec{Template: name}
			c.render(c.s.merge(GroupKey{ident.DefaultTenant, "sample"}, spec, nil), spec, "", true)
		}
	}
}

// tenant reports a tenant that is not listed in the configuration.
func (c *checker) tenant(tenant, path string) {
	if tenant == ident.DefaultTenant {
		return
	}
	if err := ident.ValidateTenantName(tenant); err != nil {
		c.key(path, err)
		return
	}
	n := len(c.found)
	if !reference(c, path, "tenant", tenant, c.s.Tenants, "tenants") {
		c.found[n].onKey = true
	}
}

// group checks those values of a group that can be checked without its shard. path is the path of the group.
func (c *checker) group(spec GroupSpec, path string) {
	c.vars(spec.Vars, path+".vars")
	c.distinct(spec.InstanceTypes, path+".instance_types")
	c.size(spec.Size, ChildPath(path, "size"))
	c.size(spec.MaxSurge, ChildPath(path, "max_surge"))
	c.preserve(spec.Preserve, ChildPath(path, "preserve"))
	c.scaling(spec, path)
	if spec.Spares != nil {
		c.size(&spec.Spares.Count, ChildPath(path, "spares")+".count")
	}
	c.distinct(spec.LoadBalancers, path+".load_balancers")
	if spec.MaxUnhealthy != "" {
		_, err := ParseLimit(spec.MaxUnhealthy)
		c.err(ChildPath(path, "max_unhealthy"), err)
	}
	if r := spec.Rollout; r != nil && r.OnHalt == OnHaltRollback && r.HaltOnFailures == 0 {
		c.add(ChildPath(ChildPath(path, "rollout"), "on_halt"), "has no effect without halt_on_failures").hint =
			"set halt_on_failures to the number of failures that halts a rollout, such as 2"
	}
	if spec.Disruption != nil {
		for i, text := range spec.Disruption.Windows {
			_, err := ParseWindow(text)
			c.err(element(ChildPath(ChildPath(path, "disruption"), "windows"), i), err)
		}
	}
	for i, s := range spec.Schedules {
		c.size(&s.Size, element(ChildPath(path, "schedules"), i)+".size")
		if s.Cron != "" {
			_, err := s.Parse()
			c.err(element(ChildPath(path, "schedules"), i), err)
		}
	}
}

const (
	// maxPreserved is the largest number of failed instances that a group keeps, and longestPreserved the longest time.
	maxPreserved     = 100
	longestPreserved = Duration(30 * 24 * time.Hour)
)

// preserve checks how many failed instances a group keeps, and for how long.
func (c *checker) preserve(p *Preserve, path string) {
	switch {
	case p == nil:
	case p.Max > maxPreserved:
		c.add(path+".max", "%d is more than %d, the most instances that are kept", p.Max, maxPreserved)
	case p.Max > 0 && p.For == 0:
		c.add(path+".for", "is required: how long failed instances are kept").hint = "set it to \"24h\", for example"
	case p.For > longestPreserved:
		c.add(path+".for", "%s is more than %s, the longest time that instances are kept", p.For, longestPreserved)
	}
}

// MaxGroupSize is the maximum number of instances of a group. It exceeds what one shard can have, and catches slips.
const MaxGroupSize = 100000

// size checks a number of instances.
func (c *checker) size(n *int, path string) {
	if n != nil && *n > MaxGroupSize {
		c.add(path, "%d is more than %d, the most instances that a group can have", *n, MaxGroupSize).whenWritten = true
	}
}

// inShard checks a group by the rules that depend on its shard, and renders it. The group's template must exist.
func (c *checker) inShard(key GroupKey, spec GroupSpec, path string) {
	if spec.Template == "" {
		c.add(ChildPath(path, "template"), "is required")
		return
	}
	if !reference(c, ChildPath(path, "template"), "template", spec.Template, c.s.Templates, "templates") {
		return
	}
	from := ChildPath("templates", spec.Template)
	c.args(spec.Args, ChildPath(path, "args"))
	c.typesOfCloud(spec.InstanceType, spec.InstanceTypes, path)
	c.purchase(spec, path)
	c.sleeping(spec, path)
	c.pool(ChildPath(path, "subnet_pool"), spec.SubnetPool)
	for i, name := range spec.LoadBalancers {
		at := element(ChildPath(path, "load_balancers"), i)
		if name != "" && reference(c, at, "load balancer", name, c.s.LoadBalancers, "load_balancers") {
			c.foreign(at, c.s.LoadBalancers[name].Provider)
		}
	}
	c.balancerHealth(spec, path)
	g := c.s.merge(key, spec, nil)
	c.timeToDrain(g, path)
	if g.SubnetPool == "" {
		c.add(ChildPath(path, "subnet_pool"),
			"is required: neither the group nor its template has one").depends = []string{from + ".subnet_pool"}
	}
	needsType := blockOf(c.s.Server.Provider.Kind).NeedsInstanceType
	if g.InstanceType == "" && (len(g.InstanceTypes) > 0 || needsType) {
		c.add(ChildPath(path, "instance_type"),
			"is required: neither the group nor its template has one").depends = []string{from + ".instance_type"}
	}
	c.render(g, spec, path, false)
}

// sleeping checks that the VMs of spares can sleep in the way that the group wants.
func (c *checker) sleeping(spec GroupSpec, path string) {
	if spec.Spares == nil || spec.Spares.Sleep() == "" {
		return
	}
	at, provider := ChildPath(path, "spares")+".state", c.s.Server.Provider.Kind
	known := []string{SparesStopped, SparesSuspended}
	if provider != "" {
		known = blockOf(provider).Sleeps
	}
	state := spec.Spares.State
	switch {
	case len(known) == 0:
		c.add(at, "%s is not supported: provider %s cannot put VMs to sleep", quote(state), provider).hint =
			"use " + quote(SparesRunning)
	case !slices.Contains(known, state):
		c.add(at, "%s is not supported by provider %s", quote(state), provider).hint =
			"use " + quote(SparesRunning) + " or " + quote(known[0])
	case spec.Purchase != nil && spec.Purchase.SpotPercent > 0:
		c.add(at, "%s is not possible together with purchase: clouds do not keep spot instances that sleep",
			quote(state)).hint = "use " + quote(SparesRunning) + ", or remove purchase"
	}
	for _, elements := range blockOf(provider).SpotArgs {
		for _, source := range c.argSources(spec, path) {
			if has(source.tree, elements) {
				c.add(at, "%s is not possible together with %s: clouds do not keep spot instances that sleep",
					quote(state), source.path+joinBelow(JoinPath(elements...))).hint = "use " + quote(SparesRunning)
			}
		}
	}
}

// purchase checks that the group's provider has a spot market, and that no argument contradicts the purchase options.
func (c *checker) purchase(spec GroupSpec, path string) {
	if spec.Purchase == nil {
		return
	}
	at, provider := ChildPath(path, "purchase"), c.s.Server.Provider.Kind
	paths := blockOf(provider).SpotArgs
	if len(paths) == 0 && provider != "" {
		c.add(at, "is not possible: provider %s has no spot market", provider)
	}
	if n := spec.Purchase.SpotPercent; n < 0 || n > 100 {
		c.add(at+".spot_percent", "is %d, want 1 to 100", n)
	}
	for _, elements := range paths {
		for _, source := range c.argSources(spec, path) {
			if has(source.tree, elements) {
				arg := source.path + joinBelow(JoinPath(elements...))
				c.add(at, "contradicts %s: both say how the VMs are bought", arg).hint = "remove one of them"
			}
		}
	}
}

// argSource is one of the sources of a group's args: the group itself, its template, or the defaults.
type argSource struct {
	path string
	tree map[string]any
}

// argSources returns the sources of a group's args. An earlier source takes precedence over a later one.
func (c *checker) argSources(spec GroupSpec, path string) []argSource {
	return []argSource{{ChildPath(path, "args"), spec.Args},
		{ChildPath("templates", spec.Template) + ".args", c.s.Templates[spec.Template].Args},
		{"defaults.args", c.s.Defaults.Args}}
}

// rendering renders all templates of one group.
type rendering struct {
	c       *checker
	g       Group
	data    render.Data
	depends []string
	// lenient makes the rendering supply sample values for missing variables.
	lenient bool
	failed  bool
}

// render renders every template of a group with sample data. path is the path of the group, or "" if the group is not
// part of the document.
func (c *checker) render(g Group, spec GroupSpec, path string, lenient bool) {
	from := ChildPath("templates", g.Template)
	r := rendering{c: c, g: g, data: c.sample(g), lenient: lenient,
		depends: []string{"defaults.vars", from + ".vars", ChildPath(path, "vars"), "images"}}
	t := c.s.Templates[g.Template]

	userdataPath := "defaults.userdata.content"
	if t.Userdata != nil {
		userdataPath = from + ".userdata.content"
	}
	if g.Userdata.Source == "storage" {
		r.storage(userdataPath, g.Userdata.Content)
	} else {
		r.userdata(userdataPath, g.Userdata.Content)
	}

	// If an argument of the merged group has a problem, report the problem where the document sets that argument.
	sources := c.argSources(spec, path)
	argPath := func(path string) string {
		elements, err := SplitPath(path)
		for _, source := range sources {
			if err == nil && has(source.tree, elements) {
				return source.path + joinBelow(path)
			}
		}
		return from + ".args" + joinBelow(path)
	}
	r.tree(g.Args, r.text, argPath)
	rendered, err := render.Tree("args", g.Args, r.data)
	switch args, isObject := rendered.(map[string]any); {
	case r.failed || lenient:
	case err != nil:
		r.value(from+".args", err) // too large in total, or not JSON
	case isObject:
		r.args(args, argPath)
		r.needed(args, from+".args", sources)
	}

	for _, name := range sortedKeys(g.Files) {
		r.file(g.Files[name], ChildPath(from+".files", name))
	}
}

// joinBelow returns path with a leading dot, so that it can be appended to another path. An empty path, or a path that
// begins with a bracket, gets no dot.
func joinBelow(path string) string {
	if path == "" || path[0] == '[' {
		return path
	}
	return "." + path
}

// has reports whether a tree has a value at a path.
func has(tree any, path []any) bool {
	for _, e := range path {
		switch e := e.(type) {
		case string:
			object, _ := tree.(map[string]any)
			below, ok := object[e]
			if !ok {
				return false
			}
			tree = below
		case int:
			list, _ := tree.([]any)
			if e >= len(list) {
				return false
			}
			tree = list[e]
		}
	}
	return true
}

func (c *checker) sample(g Group) render.Data {
	d := render.Sample()
	if g.Kind != "" {
		d.Instance.ID = g.Kind + d.Instance.ID[len(g.Kind):]
	}
	d.Instance.Kind, d.Instance.Arch, d.Instance.Type, d.Instance.Group, d.Instance.Tenant = g.Kind, g.Arch,
		g.InstanceType, g.Group, g.Tenant
	d.Cluster.ID, d.Server.Shard = c.s.Cluster.ID, c.s.Server.Shard
	p := c.s.Server.Provider
	d.Provider = render.Provider{Kind: p.Kind, Region: p.Region, Zone: p.Zone}
	d.Vars = g.Vars
	for name, image := range c.s.Images {
		d.Image[name] = cmp.Or(image.Fallback, "image-sample")
	}
	return d
}

func (r *rendering) file(f File, path string) {
	switch f.Kind {
	case "certificate":
		if cert, ok := r.c.s.Certificates[f.Template]; ok {
			r.certificate(cert, ChildPath("certificates", f.Template))
		}
	case "storage":
		r.storage(path+".source", f.Source)
	case "string":
		r.fileText(path+".content", f.Content)
	case "json":
		r.tree(f.JSON, r.fileText, func(below string) string { return path + ".json" + joinBelow(below) })
	case "env":
		failed := false
		for _, name := range sortedKeys(f.Vars) {
			at := ChildPath(path+".vars", name)
			invalid := render.ValidateEnvName(name)
			r.c.key(at, invalid)
			_, ok := r.fileText(at, f.Vars[name])
			failed = failed || !ok || invalid != nil
		}
		if _, err := render.Env("env", f.Vars, r.data); err != nil && !failed && !r.lenient {
			r.value(path+".vars", err)
		}
	}
}

func (r *rendering) certificate(cert Certificate, path string) {
	r.text(path+".cn", cert.CN)
	for _, list := range []struct {
		name   string
		values []string
		check  func(string) error
	}{
		{"organization", cert.Organization, nil},
		{"country", cert.Country, nil},
		{"province", cert.Province, nil},
		{"locality", cert.Locality, nil},
		{"street", cert.Street, nil},
		{"postal_code", cert.PostalCode, nil},
		{"dns", cert.DNS, func(s string) error {
			if !ident.IsDNSName(s) {
				return fmt.Errorf("%s is not a DNS name", quote(s))
			}
			return nil
		}},
		{"ip", cert.IP, func(s string) error {
			if _, err := netip.ParseAddr(s); err != nil {
				return fmt.Errorf("%s is not an IP address", quote(s))
			}
			return nil
		}},
		{"uri", cert.URI, func(s string) error {
			if u, err := url.Parse(s); err != nil || !u.IsAbs() {
				return fmt.Errorf("%s is not a URI", quote(s))
			}
			return nil
		}},
	} {
		for i, value := range list.values {
			at := element(ChildPath(path, list.name), i)
			if text, ok := r.text(at, value); ok && list.check != nil {
				r.value(at, list.check(text))
			}
		}
	}
}

// tree calls the function `text` for every string inside the given value, to render the string. The function `at` turns
// a path in the value into a path in the document.
func (r *rendering) tree(tree any, text func(path, text string) (string, bool), at func(string) string) {
	for path, value := range leaves(tree, "") {
		if template, ok := value.(string); ok {
			text(at(path), template)
		}
	}
}

// args checks the rendered args by the rules of the cloud. It leaves out problems that were reported before the args
// were rendered. The function `at` turns a path in the args into a path in the document.
func (r *rendering) args(args map[string]any, at func(string) string) {
	check := blockOf(r.c.s.Server.Provider.Kind).CheckArgs
	if check == nil {
		return
	}
	for _, problem := range check(args) {
		path := at(JoinPath(problem.Path...))
		if slices.ContainsFunc(r.c.found, func(f finding) bool {
			return f.path == path && f.message == problem.Message
		}) {
			continue
		}
		if f := r.problem(path, problem.Message); f != nil {
			f.whenWritten, f.ofCloud = true, true
		}
	}
}

// needed reports args at path that lack what the cloud needs for a VM. The args are merged from the sources, so that
// one that is not known yet may have it.
func (r *rendering) needed(args map[string]any, path string, sources []argSource) {
	names := blockOf(r.c.s.Server.Provider.Kind).NeedsArgs
	if len(names) == 0 || slices.ContainsFunc(names, func(name string) bool {
		list, isList := args[name].([]any)
		return args[name] != nil && (!isList || len(list) > 0)
	}) {
		return
	}
	if f := r.problem(path, "has no "+strings.Join(names, " or ")+", so that no VM can be made"); f != nil {
		f.whenWritten, f.ofCloud = true, true
		f.depends = slices.Clone(r.depends)
		for _, source := range sources {
			f.depends = append(f.depends, source.path)
		}
	}
}

// storage renders source, the template of an object's key, and checks the result. An empty template is reported
// elsewhere.
func (r *rendering) storage(path, source string) {
	if key, ok := r.text(path, source); ok && source != "" {
		r.value(path, ValidateStorageSource(key))
	}
}

func (r *rendering) text(path, text string) (string, bool) {
	t, err := render.Compile("", text)
	return r.execute(path, t, err)
}

// fileText renders a text in the content of a file. The text can refer to .Claimed, which the agent reports about its
// machine.
func (r *rendering) fileText(path, text string) (string, bool) {
	t, err := render.CompileFile("", text)
	return r.execute(path, t, err)
}

// execute renders a compiled template. err is the error of the compilation: if it is not nil, execute reports it and
// renders nothing.
func (r *rendering) execute(path string, t *render.Template, err error) (string, bool) {
	if err != nil {
		r.template(path, err)
		return "", false
	}
	out, err := t.Execute(r.withVars(t.Vars()))
	if err != nil {
		r.template(path, err)
		return "", false
	}
	// If the result was made with sample variables, the caller must not check it.
	return out, !r.lenient || len(t.Vars()) == 0
}

func (r *rendering) userdata(path, text string) {
	u, err := render.CompileUserdata("", text)
	var out string
	if err == nil {
		out, err = u.Execute(r.withVars(u.Vars()), render.SampleNonce)
	}
	if err != nil {
		r.template(path, err)
		return
	}
	r.boots(path, out)
}

// boots checks a rendered boot script by what the cloud and the VM always refuse.
func (r *rendering) boots(path, script string) {
	block := blockOf(r.c.s.Server.Provider.Kind)
	if block.Name == "" || block.Hidden || script == "" {
		return // no VM boots from it
	}
	report := func(hint, format string, args ...any) *finding {
		f := r.problem(path, fmt.Sprintf(format, args...))
		if f == nil {
			return &finding{}
		}
		f.whenWritten, f.hint = true, hint
		f.depends = append(slices.Clone(r.depends), strings.TrimSuffix(path, ".content")+".source")
		return f
	}
	if strings.HasPrefix(script, "\ufeff") {
		report("save the file as UTF-8 without it", "begins with a byte order mark, so that no VM runs it")
	} else if head, _, _ := strings.Cut(script, "\n"); strings.HasPrefix(head, "#!") && strings.Contains(script,
		"\r\n") {
		report("save the file with Unix line ends (LF)", "has Windows line ends (CRLF), with which no shell runs it")
	}
	if limit := block.MaxUserdata; limit > 0 && len(script) > limit {
		report("let the script download the rest", "is %d bytes, more than the %d that %s accepts", len(script), limit,
			block.Name)
	}
	if !strings.Contains(script, string(render.SampleNonce)) {
		report("agents need it to register", "does not contain {{ .Nonce }}").warning = true
	}
}

func (r *rendering) withVars(names []string) render.Data {
	if !r.lenient {
		return r.data
	}
	d := r.data
	d.Vars = mergeVars(d.Vars)
	for _, name := range names {
		if _, ok := d.Vars[name]; !ok {
			d.Vars[name] = "sample"
		}
	}
	return d
}

// template reports a template that fails to render.
func (r *rendering) template(path string, err error) {
	r.value(path, errors.New("template: "+strings.TrimPrefix(err.Error(), ": ")))
}

// value reports a problem of a rendered text. It reports the same problem only once for all groups.
func (r *rendering) value(path string, err error) {
	if err == nil {
		return
	}
	r.failed = true
	r.problem(path, err.Error())
}

// problem reports a problem of a rendered text, or returns nil if it was reported before.
func (r *rendering) problem(path, message string) *finding {
	key := path + "\n" + message
	if r.c.rendered[key] {
		return nil
	}
	r.c.rendered[key] = true
	f := r.c.add(path, "%s", message)
	f.depends = r.depends
	if !r.lenient {
		f.hint = "rendered for group " + r.g.String()
	}
	return f
}
