package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// TestImportAndScale imports groups from the servers as pools and scales them in Kubernetes.
func TestImportAndScale(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.shards.Of("a").SetGroup(staticGroup("web", 3))
	op.shards.Of("b").SetGroup(staticGroup("web", 2))
	_, calls := op.settle()
	if containsAll(calls, "UpsertGroup") {
		t.Errorf("the import pushed groups: %v", calls)
	}
	pool, mp := op.pool("web"), op.machinePool("web")
	if *mp.Spec.Replicas != 5 || mp.Spec.ClusterName != testCluster ||
		*mp.Spec.Template.Spec.Bootstrap.DataSecretName != "" || pool.Spec.Config != nil {
		t.Errorf("%+v %+v", mp.Spec, pool.Spec)
	}
	if diff := cmp.Diff([]string{"a", "b"}, pool.Spec.Shards); diff != "" {
		t.Error(diff)
	}
	s := pool.Status
	if *s.Replicas != 5 || *s.ReadyReplicas != 5 || !s.Ready || !*s.Initialization.Provisioned || !s.IsStatic ||
		s.InfrastructureMachineKind != "NstanceMachine" ||
		condition(s.Conditions, "Ready") != "True Ready" || condition(s.Conditions,
		"ShardsReachable") != "True Reachable" || len(pool.Spec.ProviderIDList) != 5 ||
		!slices.IsSorted(pool.Spec.ProviderIDList) || s.Capacity.Cpu().String() != "2" ||
		s.ObservedGeneration != pool.Generation {
		t.Errorf("%+v %v", s, pool.Spec.ProviderIDList)
	}
	if mp.Annotations[cpuAnnotation] != "2" || mp.Annotations[memoryAnnotation] != "8Gi" {
		t.Error(mp.Annotations)
	}
	if events := op.events.take(); !containsAll(events, "web Normal Imported", "a, b", "5 replicas") {
		t.Error(events)
	}
	g := op.group("web--a")
	if g.Status.ObservedGeneration != g.Generation || condition(g.Status.Conditions, "Ready") != "True Ready" ||
		g.Status.LastSyncTime == nil || len(g.Status.ProviderIDs) != 3 || !g.Status.IsStatic {
		t.Errorf("%+v", g.Status)
	}
	if list := op.allMachines(); len(list) != 5 || list[0].Spec.Shard == "" ||
		list[0].Spec.InstanceID != list[0].Name ||
		list[0].Spec.ProviderID == "" ||
		list[0].Labels[clusterv1.MachinePoolNameLabel] != "web" || list[0].OwnerReferences[0].UID != pool.UID ||
		metav1.GetControllerOf(&list[0]) != nil {
		t.Errorf("%d %+v", len(list), list)
	}

	op.scale("web", 8)
	if writes, calls := op.settle(); !slices.Contains(calls, "UpsertGroup a") ||
		!slices.Contains(calls, "UpsertGroup b") || len(calls) != 2 {
		t.Errorf("%v %v", writes, calls)
	}
	if diff := cmp.Diff(map[string]uint32{"a": 4, "b": 4}, op.sizes("web")); diff != "" {
		t.Error(diff)
	}
	if events := op.events.take(); !containsAll(events, "web Normal Scaling", "a 3 to 4, b 2 to 4") {
		t.Error(events)
	}
	if list := op.allMachines(); len(list) != 8 {
		t.Errorf("%d machines", len(list))
	}
	// One more replica changes the share of one shard only.
	op.scale("web", 9)
	if _, calls := op.settle(); !slices.Equal(calls, []string{"UpsertGroup a"}) {
		t.Error(calls)
	}
	op.scale("web", 0)
	op.settle()
	pool = op.pool("web")
	if *pool.Status.Replicas != 0 || len(pool.Spec.ProviderIDList) != 0 ||
		condition(pool.Status.Conditions, "Ready") != "True Ready" {
		t.Errorf("%+v %v", pool.Status, pool.Spec.ProviderIDList)
	}
}

