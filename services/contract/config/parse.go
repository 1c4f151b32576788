package config

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Parse parses `config/{shard}.jsonc`: JSON with comments and trailing commas, at most [MaxSize] bytes. It reports all
// problems with positions, in the order of the document: syntax, unknown and repeated fields, types, and values that
// break a rule. The shard is nil if there are errors. The file name is used only in messages.
func Parse(filename string, src []byte) (*Shard, Problems) {
	return parse(filename, src, check)
}

// ParseStored is [Parse] for a configuration that is in the bucket already. A value above a limit that Nstance
// introduced later is only a warning, because an older version may have written the configuration.
func ParseStored(filename string, src []byte) (*Shard, Problems) {
	return parse(filename, src, func(s *Shard) []finding {
		return warn(check(s), func(f finding) bool { return f.whenWritten })
	})
}

// ParseApplied is [ParseStored] for a configuration that a leader has applied. Problems that only a cloud's own checks
// find become warnings, in addition to those that ParseStored turns into warnings. A later version of Nstance may have
// more of these checks, but must still be able to lead the shard.
func ParseApplied(filename string, src []byte) (*Shard, Problems) {
	return parse(filename, src, func(s *Shard) []finding {
		return warn(check(s), func(f finding) bool { return f.whenWritten || f.ofCloud })
	})
}

// warn turns the findings for which the function `of` returns true into warnings.
func warn(found []finding, of func(finding) bool) []finding {
	for i := range found {
		found[i].warning = found[i].warning || of(found[i])
	}
	return found
}

func parse(filename string, src []byte, check func(*Shard) []finding) (*Shard, Problems) {
	return parseAs(&decoder{file: filename, src: src}, check)
}

// parseAs decodes a document, and returns it with its problems and those that check finds. It returns the zero value of
// T if there are errors.
func parseAs[T any](d *decoder, check func(T) []finding) (T, Problems) {
	var out, none T
	root, ok := d.parse()
	if !ok {
		return none, d.problems(nil)
	}
	d.decode(root, "", reflect.ValueOf(&out).Elem(), field{})
	problems := d.problems(check(out))
	if len(problems.Errors()) > 0 {
		return none, problems
	}
	return out, problems
}

// Encode encodes a shard config in its canonical form: indented JSON, sorted map keys, no unset fields. [Parse] accepts
// the result. The shard must be valid: its args and JSON files must hold only JSON values.
func Encode(s *Shard) []byte {
	out := cloned(s)
	for tenant, groups := range out.Groups {
		if groups == nil {
			out.Groups[tenant] = map[string]GroupSpec{}
		}
	}
	return encode(out, "  ")
}

// encode returns a document as JSON for people. Documents hold only JSON values.
func encode(v any, indent string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		panic("config: a document that is not valid was encoded: " + err.Error())
	}
	return out.Bytes()
}

// marshal returns what holds only JSON values as JSON for programs.
func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("config: what is not valid was encoded: " + err.Error())
	}
	return text
}

// groupsVersion is the version of `groups/{shard}.jsonc` that EncodeGroups writes, and the newest that ParseGroups
// accepts.
const groupsVersion = 1

// groupsHead holds the fields of `groups/{shard}.jsonc` that are not tenants. The names of these fields start with a
// dollar sign, which a tenant's name may not contain.
type groupsHead struct {
	Version  *int   `json:"$version,omitempty" rule:"positive"`
	Term     uint64 `json:"$term,omitempty"`
	Revision uint64 `json:"$revision,omitempty"`
}

// ParseGroups parses `groups/{shard}.jsonc`. It reports only problems that do not depend on the shard config.
// [Shard.Merged] reports the others. The groups are empty if there are errors.
func ParseGroups(filename string, src []byte) (Groups, Problems) {
	d := &decoder{file: filename, src: src}
	root, ok := d.parse()
	if !ok {
		return Groups{}, d.problems(nil)
	}
	var head groupsHead
	tenants := map[string]map[string]GroupSpec{}
	headFields := fieldsOf(reflect.TypeFor[groupsHead]())
	ok = d.members(root, "", func(name, at string, m member) {
		if len(name) > 0 && name[0] == '$' {
			var names []string
			for _, f := range headFields {
				if f.name == name {
					d.decode(m.Value, at, f.in(reflect.ValueOf(&head).Elem()), f)
					return
				}
				names = append(names, f.name)
			}
			d.unknown(root, m, "", name, names)
			return
		}
		var groups map[string]GroupSpec
		d.decode(m.Value, at, reflect.ValueOf(&groups).Elem(), field{})
		tenants[name] = groups
	})
	c := checker{}
	if head.Version != nil && *head.Version != groupsVersion {
		c.add("$version", "version %d of this document is not known, the newest known is %d", *head.Version,
			groupsVersion)
	}
	if ok {
		c.fields(reflect.ValueOf(tenants), "")
		for _, tenant := range sortedKeys(tenants) {
			c.key(tenant, ident.ValidateTenantName(tenant))
			for _, name := range sortedKeys(tenants[tenant]) {
				at := ChildPath(tenant, name)
				c.key(at, ident.ValidateName(name))
				c.group(tenants[tenant][name], at)
			}
		}
	}
	problems := d.problems(c.found)
	if len(problems.Errors()) > 0 {
		return Groups{}, problems
	}
	if len(tenants) == 0 {
		tenants = nil
	}
	return Groups{Term: head.Term, Revision: head.Revision, Tenants: tenants}, problems
}

// EncodeGroups encodes groups in their canonical form, which [ParseGroups] accepts. It leaves out tenants without
// groups.
func EncodeGroups(g Groups) []byte {
	out := map[string]any{"$version": groupsVersion, "$term": g.Term, "$revision": g.Revision}
	for tenant, groups := range g.Tenants {
		if len(groups) > 0 {
			out[tenant] = groups
		}
	}
	return encode(out, "  ")
}
