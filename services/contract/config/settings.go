package config

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Settings are all settings of a group that are in force: its own, and those that it inherits from an override, its
// template, the shard, and the defaults.
type Settings struct {
	spec    GroupSpec
	written []GroupSpec // the sources of the settings, without the defaults
}

// Settings returns the settings of a group. spec is the group in the shard's configuration, or the entry of a dynamic
// group in groups/. override is the entry of a static group there, or nil. The shard must have its defaults filled in.
func (s *Shard) Settings(spec GroupSpec, override *GroupSpec) Settings {
	if override != nil {
		o := override.Override()
		override = &o
	}
	out := s.settings(spec, override)
	// A value that is equal to its default counts as not written, because the defaults of the shard are filled in.
	server, template := Server{DefaultDrainTimeout: s.Server.DefaultDrainTimeout}, Template{Size: out.written[1].Size}
	unfill(&server)
	unfill(&template)
	out.written[0].DrainTimeout, out.written[1].Size = server.DefaultDrainTimeout, template.Size
	out.written = cloned(out.written)
	unfill(&out.written)
	return out
}

// SettingsOf returns the settings of the group with a key. groups has the dynamic groups and the overrides of static
// ones. The shard must have its defaults filled in.
func (s *Shard) SettingsOf(key GroupKey, groups Groups) Settings {
	entry, exists := groups.Get(key)
	switch spec, static := s.Groups[key.Tenant][key.Group]; {
	case static && exists && !entry.Deleted: // a deleted dynamic group overrides nothing
		entry = s.Current(key, entry, time.Time{})
		return s.Settings(spec, &entry)
	case static:
		return s.Settings(spec, nil)
	}
	return s.Settings(entry, nil)
}

func (s *Shard) settings(spec GroupSpec, override *GroupSpec) Settings {
	t := s.Templates[spec.Template]
	sources := []GroupSpec{
		{Args: s.Defaults.Args, Vars: s.Defaults.Vars, DrainTimeout: s.Server.DefaultDrainTimeout},
		withFields[GroupSpec](t, func(string) bool { return true }), // a group inherits what both have
		spec,
	}
	full := GroupSpec{Vars: map[string]string{}}
	for _, source := range sources {
		inherit(&full, source)
	}
	if override != nil {
		over := *override
		if over.Rollout != nil {
			rollout := deref(full.Rollout)
			rollout.Paused = over.Rollout.Paused
			// A change of either revision rolls.
			rollout.Revision = strings.Trim(rollout.Revision+"+"+over.Rollout.Revision, "+")
			over.Rollout = &rollout
		}
		inherit(&full, over)
		sources = append(sources, over)
	}
	fill(&full)
	return Settings{full, sources}
}

// inherit sets in a group every field that is set in over. Variables and arguments are merged name by name. The result
// shares no memory with over.
func inherit(spec *GroupSpec, over GroupSpec) {
	vars, args := spec.Vars, spec.Args
	from, to := reflect.ValueOf(cloned(over)), reflect.ValueOf(spec).Elem()
	for _, f := range fieldsOf(from.Type()) {
		if value := f.in(from); !isZero(value) {
			f.in(to).Set(value)
		}
	}
	spec.Args = mergeTree(args, over.Args)
	spec.Vars = vars
	maps.Copy(spec.Vars, over.Vars)
}

// JSON returns the settings as a JSON object with every field of a [GroupSpec] but those that only the server sets. A
// field without a value is zero or empty, not null, because Kubernetes removes members that are null.
func (s Settings) JSON() string { return string(marshal(s.tree())) }

// Document returns the settings as JSON with the member $defaults, which lists the paths in [Settings.Defaults].
func (s Settings) Document() string { return MarkDefaults(s.JSON(), s.Defaults()) }

// MarkDefaults adds the member $defaults to settings in JSON. It returns "" for what is not an object.
func MarkDefaults(settings string, defaults []string) string {
	var tree map[string]any
	if json.Unmarshal([]byte(settings), &tree) != nil || tree == nil {
		return ""
	}
	tree["$defaults"] = append([]string{}, defaults...)
	return string(marshal(tree))
}

func (s Settings) tree() map[string]any {
	tree, _ := complete(reflect.ValueOf(s.spec)).(map[string]any)
	for _, name := range serverFields {
		delete(tree, name)
	}
	return tree
}

// Defaults returns the paths of the settings that nobody has written, so that they have their default, sorted.
func (s Settings) Defaults() []string {
	var out []string
	var visit func(members map[string]any, written []map[string]any, path string)
	visit = func(members map[string]any, written []map[string]any, path string) {
		for name, member := range members {
			at, isWritten := ChildPath(path, name), false
			var below []map[string]any
			for _, tree := range written {
				value, ok := tree[name]
				object, isObject := value.(map[string]any)
				if isWritten = isWritten || ok; isObject {
					below = append(below, object)
				}
			}
			if object, isObject := member.(map[string]any); !isWritten {
				out = append(out, at)
			} else if isObject {
				visit(object, below, at)
			}
		}
	}
	var written []map[string]any
	for _, source := range s.written {
		written = append(written, treeOf(source))
	}
	visit(s.tree(), written, "")
	slices.Sort(out)
	return out
}

// complete returns a value as JSON in which no field of a struct is missing.
func complete(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v = reflect.New(v.Type().Elem())
			fill(v.Interface())
		}
		return complete(v.Elem())
	case reflect.Struct:
		out := map[string]any{}
		for _, f := range fieldsOf(v.Type()) {
			out[f.name] = complete(f.in(v))
		}
		return out
	case reflect.Slice:
		out := make([]any, v.Len())
		for i := range out {
			out[i] = complete(v.Index(i))
		}
		return out
	case reflect.Map:
		if v.Len() == 0 {
			return map[string]any{}
		}
	}
	return v.Interface()
}

// deref returns the value of a pointer, or the zero value if it is nil.
func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// ReadSettings returns the settings in the JSON of [Settings.JSON]. It ignores what a newer server may have added.
func ReadSettings(text string) (spec GroupSpec) {
	_ = json.Unmarshal([]byte(text), &spec) // keeps what it understood
	return spec
}
