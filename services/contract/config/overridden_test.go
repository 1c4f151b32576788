package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// TestOverridden checks the description of changes that have no effect, because an operator set another value.
func TestOverridden(t *testing.T) {
	size := 4
	overrides := func(spec config.GroupSpec) config.Groups {
		return config.Groups{Tenants: map[string]map[string]config.GroupSpec{"default": {"w": spec}}}
	}
	const way = `. To end this override, run "nstance-admin group delete w --shard s". It keeps a group of the ` +
		`configuration.`
	for _, tt := range []struct {
		name, group string
		spec        config.GroupSpec
		want        []string
	}{
		{"size", `"size": 3`, config.GroupSpec{Size: &size},
			[]string{"The change of size in group default/w from 1 to 3 " +
				"has no effect: an operator set 4 at run time" + way}},
		{"the same size", `"size": 1`, config.GroupSpec{Size: &size}, nil},
		{"another field", `"size": 3`, config.GroupSpec{InstanceType: "m"}, nil},
		{"type", `"instance_type": "s"`, config.GroupSpec{InstanceType: "m"}, []string{
			"The change of instance_type in group default/w from none to s has no effect: an operator set m at run " +
				"time" +
				way}},
		{"variable", `"vars": {"x": "2", "y": "3"}`, config.GroupSpec{Vars: map[string]string{"x": "9"}}, []string{
			`The change of variable x in group default/w from "1" to "2" has no effect: an operator set "9" at run time` +
				way}},
	} {
		after := strings.Replace(changeSample, `"w": {"template": "one"}`, `"w": {"template": "one", `+tt.group+`}`, 1)
		got := config.Overridden(parseSample(t, changeSample), parseSample(t, after), overrides(tt.spec))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	removed := strings.Replace(changeSample, `"w": {"template": "one"}, `, "", 1)
	got := config.Overridden(parseSample(t, changeSample), parseSample(t, removed),
		overrides(config.GroupSpec{Size: &size}))
	if len(got) > 0 {
		t.Errorf("of a group that is removed: %s", got)
	}
}
