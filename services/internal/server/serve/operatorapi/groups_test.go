package operatorapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

func (f *testShard) group(t testing.TB, name string) *nstancev1.GroupStatus {
	t.Helper()
	answer, err := f.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range answer.GetGroups() {
		if g.GetGroup() == name {
			return g
		}
	}
	return nil
}

func settingsOf(g *nstancev1.GroupStatus) config.GroupSpec {
	return config.ReadSettings(g.GetMergedJson())
}

func TestUpsertGroupMakesVMs(t *testing.T) {
	w := newTestShard(t)
	answer, err := w.UpsertGroup(t.Context(), upsertOf("fleet", `{"template": "worker", "size": 0, "vars": {"role": "db"}, "args": {"Deep": {"B": 2}}, "drain_timeout": "1m", "max_surge": 2, "max_unhealthy": "3", "instance_types": ["large"]}`))
	if err != nil {
		t.Fatal(err)
	}
	g := answer.GetGroup()
	if g.GetIsStatic() || !g.GetOverridden() || g.GetSize() != 0 ||
		g.GetKind() != "knd" || g.GetArch() != "arm64" ||
		g.GetEtag() == "" || g.GetInfraHash() == "" || g.GetRuntimeHash() == "" {
		t.Errorf("%v", g)
	}
	settings, problems := config.ParsePatch("", []byte(g.GetMergedJson()))
	spec, err := settings.Apply(config.GroupSpec{})
	if len(problems) > 0 || err != nil || *spec.MaxSurge != 2 || spec.MaxUnhealthy != "3" ||
		spec.DrainTimeout.D() != time.Minute || spec.InstanceType != "small" ||
		spec.Template != "worker" || spec.SubnetPool != "p" ||
		!slices.Equal(spec.InstanceTypes, []string{"large"}) ||
		!strings.Contains(g.GetMergedJson(), `"args":{"Deep":{"A":1,"B":2},"Label":"{{ .Vars.role }}"}`) {
		t.Errorf("%s: %v, %v", g.GetMergedJson(), problems, err)
	}
	if diff := cmp.Diff([]string{"disruption", "load_balancers", "preserve", "purchase", "rollout", "scaling",
		"schedules", "spares"},
		g.GetDefaults()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"role": "db"}, spec.Vars); diff != "" {
		t.Error(diff)
	}

	events := live(t, w)
	if _, err := w.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "fleet", Patch: `{"size": 3}`,
		MustExist: true, ExpectedEtag: g.GetEtag()}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		events.await("creation", ofType(nstancev1.InstanceEvent_TYPE_CREATED))
	}
	if n := w.provider.Count(mock.Create); n != 3 {
		t.Errorf("%d create calls", n)
	}
	now := w.group(t, "fleet")
	if now.GetActualSize() != 3 || now.GetHealthy() != 0 || len(now.GetProviderIds()) != 3 ||
		len(now.GetInstanceIds()) != 3 || now.GetEtag() == g.GetEtag() {
		t.Errorf("%v", now)
	}
	// Only the size has changed.
	now.Size, now.ActualSize, now.ProviderIds, now.InstanceIds, now.Etag, now.SpecJson = 0, 0, nil, nil, g.GetEtag(),
		g.GetSpecJson()
	now.Wait = nil
	now.MergedJson = strings.Replace(now.GetMergedJson(), `"size":3`, `"size":0`, 1)
	if diff := cmp.Diff(g, now, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	// The bucket contains the group with the values that the requests set.
	groups, _, _, err := w.state.ReadGroups(t.Context())
	if spec := groups.Tenants["prod"]["fleet"]; err != nil || *spec.Size != 3 || spec.Vars["role"] != "db" ||
		groups.Term != 3 {
		t.Errorf("%+v, %v", groups, err)
	}
}

