package shard

import (
	"maps"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	docs "github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

// resourceOf returns a resource with a value of config, and nothing else.
func resourceOf(t *testing.T, config tftypes.Value) tftypes.Value {
	t.Helper()
	var schema resource.SchemaResponse
	New().Schema(t.Context(), resource.SchemaRequest{}, &schema)
	typ := schema.Schema.Type().TerraformType(t.Context()).(tftypes.Object)
	values := map[string]tftypes.Value{}
	for name, typ := range typ.AttributeTypes {
		values[name] = tftypes.NewValue(typ, nil)
	}
	values["config"] = config
	return tftypes.NewValue(typ, values)
}

// example returns the configuration in which every field is set.
func example(t *testing.T) tftypes.Value {
	t.Helper()
	src, err := os.ReadFile("../../../../services/contract/testdata/v1/config.jsonc")
	if err != nil {
		t.Fatal(err)
	}
	tree, problems := config.ParseTree("config.jsonc", src)
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return docs.Decode(tree)
}

// TestBadConfig checks what is not an object with a shard's fields.
func TestBadConfig(t *testing.T) {
	good := example(t)
	unknown := tftypes.NewValue(tftypes.DynamicPseudoType, tftypes.UnknownValue)
	with := func(field string, value any) tftypes.Value {
		return docs.Merge(good, docs.Decode(map[string]any{field: value}))
	}
	huge, _, err := big.ParseFloat("9007199254740993", 10, 512, big.ToNearestEven)
	if err != nil {
		t.Fatal(err)
	}
	size := docs.Object(map[string]tftypes.Value{"defaults": docs.Object(map[string]tftypes.Value{
		"args": docs.Object(map[string]tftypes.Value{"Count": tftypes.NewValue(tftypes.Number, huge)})})})
	for name, test := range map[string]struct {
		config tftypes.Value
		want   string // in the error
	}{
		"good":     {good, ""},
		"unknown":  {unknown, ""},
		"a text":   {docs.Decode("{}"), "config: want an object, have a text"},
		"a list":   {docs.Decode([]any{}), "config: want an object, have a list"},
		"a number": {docs.Decode(1.0), "config: want an object, have a number"},
		"empty":    {docs.Decode(map[string]any{}), "config.cluster"},
		"too large": {with("defaults", map[string]any{"vars": map[string]any{"a": strings.Repeat("x", 4<<20)}}),
			"bytes, at most"},
		"beyond 2^53": {docs.Merge(good, size),
			"config.defaults.args.Count: 9007199254740993 is too large to be kept exactly"},
		"a quoted key":   {with("vars x", 1.0), `config["vars x"]: there is no such field`},
		"a misspelt key": {with("groupz", 1.0), `did you mean "groups"?`},
		"null in a list": {with("server", map[string]any{"dynamic_subnet_pools": []any{nil}}),
			"config.server.dynamic_subnet_pools[0]: want a text, have null"},
		"null as a field": {with("server", map[string]any{"request_timeout": nil}), ""},
	} {
		d := read(resourceOf(t, test.config))
		var got string
		for _, e := range d.diags.Errors() {
			got += e.Detail() + "\n"
		}
		if !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	if attributes := docs.Attributes(tftypes.NewValue(tftypes.Object{}, nil)); attributes != nil {
		t.Errorf("attributes of null: %v", attributes)
	}
}

// TestUnknownValuesKeepThePlan makes each value unknown in turn. What the plan then states must still hold when the
// value is known, or Terraform reports a bug in the provider.
func TestUnknownValuesKeepThePlan(t *testing.T) {
	root := example(t)
	whole := read(resourceOf(t, root))
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
		d := read(resourceOf(t, withUnknown(root, place.Steps())))
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
		want := groups(whole.shard)
		for name, value := range groups(d.shard) {
			if !value.Equal(want[name]) {
				t.Errorf("%s is unknown: the plan states another %s than the apply", place, name)
			}
		}
	}
	if hashesKnown < 5 {
		t.Errorf("the plan states hashes with %d unknown values", hashesKnown)
	}
}

// withUnknown returns a copy of v in which the value at a path is unknown.
func withUnknown(v tftypes.Value, steps []tftypes.AttributePathStep) tftypes.Value {
	if len(steps) == 0 {
		return tftypes.NewValue(tftypes.DynamicPseudoType, tftypes.UnknownValue)
	}
	switch step := steps[0].(type) {
	case tftypes.AttributeName:
		var members map[string]tftypes.Value
		if err := v.As(&members); err != nil {
			panic(err)
		}
		members = maps.Clone(members)
		members[string(step)] = withUnknown(members[string(step)], steps[1:])
		return docs.Object(members)
	case tftypes.ElementKeyInt:
		var elements []tftypes.Value
		if err := v.As(&elements); err != nil {
			panic(err)
		}
		elements = slices.Clone(elements)
		elements[step] = withUnknown(elements[step], steps[1:])
		typ := tftypes.Tuple{}
		for _, e := range elements {
			typ.ElementTypes = append(typ.ElementTypes, e.Type())
		}
		return tftypes.NewValue(typ, elements)
	}
	panic(steps[0])
}
