package pool

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

func TestKeptMachine(t *testing.T) {
	mp := userPool("web", 1, true)
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: testCluster, UID: "uid-cluster"}}
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(mp, clusterv1.GroupVersion.WithKind("MachinePool"))}}}
	kept := keptMachine(machine, mp, cluster)
	if kept == nil || ownedBy(kept, mp.UID) || !ownedBy(kept, cluster.UID) || metav1.GetControllerOf(kept) != nil {
		t.Fatalf("kept %+v", kept)
	}
	if again := keptMachine(kept, mp, cluster); again != nil {
		t.Errorf("kept twice: %+v", again)
	}
	machine.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	if kept := keptMachine(machine, mp, cluster); kept != nil {
		t.Errorf("kept a deleted one: %+v", kept)
	}
}

func TestDecideAdoption(t *testing.T) {
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid-new"}}
	mp := userPool("web", 1, false)
	machine := func(owner *clusterv1.MachinePool, label string, deleting bool) *clusterv1.Machine {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "i",
			Labels: map[string]string{clusterv1.MachinePoolNameLabel: label}}}
		if owner != nil {
			m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
				clusterv1.GroupVersion.WithKind("MachinePool"))}
		}
		if deleting {
			m.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
		}
		return m
	}
	infra := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Name: "i",
		Labels: map[string]string{clusterv1.MachinePoolNameLabel: "old"}, OwnerReferences: []metav1.OwnerReference{
			{Kind: machinePoolKind, Name: "web", UID: "uid-old"}, {Kind: "Machine", Name: "i", UID: "uid-i"}}}}
	deleting := infra.DeepCopy()
	deleting.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	for name, c := range map[string]struct {
		infra   *v1beta1.NstanceMachine
		machine *clusterv1.Machine
		adopts  bool
		labels  bool
		waits   bool
	}{
		"no Machine":                   {infra: infra, adopts: true},
		"a Machine without owner":      {infra: infra, machine: machine(nil, "old", false), adopts: true, labels: true},
		"a Machine of the MachinePool": {infra: infra, machine: machine(mp, "web", false), adopts: true},
		"a Machine of another": {infra: infra, machine: machine(userPool("old", 1, false), "old", false),
			waits: true},
		"a Machine that is deleted": {infra: infra, machine: machine(nil, "old", true), waits: true},
		"being deleted":             {infra: deleting, machine: machine(mp, "web", false)},
	} {
		t.Run(name, func(t *testing.T) {
			a := decideAdoption(c.infra, c.machine, pool, mp)
			if (a.infra != nil) != c.adopts || (a.machine != nil) != c.labels || a.wait != c.waits {
				t.Fatalf("got %+v, want %+v", a, c)
			}
			if a.infra != nil && (!ownedBy(a.infra, pool.UID) || ownedBy(a.infra, "uid-old") ||
				!ownedBy(a.infra, "uid-i") || a.infra.Labels[clusterv1.MachinePoolNameLabel] != "web") {
				t.Errorf("adopted as %+v", a.infra.ObjectMeta)
			}
		})
	}
}