// TestOwnValuesAreRemoved checks that a group's own values are stored apart from those of its template, and that null
// removes them.
func TestOwnValuesAreRemoved(t *testing.T) {
	w := newTestShard(t)
	before, err := w.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "fleet",
		Patch: `{"template": "worker"}`, MustCreate: true})
	if err != nil {
		t.Fatal(err)
	}
	all := upsertOf("fleet", `{"size": 0, "instance_type": "large", "instance_types": ["huge"], "subnet_pool": "p", "vars": {"role": "db"}, "args": {"Own": 1}, "drain_timeout": "1m", "max_surge": 2, "max_unhealthy": "3"}`)
	answer, err := w.UpsertGroup(t.Context(), all)
	const spec = `{"template":"worker","size":0,"instance_type":"large","instance_types":["huge"],"subnet_pool":"p","vars":{"role":"db"},"args":{"Own":1},` +
		`"drain_timeout":"1m","max_surge":2,"max_unhealthy":"3"}`
	if g := answer.GetGroup(); err != nil || g.GetSpecJson() != spec {
		t.Errorf("%s, %v", g.GetSpecJson(), err)
	}
	answer, err = w.UpsertGroup(t.Context(), upsertOf("fleet", `{"size": null, "instance_type": null, "instance_types": null, "subnet_pool": null, "vars": null, "args": null, "load_balancers": null, "drain_timeout": null, "max_surge": null, "max_unhealthy": null}`))
	if g := answer.GetGroup(); err != nil || g.GetSpecJson() != `{"template":"worker"}` ||
		g.GetEtag() != before.GetGroup().GetEtag() {
		t.Errorf("%v, %v", g, err)
	}
	if g := w.group(t, "static"); g.GetSpecJson() != "" {
		t.Errorf("%v", g)
	}
	_, err = w.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "fleet", Patch: `{"template": "worker"}`,
		MustCreate: true})
	wants(t, "create again", err, codes.AlreadyExists, "group: ", "fleet")
	_, err = w.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "static", Patch: `{"size": 1}`,
		MustCreate: true})
	wants(t, "create a static group", err, codes.AlreadyExists, "group: ", "static")
}

func TestUpsertStaticGroup(t *testing.T) {
	w := newTestShard(t)
	before := w.group(t, "static")
	if !before.GetIsStatic() || before.GetOverridden() {
		t.Errorf("%v", before)
	}
	_, err := w.UpsertGroup(t.Context(), upsertOf("static", `{"template": "quick", "subnet_pool": "p", "instance_types": ["x"], "args": {"a": 1}, "load_balancers": ["lb"], "drain_timeout": "0s", "max_surge": 1, "max_unhealthy": "1", "size": 1}`))
	wants(t, "restricted fields", err, codes.FailedPrecondition,
		"args, drain_timeout, instance_types, load_balancers, max_surge, max_unhealthy, subnet_pool, template:",
		"static", "size, instance_type, vars")
	if now := w.group(t, "static"); now.GetEtag() != before.GetEtag() {
		t.Errorf("changed: %v", now)
	}
	answer, err := w.UpsertGroup(t.Context(), upsertOf("static", `{"instance_type": "large", "vars": {"x": "y"}}`))
	if g := answer.GetGroup(); err != nil || !g.GetIsStatic() || !g.GetOverridden() ||
		settingsOf(g).InstanceType != "large" || settingsOf(g).Vars["x"] != "y" ||
		settingsOf(g).Vars["role"] != "worker" {
		t.Errorf("%v, %v", g, err)
	}
	deleted, err := w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "static"})
	if err != nil || !deleted.GetRestoredStatic() {
		t.Errorf("%v, %v", deleted, err)
	}
	if now := w.group(t, "static"); now.GetEtag() != before.GetEtag() || now.GetOverridden() {
		t.Errorf("not restored: %v", now)
	}
	_, err = w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "static"})
	wants(t, "delete a static group", err, codes.FailedPrecondition, "group: static is static")
}

