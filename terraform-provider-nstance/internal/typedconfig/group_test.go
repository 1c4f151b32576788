package typedconfig_test

import (
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

func groupTypes(t *testing.T) map[string]tftypes.Type {
	t.Helper()
	object := schema.Schema{Attributes: typedconfig.GroupAttributes()}.Type().TerraformType(t.Context())
	return object.(tftypes.Object).AttributeTypes
}

func TestEveryGroupFieldHasAnAttribute(t *testing.T) {
	attributes, typ := typedconfig.GroupAttributes(), reflect.TypeFor[config.GroupSpec]()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if name == "args" {
			name = "args_json"
		}
		if a, ok := attributes[name]; !slices.Contains([]string{"deleted", "removed", "protected"}, name) &&
			(!ok || a.GetMarkdownDescription() == "") {
			t.Errorf("%s has no attribute, or no description", name)
		}
	}
	if len(attributes) != typ.NumField()-3 {
		t.Errorf("%d attributes for %d fields", len(attributes), typ.NumField())
	}
}

func TestGroupRoundTrip(t *testing.T) {
	count := 0
	for tenant, groups := range golden(t).Groups {
		for name, want := range groups {
			count++
			r := typedconfig.ReadGroup(typedconfig.WriteGroup(want, groupTypes(t)))
			if !r.Known() || len(r.Problems()) > 0 {
				t.Fatalf("unknown %v, problems %v", r.Unknown, r.Problems())
			}
			if diff := cmp.Diff(want, r.Spec); diff != "" {
				t.Errorf("%s/%s (-want +got):\n%s", tenant, name, diff)
			}
		}
	}
	if count == 0 {
		t.Error("the golden configuration has no groups")
	}
}

func TestGroupProblems(t *testing.T) {
	good := typedconfig.WriteGroup(config.GroupSpec{Template: "worker"}, groupTypes(t))
	for name, test := range map[string]struct {
		with           any
		path, contains string
	}{
		"size":          {-1, "size", "cannot be negative"},
		"args_json":     {`{"a": 1,,}`, "args_json", "line 1"},
		"drain_timeout": {"soon", "drain_timeout", "not a duration"},
		"max_unhealthy": {"many", "max_unhealthy", "many"},
		"instance_types": {[]tftypes.Value{tftypes.NewValue(tftypes.String, nil)}, "instance_types[0]",
			"cannot be null"},
	} {
		values := map[string]tftypes.Value{}
		for attribute, v := range good {
			values[attribute] = v
		}
		values[name] = tftypes.NewValue(groupTypes(t)[name], test.with)
		problems := typedconfig.ReadGroup(values).Problems()
		if len(problems) != 1 || typedconfig.GroupAttributePath(problems[0].Path).String() != test.path ||
			!strings.Contains(problems[0].Message, test.contains) {
			t.Errorf("%s: %v", name, problems)
		}
		values[name] = tftypes.NewValue(groupTypes(t)[name], tftypes.UnknownValue)
		if r := typedconfig.ReadGroup(values); r.Known() || len(r.Problems()) > 0 {
			t.Errorf("%s is unknown: %v", name, r.Problems())
		}
	}
}
