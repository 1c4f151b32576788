package pool

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// From groups on the servers to pools, scaled in Kubernetes.
func TestImportAndScale(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.shards.Of("a").SetGroup(static("web", 3))
	w.shards.Of("b").SetGroup(static("web", 2))
	_, calls := w.settle()
	if has(calls, "UpsertGroup") {
		t.Errorf("an import pushes: %v", calls)
	}
	pool, mp := w.pool("web"), w.machinePool("web")
	if *mp.Spec.Replicas != 5 || mp.Spec.ClusterName != testCluster ||
		*mp.Spec.Template.Spec.Bootstrap.DataSecretName != "" || pool.Spec.Template != "worker" ||
		pool.Spec.InstanceType != "" {
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
	if events := w.reports.take(); !has(events, "web Normal Imported", "a, b", "5 replicas") {
		t.Error(events)
	}
	g := w.group("web--a")
	if g.Status.ObservedGeneration != g.Generation || condition(g.Status.Conditions, "Ready") != "True Ready" ||
		g.Status.LastSyncTime == nil || len(g.Status.ProviderIDs) != 3 || !g.Status.IsStatic {
		t.Errorf("%+v", g.Status)
	}
	if list := w.allMachines(); len(list) != 5 || list[0].Spec.Shard == "" || list[0].Spec.InstanceID != list[0].Name ||
		list[0].Spec.ProviderID == "" ||
		list[0].Labels[clusterv1.MachinePoolNameLabel] != "web" || list[0].OwnerReferences[0].UID != pool.UID ||
		metav1.GetControllerOf(&list[0]) != nil {
		t.Errorf("%d %+v", len(list), list)
	}

	w.scale("web", 8)
	if writes, calls := w.settle(); !slices.Contains(calls, "UpsertGroup a") ||
		!slices.Contains(calls, "UpsertGroup b") || len(calls) != 2 {
		t.Errorf("%v %v", writes, calls)
	}
	if diff := cmp.Diff(map[string]uint32{"a": 4, "b": 4}, w.sizes("web")); diff != "" {
		t.Error(diff)
	}
	if events := w.reports.take(); !has(events, "web Normal Scaling", "a 3 to 4, b 2 to 4") {
		t.Error(events)
	}
	if list := w.allMachines(); len(list) != 8 {
		t.Errorf("%d machines", len(list))
	}
	// One more changes one shard.
	w.scale("web", 9)
	if _, calls := w.settle(); !slices.Equal(calls, []string{"UpsertGroup a"}) {
		t.Error(calls)
	}
	w.scale("web", 0)
	w.settle()
	pool = w.pool("web")
	if *pool.Status.Replicas != 0 || len(pool.Spec.ProviderIDList) != 0 ||
		condition(pool.Status.Conditions, "Ready") != "True Ready" {
		t.Errorf("%+v %v", pool.Status, pool.Spec.ProviderIDList)
	}
}

// With a shard missing, the sum would be wrong.
func TestImportWaitsForAllShards(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Synced = false, false })
	w.shards.Of("a").SetGroup(static("web", 3))
	if writes, calls := w.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	w.shards.Of("b").SetGroup(static("web", 4))
	w.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Synced = true, true })
	w.settle()
	if mp := w.machinePool("web"); *mp.Spec.Replicas != 7 {
		t.Error(*mp.Spec.Replicas)
	}
	// What the mirrors say is asked for.
	w.shards.Of("a").SetGroup(static("db", 1))
	w.shards.Of("b").Fail(w.counted("b", func(method string) error {
		if method == "ListGroups" {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	}))
	for range 3 {
		w.pass()
	}
	if w.exists("db", &v1beta1.NstanceMachinePool{}) {
		t.Error("imported although a shard did not answer")
	}
	w.shards.Of("b").Fail(w.counted("b", nil))
	w.settle()
	w.machinePool("db")
}

func TestImportIsInterrupted(t *testing.T) {
	for _, stop := range []string{"create NstanceMachinePool", "create MachinePool"} {
		w := newWorld(t, "a")
		w.shards.Of("a").SetGroup(static("web", 2))
		w.onWrite = func(what string) error {
			if what == stop+" web" {
				return errors.New("killed")
			}
			return nil
		}
		w.pass()
		w.pass()
		if w.exists("web", &clusterv1.MachinePool{}) {
			t.Fatal("nothing was interrupted")
		}
		w.onWrite = nil
		w.shards.Of("a").SetGroup(static("web", 3)) // and somebody scaled it since
		w.settle()
		if mp := w.machinePool("web"); *mp.Spec.Replicas != 3 {
			t.Error(*mp.Spec.Replicas)
		}
		// A MachinePool that was deleted is not made again while its pool is there.
		if err := w.client.Delete(t.Context(), w.machinePool("web")); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if w.exists("web", &clusterv1.MachinePool{}) {
			t.Error("a deleted MachinePool came back")
		}
		if got := condition(w.pool("web").Status.Conditions, "Ready"); got != "False WaitingForMachinePool" {
			t.Error(got)
		}
	}
}