func TestUpsertGroupRefusals(t *testing.T) {
	w := newTestShard(t)
	etag := w.scale(t, "fleet", 0).GetEtag()
	w.scale(t, "fleet", 0) // an equal change does nothing
	if now := w.group(t, "fleet").GetEtag(); now != etag {
		t.Errorf("ETag %s after %s although nothing changed", now, etag)
	}
	for name, test := range map[string]struct {
		req   *nstancev1.UpsertGroupRequest
		code  codes.Code
		parts []string
	}{
		"no name":  {&nstancev1.UpsertGroupRequest{}, codes.InvalidArgument, []string{"group: "}},
		"bad name": {&nstancev1.UpsertGroupRequest{Group: "a--b"}, codes.InvalidArgument, []string{"group: "}},
		"no template": {upsertOf("new", `{"size": 1}`), codes.InvalidArgument,
			[]string{"template: is required"}},
		"which template": {upsertOf("new", `{"template": "workr"}`), codes.InvalidArgument,
			[]string{"template: ", `did you mean "worker"?`}},
		"which pool": {upsertOf("fleet", `{"subnet_pool": "q"}`), codes.PermissionDenied,
			[]string{"subnet_pool: "}},
		"which balancer": {upsertOf("fleet", `{"load_balancers": ["lb"]}`),
			codes.PermissionDenied, []string{"load_balancers[0]: "}},
		"two at once": {upsertOf("fleet", `{"max_surge": 0, "max_unhealthy": "many"}`),
			codes.InvalidArgument,
			[]string{"max_surge: ", "max_unhealthy: "}},
		"no surge": {upsertOf("fleet", `{"max_surge": 0}`),
			codes.InvalidArgument, []string{"max_surge: "}},
		"bad rendering": {upsertOf("fleet", `{"args": {"a": ["{{ .Vars.none }}"]}}`),
			codes.InvalidArgument, []string{"args.a[0]: "}},
		"must exist": {&nstancev1.UpsertGroupRequest{Group: "new", Patch: `{"template": "worker"}`, MustExist: true},
			codes.NotFound, []string{"group: ", "new"}},
		"etag": {&nstancev1.UpsertGroupRequest{Group: "fleet", Patch: `{"size": 1}`, ExpectedEtag: "old"},
			codes.Aborted, []string{"expected_etag: "}},
		"etag of none": {&nstancev1.UpsertGroupRequest{Group: "new", Patch: `{"template": "worker"}`,
			ExpectedEtag: etag},
			codes.Aborted, []string{"expected_etag: "}},
	} {
		_, err := w.UpsertGroup(t.Context(), test.req)
		wants(t, name, err, test.code, test.parts...)
	}
	_, err := w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "new"})
	wants(t, "delete nothing", err, codes.NotFound, "group: ")
	_, err = w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "fleet", ExpectedEtag: "old"})
	wants(t, "delete another", err, codes.Aborted, "expected_etag: ")
	if g := w.group(t, "fleet"); g.GetEtag() != etag {
		t.Errorf("changed: %v", g)
	}

	w.breakStore(func(r mem.Request) mem.Fault {
		if r.Key == keys.Groups("a") {
			return outOfOrder(r)
		}
		return mem.Fault{}
	})
	_, err = w.UpsertGroup(t.Context(), upsertOf("fleet", `{"size": 1}`))
	wants(t, "storage", err, codes.Unavailable, "out of order")
	_, err = w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "fleet"})
	wants(t, "storage", err, codes.Unavailable, "out of order")
	if g := w.group(t, "fleet"); g.GetEtag() != etag || g.GetDeleting() {
		t.Errorf("changed: %v", g)
	}
}

// TestUpsertGroupChecksTheArgumentsOfTheCloud sends a shard on AWS arguments that EC2 does not know.
func TestUpsertGroupChecksTheArgumentsOfTheCloud(t *testing.T) {
	text := strings.NewReplacer(
		`"kind": "mock", "region": "r", "zone": "z"`, `"kind": "aws", "region": "us-east-1", "zone": "us-east-1a"`,
		`"args": {"Label": "{{ .Vars.role }}", "Deep": {"A": 1}}`, `"args": {"ImageId": "ami-0", "EbsOptimized": true}`,
		`"/Deep/B", "/Own", "/a"`, `"/ImagId", "/ImageId"`,
	).Replace(document(""))
	w := newTestShardOf(t, text)
	_, err := w.UpsertGroup(t.Context(), upsertOf("new", `{"template": "worker", "args": {"ImagId": "ami-1"}}`))
	wants(t, "unknown argument", err, codes.InvalidArgument, "args.ImagId: ", `did you mean "ImageId"?`)
	if _, err := w.UpsertGroup(t.Context(), upsertOf("new", `{"template": "worker", "args": {"ImageId": "ami-1"}}`)); err != nil {
		t.Error(err)
	}
}

