package shard

import (
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/typedconfig"
)

// example returns a shard whose whole configuration is in attributes.
func example(t *testing.T) tftypes.Value {
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
	var schema resource.SchemaResponse
	New().Schema(t.Context(), resource.SchemaRequest{}, &schema)
	typ := schema.Schema.Type().TerraformType(t.Context()).(tftypes.Object)
	values := typedconfig.Write(s, typ.AttributeTypes)
	for name, typ := range typ.AttributeTypes {
		if _, ok := values[name]; !ok {
			values[name] = tftypes.NewValue(typ, nil)
		}
	}
	return tftypes.NewValue(typ, values)
}

// TestWaysToConfigure checks that a shard has its configuration in attributes or in config_jsonc, and not in both.
func TestWaysToConfigure(t *testing.T) {
	typed := example(t)
	unset := map[string]tftypes.Value{}
	for name, v := range attributesOf(typed) {
		unset[name] = tftypes.NewValue(v.Type(), nil)
	}
	empty := tftypes.NewValue(typed.Type(), unset)
	jsonc := func(value any) map[string]tftypes.Value {
		return map[string]tftypes.Value{"config_jsonc": tftypes.NewValue(tftypes.String, value)}
	}
	for name, test := range map[string]struct {
		raw   tftypes.Value
		shard string // "" means that it is not known
		want  string // the error
	}{
		"attributes":          {typed, read(typed).name(), ""},
		"text":                {replaced(empty, jsonc(sample)), "s", ""},
		"both":                {replaced(typed, jsonc(sample)), "", "Two shard configurations"},
		"both, text unknown":  {replaced(typed, jsonc(tftypes.UnknownValue)), "", "Two shard configurations"},
		"text unknown":        {replaced(empty, jsonc(tftypes.UnknownValue)), "", ""},
		"text that is broken": {replaced(empty, jsonc("{")), "", "config_jsonc"},
		"nothing":             {empty, "", "No shard configuration"},
	} {
		d := read(test.raw)
		if (len(d.diags) == 0) != (test.want == "") || d.name() != test.shard || d.groupsKnown != (test.shard != "") {
			t.Errorf("%s: shard %q, %v", name, d.name(), d.diags)
		}
		if test.want != "" && test.want != "config_jsonc" && d.diags[0].Summary() != test.want {
			t.Errorf("%s: %v", name, d.diags)
		}
	}
	if attributes := attributesOf(tftypes.NewValue(typed.Type(), nil)); attributes != nil {
		t.Errorf("attributes of null: %v", attributes)
	}
}

// TestUnknownValuesKeepThePlan makes each value unknown in turn. What the plan then states must still hold when the
// value is known, or Terraform reports a bug in the provider.
func TestUnknownValuesKeepThePlan(t *testing.T) {
	root := example(t)
	whole := read(root)
	if whole.diags.HasError() || whole.body == nil {
		t.Fatal(whole.diags)
	}
	var places []*tftypes.AttributePath
	_ = tftypes.Walk(root, func(at *tftypes.AttributePath, _ tftypes.Value) (bool, error) {
		if len(at.Steps()) > 0 {
			places = append(places, at)
		}
		return true, nil
	})
	hashesKnown := 0
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
		d := read(changed)
		if d.diags.Append(d.checkName()...); d.diags.HasError() {
			continue // refused, with the attribute
		}
		if name := d.name(); name != whole.name() {
			t.Errorf("%s is unknown: the name of the shard is %q", place, name)
		}
		if cluster := d.cluster(); cluster != "" && cluster != whole.cluster() {
			t.Errorf("%s is unknown: the name of the cluster is %q", place, cluster)
		}
		subnets := strings.HasPrefix(place.String(), `AttributeName("server").AttributeName("subnet_pools")`)
		if d.subnetsUnknown != subnets {
			t.Errorf("%s is unknown: only the subnets are unknown: %v", place, d.subnetsUnknown)
		}
		if !d.groupsKnown {
			continue
		}
		hashesKnown++
		if !groupHashes(d.shard).Equal(groupHashes(whole.shard)) {
			t.Errorf("%s is unknown: the plan states other hashes than the apply", place)
		}
	}
	if hashesKnown < 5 {
		t.Errorf("the plan states hashes with %d unknown values", hashesKnown)
	}
}
