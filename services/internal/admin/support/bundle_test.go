package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// plant returns a document with a value at every path in the shape, and with an unknown field in some objects. A value
// that the bundle must not show verbatim is a secret. plant adds each secret to the map `secrets`. The key is the path
// of the secret's field.
func plant(s shape, kind string, secrets map[string]string) any {
	root := map[string]any{}
	secret := func(path string) string {
		text := fmt.Sprintf("hunter%dKf7Zq", len(secrets))
		secrets[kind+":"+path] = text
		return text
	}
	for _, path := range slices.Sorted(maps.Keys(s)) {
		at := root
		names := strings.Split(path, ".")
		for i, name := range names[:len(names)-1] {
			next, ok := at[name].(map[string]any)
			if !ok {
				next = map[string]any{}
				here := strings.Join(names[:i+1], ".")
				if free := here + ".*"; s[free] == nil && !s.prefixes()[free] { // otherwise every name is known
					next["unknown_field"] = map[string]any{"deep": secret(here + ".unknown_field")}
				}
				at[name] = next
			}
			at = next
		}
		name := names[len(names)-1]
		switch s[path] {
		case plain:
			at[name] = "example"
		case origin:
			at[name] = "https://alice:" + secret(path) + "@store.example/" + secret(path+" path")
		case words:
			at[name] = "creation failed: 'x-" + secret(path) + "'"
		default:
			at[name] = secret(path)
		}
	}
	return root
}

// plantAll returns a bundle with a document of every kind, and the secrets in it.
func plantAll(t *testing.T) (*Bundle, map[string]string) {
	t.Helper()
	secrets := map[string]string{}
	b := &Bundle{}
	for _, kind := range slices.Sorted(maps.Keys(types)) {
		s := shapeOf(types[kind])
		b.documents = append(b.documents, document{path: kind + ".json", about: "planted", shape: s,
			tree: plant(s, kind, secrets)})
	}
	return b, secrets
}

