package pool

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// TestRenamedPool creates a second pool for a group, and deletes the first one. The second pool must take over the shard
// groups and the machines without a change on the servers, and must become ready without a change of its spec.
func TestRenamedPool(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("old", 3, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	op.settle()
	op.newPool("new", 3, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	op.settle()
	if got := condition(op.pool("new").Status.Conditions, "Ready"); got != "False Refused" {
		t.Errorf("the second pool: %s", got)
	}
	mp := op.machinePool("old")
	op.change(mp, func() { mp.Finalizers = []string{clusterv1.MachinePoolFinalizer} }) // as Cluster API does
	for _, m := range op.allMachines() {
		op.create(&clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: m.Name,
			Labels: map[string]string{clusterv1.MachinePoolNameLabel: "old"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool",
				Name: mp.Name, UID: mp.UID, Controller: ptr.To(true)}}},
			Spec: clusterv1.MachineSpec{ClusterName: testCluster,
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{Name: m.Name,
					APIGroup: v1beta1.GroupVersion.Group, Kind: machineKind}}})
	}
	before := op.ids("web")
	op.deletePool("old")
	if _, calls := op.settle(); len(calls) > 0 {
		t.Errorf("calls of the servers: %v", calls)
	}
	if op.exists("old", &v1beta1.NstanceMachinePool{}) {
		t.Error("the first pool still exists")
	}
	if diff := cmp.Diff(before, op.ids("web")); diff != "" {
		t.Error(diff)
	}
	// Cluster API lets the MachinePool end after its pool.
	mp = op.machinePool("old")
	op.change(mp, func() { mp.Finalizers = nil })
	op.settle()
	pool := op.pool("new")
	if got := condition(pool.Status.Conditions, "Ready"); got != "True Ready" {
		t.Errorf("the second pool: %s", got)
	}
	for _, name := range []string{"web--a", "web--b"} {
		if owner := metav1.GetControllerOf(op.group(name)); owner == nil || owner.UID != pool.UID {
			t.Errorf("%s is owned by %+v", name, owner)
		}
	}
	for _, m := range op.allMachines() {
		if !ownedBy(&m, pool.UID) || m.Labels[clusterv1.MachinePoolNameLabel] != "new" {
			t.Errorf("NstanceMachine %s has the owners %+v and the labels %v", m.Name, m.OwnerReferences, m.Labels)
		}
	}
	// Kubernetes would delete a Machine that the deleted MachinePool still owns, and the instance with it.
	list := &clusterv1.MachineList{}
	if err := op.client.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		if owner := metav1.GetControllerOf(&m); owner != nil && owner.Kind == "MachinePool" {
			t.Errorf("Machine %s is owned by %+v", m.Name, owner)
		}
	}
}

// TestRenamedPoolWithFewerShards checks that a pool takes over only the shards that it lists. A pool without a
// MachinePool takes over nothing.
func TestRenamedPoolWithFewerShards(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("old", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	op.settle()
	op.create(&v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "idle"},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}, Config: fromWorker()}})
	op.newPool("new", 2, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"b"}})
	op.settle()
	op.deletePool("old")
	if _, calls := op.settle(); !slices.Contains(calls, "DeleteGroup a") || slices.Contains(calls, "DeleteGroup b") {
		t.Errorf("calls of the servers: %v", calls)
	}
	if diff := cmp.Diff(map[string]uint32{"b": 2}, op.sizes("web")); diff != "" {
		t.Error(diff)
	}
}

// TestPoolsOfAGroupAreWoken checks that a change of a shard group or of a pool wakes all pools of the group.
func TestPoolsOfAGroupAreWoken(t *testing.T) {
	op := newSimulatedOperator(t, "a")
	for _, name := range []string{"old", "new"} {
		op.newPool(name, 1, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a"}})
	}
	op.newPool("other", 1, v1beta1.NstanceMachinePoolSpec{Group: "db", Shards: []string{"a"}})
	op.settle()
	for _, object := range []client.Object{op.group("web--a"), op.pool("old")} {
		var names []string
		for _, request := range op.pools.requestsForGroup(t.Context(), object) {
			names = append(names, request.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, []string{"new", "old"}) {
			t.Errorf("%T wakes %v", object, names)
		}
	}
}

// TestSharesStay deletes a shard group of a pool with unequal shares. The shares must stay, whether the deletion is
// still under way or has ended. They are divided again only when the list of shards changes.
func TestSharesStay(t *testing.T) {
	for _, deleted := range []string{"web--a", "web--b"} {
		op := newSimulatedOperator(t, "a", "b", "c")
		op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"},
			Config: fromWorker()})
		op.settle()
		op.addMachines("web")
		for _, id := range op.ids("web") {
			if i, ok := op.shards.Of("b").Instance(id); ok && i != nil {
				op.removeNode("web", id)
				op.settle()
			}
		}
		want := map[string]uint32{"a": 2, "b": 0}
		if diff := cmp.Diff(want, op.sizes("web")); diff != "" {
			t.Fatal(diff)
		}
		uid := op.group(deleted).UID
		if err := op.client.Delete(t.Context(), op.group(deleted)); err != nil {
			t.Fatal(err)
		}
		if _, calls := op.settle(); len(calls) > 0 {
			t.Errorf("%s: calls of the servers: %v", deleted, calls)
		}
		if diff := cmp.Diff(want, op.sizes("web")); diff != "" || op.group(deleted).UID == uid {
			t.Errorf("%s: %s", deleted, diff)
		}
		pool := op.pool("web")
		op.change(pool, func() { pool.Spec.Shards = []string{"a", "b", "c"} })
		op.settle()
		if diff := cmp.Diff(map[string]uint32{"a": 1, "b": 1, "c": 0}, op.sizes("web")); diff != "" {
			t.Errorf("%s: %s", deleted, diff)
		}
	}
}