// TestSpares checks that spares are no replicas: they get no machines and no provider IDs until they are members.
func TestSpares(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"},
		Config: jsonOf(`{"template":"worker","spares":{"count":1,"max_age":"24h"}}`)})
	op.settle()
	shard := op.shards.Of("a")
	g, _ := shard.Group("web")
	if settings := config.ReadSettings(g.GetMergedJson()); settings.Spares == nil || settings.Spares.Count != 1 {
		t.Fatalf("the shard has the settings %s", g.GetMergedJson())
	}
	check := func(when string, actual, ready int32, members ...string) {
		t.Helper()
		op.settle()
		pool, g := op.pool("web"), op.group("web--a")
		if *pool.Status.Replicas != 4 || *pool.Status.ReadyReplicas != 4 || len(pool.Spec.ProviderIDList) != 4 ||
			condition(pool.Status.Conditions, "Ready") != "True Ready" {
			t.Errorf("%s: %+v %v", when, pool.Status, pool.Spec.ProviderIDList)
		}
		for count, got := range map[int32]*v1beta1.SparesStatus{1: g.Status.Spares, 2: pool.Status.Spares} {
			want := &v1beta1.SparesStatus{Count: &count, Actual: &actual, Ready: &ready}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", when, diff)
			}
		}
		var machines []string
		for _, m := range op.allMachines() {
			if m.Spec.Shard == "a" {
				machines = append(machines, m.Name)
			}
		}
		if slices.Sort(machines); !slices.Equal(machines, members) {
			t.Errorf("%s: machines %v, want %v", when, machines, members)
		}
	}
	members := slices.Clone(g.GetInstanceIds())
	check("without spares", 0, 0, members...)
	spare := shard.AddSpare("web")
	check("with a spare", 1, 1, members...)
	shard.Change(spare, func(i *nstancev1.InstanceStatus) { i.Health = "unhealthy" })
	check("with an unhealthy spare", 1, 0, members...)
	shard.Change(spare, func(i *nstancev1.InstanceStatus) { i.Health = "healthy" })
	shard.Promote(spare, members[0])
	check("with the spare as a member", 0, 0, append(members, spare)...)
}

// TestImportSpares imports a static group with spares. Its pool accepts other sizes.
func TestImportSpares(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	g := staticGroup("web", 2)
	g.MergedJson = `{"template":"worker","instance_type":"m5.large","spares":{"count":1}}`
	op.shards.Of("a").SetGroup(g)
	op.shards.Of("a").AddSpare("web")
	op.settle()
	op.scale("web", 3)
	op.settle()
	if got := op.group("web--a").Status; condition(got.Conditions, "Ready") != "True Ready" ||
		*got.ActualSize != 3 || *got.Spares.Actual != 1 || len(op.allMachines()) != 3 {
		t.Errorf("%+v, %d machines", got, len(op.allMachines()))
	}
}

// TestImportWaitsForAllShards checks that no group is imported while a shard is missing: the sum of the replicas would
// be wrong.
func TestImportWaitsForAllShards(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Synced = false, false })
	op.shards.Of("a").SetGroup(staticGroup("web", 3))
	if writes, calls := op.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	op.shards.Of("b").SetGroup(staticGroup("web", 4))
	op.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Synced = true, true })
	op.settle()
	if mp := op.machinePool("web"); *mp.Spec.Replicas != 7 {
		t.Error(*mp.Spec.Replicas)
	}
	// The importer does not rely on the mirrors: before an import, it asks every shard.
	op.shards.Of("a").SetGroup(staticGroup("db", 1))
	op.shards.Of("b").Fail(op.recordCalls("b", func(method string) error {
		if method == "ListGroups" {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	}))
	for range 3 {
		op.reconcileAll()
	}
	if op.exists("db", &v1beta1.NstanceMachinePool{}) {
		t.Error("the group was imported although a shard did not answer")
	}
	op.shards.Of("b").Fail(op.recordCalls("b", nil))
	op.settle()
	op.machinePool("db")
}