// TestConditionalChangesLoseNothing checks that an ETag is refused if another caller has changed any part of the group
// since the ETag was read.
func TestConditionalChangesLoseNothing(t *testing.T) {
	w := newTestShard(t)
	ctx := t.Context()
	id := w.grow(t, "fleet", 1)[0].String()
	upsert := func(req *nstancev1.UpsertGroupRequest) func() error {
		req.Group = "fleet"
		return func() error {
			_, err := w.UpsertGroup(ctx, req)
			return err
		}
	}
	for name, change := range map[string]func() error{
		"pause": func() error {
			_, err := w.PauseGroup(ctx, &nstancev1.PauseGroupRequest{Group: "fleet"})
			return err
		},
		"rollout":          upsert(&nstancev1.UpsertGroupRequest{Patch: `{"rollout": {"canary": 2}}`}),
		"windows":          upsert(&nstancev1.UpsertGroupRequest{Patch: `{"disruption": {"windows": ["Mon-Fri 09:00-17:00 Europe/Berlin"]}}`}),
		"zone of a window": upsert(&nstancev1.UpsertGroupRequest{Patch: `{"disruption": {"windows": ["Mon-Fri 09:00-17:00 Europe/London"]}}`}),
		"limit per hour":   upsert(&nstancev1.UpsertGroupRequest{Patch: `{"disruption": {"max_per_hour": 3}}`}),
		"schedules":        upsert(&nstancev1.UpsertGroupRequest{Patch: `{"schedules": [{"cron": "0 7 * * Mon-Fri", "size": 1}]}`}),
		"protection": func() error {
			_, err := w.ProtectInstance(ctx, &nstancev1.ProtectInstanceRequest{InstanceId: id})
			return err
		},
	} {
		before := w.group(t, "fleet").GetEtag()
		if err := change(); err != nil {
			t.Fatal(name, err)
		}
		_, err := w.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: "fleet",
			Patch: `{"rollout": {"bake_time": "5m"}}`, ExpectedEtag: before})
		wants(t, "change after "+name, err, codes.Aborted, "read it again")
		_, err = w.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Group: "fleet", ExpectedEtag: before})
		wants(t, "deletion after "+name, err, codes.Aborted, "read it again")
	}
}

// The bucket stores a change, but the answer of the bucket is lost. The client still gets a group with the current
// ETag.
func TestUpsertGroupAfterALostAnswer(t *testing.T) {
	w := newTestShard(t)
	w.breakStore(func(r mem.Request) mem.Fault {
		return mem.Fault{Lost: r.Op == mem.Put && r.Key == keys.Groups("a")}
	})
	g := w.scale(t, "fleet", 0)
	w.breakStore(nil)
	if now := w.group(t, "fleet"); now.GetEtag() != g.GetEtag() {
		t.Errorf("%v", now)
	}
}

func TestDeleteGroupDrainsAndForgets(t *testing.T) {
	w := newTestShard(t)
	ids := w.grow(t, "fleet", 2)
	w.register(t, ids[0], shardstate.Report{Healthy: true})
	events, groups := live(t, w), watchGroups(t, w)
	if _, err := w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "fleet"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		event := events.await("an announced drain", func(e *instanceEvent) bool { return e.GetDrain() })
		if event.GetReason() == "" || event.GetDeadline().AsTime().Sub(w.Clock.Now()) != 5*time.Minute ||
			event.GetRemaining().AsDuration() != 5*time.Minute ||
			!event.GetAt().AsTime().Equal(w.Clock.Now()) {
			t.Errorf("%v", event)
		}
	}
	if g := w.group(t, "fleet"); !g.GetDeleting() || g.GetSize() != 0 || g.GetActualSize() != 0 ||
		len(g.GetInstanceIds()) != 2 {
		t.Errorf("%v", g)
	}
	for _, id := range ids {
		if _, err := w.AcknowledgeDrained(t.Context(), &nstancev1.AcknowledgeDrainedRequest{
			InstanceId: id.String()}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		w.awaitListing(events, "its end", ofType(nstancev1.InstanceEvent_TYPE_DELETED))
	}
	groups.await("the group's end", func(e *groupEvent) bool {
		return e.GetType() == nstancev1.GroupEvent_TYPE_DELETE && e.GetGroup() == "fleet" && e.GetStatus() == nil
	})
	if g := w.group(t, "fleet"); g != nil {
		t.Errorf("%v", g)
	}
	if stored, _, _, err := w.state.ReadGroups(t.Context()); err != nil || len(stored.Tenants) != 0 {
		t.Errorf("%+v, %v", stored, err)
	}
	if left := w.provider.VMs(); len(left) != 0 {
		t.Errorf("%v", left)
	}
}

