package operatorapi

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

func TestParsePatchRefuses(t *testing.T) {
	for field, reqs := range map[string][]*nstancev1.UpsertGroupRequest{
		"group":         {{Group: ""}, {Group: "Upper"}, {Group: strings.Repeat("x", 33)}},
		"expected_etag": {{ExpectedEtag: "\xff"}},
		"must_create":   {{MustCreate: true, MustExist: true}, {MustCreate: true, ExpectedEtag: "x"}},
		"patch": {{}, {Patch: "{"}, {Patch: "null"}, {Patch: "[]"}, {Patch: `"x"`}, {Patch: "{} {}"}, {Patch: " "},
			{Patch: "{\"a\": \"\xff\"}"}, {Patch: strings.Repeat("[", 1000)}, {Patch: `{"template": "` +
				strings.Repeat("x", config.MaxPatch) + `"}`}},
		"size":             {{Patch: `{"size": "3"}`}, {Patch: `{"size": 1e9}`}, {Patch: `{"size": 1.5}`}},
		"max_unhealth":     {{Patch: `{"max_unhealth": "3"}`}, {Patch: `{"max_unhealth": null}`}},
		"rollout.canry":    {{Patch: `{"rollout": {"canry": 1}}`}},
		"instance_type":    {{Patch: `{"instance_type": "a\u0000"}`}},
		"instance_types":   {{Patch: `{"instance_types": ["a\nb"]}`}, {Patch: `{"instance_types": "a"}`}},
		"removed":          {{Patch: `{"removed": ["x"]}`}},
		"deleted":          {{Patch: `{"deleted": true}`}},
		"vars.a":           {{Patch: `{"vars": {"a": 1}}`}},
		"args.a.b":         {{Patch: `{"args": {"a": {"b": 1, "b": 2}}}`}},
		"args.a":           {{Patch: `{"args": {"a": 123456789012345678}}`}},
		"drain_timeout":    {{Patch: `{"drain_timeout": 60}`}},
		"schedules[0].crn": {{Patch: `{"schedules": [{"crn": "0 7 * * *"}]}`}},
	} {
		for i, req := range reqs {
			if field != "group" {
				req.Group = "g"
			}
			if req.GetPatch() == "" && field != "patch" {
				req.Patch = `{"size": 1}`
			}
			_, err := parsePatch(req)
			if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), field+
				": ") {
				t.Errorf("%s %d: %v", field, i, err)
			}
		}
	}
}

