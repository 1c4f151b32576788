package operatorapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// changeOf returns the request to explain the change of a request.
func changeOf(request proto.Message) *nstancev1.ExplainChangeRequest {
	change := &nstancev1.ExplainChangeRequest{}
	fields := change.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if fields.Get(i).Message() == request.ProtoReflect().Descriptor() {
			change.ProtoReflect().Set(fields.Get(i), protoreflect.ValueOfMessage(request.ProtoReflect()))
		}
	}
	return change
}

// planned describes the changes of groups: the sizes before and after, the outdated instances, and the planned actions.
func planned(answer *nstancev1.ExplainChangeResponse) (lines []string) {
	for _, g := range answer.GetGroups() {
		line := "removed"
		if g.GetAfter() != nil {
			line = fmt.Sprintf("%s %d", g.GetAfter().GetGroup(), g.GetAfter().GetSize())
		}
		if g.GetBefore() != nil {
			line = fmt.Sprintf("%s %d > %s", g.GetBefore().GetGroup(), g.GetBefore().GetSize(), line)
		}
		if n := g.GetAfter().GetOutdated(); n > 0 {
			line += fmt.Sprintf(", %d outdated", n)
		}
		var kinds []string
		for _, a := range g.GetPlan().GetActions() {
			if a.GetKind() != "push_files" {
				kinds = append(kinds, a.GetKind())
			}
		}
		lines = append(lines, strings.TrimSuffix(line+": "+strings.Join(kinds, " "), ": "))
	}
	return lines
}