func TestBlockedReason(t *testing.T) {
	w := newTestShard(t)
	w.provider.SetCapacity(mock.Place{}, 0)
	groups := watchGroups(t, w)
	errors := watchErrors(t, w)
	w.scale(t, "fleet", 1)
	errors.await("the provider's refusal", func(e *errorEvent) bool {
		return e.GetKind() == "provider" && e.GetGroup() == "fleet"
	})
	groups.await("the reason", func(e *groupEvent) bool {
		return e.GetStatus().GetGroup() == "fleet" && strings.Contains(e.GetStatus().GetBlockedReason(), "capacity") &&
			e.GetStatus().GetBlockedSince() != nil
	})
}

// TestExplainGroup checks the explanation of a blocked group: its next action, its errors and its instances. Operators
// of another tenant must not get this explanation.
func TestExplainGroup(t *testing.T) {
	w := newTestShard(t)
	instances := live(t, w)
	w.scale(t, "fleet", 1)
	instances.await("an instance",
		func(e *instanceEvent) bool { return e.GetType() == nstancev1.InstanceEvent_TYPE_CREATED })
	w.leader.State.RaiseError(shardstate.ErrorKey{Kind: "config"}, "of the shard")
	w.leader.State.RaiseError(shardstate.ErrorKey{Kind: "provider", Tenant: "prod", Group: "static"}, "elsewhere")
	w.provider.SetCapacity(mock.Place{}, 0)
	w.scale(t, "fleet", 2)
	var e *nstancev1.ExplainGroupResponse
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		e, err = w.ExplainGroup(t.Context(), &nstancev1.ExplainGroupRequest{Group: "fleet"})
		if err != nil {
			t.Fatal(err)
		}
		if e.GetBlockedReason() != "" && len(e.GetInstances()) == 1 {
			break
		}
	}
	if e.GetDesired() != 2 || e.GetTerm() != 3 || !strings.Contains(e.GetBlockedReason(), "capacity") ||
		e.GetNextPlanAt() == nil {
		t.Errorf("desired %d, term %d, blocked %q, next plan %v: want 2, term 3, the lack of capacity and a time",
			e.GetDesired(), e.GetTerm(), e.GetBlockedReason(), e.GetNextPlanAt())
	}
	if len(e.GetInstances()) != 1 || e.GetInstances()[0].GetRule() != 14 {
		t.Errorf("instances %v: want one of rule 14, unready", e.GetInstances())
	}
	if !slices.ContainsFunc(e.GetErrors(), func(e *errorEvent) bool { return e.GetKind() == "provider" }) {
		t.Errorf("errors %v: want that of the provider", e.GetErrors())
	}
	has := func(message string) bool {
		return slices.ContainsFunc(e.GetErrors(), func(e *errorEvent) bool { return e.GetMessage() == message })
	}
	if !has("of the shard") || has("elsewhere") {
		t.Errorf("errors %v: want those of the group and of the shard", e.GetErrors())
	}
	id := e.GetInstances()[0].GetInstanceId()
	e, err = w.ExplainGroup(t.Context(), &nstancev1.ExplainGroupRequest{InstanceId: id})
	if err != nil || e.GetGroup() != "fleet" || len(e.GetInstances()) != 1 || len(e.GetActions()) != 0 {
		t.Errorf("of instance %s: %v, %v", id, e, err)
	}
	_, err = w.ExplainGroup(t.Context(), &nstancev1.ExplainGroupRequest{Group: "static", InstanceId: id})
	wants(t, "an instance of another group", err, codes.FailedPrecondition, "no rule applies")
	listed, err := w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{Group: "fleet"})
	if err != nil || len(listed.GetGroups()) != 1 || listed.GetGroups()[0].GetGroup() != "fleet" {
		t.Errorf("one group: %v, %v", listed, err)
	}
	_, err = w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{Group: "nobody"})
	wants(t, "no group", err, codes.NotFound, "nobody")
	if _, err := w.PauseGroup(t.Context(), &nstancev1.PauseGroupRequest{Group: "fleet"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.RollGroup(t.Context(), &nstancev1.RollGroupRequest{Group: "fleet"}); err != nil {
		t.Fatal(err)
	}
	e, err = w.ExplainGroup(t.Context(), &nstancev1.ExplainGroupRequest{Group: "fleet"})
	if err != nil || !strings.Contains(e.GetRolloutWaits(), "paused (rule 45)") || e.GetRolloutUntil() != nil {
		t.Errorf("in a paused rollout: %v, %v: want that it waits, without a time", e, err)
	}
	_, err = w.rival(t).ExplainGroup(t.Context(), &nstancev1.ExplainGroupRequest{Group: "fleet"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("another tenant's operator: %v, want NotFound", err)
	}
}
