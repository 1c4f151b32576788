package pool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// chooseUser returns the MachinePool that determines the replicas of a pool. This is the pool's controller, or else the
// oldest MachinePool that references the pool. If several MachinePools reference the pool, the controller is the one
// that Cluster API sees first. chooseUser returns nil if there is no MachinePool.
func chooseUser(pool *v1beta1.NstanceMachinePool, users []*clusterv1.MachinePool) *clusterv1.MachinePool {
	if len(users) == 0 {
		return nil
	}
	controller := metav1.GetControllerOf(pool)
	rank := func(mp *clusterv1.MachinePool) int {
		switch {
		case controller != nil && controller.UID == mp.UID:
			return 0
		case mp.Name == pool.Name:
			return 1
		}
		return 2
	}
	return slices.MinFunc(users, func(a, b *clusterv1.MachinePool) int {
		if a, b := rank(a), rank(b); a == 0 || b == 0 {
			return cmp.Compare(a, b)
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.Name, b.Name))
	})
}

// decideHeir returns the MachinePool that takes over a pool that is being deleted. It returns nil if the pool must
// really be deleted. Cluster API deletes the pool of every deleted MachinePool, even if another MachinePool references
// the pool too.
func decideHeir(pool *v1beta1.NstanceMachinePool, users []*clusterv1.MachinePool) *clusterv1.MachinePool {
	living := livingUsers(users)
	if len(living) == len(users) {
		return nil
	}
	return chooseUser(pool, living)
}

// livingUsers returns the MachinePools that are not being deleted.
func livingUsers(users []*clusterv1.MachinePool) []*clusterv1.MachinePool {
	return slices.DeleteFunc(slices.Clone(users), func(mp *clusterv1.MachinePool) bool {
		return !mp.DeletionTimestamp.IsZero()
	})
}

// sharedCondition returns the new condition of the MachinePool mp that says whether other MachinePools reference its
// pool. If no other does, sharedCondition returns a condition with the status false, or nil if the present condition of
// mp is not true.
func sharedCondition(pool string, first, mp *clusterv1.MachinePool, living []*clusterv1.MachinePool) *metav1.Condition {
	var others []string
	for _, other := range living {
		if other.UID != mp.UID {
			others = append(others, other.Name)
		}
	}
	condition := &metav1.Condition{Type: v1beta1.PoolSharedCondition, Status: metav1.ConditionTrue,
		Reason: v1beta1.PoolSharedReason, ObservedGeneration: mp.Generation}
	switch {
	case len(others) == 0 && !meta.IsStatusConditionTrue(mp.Status.Conditions, v1beta1.PoolSharedCondition):
		return nil
	case len(others) == 0:
		condition.Status, condition.Reason = metav1.ConditionFalse, v1beta1.PoolNotSharedReason
	case mp.UID == first.UID:
		condition.Message = fmt.Sprintf("NstanceMachinePool %s is also referenced by %s, whose replicas are ignored; "+
			"delete all but one", pool, strings.Join(others, ", "))
	default:
		condition.Message = fmt.Sprintf("NstanceMachinePool %s has the replicas of MachinePool %s; those of this "+
			"MachinePool are ignored: delete it", pool, first.Name)
	}
	return condition
}

// storedPool is a pool in [v1beta1.StoredPoolAnnotation].
type storedPool struct {
	Labels      map[string]string              `json:"labels,omitempty"`
	Annotations map[string]string              `json:"annotations,omitempty"`
	Spec        v1beta1.NstanceMachinePoolSpec `json:"spec"`
}

// storePool stores a pool in an annotation of its MachinePool. From this annotation, restorePool creates the pool
// again.
func storePool(mp *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) error {
	stored := storedPool{Labels: pool.Labels, Annotations: pool.Annotations, Spec: *pool.Spec.DeepCopy()}
	stored.Spec.ProviderIDList = nil // taken from the shards again
	text, err := json.Marshal(stored)
	if err != nil {
		return fmt.Errorf("encode pool %s: %w", pool.Name, err)
	}
	metav1.SetMetaDataAnnotation(&mp.ObjectMeta, v1beta1.StoredPoolAnnotation, string(text))
	return nil
}

// readStoredPool returns the pool in the annotation of a MachinePool, nil if there is none. The pool has the finalizer
// from the start, because its shard groups exist already.
func readStoredPool(mp *clusterv1.MachinePool) *v1beta1.NstanceMachinePool {
	name, ok := referencedPool(mp)
	var stored storedPool
	if text := mp.Annotations[v1beta1.StoredPoolAnnotation]; !ok || text == "" ||
		json.Unmarshal([]byte(text), &stored) != nil {
		return nil
	}
	return &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: mp.Namespace, Name: name,
		Labels: stored.Labels, Annotations: stored.Annotations,
		Finalizers: []string{v1beta1.MachinePoolFinalizer}}, Spec: stored.Spec}
}
