package config_test

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
)

const changeSample = `{
  "cluster": {"id": "c", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "s", "provider": {"kind": "mock"}, "subnet_pools": {"p": ["a"]}},
  "templates": {
    "one": {"kind": "aaa", "arch": "amd64", "subnet_pool": "p", "vars": {"x": "1"}},
    "two": {"kind": "bbb", "arch": "amd64", "subnet_pool": "p", "args": {"a": 1}}
  },
  "groups": {"default": {"w": {"template": "one"}, "v": {"template": "two", "args": {"a": 2}}}}
}`

func parseSample(t *testing.T, src string) *config.Shard {
	t.Helper()
	s, problems := config.Parse("sample", []byte(src))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestChange(t *testing.T) {
	for _, tc := range []struct {
		name, old, new string
		summary        string
		lines          []string
	}{
		{"nothing", `"p": ["a"]`, `"p": ["a", "b"]`, "", nil},
		{"subnet that leaves its pool", `"p": ["a"]`, `"p": ["b"]`, "Instances will be replaced or deleted", []string{
			"Instances in subnets that leave their pool are replaced, in waves of up to max_surge, " +
				"in the groups: default/v, " +
				"default/w.",
			"Likewise in dynamic groups with the templates: one, two.",
		}},
		{"size", `{"template": "one"}`, `{"template": "one", "size": 9}`, "", nil},
		{"smaller size", `"vars": {"x": "1"}`, `"vars": {"x": "1"}, "size": 0`, "Instances will be replaced or deleted",
			[]string{"Instances are drained and deleted, unless the size was changed at run time, in the groups that " +
				"get smaller: default/w."}},
		{"push", `{"x": "1"}`, `{"x": "2"}`, "Files will be pushed to running instances", []string{
			"Files are pushed to running instances of the groups: default/w.",
			"Likewise in dynamic groups with the templates: one.",
		}},
		{"roll", `"kind": "aaa", "arch": "amd64"`, `"kind": "aaa", "arch": "arm64"`,
			"Instances will be replaced or deleted", []string{
				"Instances that were made from another configuration are replaced, in waves of up to max_surge, " +
					"in the groups: default/w.",
				"Likewise in dynamic groups with the templates: one.",
			}},
		{"template that its group overrides", `"args": {"a": 1}`, `"args": {"a": 3}`,
			"Instances will be replaced or deleted", []string{
				"Likewise in dynamic groups with the templates: two.",
			}},
		{"subnet that leaves, and other files", `"p": ["a"]}},
  "templates": {
    "one": {"kind": "aaa", "arch": "amd64", "subnet_pool": "p", "vars": {"x": "1"}}`, `"p": ["b"]}},
  "templates": {
    "one": {"kind": "aaa", "arch": "amd64", "subnet_pool": "p", "vars": {"x": "2"}}`,
			"Instances will be replaced or deleted", []string{
				"Instances in subnets that leave their pool are replaced, in waves of up to max_surge, " +
					"in the groups: default/v, default/w.",
				"Likewise in dynamic groups with the templates: one, two.",
				"Files are pushed to running instances of the groups: default/w.",
				"Likewise in dynamic groups with the templates: one.",
			}},
		{"removed", `"w": {"template": "one"}, `, ``, "Instances will be replaced or deleted", []string{
			"Instances are drained and deleted, unless there is a dynamic group of that name, in the groups that " +
				"are removed: default/w.",
		}},
		{"terminating", `"groups"`, `"terminating": true, "groups"`, "Instances will be replaced or deleted",
			[]string{"The shard is emptied: terminating is set."}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := strings.Replace(changeSample, tc.old, tc.new, 1)
			if changed == changeSample {
				t.Fatal("nothing is changed")
			}
			summary, detail := config.ChangeOf(parseSample(t, changeSample), parseSample(t, changed), false).Warning()
			if want := strings.Join(tc.lines, "\n"); summary != tc.summary || detail != want {
				t.Errorf("%q:\n%s\nwant %q:\n%s", summary, detail, tc.summary, want)
			}
		})
	}
}
