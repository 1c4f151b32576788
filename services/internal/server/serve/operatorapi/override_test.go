package operatorapi_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// TestConfigurationEndsOverrides changes the size of a static group in turn by an operator and by the configuration.
// The last change is in force, unless the operator pinned its size.
func TestConfigurationEndsOverrides(t *testing.T) {
	w := newTestShard(t)
	configure := func(size string) {
		t.Helper()
		w.configure(t, strings.Replace(document(""), `"static": {"template": "worker", "size": 0}`,
			`"static": {"template": "worker", "size": `+size+`}`, 1))
		if _, err := w.RefreshConfig(t.Context(), &nstancev1.RefreshConfigRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	upsert := func(patch string, pin *bool, until time.Time) {
		t.Helper()
		request := &nstancev1.UpsertGroupRequest{Group: "static", Patch: patch, Pin: pin}
		if !until.IsZero() {
			request.Until = timestamppb.New(until)
		}
		if _, err := w.UpsertGroup(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, size uint32, value, configured string, pinned bool) {
		t.Helper()
		g := w.group(t, "static")
		if g.GetSize() != size || *settingsOf(g).Size != int(size) {
			t.Errorf("%s: size %d, settings %s, want %d", what, g.GetSize(), g.GetMergedJson(), size)
		}
		if value == "" {
			if len(g.GetOverrides()) > 0 || g.GetOverridden() || g.GetSpecJson() != "" {
				t.Errorf("%s: overrides %v, entry %s", what, g.GetOverrides(), g.GetSpecJson())
			}
			return
		}
		if len(g.GetOverrides()) != 1 || !g.GetOverridden() {
			t.Fatalf("%s: %v", what, g.GetOverrides())
		}
		o := g.GetOverrides()[0]
		if o.GetPath() != "size" || o.GetValue() != value || o.GetConfigured() != configured ||
			o.GetPinned() != pinned || o.GetBy() == "" ||
			!o.GetAt().AsTime().Equal(w.Clock.Now().Truncate(time.Second)) {
			t.Errorf("%s: %v", what, o)
		}
	}
	no, yes, never := new(bool), new(true), time.Time{}
	expect("at first", 0, "", "", false)
	upsert(`{"size": 4}`, no, never)
	expect("scaled", 4, "4", "0", false)
	configure("6")
	expect("configured later", 6, "", "", false)
	configure("0")
	expect("configured as at first", 0, "", "", false)
	upsert(`{"size": 4}`, yes, never)
	configure("6")
	expect("pinned", 4, "4", "6", true)
	upsert(`{"size": 4}`, no, never)
	expect("not pinned any more", 4, "4", "6", false)
	upsert(`{"size": null}`, no, never)
	expect("reset", 6, "", "", false)
	upsert(`{"size": 3}`, nil, never)
	expect("by an operator that does not say whether it pins", 3, "3", "6", true)
	upsert(`{"size": 2}`, no, w.Clock.Now().Add(time.Hour))
	expect("for an hour", 2, "2", "6", false)
	w.Clock.Advance(time.Hour)
	expect("after the hour", 6, "", "", false)
	ended := w.listed(t, &nstancev1.EventFilter{Kinds: []string{"override_ended"}}, 1)
	if len(ended) != 1 || !strings.Contains(ended[0], "size 4, set by "+w.id.String()+" at ") ||
		!strings.HasSuffix(ended[0], "ends: it is reset; configured: 6") {
		t.Errorf("the journal has %q, want the reset", ended)
	}

	for what, request := range map[string]*nstancev1.UpsertGroupRequest{
		"an end in the past": {Group: "static", Patch: `{"size": 1}`, Until: timestamppb.New(w.Clock.Now())},
		"an end of another field": {Group: "static", Patch: `{"instance_type": "large"}`,
			Until: timestamppb.New(w.Clock.Now().Add(time.Hour))},
	} {
		_, err := w.UpsertGroup(t.Context(), request)
		wants(t, what, err, codes.InvalidArgument, "until: ")
	}
	_, err := w.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "fleet",
		Patch: `{"template": "worker"}`, Pin: yes})
	wants(t, "a pinned dynamic group", err, codes.InvalidArgument, "pin", "fleet is dynamic")
}

// TestResetKeepsTheRoll checks that the values of the configuration come back without a second roll.
func TestResetKeepsTheRoll(t *testing.T) {
	w := newTestShard(t)
	rolled, err := w.RollGroup(t.Context(), &nstancev1.RollGroupRequest{Group: "static"})
	if err != nil {
		t.Fatal(err)
	}
	for what, reset := range map[string]func() error{
		"reset": func() error {
			_, err := w.UpsertGroup(t.Context(), upsertOf("static",
				`{"size": null, "instance_type": null, "vars": null, "rollout": {"paused": null}}`))
			return err
		},
		"delete, as earlier operators call it": func() error {
			_, err := w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "static"})
			return err
		},
	} {
		if _, err := w.UpsertGroup(t.Context(), upsertOf("static",
			`{"size": 2, "instance_type": "large", "rollout": {"paused": true}}`)); err != nil {
			t.Fatal(err)
		}
		if err := reset(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if g := w.group(t, "static"); g.GetSize() != 0 || g.GetPaused() ||
			g.GetInfraHash() != rolled.GetGroup().GetInfraHash() || len(g.GetOverrides()) != 1 {
			t.Errorf("%s: %v", what, g)
		}
	}
}
