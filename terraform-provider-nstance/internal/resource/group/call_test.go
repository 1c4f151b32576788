package group

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/document"
)

// full returns a group in which every field is set.
func full() config.GroupSpec {
	size, surge, drain := 3, 2, config.Duration(90e9)
	return config.GroupSpec{
		Template: "worker", Size: &size, InstanceType: "large", InstanceTypes: []string{"huge"}, SubnetPool: "p",
		Vars: map[string]string{"a": "b"},
		Args: map[string]any{"A": map[string]any{"B": 1.5}}, LoadBalancers: []string{"lb"}, DrainTimeout: &drain,
		MaxSurge: &surge, MaxUnhealthy: "30%", Rollout: &config.Rollout{Canary: 1},
		Disruption: &config.Disruption{MaxPerHour: 1}, Preserve: &config.Preserve{Max: 1},
		Scaling: &config.Scaling{Max: 1}, Spares: &config.Spares{Count: 1},
		Purchase: &config.Purchase{SpotPercent: 80}, Schedules: []config.Schedule{{Cron: "0 7 * * *", Size: 1}},
	}
}

// TestRequestHasEveryField checks that request can set and remove every field of a group. It fails if a new field is
// not handled.
func TestRequestHasEveryField(t *testing.T) {
	mustRequest := func(want, have config.GroupSpec) *nstancev1.UpsertGroupRequest {
		t.Helper()
		req, err := request("fleet", want, have)
		if err != nil {
			t.Fatal(err)
		}
		return req
	}
	whole := mustRequest(full(), config.GroupSpec{})
	typ := reflect.TypeFor[config.GroupSpec]()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if slices.Contains([]string{"deleted", "removed", "protected", "overrides"}, name) {
			continue // only the server sets these
		}
		want := full()
		if reflect.ValueOf(want).Field(i).IsZero() {
			t.Fatalf("full() has no %s", name)
		}
		reflect.ValueOf(&want).Elem().Field(i).SetZero()
		if got := mustRequest(want, full()).GetPatch(); got != `{"`+name+`":null}` {
			t.Errorf("without %s, the patch is %s", name, got)
		}
		if mustRequest(want, config.GroupSpec{}).GetPatch() == whole.GetPatch() {
			t.Errorf("%s is not asked for", name)
		}
	}
	small := config.GroupSpec{Template: "worker"}
	if got := mustRequest(small, small).GetPatch(); got != "{}" {
		t.Errorf("without a change, the patch is %s", got)
	}
	small.Args = map[string]any{"a": map[string]any{"b": nil}}
	if _, err := request("fleet", small, config.GroupSpec{}); err == nil || !strings.Contains(err.Error(), "args.a.b") {
		t.Errorf("an argument that is null: %v", err)
	}
}

func TestSpecOf(t *testing.T) {
	for text, good := range map[string]bool{
		`{"template": "worker", "size": 0}`: true, `{}`: true, ``: false, `{`: false, `{"nosuch": 1}`: false,
		`[]`: false, `{"size": -1}`: false,
		`{}}, "u": {"h": {}`: false,
	} {
		_, err := specOf(&nstancev1.GroupStatus{SpecJson: text})
		if (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzSpecOf(f *testing.F) {
	f.Add(`{"template": "worker", "size": 1, "args": {"a": [1, null]}, "drain_timeout": "1m"}`)
	f.Add(`{}}, "u": {"h": {}`)
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := specOf(&nstancev1.GroupStatus{SpecJson: text})
		if err != nil {
			return
		}
		if !same(spec, canonical(spec)) {
			t.Errorf("%+v is not the same as itself", spec)
		}
	})
}

func TestSame(t *testing.T) {
	a, b := full(), full()
	b.Args = map[string]any{"A": map[string]any{"B": 1.5}}
	if !same(a, b) {
		t.Error("equal groups differ")
	}
	if !same(config.GroupSpec{Template: "worker"}, config.GroupSpec{Template: "worker", Vars: map[string]string{},
		InstanceTypes: []string{}}) {
		t.Error("empty and none differ")
	}
	zero := 0
	if same(config.GroupSpec{Template: "worker"}, config.GroupSpec{Template: "worker", Size: &zero}) {
		t.Error("no size and a size of 0 are the same")
	}
}

// TestComplete checks when an apply stops waiting for a group's instances.
func TestComplete(t *testing.T) {
	group := func(change func(*nstancev1.GroupStatus)) *nstancev1.GroupStatus {
		g := &nstancev1.GroupStatus{Size: 2, ActualSize: 2, Healthy: 2}
		change(g)
		return g
	}
	for name, test := range map[string]struct {
		fleet fleet
		want  bool
	}{
		"complete":     {fleet{group: group(func(*nstancev1.GroupStatus) {})}, true},
		"no group":     {fleet{}, false},
		"drifted":      {fleet{group: group(func(*nstancev1.GroupStatus) {}), drifted: 1}, false},
		"deleting":     {fleet{group: group(func(g *nstancev1.GroupStatus) { g.Deleting = true })}, false},
		"too few":      {fleet{group: group(func(g *nstancev1.GroupStatus) { g.ActualSize = 1 })}, false},
		"surge":        {fleet{group: group(func(g *nstancev1.GroupStatus) { g.ActualSize = 3 })}, false},
		"not healthy":  {fleet{group: group(func(g *nstancev1.GroupStatus) { g.Healthy = 1 })}, false},
		"size 0, gone": {fleet{group: new(nstancev1.GroupStatus)}, true},
	} {
		if got := test.fleet.complete(); got != test.want {
			t.Errorf("%s: %v, %s", name, got, test.fleet)
		}
	}
}

// TestReplaced checks that a copy with other attributes leaves the original as it was.
func TestReplaced(t *testing.T) {
	typ := tftypes.Object{AttributeTypes: map[string]tftypes.Type{"id": tftypes.String}}
	before := tftypes.NewValue(typ, map[string]tftypes.Value{"id": document.Text("old")})
	after := document.Replaced(before, map[string]tftypes.Value{"id": document.Text("new")})
	id := func(v tftypes.Value) string { return document.TextOf(document.Attributes(v)["id"]) }
	if from, to := id(before), id(after); from != "old" || to != "new" {
		t.Errorf("the original became %q, the copy is %q", from, to)
	}
}