// FuzzPatch checks that a request is either accepted, or rejected in few words. An accepted group can be written and
// read again.
func FuzzPatch(f *testing.F) {
	for _, text := range []string{`{"size": 3, "template": "t", "args": {"a": [1, {"b": null}]}}`,
		`{"vars": {"a": "b", "c": null}, "drain_timeout": "1h", "args": {"a": 1e400}}`,
		`{"schedules": [{"cron": "0 7 * * *", "size": 1}], "rollout": {"canary": null}}`, `{"size": 3, // a comment
		}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		patch, err := parsePatch(&nstancev1.UpsertGroupRequest{Group: "g", Patch: text})
		if err != nil {
			if message := status.Convert(err).Message(); status.Code(err) != codes.InvalidArgument ||
				!strings.Contains(message, ": ") || !utf8.ValidString(message) {
				t.Fatalf("%q", err)
			}
			return
		}
		spec, err := patch.Apply(config.GroupSpec{})
		if err != nil {
			return // null in a list, for example
		}
		patch.Restricted()
		groups := config.Groups{Term: 1, Revision: 1,
			Tenants: map[string]map[string]config.GroupSpec{"prod": {"g": spec}}}
		read, problems := config.ParseGroups("", config.EncodeGroups(groups))
		if len(problems.Errors()) == 0 {
			if diff := cmp.Diff(config.EncodeGroups(groups), config.EncodeGroups(read)); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func TestHealthMessages(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	base := shardstate.InstanceView{
		Record:   record.Instance{State: record.Registered, RegisteredAt: now.Add(-time.Hour)},
		Plan:     plan.Instance{Healthy: true, Connected: true, LastReport: now.Add(-time.Minute)},
		Report:   shardstate.Report{Message: "said so"},
		Settings: plan.Settings{HealthInterval: time.Minute},
	}
	for name, test := range map[string]struct {
		change         func(*shardstate.InstanceView)
		state, message string
	}{
		"healthy":      {func(*shardstate.InstanceView) {}, "healthy", "said so"},
		"unhealthy":    {func(v *shardstate.InstanceView) { v.Plan.Healthy = false }, "unhealthy", "said so"},
		"unregistered": {func(v *shardstate.InstanceView) { v.Record.RegisteredAt = time.Time{} }, "unregistered", ""},
		"refused": {func(v *shardstate.InstanceView) {
			v.Record.RegisteredAt, v.Plan.Refused = time.Time{}, "nonce: expired"
		}, "unregistered", "its agent was last refused: nonce: expired"},
		"silent and refused": {func(v *shardstate.InstanceView) {
			v.Plan.LastReport, v.Plan.Refused = now.Add(-4*time.Minute), "another key"
		}, "silent", "reports are missing; its agent was last refused: another key"},
		"deleted":   {func(v *shardstate.InstanceView) { v.Record.State = record.Deleted }, "unknown", ""},
		"not heard": {func(v *shardstate.InstanceView) { v.Plan.LastReport = time.Time{} }, "unknown", ""},
		"lost": {func(v *shardstate.InstanceView) {
			v.Plan.Connected, v.Plan.LostAt = false, now
		}, "silent", "its stream was lost"},
		"silent": {func(v *shardstate.InstanceView) {
			v.Plan.LastReport = now.Add(-4 * time.Minute)
		}, "silent", "reports are missing"},
		"late": {func(v *shardstate.InstanceView) {
			v.Plan.LastReport = now.Add(-3 * time.Minute)
		}, "healthy", "said so"},
		"power off": {func(v *shardstate.InstanceView) {
			v.Plan.PowerOffAt = now
			v.Plan.Connected, v.Plan.LostAt = false, now
		}, "stopping", "the machine powers off"},
		"reboot": {func(v *shardstate.InstanceView) {
			v.Plan.RestartingAt, v.Plan.Reboot = now, true
		}, "stopping", "the machine reboots"},
		"restart": {func(v *shardstate.InstanceView) {
			v.Plan.RestartingAt = now
		}, "stopping", "the agent restarts"},
		"notice": {func(v *shardstate.InstanceView) { v.Plan.Notice = true }, "healthy", "termination notice"},
		"maintenance": {func(v *shardstate.InstanceView) {
			v.Plan.Recommended, v.Plan.Maintenance, v.Plan.MaintenanceAt = true, "system-reboot", now
		}, "healthy", "the cloud recommends replacing its VM; the cloud has announced maintenance of its VM " +
			"(system-reboot) for " + now.UTC().Format(time.RFC3339) + "; said so"},
		"failing check": {func(v *shardstate.InstanceView) {
			v.Plan.Healthy, v.Plan.FailedCheck = false, "web: status 503, want 200"
		}, "unhealthy", "health check web: status 503, want 200"},
		"pending check": {func(v *shardstate.InstanceView) {
			v.Plan.Healthy, v.Report.Healthy, v.Plan.ChecksPending = false, true, true
		}, "unhealthy", "its health checks have not passed yet"},
		"worse notice": {func(v *shardstate.InstanceView) {
			v.Plan.Notice, v.Plan.Healthy = true, false
		}, "unhealthy", "termination notice"},
	} {
		v := base
		test.change(&v)
		if state, message := health(v, now); state != test.state || message != test.message {
			t.Errorf("%s: %s, %q", name, state, message)
		}
	}
}

func TestProviderStates(t *testing.T) {
	for _, test := range []struct {
		state record.State
		vm    infra.State
		plan  plan.ProviderState
		want  infra.State
	}{
		{record.Created, infra.Running, plan.ProviderRunning, infra.Running},
		{record.Created, "", plan.ProviderUnknown, infra.Unknown},
		{record.Deleting, infra.Running, plan.ProviderGone, infra.Deleted},
		{record.Deleted, infra.Running, plan.ProviderUnknown, infra.Deleted},
		{record.Registered, infra.Stopping, plan.ProviderGoing, infra.Stopping},
	} {
		v := shardstate.InstanceView{Record: record.Instance{State: test.state}, VM: infra.VM{State: test.vm}}
		v.Plan.Provider.Value = test.plan
		if got := providerState(v); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

// TestCoalescingKeepsDrainEvents checks that a slow reader still receives the start of a drain. Later events of the
// same deletion must not replace it.
func TestCoalescingKeepsDrainEvents(t *testing.T) {
	events := NewEvents()
	sub := events.instances.Subscribe(10, nil)
	for _, drain := range []bool{false, true, false, true, false} {
		events.Instance(shardstate.InstanceEvent{Type: shardstate.EventPendingDeletion, Tenant: "prod", Drain: drain})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var got []bool
	for event, err := sub.Next(over); err == nil; event, err = sub.Next(over) {
		got = append(got, event.Drain)
	}
	if diff := cmp.Diff([]bool{false, true}, got); diff != "" {
		t.Error(diff)
	}
}

// Every event type has a separate type in the protocol.
func TestInstanceEventTypes(t *testing.T) {
	seen := map[nstancev1.InstanceEvent_Type]shardstate.InstanceEventType{}
	for _, what := range []shardstate.InstanceEventType{shardstate.EventCreating, shardstate.EventCreated,
		shardstate.EventRegistered, shardstate.EventHealthy, shardstate.EventUnhealthy, shardstate.EventLost,
		shardstate.EventNotice, shardstate.EventPendingDeletion, shardstate.EventDeleted, shardstate.EventFilesPushed,
		shardstate.EventFlaps, shardstate.EventDrainHook, shardstate.EventRecommendation, shardstate.EventMaintenance,
		shardstate.EventPreserved, shardstate.EventPromoted, shardstate.EventAsleep} {
		typ := eventType(what)
		if other, ok := seen[typ]; ok || typ == nstancev1.InstanceEvent_TYPE_UNSPECIFIED ||
			typ == nstancev1.InstanceEvent_TYPE_SNAPSHOT_END {
			t.Errorf("%s and %s are %s", what, other, typ)
		}
		seen[typ] = what
	}
	if want := len(nstancev1.InstanceEvent_Type_name) - 2; len(seen) != want {
		t.Errorf("%d of %d types are sent", len(seen), want)
	}
}