// TestImportEndsWithTheCluster checks that nothing is imported if the Cluster is deleted while a shard is asked for its
// groups.
func TestImportEndsWithTheCluster(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	cluster := &clusterv1.Cluster{}
	op.mustGet(testCluster, cluster)
	op.change(cluster, func() { cluster.Finalizers = []string{"test/hold"} })
	op.shards.Of("a").Fail(op.recordCalls("a", func(method string) error {
		if method == "ListGroups" {
			return op.client.Delete(t.Context(), cluster)
		}
		return nil
	}))
	op.shards.Of("a").SetGroup(staticGroup("web", 2))
	op.settle()
	if op.exists("web", &v1beta1.NstanceMachinePool{}) {
		t.Error("the group was imported although its Cluster is being deleted")
	}
}

// TestImportIsInterrupted checks that an interrupted import is completed with the current number of replicas.
func TestImportIsInterrupted(t *testing.T) {
	for _, stop := range []string{"create NstanceMachinePool", "create MachinePool"} {
		op := newSimulatedOperator(t, "a")
		op.shards.Of("a").SetGroup(staticGroup("web", 2))
		op.onWrite = func(what string) error {
			if what == stop+" web" {
				return errors.New("killed")
			}
			return nil
		}
		op.reconcileAll()
		op.reconcileAll()
		if op.exists("web", &clusterv1.MachinePool{}) {
			t.Fatal("the import was not interrupted")
		}
		op.onWrite = nil
		op.shards.Of("a").SetGroup(staticGroup("web", 3)) // a user scales the group meanwhile
		op.settle()
		if mp := op.machinePool("web"); *mp.Spec.Replicas != 3 {
			t.Error(*mp.Spec.Replicas)
		}
		// A deleted MachinePool must not be created again while its pool exists.
		if err := op.client.Delete(t.Context(), op.machinePool("web")); err != nil {
			t.Fatal(err)
		}
		op.settle()
		if op.exists("web", &clusterv1.MachinePool{}) {
			t.Error("a deleted MachinePool was created again")
		}
		if got := condition(op.pool("web").Status.Conditions, "Ready"); got != "False Unreferenced" {
			t.Error(got)
		}
	}
}

// TestMachinesKeepTheirLabels checks that labels of NstanceMachines that a user has removed or changed are written
// again. Cluster API finds the NstanceMachines by their labels.
func TestMachinesKeepTheirLabels(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 1, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	machine, name := &v1beta1.NstanceMachine{}, op.allMachines()[0].Name
	op.mustGet(name, machine)
	want := maps.Clone(machine.Labels)
	if len(want) != 4 {
		t.Fatalf("labels %v", want)
	}
	for label := range want {
		for _, value := range []string{"", "other"} {
			op.mustGet(name, machine)
			op.change(machine, func() {
				if delete(machine.Labels, label); value != "" {
					machine.Labels[label] = value
				}
			})
			op.settle()
			if op.mustGet(name, machine); !maps.Equal(machine.Labels, want) {
				t.Errorf("%s became %q: labels %v, want %v", label, value, machine.Labels, want)
			}
		}
	}
	op.mustGet(name, machine)
	op.change(machine, func() { machine.Labels["mine"] = "stays" })
	op.settle()
	if op.mustGet(name, machine); machine.Labels["mine"] != "stays" {
		t.Error("the label of a user was removed")
	}
}

// TestDrift checks that a change on a server is reverted if it contradicts Kubernetes, and that another one stays.
func TestDrift(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}, Config: jsonOf(
		`{"template":"worker","instance_type":"m5.large","vars":{"role":"web"},"rollout":{"canary":1}}`)})
	op.settle()
	if _, err := op.shards.Of("b").API().UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "web",
		Patch: `{"size": 7, "instance_type": "huge", "template": "other", "subnet_pool": "p",
			"rollout": {"canary": 2, "paused": true, "revision": "r"}}`}); err != nil {
		t.Fatal(err)
	}
	if _, calls := op.settle(); !slices.Equal(calls, []string{"UpsertGroup b"}) {
		t.Error(calls)
	}
	g, _ := op.shards.Of("b").Group("web")
	if diff := cmp.Diff(parseTree(`{"size":2,"template":"worker","instance_type":"m5.large","vars":{"role":"web"},
		"subnet_pool":"p","rollout":{"canary":1,"paused":true,"revision":"r"}}`), ownSettings(g)); diff != "" {
		t.Error(diff)
	}
	// A setting that is removed in Kubernetes comes from the template again. Those of other clients stay.
	pool := op.pool("web")
	op.change(pool, func() { pool.Spec.Config = fromWorker() })
	op.settle()
	for id, want := range map[string]string{"a": `{"size":2,"template":"worker"}`, "b": `{"size":2,
		"template":"worker","subnet_pool":"p","rollout":{"paused":true,"revision":"r"}}`} {
		g, _ := op.shards.Of(id).Group("web")
		if diff := cmp.Diff(parseTree(want), ownSettings(g)); diff != "" {
			t.Errorf("shard %s: %s", id, diff)
		}
	}
	if mp := op.machinePool("web"); len(mp.Annotations) != 0 {
		t.Error(mp.Annotations)
	}
}

