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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

func many(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strings.Repeat("x", i%7+1)
	}
	return out
}

func TestParseUpsertRefuses(t *testing.T) {
	for field, reqs := range map[string][]*nstancev1.UpsertGroupRequest{
		"group":         {{Group: ""}, {Group: "Upper"}, {Group: strings.Repeat("x", 33)}},
		"size":          {{Size: proto.Uint32(maxSize + 1)}, {Size: proto.Uint32(1<<32 - 1)}},
		"max_surge":     {{MaxSurge: proto.Uint32(maxSize + 1)}},
		"template":      {{Template: "a b"}, {Template: strings.Repeat("x", 33)}},
		"subnet_pool":   {{SubnetPool: "a/b"}},
		"instance_type": {{InstanceType: "a\x00"}, {InstanceType: strings.Repeat("x", maxWord+1)}},
		"max_unhealthy": {{MaxUnhealthy: strings.Repeat("9", maxWord+1)}},
		"expected_etag": {{ExpectedEtag: "\xff"}},
		"instance_types": {{InstanceTypes: []string{""}}, {InstanceTypes: many(maxList + 1)},
			{InstanceTypes: []string{"a\nb"}}},
		"load_balancers": {{LoadBalancers: []string{"ok", ""}}, {LoadBalancers: many(maxList + 1)}},
		"set_vars":       {{Vars: map[string]string{"a": "b"}}},
		"vars": {{SetVars: true, Vars: map[string]string{"": "b"}}, {SetVars: true,
			Vars: map[string]string{"a": strings.Repeat("x", maxVarsSize)}},
			{SetVars: true, Vars: map[string]string{strings.Repeat("a", maxWord+1): ""}}},
		"args_json": {{ArgsJson: "{"}, {ArgsJson: "null"}, {ArgsJson: "[]"}, {ArgsJson: `"x"`}, {ArgsJson: "{} {}"},
			{ArgsJson: "{}}}, \"u\": {"}, {ArgsJson: " "},
			{ArgsJson: "{} // a comment"}, {ArgsJson: `{"a": 1,}`}, {ArgsJson: strings.Repeat(`{"a":`, 40) + "1" +
				strings.Repeat("}", 40)},
			{ArgsJson: `{"a": "` + strings.Repeat("x", maxArgs) + `"}`}, {ArgsJson: `{"a": {"b": 1, "b": 2}}`},
			{ArgsJson: `{"a": 123456789012345678}`},
			{ArgsJson: "{\"a\": \"\xff\"}"}, {ArgsJson: strings.Repeat("[", 1000)}},
		"must_create": {{MustCreate: true, MustExist: true}, {MustCreate: true, ExpectedEtag: "x"}},
		"clear_fields": {{ClearFields: []string{"template"}}, {ClearFields: []string{"nosuch"}},
			{ClearFields: []string{"size"}, Size: proto.Uint32(0)},
			{ClearFields: []string{"vars"}, SetVars: true}, {ClearFields: []string{"args_json"}, ArgsJson: "{}"},
			{ClearFields: make([]string, maxList+1)}},
		"drain_timeout": {{DrainTimeout: durationpb.New(-time.Second)}, {DrainTimeout: durationpb.New(maxDrain + 1)},
			{DrainTimeout: &durationpb.Duration{Nanos: 1 << 30}}},
	} {
		for i, req := range reqs {
			if field != "group" {
				req.Group = "g"
			}
			_, err := parseUpsert(req)
			if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), field+
				": ") {
				t.Errorf("%s %d: %v", field, i, err)
			}
		}
	}
}

