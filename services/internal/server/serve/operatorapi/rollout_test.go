package operatorapi_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// TestRolloutOfAGroup pauses, rolls and resumes a static group and a dynamic one.
func TestRolloutOfAGroup(t *testing.T) {
	w := newTestShard(t)
	ctx := t.Context()
	if _, err := w.UpsertGroup(ctx, upsertOf("fleet", `{"template": "worker", "size": 0, "rollout": {"canary": 2, "bake_time": "5m"}}`)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"static", "fleet"} {
		before := w.group(t, name)
		paused, err := w.PauseGroup(ctx, &nstancev1.PauseGroupRequest{Group: name})
		if g := paused.GetGroup(); err != nil || !g.GetPaused() || g.GetInfraHash() != before.GetInfraHash() {
			t.Errorf("%s: paused: %v, %v", name, g, err)
		}
		rolled, err := w.RollGroup(ctx, &nstancev1.RollGroupRequest{Group: name})
		if g := rolled.GetGroup(); err != nil || !g.GetPaused() || g.GetInfraHash() == before.GetInfraHash() {
			t.Errorf("%s: rolled: %v, %v", name, g, err)
		}
		resumed, err := w.ResumeGroup(ctx, &nstancev1.ResumeGroupRequest{Group: name})
		if g := resumed.GetGroup(); err != nil || g.GetPaused() ||
			g.GetInfraHash() != rolled.GetGroup().GetInfraHash() {
			t.Errorf("%s: resumed: %v, %v", name, g, err)
		}
	}
	if spec := w.group(t, "fleet").GetSpecJson(); !strings.Contains(spec, `"canary":2`) ||
		!strings.Contains(spec, `"bake_time":"5m"`) {
		t.Errorf("the other settings of the rollout are lost: %s", spec)
	}
	for what, call := range map[string]func(group string) error{
		"pause": func(group string) error {
			_, err := w.PauseGroup(ctx, &nstancev1.PauseGroupRequest{Group: group})
			return err
		},
		"resume": func(group string) error {
			_, err := w.ResumeGroup(ctx, &nstancev1.ResumeGroupRequest{Group: group})
			return err
		},
		"roll": func(group string) error {
			_, err := w.RollGroup(ctx, &nstancev1.RollGroupRequest{Group: group})
			return err
		},
	} {
		wants(t, what, call("nobody"), codes.NotFound, "nobody")
		wants(t, what, call("theirs"), codes.NotFound, "theirs")
		wants(t, what, call("No/body"), codes.InvalidArgument, "group")
	}
}

// TestResumeStartsAHaltedRollout checks that ResumeGroup resets a rollout's count of failures, even if the group is not
// paused. The call must not give a static group an override.
func TestResumeStartsAHaltedRollout(t *testing.T) {
	w := newTestShard(t)
	key := config.GroupKey{Tenant: "prod", Group: "static"}
	w.leader.State.RolloutFailed(key, "its VM is bad")
	if s, _ := w.leader.State.Snapshot(key, nil); s.RolloutFailures != 1 {
		t.Fatalf("%d failures", s.RolloutFailures)
	}
	answer, err := w.ResumeGroup(t.Context(), &nstancev1.ResumeGroupRequest{Group: "static"})
	if err != nil || answer.GetGroup().GetOverridden() || answer.GetGroup().GetSpecJson() != "" {
		t.Errorf("%v, %v", answer, err)
	}
	if s, _ := w.leader.State.Snapshot(key, nil); s.RolloutFailures != 0 {
		t.Errorf("%d failures", s.RolloutFailures)
	}
}

// TestResumeEndsADurableHalt checks that a halt is shown, and that ResumeGroup ends it.
func TestResumeEndsADurableHalt(t *testing.T) {
	w := newTestShard(t)
	key := config.GroupKey{Tenant: "prod", Group: "fleet"}
	if _, err := w.UpsertGroup(t.Context(), upsertOf("fleet",
		`{"template": "worker", "size": 0, "rollout": {"halt_on_failures": 1, "on_halt": "rollback"}}`)); err != nil {
		t.Fatal(err)
	}
	g := w.manager.Groups()[key]
	if err := w.manager.Halt(t.Context(), key, g.Version(""), "it failed", g0); err != nil {
		t.Fatal(err)
	}
	halted := w.group(t, "fleet").GetHalted()
	if halted.GetReason() != "it failed" || !halted.GetAt().AsTime().Equal(g0) || halted.GetRolledBackTo() != nil ||
		!strings.Contains(halted.GetMessage(), "no rollout of the group has finished yet") {
		t.Errorf("%v", halted)
	}
	answer, err := w.ResumeGroup(t.Context(), &nstancev1.ResumeGroupRequest{Group: "fleet"})
	if err != nil || answer.GetGroup().GetHalted() != nil || w.manager.Groups()[key].Halt != nil {
		t.Errorf("%v, %v", answer, err)
	}
}