func TestDrift(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"},
		InstanceType: "m5.large", Vars: map[string]string{"role": "web"}})
	w.settle()
	if _, err := w.shards.Of("b").API().UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "web",
		Size: ptr.To(uint32(7)), InstanceType: "huge", Template: "other",
		SubnetPool: "p", SetVars: true}); err != nil {
		t.Fatal(err)
	}
	if _, calls := w.settle(); !slices.Equal(calls, []string{"UpsertGroup b"}) {
		t.Error(calls)
	}
	g, _ := w.shards.Of("b").Group("web")
	if g.GetSize() != 2 || g.GetInstanceType() != "m5.large" || g.GetTemplate() != "worker" ||
		g.GetSubnetPool() != "" || g.GetVars()["role"] != "web" {
		t.Error(g)
	}
	// What is emptied in Kubernetes is the template's again.
	pool := w.pool("web")
	w.change(pool, func() { pool.Spec.InstanceType, pool.Spec.Vars = "", nil })
	w.settle()
	if g, _ := w.shards.Of("a").Group("web"); g.GetInstanceType() != "" || len(g.GetVars()) != 0 || g.GetSize() != 2 {
		t.Error(g)
	}
	if mp := w.machinePool("web"); len(mp.Annotations) != 0 {
		t.Error(mp.Annotations)
	}
}

func TestUnreachableShard(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	w.settle()
	w.reports.take()
	ids := w.pool("web").Spec.ProviderIDList
	w.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = false, "timed out" })
	w.scale("web", 8)
	if _, calls := w.settle(); !slices.Equal(calls, []string{"UpsertGroup a"}) {
		t.Error(calls)
	}
	pool := w.pool("web")
	if condition(pool.Status.Conditions, "ShardsReachable") != "False Unreachable" ||
		condition(pool.Status.Conditions, "Ready") != "False Unreachable" || !pool.Status.Ready ||
		*pool.Status.Replicas != 6 || len(pool.Spec.ProviderIDList) != 6 || len(ids) != 4 {
		t.Errorf("%+v", pool.Status)
	}
	if got := condition(w.group("web--b").Status.Conditions, "ShardReachable"); got != "False Unreachable" {
		t.Error(got)
	}
	if events := w.reports.take(); !has(events, "web--b Warning Unreachable", "timed out") {
		t.Error(events)
	}
	w.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = true, "" })
	if _, calls := w.settle(); !slices.Equal(calls, []string{"UpsertGroup b"}) {
		t.Error(calls)
	}
	if diff := cmp.Diff(map[string]uint32{"a": 4, "b": 4}, w.sizes("web")); diff != "" {
		t.Error(diff)
	}
	if got := condition(w.pool("web").Status.Conditions, "Ready"); got != "True Ready" {
		t.Error(got)
	}
}

func TestUnknownShard(t *testing.T) {
	w := newWorld(t, "a")
	w.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "x"}})
	w.settle()
	pool := w.pool("web")
	if condition(pool.Status.Conditions, "ShardsReachable") != "False UnknownShard" ||
		condition(pool.Status.Conditions, "Ready") != "False UnknownShard" || !pool.Status.Ready ||
		w.sizes("web")["a"] != 2 {
		t.Errorf("%+v %v", pool.Status, w.sizes("web"))
	}
	w.addShard("x")
	w.settle()
	if diff := cmp.Diff(map[string]uint32{"a": 2, "x": 2}, w.sizes("web")); diff != "" {
		t.Error(diff)
	}
	// And removed from the configuration while the pool still names it.
	w.shards.Remove("x")
	w.settle()
	if got := condition(w.group("web--x").Status.Conditions, "ShardReachable"); got != "False UnknownShard" {
		t.Error(got)
	}
	pool = w.pool("web")
	w.change(pool, func() { pool.Spec.Shards = []string{"a"} })
	w.reports.take()
	w.settle()
	if w.exists("web--x", &v1beta1.NstanceShardGroup{}) || w.sizes("web")["a"] != 4 {
		t.Error(w.sizes("web"))
	}
	if events := w.reports.take(); !has(events, "web--x Warning ShardRemoved") {
		t.Error(events)
	}
}