// leaks returns the names of the secrets that the bundle's files contain, verbatim or encoded.
func leaks(t *testing.T, b *Bundle, secrets map[string]string) (found []string) {
	t.Helper()
	files, err := b.Files()
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, f := range files {
		text += f.Path + f.About + string(f.Content)
	}
	for name, secret := range secrets {
		for _, form := range []string{secret, base64.RawStdEncoding.EncodeToString([]byte(secret)),
			hex.EncodeToString([]byte(secret))} {
			if strings.Contains(text, form) {
				found = append(found, name)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// TestNothingLeaks plants a secret in every field that the bundle does not show verbatim, and checks that the bundle
// contains no secret. Then it makes the bundle show one of these fields at a time. Each time, the check must find the
// field's secret.
func TestNothingLeaks(t *testing.T) {
	b, secrets := plantAll(t)
	if len(secrets) < 80 {
		t.Errorf("only %d secrets are planted", len(secrets))
	}
	if found := leaks(t, b, secrets); len(found) > 0 {
		t.Fatalf("leaked: %q", found)
	}
	verbatim := &treatment{func(_ *redactor, v any) any { return v }}
	shapes := map[string]shape{}
	for _, d := range b.documents {
		s, kind := d.shape, strings.TrimSuffix(d.path, ".json")
		shapes[kind] = s
		for path, t0 := range maps.Clone(s) {
			if t0 == plain {
				continue
			}
			s[path] = verbatim
			found := leaks(t, b, secrets)
			s[path] = t0
			if want := kind + ":" + path; !slices.Contains(found, want) {
				t.Errorf("without the treatment of %q, its secret does not leak: nothing was tested", want)
			}
		}
	}
	for name := range secrets {
		if kind, path, _ := strings.Cut(name, ":"); strings.HasSuffix(path, ".unknown_field") {
			s := shapes[kind]
			s[path] = verbatim
			found := leaks(t, b, secrets)
			delete(s, path)
			if !slices.Contains(found, name) {
				t.Errorf("a known field %q does not leak: nothing was tested", name)
			}
		}
	}
}

// TestHiddenValuesInTexts checks that texts never show a value that a document hides, even if the value consists of
// known words.
func TestHiddenValuesInTexts(t *testing.T) {
	const phrase = "restore the former leader"
	b := &Bundle{}
	text := "invalid value '" + phrase + "', line 2: echo wait for the instance"
	if err := b.Add("events.json", "", fleet.MessageOf(&nstancev1.ListEventsResponse{
		Events: []*nstancev1.JournalEvent{{Message: text}}})); err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{"phrase": phrase, "line": "echo wait for the instance"}
	if found := leaks(t, b, secrets); len(found) != 2 {
		t.Fatalf("the words are not known, so nothing is tested: %q", found)
	}
	if err := AddJSON[config.Shard](b, "config.json", "", []byte(`{
		// a comment
		"defaults": {"vars": {"x": "restore the former leader"}, "unknown": true,
			"userdata": {"content": "#!/bin/sh\necho wait for the instance\n"}},
	}`)); err != nil {
		t.Fatal(err)
	}
	if found := leaks(t, b, secrets); len(found) > 0 {
		t.Errorf("leaked: %q", found)
	}
}

// TestTexts checks which parts of messages remain after redaction.
func TestTexts(t *testing.T) {
	r := newRedactor()
	r.names["t4g.medium"], r.names["us-west-2a"], r.names["server-1"] = true, true, true
	for text, want := range map[string]string{
		"its VM has stopped or is stopping (rule 6)":                      "",
		"no capacity for t4g.medium in us-west-2a: try again in 4s":       "",
		"api error InsufficientInstanceCapacity: 400 of 500":              "",
		"the lock is stale: server-1 renewed it 1h0m0s ago for 10s":       "",
		"dial tcp 127.0.0.1:10125: connect: connection refused":           "",
		"it ends at 2036-11-25T10:00:00Z, version v1.2.3, 40%, 64 MiB":    "",
		"instance wrk06gx5zsg2nrrqcrz0000000000 of group.name is healthy": "",
		"the key AKIAIOSFODNN7EXAMPLE is wrong":                           "the key [redacted] is wrong",
		"eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln":                       "[redacted]",
		"password: any words follow here":                                 "password: [redacted]",
		"export DB_PASSWORD=leader":                                       "export DB_PASSWORD=[redacted]",
		"Authorization: Bearer leader":                                    "Authorization: [redacted]",
		"get http://alice:hunter2@store.example/x?y=z":                    "get [redacted]",
		"exit status 1: swordfish xyzzy plugh":                            "exit status 1: [redacted]",
		"a 4111-1111-1111-1111":                                           "a [redacted]",
		"ключ":                                                            "[redacted]",
		"deadbeefdeadbeefdeadbeefdeadbeef":                                "[redacted]",
	} {
		got := r.wordsOf(text)
		if want == "" {
			want = text
		}
		if got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// types are the types of the documents of a bundle.
var types = map[string]reflect.Type{
	"configuration": reflect.TypeFor[config.Shard](), "dynamic groups": reflect.TypeFor[config.Groups](),
	"status":       reflect.TypeFor[fleet.Message[*nstancev1.GetShardStatusResponse]](),
	"groups":       reflect.TypeFor[fleet.Message[*nstancev1.ListGroupsResponse]](),
	"explanations": reflect.TypeFor[[]fleet.Message[*nstancev1.ExplainGroupResponse]](),
	"events":       reflect.TypeFor[fleet.Message[*nstancev1.ListEventsResponse]](),
	"lock":         reflect.TypeFor[record.Lock](), "server report": reflect.TypeFor[record.ServerReport](),
}

// TestConfigurationIsComplete checks that every text of the configuration and of dynamic groups has a tag.
func TestConfigurationIsComplete(t *testing.T) {
	for _, typ := range []reflect.Type{reflect.TypeFor[config.Shard](), reflect.TypeFor[config.GroupSpec]()} {
		for _, path := range leavesOf(typ, nil) {
			if !shapeOf(typ).decides(path) {
				t.Errorf("%s: the field %s has no tag support: add plain, words, present or hidden", typ,
					strings.Join(path, "."))
			}
		}
	}
}

// TestShapes checks what the tags of some fields mean.
func TestShapes(t *testing.T) {
	for path, want := range map[string]*treatment{
		"configuration:server.provider.options.*": present, "configuration:cluster.storage.endpoint": origin,
		"configuration:groups.*.*.vars.*": present, "configuration:groups.*.*.rollout.canary": plain,
		"configuration:templates.*.arch": plain, "configuration:templates.*.health_checks.*.exec": present,
		"configuration:certificates.*.dns": leftOut, "dynamic groups:$term": plain, "dynamic groups:*.*.size": plain,
		"status:errors.*.message": words, "status:lease_left": plain, "status:config_etag": nil, "status:shard": nil,
		"groups:groups.*.merged.args.*": present, "groups:groups.*.merged.template": plain,
		"groups:groups.*.spec": present,
		"groups:groups.*.etag": nil, "explanations:*.actions.*.reason": words, "events:events.*.at": plain,
		"lock:heir.id": plain, "lock:marks": nil, "server report:problem": words,
	} {
		kind, field, _ := strings.Cut(path, ":")
		if got := shapeOf(types[kind])[field]; got != want {
			t.Errorf("%s has another treatment", path)
		}
	}
}

// decides reports whether a shape lists the given path, a parent of that path, or a path below it.
func (s shape) decides(path []string) bool {
	for i := range path {
		if s[strings.Join(path[:i+1], ".")] != nil {
			return true
		}
	}
	return s.prefixes()[strings.Join(path, ".")]
}

// leavesOf returns the JSON paths of all fields of a type that have no fields themselves. Each path begins with the
// given path.
func leavesOf(typ reflect.Type, path []string) (leaves [][]string) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Marshaler]()),
		reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextMarshaler]()):
	case typ.Kind() == reflect.Map, typ.Kind() == reflect.Slice && typ.Elem().Kind() != reflect.Uint8:
		return leavesOf(typ.Elem(), append(slices.Clone(path), "*"))
	case typ.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(typ) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				leaves = append(leaves, leavesOf(f.Type, append(slices.Clone(path), name))...)
			}
		}
		return leaves
	}
	return [][]string{path}
}

