package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// TestOverridden checks the description of changes that have no effect, or that end the value of an operator.
func TestOverridden(t *testing.T) {
	size := 4
	overrides := func(spec config.GroupSpec) config.Groups {
		return config.Groups{Tenants: map[string]map[string]config.GroupSpec{"default": {"w": spec}}}
	}
	const way = ` To end this override, run "nstance-admin group reset w --shard s".`
	alice := map[string]config.Override{"size": {Configured: 1.0, By: "alice", At: "2026-11-29T12:00:00Z"}}
	pinned := map[string]config.Override{"size": {Configured: 1.0, By: "alice", At: "2026-11-29T12:00:00Z",
		Pinned: true}}
	for _, tt := range []struct {
		name, group string
		spec        config.GroupSpec
		kept, ended string
	}{
		{"size", `"size": 3`, config.GroupSpec{Size: &size}, "The change of size in group default/w from 1 to 3 " +
			"has no effect: an operator set 4 and pinned it." + way, ""},
		{"pinned size", `"size": 3`, config.GroupSpec{Size: &size, Overrides: pinned},
			"The change of size in group default/w from 1 to 3 has no effect: alice (at 2026-11-29T12:00:00Z) set 4 " +
				"and pinned it." + way, ""},
		{"size that is not pinned", `"size": 3`, config.GroupSpec{Size: &size, Overrides: alice}, "",
			"The change of size in group default/w from 1 to 3 ends the value 4, which alice (at " +
				"2026-11-29T12:00:00Z) set."},
		{"the same size", `"size": 1`, config.GroupSpec{Size: &size}, "", ""},
		{"another field", `"size": 3`, config.GroupSpec{InstanceType: "m"}, "", ""},
		{"type", `"instance_type": "s"`, config.GroupSpec{InstanceType: "m"}, `The change of instance_type in group ` +
			`default/w from none to "s" has no effect: an operator set "m" and pinned it.` + way, ""},
		{"variable", `"vars": {"x": "2", "y": "3"}`, config.GroupSpec{Vars: map[string]string{"x": "9"}},
			`The change of vars.x in group default/w from "1" to "2" has no effect: an operator set "9" and pinned ` +
				"it." + way, ""},
	} {
		after := strings.Replace(changeSample, `"w": {"template": "one"}`, `"w": {"template": "one", `+tt.group+`}`, 1)
		kept, ended := config.Overridden(parseSample(t, changeSample), parseSample(t, after), overrides(tt.spec))
		if diff := cmp.Diff([]string{tt.kept, tt.ended}, []string{strings.Join(kept, "\n"),
			strings.Join(ended, "\n")}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	removed := strings.Replace(changeSample, `"w": {"template": "one"}, `, "", 1)
	kept, ended := config.Overridden(parseSample(t, changeSample), parseSample(t, removed),
		overrides(config.GroupSpec{Size: &size}))
	if len(kept)+len(ended) > 0 {
		t.Errorf("of a group that is removed: %s %s", kept, ended)
	}
}