func TestRefused(t *testing.T) {
	w := newWorld(t, "a", "b")
	refuse := func(method string) error {
		if method == "UpsertGroup" {
			return status.Error(codes.InvalidArgument, "template: there is no template worker")
		}
		return nil
	}
	w.shards.Of("a").Fail(w.counted("a", refuse))
	w.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	_, calls := w.settle()
	if n := len(calls); n != 2 {
		t.Errorf("%d calls: %v", n, calls)
	}
	pool := w.pool("web")
	if condition(w.group("web--a").Status.Conditions, "ConfigValid") != "False Refused" ||
		condition(pool.Status.Conditions, "Ready") != "False Refused" || pool.Status.Ready {
		t.Errorf("%+v", pool.Status)
	}
	events := w.reports.take()
	if n := len(slices.DeleteFunc(slices.Clone(events), func(e string) bool {
		return !has([]string{e}, "web--a Warning Refused", "no template worker")
	})); n != 1 {
		t.Errorf("%d events: %v", n, events)
	}
	// A change is said at once, the same only after a while.
	pool = w.pool("web")
	w.change(pool, func() { pool.Spec.Template = "other" })
	if _, calls := w.settle(); len(calls) != 2 {
		t.Error(calls)
	}
	w.shards.Of("a").Fail(w.counted("a", nil))
	if _, calls := w.settle(); len(calls) != 0 {
		t.Error(calls)
	}
	w.now = w.now.Add(refusedRetry)
	if _, calls := w.settle(); !slices.Equal(calls, []string{"UpsertGroup a"}) {
		t.Error(calls)
	}
	if pool := w.pool("web"); !pool.Status.Ready || condition(pool.Status.Conditions, "Ready") != "True Ready" {
		t.Errorf("%+v", pool.Status)
	}
}

// What may work later is an error, which the queue tries again.
func TestCallFails(t *testing.T) {
	w := newWorld(t, "a")
	w.shards.Of("a").Fail(w.counted("a", func(string) error {
		return status.Error(codes.Aborted, "the bucket says no")
	}))
	w.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	for range 4 {
		w.pass()
	}
	if errs := w.pass(); len(errs) != 1 {
		t.Error(errs)
	}
	g := w.group("web--a")
	if condition(g.Status.Conditions, "Ready") != "False NotReady" || condition(g.Status.Conditions,
		"ConfigValid") != "" || g.Status.ObservedGeneration != 0 {
		t.Errorf("%+v", g.Status)
	}
	w.shards.Of("a").Fail(w.counted("a", nil))
	w.settle()
	if got := condition(w.pool("web").Status.Conditions, "Ready"); got != "True Ready" {
		t.Error(got)
	}
}

func TestDeletePool(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.shards.Of("c").SetGroup(static("web", 1))
	w.newPool("web", 6, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b", "c"}})
	w.settle()
	if w.sizes("web")["c"] != 2 {
		t.Fatal(w.sizes("web"))
	}
	w.shards.Of("a").HoldDrains()
	w.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = false, "timed out" })
	w.deletePool("web")
	_, calls := w.settle()
	if !slices.Contains(calls, "DeleteGroup a") || !slices.Contains(calls, "DeleteGroup c") {
		t.Error(calls)
	}
	// Its shards hold it: one drains, one is not heard.
	if !w.exists("web--a", &v1beta1.NstanceShardGroup{}) || !w.exists("web--b", &v1beta1.NstanceShardGroup{}) ||
		w.exists("web--c", &v1beta1.NstanceShardGroup{}) || w.sizes("web")["c"] != 1 {
		t.Errorf("%v", w.sizes("web"))
	}
	if got := condition(w.group("web--a").Status.Conditions, "Ready"); got != "False Deleting" {
		t.Error(got)
	}
	for _, d := range w.shards.Of("a").Drains() {
		if _, err := w.shards.Of("a").API().AcknowledgeDrained(t.Context(),
			&nstancev1.AcknowledgeDrainedRequest{InstanceId: d.Instance.GetInstanceId()}); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	if w.exists("web--a", &v1beta1.NstanceShardGroup{}) || !w.exists("web", &v1beta1.NstanceMachinePool{}) {
		t.Error("the pool does not wait for its shard groups, or one for nothing")
	}
	w.shards.Of("b").SetState(func(s *shards.State) { s.Reachable, s.Err = true, "" })
	w.settle()
	// The static group is still there, so it is a pool again, of the shard that has it.
	if pool := w.pool("web"); !slices.Equal(pool.Spec.Shards, []string{"c"}) || !pool.DeletionTimestamp.IsZero() {
		t.Errorf("%+v", pool)
	}
	if diff := cmp.Diff(map[string]uint32{"c": 1}, w.sizes("web")); diff != "" {
		t.Error(diff)
	}
}

