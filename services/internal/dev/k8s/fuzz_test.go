package k8s

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var discard = slog.New(slog.DiscardHandler)

// FuzzPath checks that no request path leads to a file outside the directory of its resource.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"/api/v1/nodes/a", "/api/v1/namespaces/default/pods/a/eviction",
		"/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines/a.b", "/api/v1/namespaces/a/status",
		"/api/v1/namespaces/../pods/a", "/api/v1/nodes/..", "/api/v1/nodes/%2e%2e", "/api/v1/nodes/a%2fb",
		"/api/v1/nodes/a%00", "/api/v1/namespaces/%2e/pods/%2e", "//", "",
		"/api/v1/nodes/.new", "/api/v1/nodes/A", "/api/v1/nodes/%", "/api/v1/namespaces//pods/a", "/api/v1/nodes/a\\b",
		"/api/v1/nodes/" + strings.Repeat("a", 253),
	} {
		f.Add(path)
	}
	s := &store{kinds: map[string]*collection{}}
	for _, r := range resources {
		if r.stored == "" {
			s.kinds[r.name] = &collection{resource: r}
		}
	}
	f.Fuzz(func(t *testing.T, path string) {
		target, err := parsePath(path)
		if err != nil || target.name == "" {
			return
		}
		c := s.collectionOf(target.resource)
		name := pathOf(c, target.key())
		parts := strings.Split(name, "/")
		if !fs.ValidPath(name) || !filepath.IsLocal(name) || len(parts) != depth(c) ||
			parts[0] != target.resource.name || len(parts[len(parts)-1]) > 255 {
			t.Fatalf("%q leads to %q", path, name)
		}
		for _, p := range parts[1:] {
			if strings.HasPrefix(p, ".") || strings.ContainsAny(p, "\\\x00:") {
				t.Fatalf("%q leads to %q", path, name)
			}
		}
		// The file name must map back to the same object.
		if back, k, ok := s.locate(name); !ok || back != c || k != target.key() {
			t.Fatalf("%q leads to %q, that to %v", path, name, k)
		}
	})
}

// FuzzPatch checks that every patch gives an object or an error.
func FuzzPatch(f *testing.F) {
	current := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"}},"spec":{"containers":[{"name":"a","ports":[{"containerPort":1}]}]}}`
	for _, kind := range []string{mergePatch, jsonPatch, strategicPatch} {
		for _, patch := range []string{
			`{}`, `null`, `[]`, `7`, ``, `{`, `{"metadata":null}`, `{"metadata":7}`,
			`{"spec":{"containers":[{"name":"a","$patch":"delete"}]}}`,
			`{"spec":{"$setElementOrder/containers":[{"name":"b"}],"containers":[{"name":"b"}]}}`,
			`{"spec":{"$retainKeys":["x"]}}`, `{"$patch":"replace"}`,
			`[{"op":"add","path":"/spec/x","value":1}]`, `[{"op":"remove","path":"/metadata"}]`,
			`[{"op":"replace","path":"","value":[]}]`,
			`[{"op":"copy","from":"/spec","path":"/spec/x"}]`, `[{"op":"test","path":"/a","value":null}]`, `[null]`,
			`[{"op":"move","from":"/spec","path":"/spec/containers/-"}]`,
		} {
			f.Add(kind, patch)
		}
	}
	pods := find("", "v1", "pods")
	f.Fuzz(func(t *testing.T, kind, patch string) {
		before, err := decode([]byte(current))
		if err != nil {
			t.Fatal(err)
		}
		next, err := patched(pods.gvk(), before, kind, []byte(patch))
		if after := must(json.Marshal(before))(t); !json.Valid(after) ||
			!same(before, must(decode([]byte(current)))(t)) {
			t.Fatal("the object was changed in place")
		}
		if err != nil {
			if next != nil {
				t.Fatal("an object and an error")
			}
			return
		}
		if err := checkType(pods.gvk(), key{"default", "a"}, next); err == nil {
			if again, err := decode(must(encode(next))(t)); err != nil || !same(again, next) {
				t.Fatalf("it does not survive its file: %v", err)
			}
		}
	})
}

// FuzzFile writes any content into the file of an object. The server must either ignore the file or accept it without a
// change of name and type.
func FuzzFile(f *testing.F) {
	for _, file := range []string{
		`{}`, `{`, ``, `null`, `[]`, `{"metadata":{"name":"a"}}`, `{"metadata":{"name":"b"}}`, `{"metadata":null}`,
		`{"metadata":{"uid":"x","generation":"y"}}`,
		`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}`,
		`{"metadata":{"finalizers":["a"],"deletionTimestamp":"2026-01-01T00:00:00Z"}}`,
		`{"apiVersion":"v1","kind":"Node"}`, `{"spec":1e400}`, `{"spec":9223372036854775808}`, "{\"spec\":\"\xff\"}",
		`{"metadata":{"ownerReferences":[{}]}}`, `{"status":7}{}`,
	} {
		f.Add([]byte(file))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		dir := t.TempDir()
		s := must(openStore(dir, func() time.Time { return time.Unix(1000, 0) }, discard))(t)
		defer func() { _ = s.close() }()
		path := filepath.Join(dir, "machinepools", "default", "a.json")
		put(t, string(file), path)
		s.readChangedFile("machinepools/default/a.json", false)
		after, err := os.ReadFile(path)
		o, ok := s.get(pools, key{"default", "a"})
		switch {
		case !ok && err == nil && !bytes.Equal(after, file):
			t.Fatalf("%q was refused and became %q", file, after)
		case !ok:
			return
		case err != nil:
			t.Fatal(err)
		}
		if m := meta(o); m["name"] != "a" || m["namespace"] != "default" || m["uid"] == "" ||
			o["kind"] != "MachinePool" || m["generation"].(int64) < 1 {
			t.Fatalf("%q became %v", file, o)
		}
		again := must(openStore(dir, time.Now, discard))(t)
		defer func() { _ = again.close() }()
		again.readChangedFile("machinepools/default/a.json", false)
		if back, ok := again.get(pools, key{"default", "a"}); !ok || !same(o, back) {
			t.Fatalf("%q is %v, and after a restart %v", file, o, back)
		}
	})
}
