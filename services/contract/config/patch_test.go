package config

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// TestMergePatch applies the patches of RFC 7396, appendix A, whose result is an object.
func TestMergePatch(t *testing.T) {
	for _, test := range []struct{ target, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		var target, patch, want map[string]any
		if err := cmp.Or(json.Unmarshal([]byte(test.target), &target), json.Unmarshal([]byte(test.patch), &patch),
			json.Unmarshal([]byte(test.want), &want)); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, MergePatch(target, patch)); diff != "" {
			t.Errorf("%s with %s: %s", test.target, test.patch, diff)
		}
	}
}

func TestParsePatch(t *testing.T) {
	for _, test := range []struct{ patch, want string }{
		{`{}`, ``},
		{"// a comment\n{\"size\": 3, \"vars\": {\"a\": null, \"b\": \"c\"}, \"rollout\": null,}", ``},
		{`{"args": {"Anything": {"deep": null}}}`, ``},
		{`{"max_unhealth": "3"}`, `max_unhealth: there is no such field (did you mean "max_unhealthy"?)`},
		{`{"max_unhealth": null}`, `max_unhealth: there is no such field (did you mean "max_unhealthy"?)`},
		{`{"rollout": {"canry": 1}}`, `rollout.canry: there is no such field (did you mean "canary"?)`},
		{`{"vars": {"a": 1}}`, `vars.a: want a text, have a number`},
		{`{"deleted": true}`, `deleted: only the server sets this field`},
		{`{"removed": null}`, `removed: only the server sets this field`},
		{`{"protected": {}}`, `protected: only the server sets this field`},
		{`{"instance_type": "a\u0007b"}`, `instance_type: holds control characters`},
		{`{"size": 1, "size": 2}`, `size: the field is there twice, first in line 1`},
		{`null`, `want an object, have null`},
		{`"size"`, `want an object, have a text`},
		{`{"vars": {"a": "` + strings.Repeat("x", MaxPatch) + `"}}`, `the group has`},
	} {
		_, problems := ParsePatch("", []byte(test.patch))
		if got := problems.Brief(); got != test.want && (test.want == "" || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%.80s: %s, want %s", test.patch, got, test.want)
		}
	}
}

// TestPatchBetween checks with random groups that a patch makes one group out of another, that it has nothing that is
// equal in both, and that a patch survives its JSON.
func TestPatchBetween(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		have, want := randomGroup(r), randomGroup(r)
		patch, err := PatchBetween(have, want)
		if err != nil {
			t.Fatal(err)
		}
		again, problems := ParsePatch("", []byte(patch.JSON()))
		if len(problems) > 0 {
			t.Fatalf("%s: %v", patch.JSON(), problems)
		}
		got, err := again.Apply(have)
		if err != nil {
			t.Fatalf("%s: %v", patch.JSON(), err)
		}
		if rest, err := PatchBetween(got, want); err != nil || !rest.Empty() {
			t.Fatalf("%s leaves %s, %v", patch.JSON(), rest.JSON(), err)
		}
		if same, err := PatchBetween(want, want); err != nil || !same.Empty() {
			t.Fatalf("between the same: %s, %v", same.JSON(), err)
		}
	}
	_, err := PatchBetween(GroupSpec{}, GroupSpec{Args: map[string]any{"a": map[string]any{"b": nil}}})
	if err == nil || !strings.HasPrefix(err.Error(), "args.a.b: is null") {
		t.Errorf("an argument that is null: %v", err)
	}
}

// randomGroup returns a group with some fields that operators may set. It visits every field of the type, so that a new
// one is tested too.
func randomGroup(r *rand.Rand) (g GroupSpec) {
	fillRandom(r, reflect.ValueOf(&g).Elem())
	g.Deleted, g.Removed, g.Protected, g.Overrides = false, nil, nil, nil
	return g
}

func fillRandom(r *rand.Rand, v reflect.Value) {
	if r.IntN(2) == 0 {
		return
	}
	text := []string{"a", "b", "m7g.large"}[r.IntN(3)]
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			fillRandom(r, f.in(v))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillRandom(r, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+r.IntN(2), 2))
		for i := range v.Len() {
			fillRandom(r, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		if value.Kind() == reflect.Interface {
			value.Set(reflect.ValueOf(map[string]any{text: float64(r.IntN(3))}))
		} else {
			fillRandom(r, value)
		}
		v.SetMapIndex(reflect.ValueOf(text), value)
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(1 + r.IntN(3)))
	}
}