// A shard group that somebody deletes is made again, and nothing happens to its instances.
func TestDeleteShardGroup(t *testing.T) {
	w := newWorld(t, "a")
	w.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	w.settle()
	uid, before := w.group("web--a").UID, w.allMachines()
	if err := w.client.Delete(t.Context(), w.group("web--a")); err != nil {
		t.Fatal(err)
	}
	_, calls := w.settle()
	if len(calls) != 0 {
		t.Error(calls)
	}
	if g := w.group("web--a"); g.UID == uid || !g.DeletionTimestamp.IsZero() || *g.Spec.Size != 2 {
		t.Errorf("%+v", g)
	}
	if diff := cmp.Diff(len(before), len(w.allMachines())); diff != "" {
		t.Error(diff)
	}
}

func TestStaticGroup(t *testing.T) {
	w := newWorld(t, "a")
	g := static("web", 2)
	g.Vars = map[string]string{"zone": "z", "role": "base"}
	w.shards.Of("a").SetGroup(g)
	if _, err := w.shards.Of("a").API().UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "web",
		Vars: map[string]string{"by": "admin"}, SetVars: true}); err != nil {
		t.Fatal(err)
	}
	w.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}, Template: "something",
		SubnetPool: "else"})
	if _, calls := w.settle(); len(calls) != 0 {
		t.Errorf("what Kubernetes says nothing of is pushed: %v", calls)
	}
	pool := w.pool("web")
	w.change(pool, func() { pool.Spec.InstanceType, pool.Spec.Vars = "c5.large", map[string]string{"role": "mine"} })
	w.settle()
	now, _ := w.shards.Of("a").Group("web")
	if now.GetTemplate() != "worker" || now.GetSubnetPool() != "" || now.GetInstanceType() != "c5.large" ||
		!cmp.Equal(now.GetVars(), map[string]string{"zone": "z", "role": "mine"}) {
		t.Error(now)
	}
	pool = w.pool("web")
	w.change(pool, func() { pool.Spec.InstanceType, pool.Spec.Vars = "", nil })
	w.settle()
	now, _ = w.shards.Of("a").Group("web")
	if now.GetInstanceType() != "m5.large" || !cmp.Equal(now.GetVars(),
		map[string]string{"zone": "z", "role": "base"}) {
		t.Error(now)
	}
}

func TestPaused(t *testing.T) {
	w := newWorld(t, "a")
	w.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	w.settle()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: testCluster},
		Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}}
	w.create(cluster)
	w.settle()
	w.scale("web", 5)
	w.shards.Of("a").SetGroup(static("db", 1))
	if writes, calls := w.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	if got := condition(w.pool("web").Status.Conditions, "Paused"); got != "True Paused" {
		t.Error(got)
	}
	w.change(cluster, func() { cluster.Spec.Paused = nil })
	pool := w.pool("web")
	w.change(pool, func() { pool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
	w.settle()
	if w.sizes("web")["a"] != 2 || !w.exists("db", &clusterv1.MachinePool{}) {
		t.Error(w.sizes("web"))
	}
	pool = w.pool("web")
	w.change(pool, func() { pool.Annotations = nil })
	w.settle()
	if w.sizes("web")["a"] != 5 || condition(w.group("web--a").Status.Conditions, "Paused") != "False NotPaused" {
		t.Error(w.sizes("web"))
	}
}

// What belongs to another Cluster in the namespace is not touched.
func TestOtherCluster(t *testing.T) {
	w := newWorld(t, "a")
	w.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	pool, mp := w.pool("web"), w.machinePool("web")
	w.change(mp, func() { mp.Spec.ClusterName = "other" })
	w.change(pool, func() { pool.Labels = map[string]string{clusterv1.ClusterNameLabel: "other"} })
	if writes, calls := w.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	// Its group's name does not matter to ours, but that of the objects does.
	w.shards.Of("a").SetGroup(static("web", 1))
	w.settle()
	if events := w.reports.take(); !has(events, testCluster+" Warning Refused", "group web is not imported") {
		t.Error(events)
	}
}

// Connecting is not yet being unreachable: an operator that starts does not say that its shards are lost.
func TestStart(t *testing.T) {
	w := newWorld(t, "a")
	w.newPool("web", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	w.settle()
	w.reports.take()
	w.shards.Of("a").SetState(func(s *shards.State) { s.Reachable, s.Synced = false, false })
	w.groups = newGroups(w.groups.Options)
	if writes, calls := w.settle(); len(writes) != 0 || len(calls) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
	w.shards.Of("a").SetState(func(s *shards.State) { s.Reachable, s.Synced = true, true })
	if writes, calls := w.settle(); len(writes) != 0 || len(calls) != 0 || len(w.reports.take()) != 0 {
		t.Errorf("%v %v", writes, calls)
	}
}
