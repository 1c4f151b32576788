package contexts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/contexts"
)

// TestParse reads files. Each problem has its path, and a name that was probably meant.
func TestParse(t *testing.T) {
	file, err := contexts.Parse([]byte("current: prod\ncontexts:\n  prod:\n    servers: a=10.0.0.1:8993\n" +
		"    storage_path_style: true\n  empty:\n"))
	want := contexts.File{Current: "prod", Contexts: map[string]contexts.Context{
		"prod": {"servers": "a=10.0.0.1:8993", "storage_path_style": "true"}, "empty": {}}}
	if diff := cmp.Diff(want, file); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if file, err := contexts.Parse(nil); err != nil || len(file.Contexts) > 0 {
		t.Error(file, err)
	}
	for text, want := range map[string]string{
		"context: a":            `context: there is no such field; did you mean "contexts"?`,
		"current: a":            `current: there is no context "a"`,
		"contexts: [a]":         "contexts: want an object",
		"contexts: {a: b}":      "contexts.a: want an object",
		"contexts: {../a: {}}":  "contexts.../a: a name has",
		"contexts: {a: {b: 1}}": "contexts.a.b: there is no such field",
		"contexts: {a: {storage_buckt: b}}": "contexts.a.storage_buckt: there is no such field; " +
			`did you mean "storage_bucket"?`,
		"contexts: {a: {servers: a}}":                "contexts.a.servers: ",
		"contexts: {a: {servers: [a]}}":              "contexts.a.servers: want a text",
		"contexts: {a: {key_provider: fil}}":         `did you mean "file"?`,
		"contexts: {a: {storage_path_style: maybe}}": "contexts.a.storage_path_style: ",
		"contexts: {a: {shard: a}, a: {shard: b}}":   "already set in map",
	} {
		if _, err := contexts.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestMerge imports a context twice. What a person added stays, and an empty field removes one.
func TestMerge(t *testing.T) {
	var file contexts.File
	file.Merge(contexts.File{Contexts: map[string]contexts.Context{"a": {"servers": "a=h:1", "storage_prefix": ""}}})
	file.Contexts["a"]["identity_dir"] = "/home/alice"
	file.Merge(contexts.File{Contexts: map[string]contexts.Context{"a": {"servers": "a=h:2", "shard": ""}, "b": {}}})
	want := map[string]contexts.Context{"a": {"servers": "a=h:2", "identity_dir": "/home/alice"}, "b": {}}
	if diff := cmp.Diff(want, file.Contexts); diff != "" {
		t.Error(diff)
	}
	text, err := file.Format()
	if err != nil {
		t.Fatal(err)
	}
	again, err := contexts.Parse(text)
	if diff := cmp.Diff(want, again.Contexts); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// TestSettings checks that the names of settings follow from their flags, and that the order serves those who resolve
// them.
func TestSettings(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range contexts.Settings() {
		if s.Of != "" && !seen[s.Of] {
			t.Errorf("%s comes before %s", s.Flag, s.Of)
		}
		seen[s.Flag] = true
	}
	bucket, ok := contexts.Find("storage-bucket")
	if !ok || bucket.Variable() != "NSTANCE_ADMIN_STORAGE_BUCKET" || bucket.Field() != "storage_bucket" {
		t.Error(bucket, ok)
	}
	if _, ok := contexts.Find("output"); ok {
		t.Error("output is no setting")
	}
}
