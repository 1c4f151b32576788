package machine

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

func TestDecideOrphan(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	empty := shardView{id: "east", reachable: true, synced: true}
	silent, unlisted, has, had := empty, empty, empty, empty
	silent.reachable, unlisted.synced = false, false
	has.instance = &nstancev1.InstanceStatus{State: "created"}
	had.instance = &nstancev1.InstanceStatus{State: stateDeleted}
	for name, c := range map[string]struct {
		infrastructure bool
		shards         []shardView
		age            time.Duration
		reap           bool
		again          time.Duration
		// forgets: the minute starts again.
		forgets bool
	}{
		"first seen":        {shards: []shardView{empty, had}, again: orphanGrace},
		"before a minute":   {shards: []shardView{empty}, age: 20 * time.Second, again: 40 * time.Second},
		"after a minute":    {shards: []shardView{empty, had}, age: time.Minute, reap: true},
		"an NstanceMachine": {infrastructure: true, shards: []shardView{empty}, age: time.Hour, forgets: true},
		"an instance": {shards: []shardView{empty, has}, age: 2 * orphanGrace, again: orphanRecheck,
			forgets: true},
		"a shard is silent": {shards: []shardView{empty, silent}, age: 2 * orphanGrace, again: orphanRecheck,
			forgets: true},
		"a shard has not listed": {shards: []shardView{unlisted, empty}, age: 2 * orphanGrace, again: orphanRecheck,
			forgets: true},
	} {
		t.Run(name, func(t *testing.T) {
			in := orphanInput{infrastructure: c.infrastructure, shards: c.shards, now: now}
			if c.age > 0 {
				in.since = now.Add(-c.age)
			}
			reap, again := decideOrphan(&in)
			if reap != c.reap || again != c.again || in.since.IsZero() != c.forgets {
				t.Errorf("reap %t, again %s, since %s; want %+v", reap, again, in.since, c)
			}
		})
	}
}

// TestOrphanWithAnotherClock checks that a Machine without instance is deleted after orphanGrace although the clock of
// the API server, which sets the creation time, is ahead of the operator's. Another Machine with the same name gets the
// whole time.
func TestOrphanWithAnotherClock(t *testing.T) {
	op := newSimulatedOperator(t, 1)
	r := newOrphanReconciler(op.rec)
	request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: "lost"}}
	create := func(uid string) {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lost", UID: types.UID(uid),
			CreationTimestamp: metav1.NewTime(op.now.Add(time.Hour)),
			Labels:            map[string]string{clusterv1.MachinePoolNameLabel: "web"}},
			Spec: clusterv1.MachineSpec{ClusterName: "prod--default",
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{Name: "lost", Kind: "NstanceMachine",
					APIGroup: v1beta1.GroupVersion.Group}}}
		if err := op.client.Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(after time.Duration) bool {
		t.Helper()
		op.now = op.now.Add(after)
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		err := op.client.Get(t.Context(), request.NamespacedName, &clusterv1.Machine{})
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return err == nil
	}
	create("one")
	if !exists(0) || !exists(orphanGrace-time.Second) {
		t.Error("the Machine was deleted too early")
	}
	if err := op.client.Delete(t.Context(), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: "lost"}}); err != nil {
		t.Fatal(err)
	}
	create("two")
	if !exists(time.Second) || !exists(orphanGrace-time.Second) {
		t.Error("the second Machine was deleted too early")
	}
	if exists(time.Second) {
		t.Error("the second Machine still exists")
	}
}