var g0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestRolloutIsParsedStrictly checks that a patch is parsed as strictly as the configuration, and that a static group
// takes only some of its fields.
func TestRolloutIsParsedStrictly(t *testing.T) {
	w := newTestShard(t)
	for text, want := range map[string]string{`[]`: "want an object", `{"canary": -1}`: "canary",
		`{"canaries": 1}`: "canaries", `{"bake_time": "soon"}`: "bake_time"} {
		_, err := w.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "fleet",
			Patch: `{"template": "worker", "rollout": ` + text + `}`})
		wants(t, text, err, codes.InvalidArgument, want)
	}
	_, err := w.UpsertGroup(t.Context(), upsertOf("static", `{"rollout": {"canary": 1}}`))
	wants(t, "static", err, codes.FailedPrecondition, "rollout.canary")
}

// TestPurchase checks that a patch sets the purchase options of a dynamic group, and that null removes them.
func TestPurchase(t *testing.T) {
	w := newTestShard(t)
	w.scale(t, "fleet", 0)
	upsert := func(req *nstancev1.UpsertGroupRequest) error {
		req.Group = "fleet"
		_, err := w.UpsertGroup(t.Context(), req)
		return err
	}
	wants(t, "percent", upsert(&nstancev1.UpsertGroupRequest{Patch: `{"purchase": {"spot_percent": 101}}`}),
		codes.InvalidArgument, "spot_percent")
	if err := upsert(&nstancev1.UpsertGroupRequest{Patch: `{"purchase": {"spot_percent": 80}}`}); err != nil {
		t.Fatal(err)
	}
	key := config.GroupKey{Tenant: "prod", Group: "fleet"}
	if g := w.manager.Groups()[key]; g.Purchase.SpotPercent != 80 {
		t.Errorf("%+v", g)
	}
	if err := upsert(&nstancev1.UpsertGroupRequest{Patch: `{"purchase": null}`}); err != nil {
		t.Fatal(err)
	}
	if g := w.manager.Groups()[key]; g.Purchase != (config.Purchase{}) {
		t.Errorf("%+v", g)
	}
}

// TestDisruption checks that a patch changes disruption and schedules of a dynamic group, and that null removes them. The size in a schedule must not exceed the limit dynamic.max_size.
func TestDisruption(t *testing.T) {
	w := newTestShard(t)
	w.scale(t, "fleet", 0)
	upsert := func(req *nstancev1.UpsertGroupRequest) error {
		req.Group = "fleet"
		_, err := w.UpsertGroup(t.Context(), req)
		return err
	}
	wants(t, "windows", upsert(&nstancev1.UpsertGroupRequest{Patch: `{"disruption": {"windows": ["Mon"]}}`}),
		codes.InvalidArgument, "windows")
	wants(t, "schedules", upsert(&nstancev1.UpsertGroupRequest{Patch: `{"schedules": {}}`}), codes.InvalidArgument,
		"schedules: want a list")
	wants(t, "cron", upsert(&nstancev1.UpsertGroupRequest{Patch: `{"schedules": [{"cron": "noon", "size": 1}]}`}),
		codes.InvalidArgument, "cron")
	if err := upsert(&nstancev1.UpsertGroupRequest{Patch: `{"disruption": {"max_per_hour": 3}, "schedules": [{"cron": "0 0 1 1 *", "size": 2}]}`}); err != nil {
		t.Fatal(err)
	}
	key := config.GroupKey{Tenant: "prod", Group: "fleet"}
	if g := w.manager.Groups()[key]; g.MaxPerHour != 3 || len(g.Schedules) != 1 {
		t.Errorf("%+v", g)
	}
	if v, _ := w.leader.State.GroupView(key); v.Size != 2 {
		t.Errorf("the group's size is %d, its schedule says 2", v.Size)
	}
	if err := upsert(&nstancev1.UpsertGroupRequest{ExpectedEtag: w.group(t, "fleet").GetEtag(),
		Patch: `{"rollout": {"canary": 1}}`}); err != nil {
		t.Error("a conditional change of a group that has the size of a schedule:", err)
	}
	if err := upsert(&nstancev1.UpsertGroupRequest{Patch: `{"disruption": null, "schedules": null}`}); err != nil {
		t.Fatal(err)
	}
	if g := w.manager.Groups()[key]; g.MaxPerHour != 0 || len(g.Schedules) != 0 {
		t.Errorf("%+v", g)
	}
}
