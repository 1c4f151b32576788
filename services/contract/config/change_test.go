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
  "groups": {"default": {"w": {"template": "one"}, "v": {"template": "two", "args": {"a": 2}, "spares": {"count": 2}}}}
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
		{"size", `{"template": "one"}`, `{"template": "one", "size": 9}`, "8 instances will be created",
			[]string{"Instances are created, unless the size was changed at run time: 8 in default/w."}},
		{"new group", `"groups": {"default": {`, `"groups": {"default": {"n": {"template": "one", "size": 3}, `,
			"3 instances will be created", []string{
				"Instances are created, unless the size was changed at run time: 3 in default/n."}},
		{"spares", `{"template": "one"}`, `{"template": "one", "spares": {"count": 2}}`, "2 instances will be created",
			[]string{"Spares are created: 2 in default/w."}},
		{"fewer spares", `"count": 2`, `"count": 1`, "Instances will be replaced or deleted",
			[]string{"Spares are deleted in the groups: default/v."}},
		{"older spares", `"count": 2`, `"count": 2, "max_age": "1h"`, "Spares will be replaced", []string{
			"Spares that wait in another way, or are older than max_age, are replaced, one at a time, in the groups: " +
				"default/v."}},
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

// TestWarningSaysWhatIsKnown checks that a plan with unknown subnets raises no false alarm, and that a plan that
// certainly ends instances says so.
func TestWarningSaysWhatIsKnown(t *testing.T) {
	for name, tc := range map[string]struct {
		old, new string
		unknown  bool
		summary  string
		says     string
	}{
		"an added subnet, unknown": {`"p": ["a"]`, `"p": ["a", "b"]`, false, "", ""},
		"an added subnet, its list unknown": {`"p": ["a"]`, `"p": ["x"]`, true, "Instances may be replaced",
			"known only after apply"},
		"a removed subnet": {`"p": ["a"]`, `"p": ["b"]`, false, "Instances will be replaced or deleted",
			"leave their pool"},
		"another zone": {`"kind": "mock"`, `"kind": "mock", "zone": "z2"`, false,
			"Instances will be replaced or deleted",
			`to "z2": all its instances are replaced`},
		"another zone, subnets unknown": {`"kind": "mock"`, `"kind": "mock", "zone": "z2"`, true,
			"Instances will be replaced or deleted", "end"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(changeSample, tc.old, tc.new, 1)
			if changed == changeSample {
				t.Fatal("nothing is changed")
			}
			summary, detail := config.ChangeOf(parseSample(t, changeSample), parseSample(t, changed),
				tc.unknown).Warning()
			if summary != tc.summary || !strings.Contains(detail, tc.says) {
				t.Errorf("%q:\n%s\nwant %q and %q", summary, detail, tc.summary, tc.says)
			}
		})
	}
}
