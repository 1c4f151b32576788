package pool

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// userPool returns a MachinePool of pool "web" that is age minutes old.
func userPool(name string, age int, deleting bool) *clusterv1.MachinePool {
	mp := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name,
		UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(time.Unix(int64(10_000-60*age), 0))}}
	if deleting {
		mp.DeletionTimestamp = ptr.To(metav1.Unix(20_000, 0))
	}
	mp.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: v1beta1.GroupVersion.Group, Kind: machinePoolKind, Name: "web"}
	return mp
}

func TestDecideHeir(t *testing.T) {
	type users = []*clusterv1.MachinePool
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "web"}}
	owned := pool.DeepCopy()
	owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(userPool("young", 1, false),
		clusterv1.GroupVersion.WithKind("MachinePool"))}
	for name, c := range map[string]struct {
		pool        *v1beta1.NstanceMachinePool
		users       []*clusterv1.MachinePool
		first, heir string
	}{
		"nobody":         {pool: pool},
		"the pool alone": {pool: pool, users: users{userPool("web", 1, false)}, first: "web"},
		"with its user":  {pool: pool, users: users{userPool("web", 1, true)}, first: "web"},
		"all users": {pool: pool, users: users{userPool("a", 1, true), userPool("b", 2, true)},
			first: "b"},
		"the second user": {pool: pool, users: users{userPool("a", 1, true), userPool("b", 2, false)},
			first: "b", heir: "b"},
		"the first user": {pool: pool, users: users{userPool("a", 2, true), userPool("b", 1, false)},
			first: "a", heir: "b"},
		"the name decides": {pool: pool, users: users{userPool("a", 1, false), userPool("web", 1, false)},
			first: "web"},
		"the controller wins": {pool: owned, users: users{userPool("web", 9, true), userPool("young", 1, false)},
			first: "young", heir: "young"},
	} {
		t.Run(name, func(t *testing.T) {
			nameOf := func(mp *clusterv1.MachinePool) string {
				if mp == nil {
					return ""
				}
				return mp.Name
			}
			for range 2 {
				if first := nameOf(chooseUser(c.pool, c.users)); first != c.first {
					t.Errorf("first is %q, want %q", first, c.first)
				}
				if heir := nameOf(decideHeir(c.pool, c.users)); heir != c.heir {
					t.Errorf("heir is %q, want %q", heir, c.heir)
				}
				slices.Reverse(c.users)
			}
		})
	}
}

func TestSharedCondition(t *testing.T) {
	a, b := userPool("a", 2, false), userPool("b", 1, false)
	both := []*clusterv1.MachinePool{a, b}
	if c := sharedCondition("web", a, a, both[:1]); c != nil {
		t.Errorf("alone: %+v", c)
	}
	for mp, text := range map[*clusterv1.MachinePool]string{a: "also referenced by b", b: "of MachinePool a"} {
		c := sharedCondition("web", a, mp, both)
		if c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, text) {
			t.Errorf("%s: %+v, want %q", mp.Name, c, text)
			continue
		}
		mp.Status.Conditions = []metav1.Condition{*c}
	}
	if c := sharedCondition("web", a, a, both[:1]); c == nil || c.Status != metav1.ConditionFalse {
		t.Errorf("alone again: %+v", c)
	}
}

// TestSharedPool creates a second MachinePool for a pool, and deletes it. Both MachinePools get the condition
// PoolShared and one event each. The deletion must keep the instances, and end the condition.
func TestSharedPool(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	op.settle()
	before := op.ids("web")
	op.events.take()
	second := op.machinePool("web")
	second.Name, second.ResourceVersion, second.Status = "second", "", clusterv1.MachinePoolStatus{}
	second.Spec.Replicas, second.Finalizers = ptr.To(int32(9)), []string{clusterv1.MachinePoolFinalizer}
	op.create(second)
	if _, calls := op.settle(); len(calls) > 0 {
		t.Errorf("calls of the servers: %v", calls)
	}
	shared := func(name string) string {
		return condition(op.machinePool(name).Status.Conditions, v1beta1.PoolSharedCondition)
	}
	reported := op.events.take()
	for name, text := range map[string]string{"web": "also referenced by second", "second": "of MachinePool web"} {
		if got := shared(name); got != "True PoolShared" {
			t.Errorf("condition of %s: %q", name, got)
		}
		if n := strings.Count(strings.Join(reported, "\n"), name+" Warning PoolShared"); n != 1 ||
			!containsAll(reported, name+" Warning PoolShared", text) {
			t.Errorf("%d events about %s among %q", n, name, reported)
		}
	}
	op.settle()
	if repeated := op.events.take(); containsAll(repeated, "PoolShared") {
		t.Errorf("the events are repeated: %q", repeated)
	}

	// Cluster API deletes the pool with the second MachinePool.
	for _, object := range []client.Object{op.machinePool("second"), op.pool("web")} {
		if err := op.client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	op.settle()
	if op.exists("web", &v1beta1.NstanceMachinePool{}) {
		t.Error("the pool is created again before its deleted MachinePool has ended")
	}
	if got := op.events.take(); !containsAll(got, "web Warning PoolShared", "its instances stay") {
		t.Errorf("events %q", got)
	}
	second = op.machinePool("second")
	op.change(second, func() { second.Finalizers = nil })
	if err := op.restorePools(); err != nil {
		t.Fatal(err)
	}
	if _, calls := op.settle(); len(calls) > 0 {
		t.Errorf("calls of the servers: %v", calls)
	}
	if got := shared("web"); got != "False PoolNotShared" {
		t.Errorf("condition of web: %q", got)
	}
	if op.machinePool("web").Annotations[v1beta1.StoredPoolAnnotation] != "" {
		t.Error("the annotation with the stored pool is left")
	}
	if diff := cmp.Diff(before, op.ids("web")); diff != "" {
		t.Error(diff)
	}
}

// restorePools reconciles the pool "web", which a MachinePool references. The method reconcileAll reconciles only
// existing pools.
func (op *simulatedOperator) restorePools() error {
	_, err := op.pools.Reconcile(op.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{
		Namespace: testNamespace, Name: "web"}})
	return err
}

func TestStoredPool(t *testing.T) {
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "web",
		Labels: map[string]string{"team": "x"}}, Spec: v1beta1.NstanceMachinePoolSpec{Group: "g",
		Config: fromWorker(), Shards: []string{"a", "b"}, ProviderIDList: []string{"id"}}}
	mp := userPool("a", 1, false)
	if stored := readStoredPool(mp); stored != nil {
		t.Errorf("without annotation: %+v", stored)
	}
	if err := storePool(mp, pool); err != nil {
		t.Fatal(err)
	}
	stored := readStoredPool(mp)
	if stored == nil || stored.Name != "web" || stored.Labels["team"] != "x" || stored.Spec.Group != "g" ||
		!slices.Equal(stored.Spec.Shards, pool.Spec.Shards) || !equalJSON(stored.Spec.Config, pool.Spec.Config) ||
		len(stored.Spec.ProviderIDList) > 0 {
		t.Errorf("stored %+v", stored)
	}
}