// TestMisspelt misspells fields of spec.config, and then corrects them.
func TestMisspelt(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 1, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	for _, test := range []struct{ config, path, hint string }{
		{`{"templat":"worker"}`, "templat", "template"},
		{`{"instancetype":"m5.large"}`, "instancetype", "instance_type"},
		{`{"instanceType":"m5.large"}`, "instanceType", "instance_type"},
		{`{"subnet_pol":"p"}`, "subnet_pol", "subnet_pool"},
		{`{"max_unhealth":"3"}`, "max_unhealth", "max_unhealthy"},
		{`{"drain_timout":"1m"}`, "drain_timout", "drain_timeout"},
		{`{"rollout":{"canry":1}}`, "rollout.canry", "canary"},
		{`{"rollout":{"bake_tme":"1m"}}`, "rollout.bake_tme", "bake_time"},
		{`{"disruption":{"window":["Mon-Fri 09:00-17:00 UTC"]}}`, "disruption.window", "windows"},
		{`{"purchase":{"spot_percent":50,"fallbck":"none"}}`, "purchase.fallbck", "fallback"},
		{`{"schedules":[{"cron":"0 8 * * *","sise":3}]}`, "schedules[0].sise", "size"},
		{`{"size":3}`, "config.size", "the replicas of the MachinePool set the size"},
		{`{"removed":["x"]}`, "removed", "only the server sets this field"},
	} {
		pool := op.pool("web")
		op.change(pool, func() {
			pool.Spec.Config = treeConfig(config.MergePatch(parseTree(`{"template":"worker"}`), parseTree(test.config)))
		})
		op.settle()
		g := op.group("web--a")
		valid := meta.FindStatusCondition(g.Status.Conditions, v1beta1.ConfigValidCondition)
		if valid.Status != metav1.ConditionFalse || !strings.HasPrefix(valid.Message, test.path+":") ||
			!strings.Contains(valid.Message, test.hint) {
			t.Errorf("%s: %s %q, want the path %s and %q", test.config, valid.Status, valid.Message, test.path,
				test.hint)
		}
		if got := meta.FindStatusCondition(op.pool("web").Status.Conditions, "Ready"); got.Reason !=
			v1beta1.RefusedReason || !strings.Contains(got.Message, test.path+":") {
			t.Errorf("%s: the pool is %s %q", test.config, got.Reason, got.Message)
		}
		pool = op.pool("web")
		op.change(pool, func() { pool.Spec.Config = jsonOf(`{"template":"worker","rollout":{"canary":1}}`) })
		op.settle()
		if got := condition(op.group("web--a").Status.Conditions, "ConfigValid"); got != "True Accepted" {
			t.Errorf("%s: corrected: %s", test.config, got)
		}
	}
}

