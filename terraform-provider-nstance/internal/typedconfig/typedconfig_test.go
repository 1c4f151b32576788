package typedconfig_test

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/typedconfig"
)

// excluded lists the fields that are expected to have no attribute. A test fails if another field loses its attribute.
var excluded = []string{"GroupSpec.Deleted", "GroupSpec.Protected", "GroupSpec.Removed", "Shard.Schema"}

func TestEveryConfigFieldHasAnAttribute(t *testing.T) {
	var missing []string
	var check func(typ reflect.Type, attributes map[string]schema.Attribute, at string)
	element := func(typ reflect.Type) reflect.Type {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Map || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		return typ
	}
	check = func(typ reflect.Type, attributes map[string]schema.Attribute, at string) {
		want := map[string]bool{}
		for _, f := range reflect.VisibleFields(typ) {
			if f.Anonymous {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			a, ok := attributes[name]
			if !ok {
				name += "_json"
				a, ok = attributes[name]
			}
			if !ok {
				missing = append(missing, typ.Name()+"."+f.Name)
				continue
			}
			want[name] = true
			if a.GetMarkdownDescription() == "" {
				t.Errorf("%s%s has no description", at, name)
			}
			var nested map[string]schema.Attribute
			switch a := a.(type) {
			case schema.SingleNestedAttribute:
				nested = a.Attributes
			case schema.ListNestedAttribute:
				nested = a.NestedObject.Attributes
			case schema.MapNestedAttribute:
				nested = a.NestedObject.Attributes
			default:
				continue
			}
			check(element(f.Type), nested, at+name+".")
		}
		for name := range attributes {
			if !want[name] {
				t.Errorf("%s%s is no field of the configuration", at, name)
			}
		}
	}
	check(reflect.TypeFor[config.Shard](), typedconfig.Attributes(), "")
	slices.Sort(missing)
	if diff := cmp.Diff(excluded, missing); diff != "" {
		t.Errorf("fields without an attribute (-want +got):\n%s", diff)
	}
}

func types(t *testing.T) map[string]tftypes.Type {
	t.Helper()
	typ := schema.Schema{Attributes: typedconfig.Attributes()}.Type().TerraformType(t.Context())
	return typ.(tftypes.Object).AttributeTypes
}

// golden returns a configuration that sets every field of the document.
func golden(t *testing.T) *config.Shard {
	t.Helper()
	src, err := os.ReadFile("../../../services/contract/testdata/v1/config.jsonc")
	if err != nil {
		t.Fatal(err)
	}
	s, problems := config.Parse("config.jsonc", src)
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	s.Schema = ""
	return s
}

func TestRoundTrip(t *testing.T) {
	want := golden(t)
	values := typedconfig.Write(want, types(t))
	r := typedconfig.Read(values)
	if !r.Known() || len(r.Problems()) > 0 {
		t.Fatalf("unknown %v, problems %v", r.Unknown, r.Problems())
	}
	if diff := cmp.Diff(string(config.Encode(want)), string(config.Encode(r.Shard))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for name, v := range typedconfig.Write(r.Shard, types(t)) {
		if !v.Equal(values[name]) {
			t.Errorf("%s is written otherwise the second time", name)
		}
	}
}

// TestAnyUnknownValue makes each value unknown in turn. An unknown value must not cause a panic or an error, neither in
// its own attribute nor in another one.
func TestAnyUnknownValue(t *testing.T) {
	all := typedconfig.Write(golden(t), types(t))
	root := tftypes.NewValue(tftypes.Object{AttributeTypes: types(t)}, all)
	var places []*tftypes.AttributePath
	err := tftypes.Walk(root, func(at *tftypes.AttributePath, v tftypes.Value) (bool, error) {
		if len(at.Steps()) > 0 {
			places = append(places, at)
		}
		return true, nil
	})
	if err != nil || len(places) < 150 {
		t.Fatalf("%d places, %v", len(places), err)
	}
	for _, place := range places {
		changed, err := tftypes.Transform(root, func(at *tftypes.AttributePath, v tftypes.Value) (tftypes.Value,
			error) {
			if at.Equal(place) {
				return tftypes.NewValue(v.Type(), tftypes.UnknownValue), nil
			}
			return v, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var attributes map[string]tftypes.Value
		if err := changed.As(&attributes); err != nil {
			t.Fatal(err)
		}
		r := typedconfig.Read(attributes)
		if r.Known() {
			t.Errorf("%s is unknown without a warning", place)
		}
		if problems := r.Problems(); len(problems) > 0 {
			t.Errorf("%s is unknown:\n%v", place, problems)
		}
	}
}

func TestProblems(t *testing.T) {
	base := func() *config.Shard { return golden(t) }
	edit := func(at string, with any) map[string]tftypes.Value {
		values := typedconfig.Write(base(), types(t))
		root, err := tftypes.Transform(tftypes.NewValue(tftypes.Object{AttributeTypes: types(t)}, values),
			func(p *tftypes.AttributePath, v tftypes.Value) (tftypes.Value, error) {
				if p.String() == at {
					return tftypes.NewValue(v.Type(), with), nil
				}
				return v, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		var out map[string]tftypes.Value
		if err := root.As(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	attr := func(name string) string { return `AttributeName("` + name + `")` }
	key := func(name string) string { return `ElementKeyString("` + name + `")` }
	s := base()
	template := slices.Sorted(maps.Keys(s.Templates))[0]
	tenant := slices.Sorted(maps.Keys(s.Groups))[0]
	group := slices.Sorted(maps.Keys(s.Groups[tenant]))[0]
	for _, tc := range []struct {
		name           string
		at             string
		with           any
		path, contains string
	}{
		{"duration", attr("server") + "." + attr("request_timeout"), "-5s", "server.request_timeout",
			"cannot be negative"},
		{"number", attr("templates") + "." + key(template) + "." + attr("size"), 1.5, `templates["` + template +
			`"].size`, "not a whole number"},
		{"args text", attr("templates") + "." + key(template) + "." + attr("args_json"), "{", `templates["` + template +
			`"].args_json`, "line 1, column 2"},
		{"args list", attr("templates") + "." + key(template) + "." + attr("args_json"), "[]", `templates["` +
			template + `"].args_json`, "of an object"},
		{"args template", attr("templates") + "." + key(template) + "." + attr("args_json"),
			`{"A": ["{{ .Nothing }}"]}`, `templates["` + template + `"].args_json`, "Nothing"},
		{"group", attr("groups") + "." + key(tenant+"/"+group) + "." + attr("template"), "nosuch", `groups["` + tenant +
			"/" + group + `"].template`, "nosuch"},
		{"null", attr("tenants"), map[string]tftypes.Value{"x": tftypes.NewValue(
			tftypes.Object{AttributeTypes: map[string]tftypes.Type{"max_groups": tftypes.Number,
				"max_instances": tftypes.Number}}, nil)}, `tenants["x"]`, "cannot be null"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			problems := typedconfig.Read(edit(tc.at, tc.with)).Problems()
			for _, p := range problems {
				if typedconfig.AttributePath(p.Path).String() == tc.path && strings.Contains(p.Message, tc.contains) {
					return
				}
			}
			t.Errorf("no problem at %s with %q; there are:\n%v", tc.path, tc.contains, problems)
		})
	}
}

func TestAttributePath(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "",
		"server.bind.health_addr":             "server.bind.health_addr",
		"server.subnet_pools.p[1]":            `server.subnet_pools["p"][1]`,
		"groups.default.web.size":             `groups["default/web"].size`,
		"groups.prod":                         "groups",
		`templates.t.args.Tags["a b"][0]`:     `templates["t"].args_json`,
		`templates.t.files["a.json"].json.x`:  `templates["t"].files["a.json"].json`,
		"images.deb.filters[0].values[2]":     `images["deb"].filters[0].values[2]`,
		"cluster.nosuch.x":                    "cluster",
		"cluster.secrets.old_encryption_keys": "cluster.secrets.old_encryption_keys",
	} {
		if got := typedconfig.AttributePath(in).String(); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestKeysOfGroups(t *testing.T) {
	groups := types(t)["groups"].(tftypes.Map)
	for _, key := range []string{"web", "/web", "default/", "a/b/c"} {
		r := typedconfig.Read(map[string]tftypes.Value{"groups": tftypes.NewValue(groups,
			map[string]tftypes.Value{key: tftypes.NewValue(groups.ElementType, nil)})})
		if text := r.Problems().Error(); !strings.Contains(text, "tenant/name") {
			t.Errorf("%q: %s", key, text)
		}
	}
}
