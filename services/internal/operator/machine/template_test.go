package machine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

func TestTemplateCapacity(t *testing.T) {
	op := newSimulatedOperator(t, 1)
	for _, id := range []string{"a", "b"} {
		op.shards.Of(id).SetType("x9.huge", 448, 1<<20)
	}
	r := &templateReconciler{Scope: op.rec.Scope, types: shards.Types{Now: op.rec.Now}}
	for name, c := range map[string]struct {
		spec      v1beta1.NstanceMachineSpec
		cpus      string
		condition string
	}{
		"own type": {v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"},
			InstanceType: "c5.xlarge"}, "4", "Ready=Ready"},
		"group-type": {v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}}, "2",
			"Ready=Ready"},
		"type-of-the-provider": {v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"},
			InstanceType: "x9.huge"}, "448", "Ready=Ready"},
		"no-such-group": {v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "others"}}, "",
			"Ready=WaitingForShard"},
		"no-such-type": {v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"},
			InstanceType: "toaster"}, "", "Ready=Ready"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1beta1.NstanceMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "t"},
				Spec: v1beta1.NstanceMachineTemplateSpec{Template: v1beta1.NstanceMachineTemplateResource{
					Spec: c.spec}}}
			if err := op.client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			writes := op.writes
			for range 2 {
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(
					o)}); err != nil {
					t.Fatal(err)
				}
			}
			if op.writes != writes+1 {
				t.Errorf("%d writes", op.writes-writes)
			}
			if err := op.client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				t.Fatal(err)
			}
			cpus := ""
			if q, ok := o.Status.Capacity[corev1.ResourceCPU]; ok {
				cpus = q.String()
			}
			if cpus != c.cpus || !hasCondition(o.Status.Conditions, c.condition) {
				t.Errorf("capacity %v, conditions %+v", o.Status.Capacity, o.Status.Conditions)
			}
			if n := len(r.requestsForChange(shards.Change{Kind: shards.GroupChanged,
				Group: c.spec.GroupRef.Name})); n != 1 {
				t.Errorf("%d requests for its group", n)
			}
			if n := len(r.requestsForChange(shards.Change{Kind: shards.GroupChanged, Group: "else"})); n != 0 {
				t.Errorf("%d requests for another group", n)
			}
			if err := op.client.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		})
	}
	// If no shard reports the group's instance type any more, the template keeps the known capacity.
	o := &v1beta1.NstanceMachineTemplate{}
	o.Spec.Template.Spec.GroupRef.Name = "workers"
	r.updateStatus(t.Context(), o, false)
	op.shards.Of("a").SetGroup(&nstancev1.GroupStatus{Group: "workers"})
	op.shards.Of("b").SetGroup(&nstancev1.GroupStatus{Group: "workers"})
	r.updateStatus(t.Context(), o, false)
	if len(o.Status.Capacity) == 0 {
		t.Error("the capacity was lost")
	}
}