func TestUnreachableShard(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	op.settle()
	op.events.take()
	ids := op.pool("web").Spec.ProviderIDList
	op.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = false, "timed out" })
	op.scale("web", 8)
	if _, calls := op.settle(); !slices.Equal(calls, []string{"UpsertGroup a"}) {
		t.Error(calls)
	}
	pool := op.pool("web")
	if condition(pool.Status.Conditions, "ShardsReachable") != "False Unreachable" ||
		condition(pool.Status.Conditions, "Ready") != "False Unreachable" || !pool.Status.Ready ||
		*pool.Status.Replicas != 6 || len(pool.Spec.ProviderIDList) != 6 || len(ids) != 4 {
		t.Errorf("%+v", pool.Status)
	}
	if got := condition(op.group("web--b").Status.Conditions, "ShardReachable"); got != "False Unreachable" {
		t.Error(got)
	}
	if events := op.events.take(); !containsAll(events, "web--b Warning Unreachable", "timed out") {
		t.Error(events)
	}
	op.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = true, "" })
	if _, calls := op.settle(); !slices.Equal(calls, []string{"UpsertGroup b"}) {
		t.Error(calls)
	}
	if diff := cmp.Diff(map[string]uint32{"a": 4, "b": 4}, op.sizes("web")); diff != "" {
		t.Error(diff)
	}
	if got := condition(op.pool("web").Status.Conditions, "Ready"); got != "True Ready" {
		t.Error(got)
	}
}

func TestUnknownShard(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "x"}})
	op.settle()
	pool := op.pool("web")
	if condition(pool.Status.Conditions, "ShardsReachable") != "False UnknownShard" ||
		condition(pool.Status.Conditions, "Ready") != "False UnknownShard" || !pool.Status.Ready ||
		op.sizes("web")["a"] != 4 || op.exists("web--x", &v1beta1.NstanceShardGroup{}) {
		t.Errorf("%+v %v", pool.Status, op.sizes("web"))
	}
	op.addShard("x")
	op.settle()
	if diff := cmp.Diff(map[string]uint32{"a": 2, "x": 2}, op.sizes("web")); diff != "" {
		t.Error(diff)
	}
	// The shard is removed from the configuration while the pool still lists it.
	op.shards.Remove("x")
	op.settle()
	if got := condition(op.group("web--x").Status.Conditions, "ShardReachable"); got != "False UnknownShard" {
		t.Error(got)
	}
	pool = op.pool("web")
	op.change(pool, func() { pool.Spec.Shards = []string{"a"} })
	op.events.take()
	op.settle()
	if op.group("web--x").DeletionTimestamp.IsZero() || op.sizes("web")["a"] != 4 {
		t.Error(op.sizes("web"))
	}
	op.events.take()
	pool = op.pool("web")
	op.change(pool, func() { pool.Annotations = map[string]string{v1beta1.SkipShardsAnnotation: "y, x"} })
	op.settle()
	if op.exists("web--x", &v1beta1.NstanceShardGroup{}) {
		t.Error("the shard group waits although its shard is skipped")
	}
	if events := op.events.take(); !containsAll(events, "web--x Warning ShardSkipped") {
		t.Error(events)
	}
}

func TestRefused(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	refuse := func(method string) error {
		if method == "UpsertGroup" {
			return status.Error(codes.InvalidArgument, "template: there is no template worker")
		}
		return nil
	}
	op.shards.Of("a").Fail(op.recordCalls("a", refuse))
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	_, calls := op.settle()
	if n := len(calls); n != 2 {
		t.Errorf("%d calls: %v", n, calls)
	}
	pool := op.pool("web")
	if condition(op.group("web--a").Status.Conditions, "ConfigValid") != "False Refused" ||
		condition(pool.Status.Conditions, "Ready") != "False Refused" || pool.Status.Ready {
		t.Errorf("%+v", pool.Status)
	}
	events := op.events.take()
	if n := len(slices.DeleteFunc(slices.Clone(events), func(e string) bool {
		return !containsAll([]string{e}, "web--a Warning Refused", "no template worker")
	})); n != 1 {
		t.Errorf("%d events: %v", n, events)
	}
	// If the request changes after a refusal, it is sent immediately. An unchanged request is repeated only after
	// refusedRetry.
	pool = op.pool("web")
	op.change(pool, func() { pool.Spec.Config = jsonOf(`{"template":"other"}`) })
	if _, calls := op.settle(); len(calls) != 2 {
		t.Error(calls)
	}
	op.shards.Of("a").Fail(op.recordCalls("a", nil))
	if _, calls := op.settle(); len(calls) != 0 {
		t.Error(calls)
	}
	op.now = op.now.Add(refusedRetry)
	if _, calls := op.settle(); !slices.Equal(calls, []string{"UpsertGroup a"}) {
		t.Error(calls)
	}
	if pool := op.pool("web"); !pool.Status.Ready || condition(pool.Status.Conditions, "Ready") != "True Ready" {
		t.Errorf("%+v", pool.Status)
	}
}

