package pool

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// addMachines creates the Machines of a pool's instances, as Cluster API does.
func (op *simulatedOperator) addMachines(pool string) {
	op.t.Helper()
	for _, m := range op.allMachines() {
		if m.Labels[v1beta1.GroupLabel] == pool {
			op.create(&clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m-" + m.Name,
				Labels: map[string]string{clusterv1.MachinePoolNameLabel: pool}},
				Spec: clusterv1.MachineSpec{ClusterName: testCluster,
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{Name: m.Name,
						APIGroup: v1beta1.GroupVersion.Group, Kind: machineKind}}})
		}
	}
}

// removeNode removes a drained node as the cluster autoscaler does: it marks the Machine for deletion, and then lowers
// the replicas by one.
func (op *simulatedOperator) removeNode(pool, instance string) {
	op.t.Helper()
	m := &clusterv1.Machine{}
	op.mustGet("m-"+instance, m)
	op.change(m, func() {
		op.marks++
		m.Annotations = map[string]string{
			clusterv1.DeleteMachineAnnotation: fmt.Sprintf("2026-01-01 10:00:%02d", op.marks),
		}
	})
	op.scale(pool, ptr.Deref(op.machinePool(pool).Spec.Replicas, 1)-1)
}

func (op *simulatedOperator) ids(group string) (ids []string) {
	for _, shard := range op.shards.All() {
		for _, i := range shard.Instances(group) {
			if i.GetState() != "deleting" {
				ids = append(ids, i.GetInstanceId())
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// TestAutoscalerChoosesInstances lets the cluster autoscaler mark Machines on several shards while the operator works.
// Exactly the instances of the marked Machines must be deleted.
func TestAutoscalerChoosesInstances(t *testing.T) {
	for seed := range uint64(20) {
		op := newSimulatedOperator(t, "a", "b", "c")
		op.random = newRandom(seed)
		op.newPool("web", 8, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b", "c"}})
		op.settle()
		op.addMachines("web")
		if seed%2 == 0 {
			for _, id := range []string{"a", "b", "c"} {
				op.shards.Of(id).HoldDrains()
			}
		}
		kept := op.ids("web")
		if len(kept) != 8 {
			t.Fatalf("%v", kept)
		}
		for len(kept) > 2 {
			for range 1 + op.random.IntN(2) {
				n := op.random.IntN(len(kept))
				op.removeNode("web", kept[n])
				kept = slices.Delete(kept, n, n+1)
				if op.random.IntN(2) == 0 {
					op.reconcileAll()
				}
			}
			op.settle()
			if have := op.ids("web"); !slices.Equal(have, kept) {
				t.Fatalf("seed %d: want %v, have %v, sizes %v", seed, kept, have, op.sizes("web"))
			}
		}
	}
}

// TestScaleDownPrefersDeletedMachine checks that a scale-down removes a MachinePool's Machine that is already being
// deleted.
func TestScaleDownPrefersDeletedMachine(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	op.settle()
	op.addMachines("web")
	victim := op.shards.Of("a").Instances("web")[0].GetInstanceId()
	m := &clusterv1.Machine{}
	op.mustGet("m-"+victim, m)
	op.change(m, func() { m.Finalizers = []string{"test/drain"} })
	if err := op.client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	op.scale("web", 3)
	op.settle()
	if have := op.ids("web"); len(have) != 3 || slices.Contains(have, victim) {
		t.Errorf("%v, without %s", have, victim)
	}
}

// TestMarkedMachineStaysWithoutScaleDown marks a Machine for deletion. Before the operator has seen the scale-down, the
// pool grows again. The instance of the Machine must stay.
func TestMarkedMachineStaysWithoutScaleDown(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	op.newPool("web", 4, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"}})
	op.settle()
	op.addMachines("web")
	before := op.ids("web")
	op.removeNode("web", before[0])
	op.scale("web", 4)
	if _, calls := op.settle(); len(calls) > 0 || !slices.Equal(op.ids("web"), before) {
		t.Errorf("%v, %v", calls, op.ids("web"))
	}
}

// TestCapacityComesFromTheProvider checks that the autoscaler's annotations come from the shard's provider, and that
// there are none for types that the provider does not know.
func TestCapacityComesFromTheProvider(t *testing.T) {
	op := newSimulatedOperator(t, "a", "b")
	for _, id := range []string{"a", "b"} {
		op.shards.Of(id).SetType("x9.huge", 448, 1<<20)
	}
	op.newPool("web", 0, v1beta1.NstanceMachinePoolSpec{Group: "web", Shards: []string{"a", "b"},
		Config: jsonOf(`{"template":"worker","instance_type":"x9.huge"}`)})
	for _, step := range []struct{ instanceType, cpu, memory string }{{"x9.huge", "448", "1Ti"},
		{"m5.large", "2", "8Gi"}, {"toaster", "", ""}} {
		pool := op.pool("web")
		op.change(pool, func() {
			pool.Spec.Config = jsonOf(`{"template":"worker","instance_type":"` + step.instanceType + `"}`)
		})
		op.settle()
		at := op.machinePool("web").Annotations
		if at[cpuAnnotation] != step.cpu || at[memoryAnnotation] != step.memory {
			t.Errorf("%s: %v", step.instanceType, at)
		}
	}
}