func TestSetAndUnset(t *testing.T) {
	for _, test := range []struct{ path, text, want string }{
		{"size", "3", `{"size":3}`},
		{"size", "three", `{"size":"three"}`},
		{"instance_type", "3", `{"instance_type":"3"}`},
		{"rollout.canary", "1", `{"rollout":{"canary":1}}`},
		{"rollout.paused", "true", `{"rollout":{"paused":true}}`},
		{"drain_timeout", "90s", `{"drain_timeout":"90s"}`},
		{"vars.port", "8080", `{"vars":{"port":"8080"}}`},
		{`vars["a.b"]`, "null", `{"vars":{"a.b":"null"}}`},
		{"instance_types", `["a","b"]`, `{"instance_types":["a","b"]}`},
		{"args.MetadataOptions.HttpPutResponseHopLimit", "2", `{"args":{"MetadataOptions":{"HttpPutResponseHopLimit":2}}}`},
		{"args.KeyName", "admin", `{"args":{"KeyName":"admin"}}`},
		{"rollout", `{"canary": 1}`, `{"rollout":{"canary":1}}`},
		{"max_unhealth", "3", `{"max_unhealth":"3"}`}, // ParsePatch refuses it
	} {
		patch, err := Patch{}.Set(test.path, test.text)
		if err != nil || patch.JSON() != test.want {
			t.Errorf("%s=%s: %s, %v, want %s", test.path, test.text, patch.JSON(), err, test.want)
		}
	}
	for _, path := range []string{"", ".", "instance_types[0]", "vars[", "a..b"} {
		if _, err := (Patch{}).Set(path, "x"); err == nil {
			t.Errorf("%q is taken for a field", path)
		}
	}
	first, err := Patch{}.Set("rollout.canary", "1")
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.Set("rollout.paused", "true")
	if err != nil {
		t.Fatal(err)
	}
	if third, err := second.Unset("rollout.canary"); err != nil ||
		third.JSON() != `{"rollout":{"canary":null,"paused":true}}` {
		t.Errorf("%s, %v", third.JSON(), err)
	}
	if first.JSON() != `{"rollout":{"canary":1}}` {
		t.Errorf("the first patch changed: %s", first.JSON())
	}
}

func TestRestricted(t *testing.T) {
	for _, test := range []struct {
		patch string
		want  []string
	}{
		{`{"size": 1, "instance_type": "a", "vars": {"a": "b"}, "rollout": {"paused": true, "revision": "2"}}`, nil},
		{`{"rollout": {"canary": 1, "paused": true}, "template": "a"}`, []string{"rollout.canary", "template"}},
		{`{"rollout": {"canary": null}, "args": null, "purchase": null}`, nil},
		{`{"args": {"a": 1}, "purchase": {"spot": true}}`, []string{"args", "purchase"}},
	} {
		var tree map[string]any
		if err := json.Unmarshal([]byte(test.patch), &tree); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(test.want, (Patch{tree}).Restricted()); diff != "" {
			t.Errorf("%s: %s", test.patch, diff)
		}
	}
}

// FuzzPatch checks that no patch makes a group that cannot be stored and read again.
func FuzzPatch(f *testing.F) {
	f.Add(`{"size": 3, "vars": {"a": null}}`, `{"template": "worker", "vars": {"a": "b"}}`)
	f.Add(`{"args": {"a": {"b": [1, null]}}}`, `{"args": {"a": 1}}`)
	f.Fuzz(func(t *testing.T, text, base string) {
		patch, problems := ParsePatch("", []byte(text))
		spec, more := parseAs(&decoder{src: []byte(base)}, func(GroupSpec) []finding { return nil })
		if len(problems) > 0 || len(more) > 0 {
			return
		}
		got, err := patch.Apply(spec)
		if err != nil {
			return
		}
		stored, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		_, problems = parseAs(&decoder{src: stored}, func(GroupSpec) []finding { return nil })
		if len(problems.Errors()) > 0 {
			t.Errorf("%s: %v", stored, problems)
		}
	})
}