// TestCallFails checks that the reconciler returns a temporary failure as an error, so that the queue retries it.
func TestCallFails(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.shards.Of("a").Fail(op.recordCalls("a", func(string) error {
		return status.Error(codes.Aborted, "the bucket says no")
	}))
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	for range 4 {
		op.reconcileAll()
	}
	if errs := op.reconcileAll(); len(errs) != 1 {
		t.Error(errs)
	}
	g := op.group("web--a")
	if condition(g.Status.Conditions, "Ready") != "False NotReady" || condition(g.Status.Conditions,
		"ConfigValid") != "" || g.Status.ObservedGeneration != 0 {
		t.Errorf("%+v", g.Status)
	}
	op.shards.Of("a").Fail(op.recordCalls("a", nil))
	op.settle()
	if got := condition(op.pool("web").Status.Conditions, "Ready"); got != "True Ready" {
		t.Error(got)
	}
}

// TestDeletePoolAfterTheDefinitionOfShardGroups checks that a pool ends although the API server has no definition of
// shard groups any more, as after a deletion of all definitions.
func TestDeletePoolAfterTheDefinitionOfShardGroups(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 1, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	op.pools.Reader = interceptor.NewClient(op.client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*v1beta1.NstanceShardGroupList); !ok {
				return c.List(ctx, list, opts...)
			}
			return apierrors.NewNotFound(schema.GroupResource{Resource: "nstanceshardgroups"}, "")
		},
	})
	op.deletePool("web")
	op.settle()
	if op.exists("web", &v1beta1.NstanceMachinePool{}) {
		t.Error("the pool is left")
	}
}

// TestDeleteShardGroupWithItsDefinition deletes the shard groups of a pool, because their definition is being deleted,
// and then the pool. The group must be deleted on the shard, too.
func TestDeleteShardGroupWithItsDefinition(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 1, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	op.definitionEnds = true
	if err := op.client.Delete(t.Context(), op.group("web--a")); err != nil {
		t.Fatal(err)
	}
	if _, calls := op.settle(); len(calls) != 0 {
		t.Error(calls)
	}
	if got := condition(op.group("web--a").Status.Conditions, "Ready"); got != "False Deleting" {
		t.Error(got)
	}
	op.deletePool("web")
	if _, calls := op.settle(); !slices.Contains(calls, "DeleteGroup a") {
		t.Error(calls)
	}
	if op.exists("web--a", &v1beta1.NstanceShardGroup{}) || op.exists("web", &v1beta1.NstanceMachinePool{}) {
		t.Error("want neither the shard group nor the pool")
	}
}

func TestDeletePool(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b", "c")
	op.shards.Of("c").SetGroup(staticGroup("web", 1))
	op.newPool("web", 6, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b", "c"}})
	op.settle()
	if op.sizes("web")["c"] != 2 {
		t.Fatal(op.sizes("web"))
	}
	op.shards.Of("a").HoldDrains()
	op.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = false, "timed out" })
	op.deletePool("web")
	_, calls := op.settle()
	if !slices.Contains(calls, "DeleteGroup a") || !slices.Contains(calls, "DeleteGroup c") {
		t.Error(calls)
	}
	// The pool still exists because of two shard groups: shard a still drains an instance, and shard b is unreachable.
	if !op.exists("web--a", &v1beta1.NstanceShardGroup{}) || !op.exists("web--b", &v1beta1.NstanceShardGroup{}) ||
		op.exists("web--c", &v1beta1.NstanceShardGroup{}) || op.sizes("web")["c"] != 1 {
		t.Errorf("%v", op.sizes("web"))
	}
	if got := condition(op.group("web--a").Status.Conditions, "Ready"); got != "False Deleting" {
		t.Error(got)
	}
	for _, d := range op.shards.Of("a").Drains() {
		if _, err := op.shards.Of("a").API().AcknowledgeDrained(t.Context(),
			&nstancev1.AcknowledgeDrainedRequest{InstanceId: d.Instance.GetInstanceId()}); err != nil {
			t.Fatal(err)
		}
	}
	op.settle()
	if op.exists("web--a", &v1beta1.NstanceShardGroup{}) || !op.exists("web", &v1beta1.NstanceMachinePool{}) {
		t.Error("want the shard group of a gone and the pool waiting for shard b")
	}
	op.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = true, "" })
	op.settle()
	// The static group still exists on shard c, so the operator imports it again.
	if pool := op.pool("web"); !slices.Equal(pool.Spec.Shards, []string{"c"}) || !pool.DeletionTimestamp.IsZero() {
		t.Errorf("%+v", pool)
	}
	if diff := cmp.Diff(map[string]uint32{"c": 1}, op.sizes("web")); diff != "" {
		t.Error(diff)
	}
}

