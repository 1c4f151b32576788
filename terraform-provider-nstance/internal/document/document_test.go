package document

import (
	"encoding/json"
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

func object(members map[string]tftypes.Value) tftypes.Value { return Object(members) }

func text(s string) tftypes.Value { return tftypes.NewValue(tftypes.String, s) }

func TestEncode(t *testing.T) {
	unknown := tftypes.NewValue(tftypes.DynamicPseudoType, tftypes.UnknownValue)
	large, _, err := big.ParseFloat("1e400", 10, 512, big.ToNearestEven)
	if err != nil {
		t.Fatal(err)
	}
	num := func(n any) tftypes.Value { return tftypes.NewValue(tftypes.Number, n) }
	strings := tftypes.List{ElementType: tftypes.String}
	for _, test := range []struct {
		name    string
		value   tftypes.Value
		want    string
		unknown []string
	}{
		{"a text", text("x"), `"x"`, nil},
		{"null", tftypes.NewValue(tftypes.DynamicPseudoType, nil), `null`, nil},
		{"unknown", unknown, `null`, []string{""}},
		{"numbers", object(map[string]tftypes.Value{"a": num(3), "b": num(1.5), "c": num(1000000), "d": num(large)}),
			`{"a":3,"b":1.5,"c":1000000,"d":1e+400}`, nil},
		{"null members", object(map[string]tftypes.Value{"a": tftypes.NewValue(tftypes.String, nil), "b": text("x"),
			"c": object(map[string]tftypes.Value{"d": tftypes.NewValue(tftypes.Number, nil)})}), `{"b":"x","c":{}}`,
			nil},
		{"unknown members", object(map[string]tftypes.Value{"a": unknown, "b": object(map[string]tftypes.Value{
			"c": tftypes.NewValue(tftypes.String, tftypes.UnknownValue), "d": text("x")})}), `{"b":{"d":"x"}}`,
			[]string{"a", "b.c"}},
		{"lists", object(map[string]tftypes.Value{"a": tftypes.NewValue(strings, []tftypes.Value{text("x")}),
			"b": tftypes.NewValue(strings, []tftypes.Value{text("x"), tftypes.NewValue(tftypes.String,
				tftypes.UnknownValue)}), "c": tftypes.NewValue(tftypes.Map{ElementType: tftypes.String},
				map[string]tftypes.Value{"k": text("v")})}), `{"a":["x"],"c":{"k":"v"}}`, []string{"b"}},
	} {
		got, unknown, err := Encode(test.value)
		if err != nil || string(got) != test.want || !slices.Equal(unknown, test.unknown) {
			t.Errorf("%s: %s, unknown %q, %v", test.name, got, unknown, err)
		}
	}
}

// FuzzDecode checks that JSON is the same after it was decoded and encoded, but for members that are null.
func FuzzDecode(f *testing.F) {
	f.Add(`{"a": [1, true, null, {}], "b": {"c": "x"}, "d": 1e300, "e": []}`)
	f.Fuzz(func(t *testing.T, src string) {
		var tree any
		if json.Unmarshal([]byte(src), &tree) != nil {
			return
		}
		encoded, unknown, err := Encode(Decode(tree))
		if err != nil || len(unknown) > 0 {
			t.Fatal(err, unknown)
		}
		var again any
		if err := json.Unmarshal(encoded, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(withoutNull(tree), again); diff != "" {
			t.Error(diff)
		}
	})
}

func withoutNull(tree any) any {
	switch value := tree.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, below := range value {
			if below != nil {
				out[name] = withoutNull(below)
			}
		}
		return out
	case []any:
		for i := range value {
			value[i] = withoutNull(value[i])
		}
	}
	return tree
}
