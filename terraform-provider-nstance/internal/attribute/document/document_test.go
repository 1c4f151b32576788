package document

import (
	"encoding/json"
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
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
			"c": object(map[string]tftypes.Value{"d": tftypes.NewValue(tftypes.Number, nil)})}),
			`{"a":null,"b":"x","c":{"d":null}}`, nil},
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

// FuzzDecode checks that JSON is the same after it was decoded and encoded.
func FuzzDecode(f *testing.F) {
	f.Add(`{"a": [1, true, null, {}], "b": {"c": "x", "n": null}, "d": 1e300, "e": []}`)
	f.Fuzz(func(t *testing.T, src string) {
		if tree, ok := parse(src); ok {
			if diff := cmp.Diff(tree, encoded(t, Decode(tree))); diff != "" {
				t.Error(diff)
			}
		}
	})
}

func parse(src string) (tree any, ok bool) { return tree, json.Unmarshal([]byte(src), &tree) == nil }

// encoded returns the tree that a known value stands for.
func encoded(t *testing.T, v tftypes.Value) (tree any) {
	t.Helper()
	text, unknown, err := Encode(v)
	if err != nil || len(unknown) > 0 {
		t.Fatal(err, unknown)
	}
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestUpdate checks that a value keeps the form of whatever did not change.
func TestUpdate(t *testing.T) {
	null := tftypes.NewValue(tftypes.String, nil)
	texts := func(value string) tftypes.Value {
		return tftypes.NewValue(tftypes.Map{ElementType: tftypes.String}, map[string]tftypes.Value{"k": text(value)})
	}
	// The document of v has 1m for 60s, and no null.
	form := func() tftypes.Value {
		return object(map[string]tftypes.Value{"time": text("60s"), "unset": null, "vars": texts("v"),
			"group": object(map[string]tftypes.Value{"size": tftypes.NewValue(tftypes.Number, 2), "drain": text("60s"),
				"unset": null})})
	}
	v := form()
	const have = `{"time": "1m", "vars": {"k": "v"}, "group": {"size": 2, "drain": "1m"}}`
	for now, want := range map[string]string{
		have: `{"time": "60s", "unset": null, "vars": {"k": "v"}, "group": {"size": 2, "drain": "60s", "unset": null}}`,
		`{"time": "1m", "vars": {"k": "w"}, "group": {"size": 3, "drain": "1m"}}`: `{"time": "60s", "unset": null,
			"vars": {"k": "w"}, "group": {"size": 3, "drain": "60s", "unset": null}}`,
		`{"unset": "x", "vars": {"k": "v", "l": 1}, "group": {"size": 2, "drain": "2m"}}`: `{"unset": "x",
			"vars": {"k": "v", "l": 1}, "group": {"size": 2, "drain": "2m", "unset": null}}`,
		`{"vars": ["k"], "group": null}`: `{"unset": null, "vars": ["k"], "group": null}`,
		`[1]`:                            `[1]`,
	} {
		from, _ := parse(have)
		to, _ := parse(now)
		wanted, _ := parse(want)
		if diff := cmp.Diff(wanted, encoded(t, Update(v, from, to))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", now, diff)
		}
	}
	if !v.Equal(form()) {
		t.Error("the value itself has changed")
	}
	if !Update(v, nil, nil).Equal(v) {
		t.Error("a value without a change has another form")
	}
}

func TestMerge(t *testing.T) {
	unknown := tftypes.NewValue(tftypes.DynamicPseudoType, tftypes.UnknownValue)
	known := object(map[string]tftypes.Value{"a": text("x")})
	null := tftypes.NewValue(tftypes.String, nil)
	texts := tftypes.NewValue(tftypes.Map{ElementType: tftypes.String}, map[string]tftypes.Value{"b": text("y")})
	for name, test := range map[string]struct{ below, over, want tftypes.Value }{
		"nothing; the patch is a map": {known, texts,
			object(map[string]tftypes.Value{"a": text("x"), "b": text("y")})},
		"nothing; a map is patched": {texts, known,
			object(map[string]tftypes.Value{"a": text("x"), "b": text("y")})},
		"nothing; the patch is null": {known, null, known},
		"the patch":                  {known, unknown, unknown},
		"what is patched":            {unknown, known, unknown},
		"what a text replaces":       {object(map[string]tftypes.Value{"a": unknown}), known, known},
		"a member": {object(map[string]tftypes.Value{"b": unknown}), known,
			object(map[string]tftypes.Value{"a": text("x"), "b": unknown})},
	} {
		if got := Merge(test.below, test.over); !got.Equal(test.want) {
			t.Errorf("unknown: %s: %v, want %v", name, got, test.want)
		}
	}
	if !known.Equal(object(map[string]tftypes.Value{"a": text("x")})) {
		t.Error("what was merged has changed")
	}
}

// FuzzMerge checks that each value in the result comes from the patch if the patch has that value, and else from the
// document. Merging the same patch again must change nothing.
func FuzzMerge(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a": {"b": 1, "c": [1]}}`, `{"a": {"b": null, "d": "<&>"}}`}, {`{}`, `{}`},
		{`{"a": 1}`, `{"a": {"b": 2}}`}, {`{"a": {"b": 2}}`, `{"a": 1}`}, {`[]`, `{}`}, {`{}`, `null`},
		{`{"": {"": 1e-7}}`, `{"\u2028": "\u2028"}`},
		{`{"defaults": {"args": {"a": {}}, "userdata": {}}}`, `{"defaults": {"args": {"a": null}, "userdata": null}}`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, document, patch string) {
		below, ok := parse(document)
		over, ok2 := parse(patch)
		if !ok || !ok2 {
			return
		}
		merged := Merge(Decode(below), Decode(over))
		out := encoded(t, merged)
		holds(t, below, over, out, nil)
		if diff := cmp.Diff(out, encoded(t, Merge(merged, Decode(over)))); diff != "" {
			t.Errorf("merged again: %s", diff)
		}
	})
}

// holds checks that each value in out comes from over, or from below if over lacks it or has null outside of a tree. It
// compares nested objects in the same way.
func holds(t *testing.T, below, over, out any, at []any) {
	t.Helper()
	if over == nil && !config.InTree(at...) {
		over = below
	}
	b, under := below.(map[string]any)
	o, patched := over.(map[string]any)
	got, isObject := out.(map[string]any)
	if !under || !patched || !isObject {
		if diff := cmp.Diff(over, out); diff != "" {
			t.Error(diff)
		}
		return
	}
	for name, value := range got {
		fromBelow, inBelow := b[name]
		fromOver, inOver := o[name]
		switch {
		case inBelow && inOver:
			holds(t, fromBelow, fromOver, value, append(slices.Clip(at), name))
		case inBelow && !cmp.Equal(fromBelow, value), inOver && !cmp.Equal(fromOver, value), !inBelow && !inOver:
			t.Errorf("%q is %v of %v and %v", name, value, fromBelow, fromOver)
		}
	}
	for _, from := range []map[string]any{b, o} {
		for name := range from {
			if _, ok := got[name]; !ok {
				t.Errorf("%q is gone", name)
			}
		}
	}
}