// TestDeleteShardGroup checks that the operator re-creates a shard group that a user has deleted. The group's instances
// must stay.
func TestDeleteShardGroup(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	uid, before := op.group("web--a").UID, op.allMachines()
	if err := op.client.Delete(t.Context(), op.group("web--a")); err != nil {
		t.Fatal(err)
	}
	_, calls := op.settle()
	if len(calls) != 0 {
		t.Error(calls)
	}
	if g := op.group("web--a"); g.UID == uid || !g.DeletionTimestamp.IsZero() || *g.Spec.Size != 2 {
		t.Errorf("%+v", g)
	}
	if diff := cmp.Diff(len(before), len(op.allMachines())); diff != "" {
		t.Error(diff)
	}
}

func TestStaticGroup(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	g := staticGroup("web", 2)
	g.MergedJson = `{"template":"worker","instance_type":"m5.large","vars":{"zone":"z","role":"base"}}`
	op.shards.Of("a").SetGroup(g)
	if _, err := op.shards.Of("a").API().UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "web",
		Patch: `{"vars": {"by": "admin"}}`}); err != nil {
		t.Fatal(err)
	}
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	if _, calls := op.settle(); len(calls) != 0 {
		t.Errorf("settings that are in force were pushed: %v", calls)
	}
	for _, step := range []struct {
		config, valid, instanceType string
		vars                        map[string]string
	}{
		{`{"instance_type":"c5.large","vars":{"role":"mine"}}`, "True Accepted", "c5.large",
			map[string]string{"zone": "z", "role": "mine", "by": "admin"}},
		{`{"template":"other","instance_type":"c5.xlarge"}`, "False Refused", "c5.large",
			map[string]string{"zone": "z", "role": "mine", "by": "admin"}},
		{`{"template":"worker"}`, "True Accepted", "m5.large",
			map[string]string{"zone": "z", "role": "base", "by": "admin"}},
	} {
		pool := op.pool("web")
		op.change(pool, func() { pool.Spec.Config = jsonOf(step.config) })
		op.settle()
		now, _ := op.shards.Of("a").Group("web")
		if settings := config.ReadSettings(now.GetMergedJson()); settings.Template != "worker" ||
			settings.InstanceType != step.instanceType || !cmp.Equal(settings.Vars, step.vars) {
			t.Errorf("%s: %v", step.config, now)
		}
		valid := meta.FindStatusCondition(op.group("web--a").Status.Conditions, v1beta1.ConfigValidCondition)
		if got := string(valid.Status) + " " + valid.Reason; got != step.valid ||
			step.valid == "False Refused" && !strings.HasPrefix(valid.Message, "template:") {
			t.Errorf("%s: %s %s", step.config, got, valid.Message)
		}
	}
}