// TestExplainChange explains each kind of change of a group with two healthy instances. It compares the plan with the
// expected one, and checks that nothing has changed.
func TestExplainChange(t *testing.T) {
	text := strings.Replace(document(""), `"static": {"template": "worker", "size": 0}`,
		`"static": {"template": "worker", "size": 0}, "gone": {"template": "worker", "size": 0}`, 1)
	w := newTestShardOf(t, text)
	ids := w.grow(t, "fleet", 2)
	for _, id := range ids {
		w.register(t, id, shardstate.Report{Healthy: true})
	}
	w.list(t)
	mustSet := func(request *nstancev1.UpsertGroupRequest) {
		t.Helper()
		if _, err := w.UpsertGroup(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	pin := false
	mustSet(&nstancev1.UpsertGroupRequest{Group: "static", Patch: `{"instance_type": "large"}`, Pin: &pin})
	contents := func() string {
		groups, _, _, err := w.state.ReadGroups(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(groups)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range w.leader.State.Instances("prod", "") {
			text = fmt.Appendf(text, "\n%s %s", i.Record.ID, i.Record.State)
		}
		return string(text)
	}
	before := contents()
	for name, test := range map[string]struct {
		request proto.Message
		want    []string
	}{
		"smaller":     {upsertOf("fleet", `{"size": 0}`), []string{"fleet 2 > fleet 0: mark_deleting mark_deleting"}},
		"larger":      {upsertOf("fleet", `{"size": 4}`), []string{"fleet 2 > fleet 4: create create"}},
		"the same":    {upsertOf("fleet", `{"size": 2}`), []string{"fleet 2 > fleet 2"}},
		"a new group": {upsertOf("new", `{"template": "worker", "size": 1}`), []string{"new 1: create"}},
		"another type": {upsertOf("fleet", `{"instance_type": "large"}`),
			[]string{"fleet 2 > fleet 2, 2 outdated: create"}},
		"reset": {upsertOf("static", `{"instance_type": null}`), []string{"static 0 > static 0"}},
		"deletion": {&nstancev1.DeleteGroupRequest{Group: "fleet"},
			[]string{"fleet 2 > fleet 0: mark_deleting mark_deleting"}},
		"roll":   {&nstancev1.RollGroupRequest{Group: "fleet"}, []string{"fleet 2 > fleet 2, 2 outdated: create"}},
		"pause":  {&nstancev1.PauseGroupRequest{Group: "fleet"}, []string{"fleet 2 > fleet 2"}},
		"resume": {&nstancev1.ResumeGroupRequest{Group: "fleet"}, []string{"fleet 2 > fleet 2"}},
		"an instance": {&nstancev1.DeleteInstanceRequest{InstanceId: ids[0].String()},
			[]string{"fleet 2 > fleet 2: create drain"}},
		"an instance and its place": {&nstancev1.DeleteInstanceRequest{InstanceId: ids[0].String(), Decrement: true},
			[]string{"fleet 2 > fleet 1: drain"}},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := w.ExplainChange(t.Context(), changeOf(test.request))
			if got := planned(answer); err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
	t.Run("a configuration", func(t *testing.T) {
		next := strings.Replace(strings.Replace(text, `"size": 0}, "gone": {"template": "worker", "size": 0}`,
			`"size": 3}`, 1), `"instance_type": "small"`, `"instance_type": "medium"`, 1)
		answer, err := w.ExplainChange(t.Context(), &nstancev1.ExplainChangeRequest{
			Change: &nstancev1.ExplainChangeRequest_Configuration{Configuration: []byte(next)}})
		want := []string{"fleet 2 > fleet 2, 2 outdated: create", "gone 0 > removed",
			"static 0 > static 3: create create create"}
		if got := planned(answer); err != nil || !slices.Equal(got, want) || answer.GetRestarting() {
			t.Errorf("got %q, %v, want %q", got, answer, want)
		}
		after := answer.GetGroups()[len(answer.GetGroups())-1].GetAfter()
		if n := len(after.GetOverrides()); n != 0 {
			t.Errorf("%d overrides, want that the other type in the configuration ends the one: %v", n, after)
		}
		answer, err = w.ExplainChange(t.Context(), &nstancev1.ExplainChangeRequest{
			Change: &nstancev1.ExplainChangeRequest_Configuration{Configuration: []byte("{}")}})
		if err != nil || len(answer.GetProblems()) == 0 || len(answer.GetGroups()) > 0 {
			t.Errorf("an invalid one: %v, %v", answer, err)
		}
	})
	admin := w.as(t, "ada", record.RoleAdmin)
	for name, test := range map[string]struct {
		request *nstancev1.ExplainChangeRequest
		code    codes.Code
		want    string
	}{
		"nothing":  {&nstancev1.ExplainChangeRequest{}, codes.InvalidArgument, "change: is missing"},
		"no group": {changeOf(&nstancev1.RollGroupRequest{Group: "nobody"}), codes.NotFound, "nobody"},
		"no instance": {changeOf(&nstancev1.DeleteInstanceRequest{InstanceId: w.NewID(t, "knd").String()}),
			codes.NotFound, "instance_id"},
		"a static group": {changeOf(upsertOf("static", `{"template": "quick"}`)), codes.FailedPrecondition, "template"},
		"not preserved": {changeOf(&nstancev1.ReleaseInstanceRequest{InstanceId: ids[0].String()}),
			codes.FailedPrecondition, "not preserved"},
		"no orphans": {changeOf(&nstancev1.ConfirmOrphansRequest{}), codes.FailedPrecondition, "no orphans"},
	} {
		_, err := admin.ExplainChange(t.Context(), test.request)
		wants(t, name, err, test.code, test.want)
	}
	viewer := w.as(t, "vera", record.RoleViewer)
	_, err := viewer.ExplainChange(t.Context(), changeOf(&nstancev1.RollGroupRequest{Group: "fleet"}))
	wants(t, "a viewer", err, codes.PermissionDenied, "RollGroup needs the role operator")
	answer, err := admin.ExplainChange(t.Context(), changeOf(&nstancev1.StepDownRequest{}))
	if err != nil || answer.GetStepDown().GetHeirId() != "two" || w.steppedDown.Load() {
		t.Errorf("stepping down: %v, %v", answer, err)
	}
	if after := contents(); after != before {
		t.Errorf("something has changed:\n%s\n%s", before, after)
	}
	happened := w.listed(t, &nstancev1.EventFilter{Kinds: []string{"group_changed", "group_deleted",
		"deletion_requested", "leader_steps_down", "instance_pending_deletion"}}, 2)
	if len(happened) != 2 {
		t.Errorf("the journal has %q, want the two changes of this test only", happened)
	}
	if _, err := w.store.Get(t.Context(), keys.Rollout("a", "prod", "fleet")); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("a rollout was stored: %v", err)
	}
}