func TestUpsertSetsOnlyWhatIsSet(t *testing.T) {
	three, surge, drain := 3, 2, config.Duration(time.Minute)
	full := config.GroupSpec{Template: "t", Size: &three, InstanceType: "i", InstanceTypes: []string{"j"},
		SubnetPool: "p", Vars: map[string]string{"a": "b"},
		Args: map[string]any{"x": 1.0}, LoadBalancers: []string{"l"}, DrainTimeout: &drain, MaxSurge: &surge,
		MaxUnhealthy: "3"}
	apply := func(req *nstancev1.UpsertGroupRequest, to config.GroupSpec) config.GroupSpec {
		t.Helper()
		req.Group = "g"
		u, err := parseUpsert(req)
		if err != nil {
			t.Fatal(err)
		}
		u.apply(&to)
		return to
	}
	if diff := cmp.Diff(full, apply(&nstancev1.UpsertGroupRequest{}, full)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(full, apply(&nstancev1.UpsertGroupRequest{Template: "t", Size: proto.Uint32(3),
		InstanceType: "i", InstanceTypes: []string{"j"},
		SubnetPool: "p", SetVars: true, Vars: map[string]string{"a": "b"}, ArgsJson: ` {"x": 1} `,
		LoadBalancers: []string{"l"},
		DrainTimeout:  durationpb.New(time.Minute), MaxSurge: proto.Uint32(2), MaxUnhealthy: "3"},
		config.GroupSpec{})); diff != "" {
		t.Error(diff)
	}
	zero, none := 0, config.Duration(0)
	empty := full
	empty.Size, empty.Vars, empty.Args, empty.DrainTimeout = &zero, nil, nil, &none
	if diff := cmp.Diff(empty, apply(&nstancev1.UpsertGroupRequest{Size: proto.Uint32(0), SetVars: true, ArgsJson: "{}",
		DrainTimeout: durationpb.New(0)}, full)); diff != "" {
		t.Error(diff)
	}
}

// FuzzUpsert checks that a request is either within the limits, or rejected with the name of a field. An accepted group
// can be written and read again.
func FuzzUpsert(f *testing.F) {
	for _, req := range []*nstancev1.UpsertGroupRequest{
		{Group: "g", Size: proto.Uint32(3), Template: "t", ArgsJson: `{"a": [1, {"b": null}]}`},
		{Group: "g", SetVars: true, Vars: map[string]string{"a": "b"}, DrainTimeout: durationpb.New(time.Hour),
			ArgsJson: `{"a": 1e400}`},
		{Group: "g", ArgsJson: `{}}}, "x": {`, InstanceTypes: []string{"a"}, MaxUnhealthy: "40%",
			MaxSurge: proto.Uint32(1)},
		{Group: "g", ArgsJson: `{"a": 123456789012345678}`, ExpectedEtag: "e", MustExist: true},
	} {
		text, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		req := new(nstancev1.UpsertGroupRequest)
		if proto.Unmarshal(text, req) != nil {
			return
		}
		u, err := parseUpsert(req)
		if err != nil {
			if message := status.Convert(err).Message(); status.Code(err) != codes.InvalidArgument ||
				!strings.Contains(message, ": ") || len(message) > 2000 || !utf8.ValidString(message) {
				t.Fatalf("%q", err)
			}
			return
		}
		var spec config.GroupSpec
		u.apply(&spec)
		if spec.Size != nil && (*spec.Size < 0 || *spec.Size > maxSize) || spec.MaxSurge != nil && *spec.MaxSurge < 0 ||
			spec.DrainTimeout.D() < 0 {
			t.Fatalf("%+v", spec)
		}
		u.restricted()
		groups := config.Groups{Term: 1, Revision: 1, Tenants: map[string]map[string]config.GroupSpec{
			"prod": {req.GetGroup(): spec}}}
		read, problems := config.ParseGroups("", config.EncodeGroups(groups))
		for _, p := range problems.Errors() {
			// ParseGroups does not know the shard's configuration. Without the configuration, it cannot check the
			// values of these fields.
			if !strings.Contains(p.Path, "max_unhealthy") && !strings.Contains(p.Path, "max_surge") &&
				!strings.Contains(p.Path, "instance_types") &&
				!strings.Contains(p.Path, "load_balancers") && !strings.Contains(p.Path, "vars") {
				t.Fatalf("%v", problems)
			}
		}
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
		change        func(*shardstate.InstanceView)
		word, message string
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
		if word, message := health(v, now); word != test.word || message != test.message {
			t.Errorf("%s: %s, %q", name, word, message)
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
	for what, typ := range instanceEventTypes {
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