func TestPaused(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	cluster := &clusterv1.Cluster{}
	op.mustGet(testCluster, cluster)
	op.change(cluster, func() { cluster.Spec.Paused = ptr.To(true) })
	op.settle()
	op.scale("web", 5)
	op.shards.Of("a").SetGroup(staticGroup("db", 1))
	if writes, calls := op.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	if got := condition(op.pool("web").Status.Conditions, "Paused"); got != "True Paused" {
		t.Error(got)
	}
	op.change(cluster, func() { cluster.Spec.Paused = nil })
	pool := op.pool("web")
	op.change(pool, func() { pool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
	op.settle()
	if op.sizes("web")["a"] != 2 || !op.exists("db", &clusterv1.MachinePool{}) {
		t.Error(op.sizes("web"))
	}
	pool = op.pool("web")
	op.change(pool, func() { pool.Annotations = nil })
	op.settle()
	if op.sizes("web")["a"] != 5 || condition(op.group("web--a").Status.Conditions, "Paused") != "False NotPaused" {
		t.Error(op.sizes("web"))
	}
}

// TestForgottenShard deletes a pool while the configuration lacks the pool's shard. It checks that the deletion
// finishes when the shard returns, and that the pool is not imported again.
func TestForgottenShard(t *testing.T) {
	op := newSimulatedOperator(t, "a", "x")
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"x"}})
	op.settle()
	known, _ := op.shards.Of("x").Group("web")
	op.shards.Remove("x")
	op.settle()
	op.deletePool("web")
	op.settle()
	if op.group("web--x").DeletionTimestamp.IsZero() || op.pool("web").DeletionTimestamp.IsZero() {
		t.Fatal("the deletion is not pending")
	}
	if got := meta.FindStatusCondition(op.pool("web").Status.Conditions, "Ready"); got == nil ||
		!strings.Contains(got.Message, "shard x") {
		t.Errorf("the condition does not name the shard: %+v", got)
	}
	x := op.addShard("x")
	x.SetGroup(known)
	op.settle()
	if _, ok := x.Group("web"); ok || op.exists("web--x", &v1beta1.NstanceShardGroup{}) ||
		op.exists("web", &v1beta1.NstanceMachinePool{}) || op.exists("web", &clusterv1.MachinePool{}) {
		t.Error("the group is left or was imported again")
	}
}

// TestEndingCluster checks that nothing is imported, created or scaled while the Cluster is being deleted, and that its
// pools can be deleted.
func TestEndingCluster(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.shards.Of("a").SetGroup(staticGroup("db", 2))
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	cluster := &clusterv1.Cluster{}
	op.mustGet(testCluster, cluster)
	op.change(cluster, func() { cluster.Finalizers = []string{"test/hold"} })
	if err := op.client.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	op.scale("web", 5)
	op.shards.Of("a").SetGroup(staticGroup("late", 1))
	op.settle()
	if op.sizes("web")["a"] != 2 || op.exists("late", &v1beta1.NstanceMachinePool{}) {
		t.Errorf("scaled or imported while the Cluster is being deleted: %v", op.sizes("web"))
	}
	op.deletePool("web")
	op.deletePool("db")
	op.settle()
	if len(op.allPools()) != 0 || len(op.allGroups()) != 0 {
		t.Errorf("left: %d pools, %d shard groups", len(op.allPools()), len(op.allGroups()))
	}
	if _, ok := op.shards.Of("a").Group("web"); ok || op.sizes("db")["a"] != 2 {
		t.Error("the dynamic group is left, or the static group has changed")
	}
}

// TestOtherCluster checks that objects of another Cluster in the namespace are not changed.
func TestOtherCluster(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	pool, mp := op.pool("web"), op.machinePool("web")
	op.change(mp, func() { mp.Spec.ClusterName = "other" })
	op.change(pool, func() { pool.Labels = map[string]string{clusterv1.ClusterNameLabel: "other"} })
	if writes, calls := op.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	// Another Cluster also has a group "web". The Kubernetes objects of the two groups would have the same names, so
	// the second group cannot be imported.
	op.shards.Of("a").SetGroup(staticGroup("web", 1))
	op.settle()
	if events := op.events.take(); !containsAll(events, testCluster+" Warning Refused",
		"group web cannot be imported") {
		t.Error(events)
	}
}

// TestStart checks that a starting operator does not report a shard as unreachable before it has connected to the
// shard.
func TestStart(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	op.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	op.settle()
	op.events.take()
	op.shards.Of("a").SetState(func(s *shards.State) { s.Reachable, s.Synced = false, false })
	op.groups = newGroupReconciler(op.groups.pools)
	if writes, calls := op.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	op.shards.Of("a").SetState(func(s *shards.State) { s.Reachable, s.Synced = true, true })
	if writes, calls := op.settle(); len(writes) != 0 || len(calls) != 0 || len(op.events.take()) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
}