// TestShown checks that the values of variables are not shown.
func TestShown(t *testing.T) {
	if got := Shown[config.GroupSpec]([]byte(`{"size": 5, "vars": {"a": "hunter2", "b": null}, "purchase": null}`)); got !=
		`{"size":5,"vars":{"a":"[redacted]","b":null}}` {
		t.Error(got)
	}
}

// TestMetrics checks that the bundle shows only lines that are metrics.
func TestMetrics(t *testing.T) {
	const good = "nstance_group_desired{cluster=\"example\",group=\"workers\",shard=\"us-a\"} 3\n" +
		"go_goroutines 12\nprocess_cpu_seconds_total 1.5e+02\n"
	for _, bad := range []string{"# HELP nstance_x hunter2\n", "hunter2\n", "other_metric 1\n",
		"nstance_x{error=\"hunter2\\\"!\"} 1\n", "nstance_x hunter2\n", "nstance_x{a=\"b\"} 1 hunter2\n",
		"nstance_x{a=\"" + strings.Repeat("x", 65) + "\"} 1\n"} {
		if got := shownMetrics(bad + good + bad); got != good {
			t.Errorf("%q", got)
		}
	}
}

// TestWrite checks the archive, and that the README names what could not be read.
func TestWrite(t *testing.T) {
	b := &Bundle{About: []Fact{{"Cluster", "example"}}}
	b.AddMetrics("metrics.txt", "metrics", "go_goroutines 1\n")
	b.NoteUnread("lock of shard us-a", errors.New("get shard/us-a/leader.json: access denied: hunter2"))
	if err := AddJSON[config.Shard](b, "config.json", "", []byte("{")); err == nil {
		t.Error("a broken document is accepted")
	}
	files, err := b.Files()
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	var out bytes.Buffer
	at := time.Date(2026, 11, 25, 1, 2, 3, 0, time.UTC)
	if err := Write(&out, "dir", files, at); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(zip)
	for _, name := range []string{"dir/README.txt", "dir/metrics.txt"} {
		head, err := archive.Next()
		if err != nil || head.Name != name || head.Mode != 0o600 {
			t.Fatal(head, err)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if readme := string(body); strings.HasSuffix(name, ".txt") && strings.Contains(name, "README") &&
			(!strings.Contains(readme, "Cluster: example\n") || !strings.Contains(readme, "metrics.txt: metrics\n") ||
				!strings.Contains(readme, "access denied: [redacted]\n")) {
			t.Error(readme)
		}
	}
}
