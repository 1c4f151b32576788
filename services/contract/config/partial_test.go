package config_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
)

func TestValidateKnownLeavesOutWhatFollowsFromUnknownValues(t *testing.T) {
	s := &config.Shard{
		Cluster: config.Cluster{ID: "c", Secrets: config.Secrets{EncryptionKey: &config.KeySource{Provider: "env"}}},
		Server: config.Server{Shard: "s", Provider: config.Provider{Kind: "mock"},
			SubnetPools: map[string][]string{"p": {"a"}}},
		Templates: map[string]config.Template{"t": {Kind: "wrk", Arch: "riscv",
			Files: map[string]config.File{"x.env": {Kind: "env", Vars: map[string]string{"A": "{{ .Vars.a }}"}}}}},
		Groups: map[string]map[string]config.GroupSpec{"default": {"g": {Template: "t"}}},
	}
	paths := func(problems config.Problems) (out []string) {
		for _, p := range problems {
			out = append(out, p.Path)
		}
		return out
	}
	all := []string{"templates.t.arch", "groups.default.g.subnet_pool", "templates.t.files[\"x.env\"].vars.A"}
	if diff := cmp.Diff(all, paths(config.ValidateKnown(s))); diff != "" {
		t.Errorf("everything known (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(all[:1], paths(config.ValidateKnown(s, "templates.t.subnet_pool",
		"templates.t.vars"))); diff != "" {
		t.Errorf("subnet pool and variables of the template unknown (-want +got):\n%s", diff)
	}
}

func TestParseTree(t *testing.T) {
	got, problems := config.ParseTree("args", []byte(`{"a": [1, {"b": null}], /* c */ "d": "x",}`))
	if diff := cmp.Diff(map[string]any{"a": []any{1.0, map[string]any{"b": nil}}, "d": "x"}, got); diff != "" ||
		problems != nil {
		t.Errorf("%v (-want +got):\n%s", problems, diff)
	}
	for src, want := range map[string]string{
		`{"a": 1, "a": 2}`:         "args:1:10: a: the field is there twice",
		`{"a": 12345678901234567}`: "args:1:7: a: 12345678901234567 is too large",
		`{"a": `:                   "args:1:",
	} {
		got, problems := config.ParseTree("args", []byte(src))
		if got != nil || !strings.HasPrefix(problems.Error(), want) {
			t.Errorf("%s: %v, %v, want %s", src, got, problems, want)
		}
	}
}

// FuzzParseTree checks that every accepted text is JSON, and that its encoding parses to the same value.
func FuzzParseTree(f *testing.F) {
	for _, src := range []string{`{"a": [1, {"b": null}],}`, `"x"`, `[1e3, -0.5] // c`, `{"a": 1, "a": 2}`,
		`12345678901234567`, ``, `{`} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		value, problems := config.ParseTree("tree", src)
		if len(problems) > 0 {
			if value != nil {
				t.Fatalf("a value beside %v", problems)
			}
			return
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		again, problems := config.ParseTree("tree", text)
		if diff := cmp.Diff(value, again); diff != "" || problems != nil {
			t.Fatalf("%s: %v\n%s", text, problems, diff)
		}
	})
}
