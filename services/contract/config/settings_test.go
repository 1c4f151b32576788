package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func settingsOf(t *testing.T, s *Shard, key GroupKey, dynamic Groups) Settings {
	t.Helper()
	s = s.WithDefaults()
	spec, static := s.Groups[key.Tenant][key.Group]
	entry, ok := dynamic.Get(key)
	switch {
	case !static:
		return s.Settings(entry, nil)
	case ok:
		return s.Settings(spec, &entry)
	}
	return s.Settings(spec, nil)
}

func TestSettings(t *testing.T) {
	s := fleetShard(t, "")
	dynamic := groupsOf(t, `{"default": {"g": {"size": 5, "vars": {"x": "o"}, "rollout": {"paused": true}}},
		"prod": {"new": {"template": "t", "max_surge": 2, "disruption": {"max_per_hour": 3}}}}`)
	merged := mustMerge(t, s, dynamic)
	for key, test := range map[GroupKey]struct {
		own, defaults []string // some paths
	}{
		{"default", "g"}: {[]string{"size", "rollout.paused", "template", `vars.x`},
			[]string{"max_surge", "max_unhealthy", "rollout.canary", "disruption", "purchase", "schedules"}},
		{"prod", "new"}: {[]string{"template", "max_surge", "disruption.max_per_hour"},
			[]string{"rollout", "disruption.windows", "max_unhealthy"}},
	} {
		settings := settingsOf(t, s, key, dynamic)
		defaults := settings.Defaults()
		for _, path := range test.own {
			if slices.Contains(defaults, path) {
				t.Errorf("%s: %s counts as a default", key, path)
			}
		}
		for _, path := range test.defaults {
			if !slices.Contains(defaults, path) {
				t.Errorf("%s: %s is not a default: %v", key, path, defaults)
			}
		}
		// A group with these settings is the same group.
		patch, problems := ParsePatch("", []byte(settings.JSON()))
		spec, err := patch.Apply(GroupSpec{})
		if len(problems) > 0 || err != nil {
			t.Fatal(problems, err)
		}
		want, got := merged[key], s.WithDefaults().merge(key, spec, nil)
		if got.Size != want.Size || got.InstanceType != want.InstanceType || got.MaxSurge != want.MaxSurge ||
			got.DrainTimeout != want.DrainTimeout || got.Rollout != want.Rollout ||
			cmp.Diff(want.Vars, got.Vars) != "" || cmp.Diff(want.Args, got.Args) != "" {
			t.Errorf("%s: %s makes %+v, want %+v", key, settings.JSON(), got, want)
		}
	}
}

// TestSettingsAreComplete checks that the settings of an empty group have every field of the type, at every depth, and
// that each is marked as a default.
func TestSettingsAreComplete(t *testing.T) {
	settings := (&Shard{}).WithDefaults().Settings(GroupSpec{}, nil)
	var tree map[string]any
	if err := json.Unmarshal([]byte(settings.JSON()), &tree); err != nil {
		t.Fatal(err)
	}
	var check func(typ reflect.Type, value any, path string)
	check = func(typ reflect.Type, value any, path string) {
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		members, _ := value.(map[string]any)
		for _, f := range fieldsOf(typ) {
			if typ == reflect.TypeFor[GroupSpec]() && slices.Contains(serverFields, f.name) {
				continue
			}
			member, ok := members[f.name]
			if !ok {
				t.Errorf("%s is missing", ChildPath(path, f.name))
			}
			check(f.Type, member, ChildPath(path, f.name))
		}
	}
	check(reflect.TypeFor[GroupSpec](), tree, "")
	if defaults := settings.Defaults(); !slices.Equal(defaults, sortedKeys(tree)) {
		t.Errorf("the defaults of an empty group are %v", defaults)
	}
}
