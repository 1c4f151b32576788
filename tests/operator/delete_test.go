package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const (
	dynamic = "dynamic"                // A group that exists only in Kubernetes, with one instance on each shard.
	deleted = clusterName + "-deleted" // The ConfigMap that records the deletion of the Cluster.
	// endsWithin is the time limit for the deletion of a Cluster. Cluster API needs up to 80 s to delete a MachinePool.
	endsWithin = 2 * patience
)

// TestDelete deletes the Cluster object and the objects that belong to it, in different ways. No deletion may create an
// instance.
func TestDelete(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	l.bootstrap(t)
	l.imported(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"kinds", l.testDeleteKinds},
		{"forgotten shard", l.testForgottenShard},
		{"cluster", l.testDeleteCluster},
		{"hanging shard", l.testDeleteWithHangingShard},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason.
		}
	}
}

// testDeleteKinds deletes one object of each kind while the server of the shard "west" is paused. Then the server
// resumes.
func (l *lab) testDeleteKinds(t *testing.T) {
	const first, second, third = "first", "second", "third"
	for _, group := range []string{first, second, third} {
		l.dynamicPool(t, group)
	}
	await(t, "dynamic groups run", patience, func(ctx context.Context) error {
		return errors.Join(l.spread(ctx, first, l.both(1, 1)), l.spread(ctx, second, l.both(1, 1)),
			l.spread(ctx, third, l.both(1, 1)))
	})
	before := &v1beta1.NstanceCluster{}
	if err := l.Client.Get(t.Context(), in(clusterName), before); err != nil {
		t.Fatal(err)
	}
	created := l.countCreations()
	proceed := l.hang(t, l.west)
	l.remove(t, "nstancecluster", clusterName)
	l.remove(t, "machinepool", first)
	l.remove(t, "nstancemachinepool", second)
	l.remove(t, "nstanceshardgroup", v1beta1.ShardGroupName(third, "west"))
	for _, pool := range []string{first, second} {
		await(t, pool+" names the shard that it waits for", patience, func(ctx context.Context) error {
			return errors.Join(l.poolWaitsFor(ctx, pool, "west"), l.withoutGroup(ctx, pool, l.east))
		})
	}
	await(t, "the NstanceCluster is created again", patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceCluster{}, clusterName, func(c *v1beta1.NstanceCluster) error {
			if c.UID == before.UID {
				return errors.New("it is still the deleted one")
			}
			return condition(c.Status.Conditions, v1beta1.ReadyCondition, "True")
		})
	})
	proceed()
	await(t, "two dynamic groups are gone, the third stays", endsWithin,
		func(ctx context.Context) error {
			return errors.Join(l.withoutGroup(ctx, first, l.shards()...), l.withoutGroup(ctx, second, l.shards()...),
				l.absent(ctx, &clusterv1.MachinePool{}, in(first)),
				l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(first)),
				l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(second)),
				l.spread(ctx, third, l.both(1, 1)))
		})
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("the deletions created %d instances, want none", n)
	}
	l.remove(t, "machinepool", second)
	l.remove(t, "machinepool", third)
	await(t, "the rest is gone", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.absent(ctx, &clusterv1.MachinePool{}, in(second)),
			l.absent(ctx, &clusterv1.MachinePool{}, in(third)), l.withoutGroup(ctx, third, l.shards()...))
	})
}

// testForgottenShard deletes a pool while one of the pool's shards is missing in the operator's configuration. Then the
// test puts the shard into the configuration again.
func (l *lab) testForgottenShard(t *testing.T) {
	const forgotten = "forgotten"
	l.dynamicPool(t, forgotten)
	await(t, "the group runs", patience, func(ctx context.Context) error {
		return l.spread(ctx, forgotten, l.both(1, 1))
	})
	created := l.countCreations()
	all := l.withoutWest(t)
	await(t, "west is unknown", patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceShardGroup{}, v1beta1.ShardGroupName(forgotten, "west"),
			func(g *v1beta1.NstanceShardGroup) error {
				return condition(g.Status.Conditions, v1beta1.ShardReachableCondition, "False")
			})
	})
	l.remove(t, "machinepool", forgotten)
	await(t, "the deletion waits for west", patience, func(ctx context.Context) error {
		return errors.Join(l.poolWaitsFor(ctx, forgotten, "west"), l.withoutGroup(ctx, forgotten, l.east),
			l.west.settled(ctx, forgotten, 1))
	})
	if err := os.WriteFile(l.configFile(), all, 0o600); err != nil {
		t.Fatal(err)
	}
	end := func(ctx context.Context) error {
		return errors.Join(l.withoutGroup(ctx, forgotten, l.shards()...),
			l.absent(ctx, &clusterv1.MachinePool{}, in(forgotten)),
			l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(forgotten)))
	}
	await(t, "the group is gone when west returns", endsWithin, end)
	steady(t, "the pool is not imported again", end)
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("the deletion created %d instances, want none", n)
	}
}

// testDeleteCluster deletes the Cluster while it has static and dynamic groups, a single machine and an on-demand
// machine. The operator restarts and must not recreate the Cluster. Then a user requests a new Cluster by an
// annotation.
func (l *lab) testDeleteCluster(t *testing.T) {
	ctx := t.Context()
	l.dynamicPool(t, dynamic)
	l.machine(t, "single", "west")
	pod := &corev1.Pod{ObjectMeta: objectMeta("job"), Spec: corev1.PodSpec{NodeSelector: map[string]string{
		v1beta1.OnDemandGroupNodeLabel: machines},
		Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	pod.Annotations = map[string]string{v1beta1.OnDemandGroupAnnotation: machines,
		v1beta1.OnDemandShardAnnotation: "east"}
	l.create(ctx, t, pod)
	await(t, "everything runs", patience, func(ctx context.Context) error {
		return errors.Join(l.spread(ctx, dynamic, l.both(1, 1)), l.poolRuns(ctx, dynamic, 2),
			l.east.counts(ctx, machines, 1), l.west.counts(ctx, machines, 1))
	})
	kept := l.ids(t, workers, l.shards()...)
	created := l.countCreations()
	l.runSteps(t, deletePage, "Delete the Cluster")
	l.ended(t)
	// The pod may already have been deleted with its Node.
	if err := l.Client.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}

	l.operators[len(l.operators)-1].Kill()
	restarted := l.operator(t)
	await(t, "the restarted operator knows of the deletion", patience, func(context.Context) error {
		if !bytes.Contains(tail(restarted.Log), []byte("is not created again")) {
			return errors.New("its log does not say so")
		}
		return nil
	})
	steady(t, "the restarted operator creates nothing", l.empty)
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("the deletion created %d instances, want none", n)
	}
	l.runSteps(t, deletePage, "Create the Cluster again")
	l.recreated(t)
	if after := l.ids(t, workers, l.shards()...); !slices.Equal(kept, after) {
		t.Errorf("the instances of a static group changed from %v to %v", kept, after)
	}
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("the new import created %d instances, want none", n)
	}
}

// testDeleteWithHangingShard deletes the Cluster two times while the server of the shard "west" is paused. The first
// time, the server resumes. The second time, the user makes the deletion skip the shard.
func (l *lab) testDeleteWithHangingShard(t *testing.T) {
	l.dynamicPool(t, dynamic)
	await(t, "the dynamic group runs", patience, func(ctx context.Context) error {
		return l.spread(ctx, dynamic, l.both(1, 1))
	})
	created := l.countCreations()
	proceed := l.hang(t, l.west)
	l.remove(t, "cluster", clusterName)
	l.clusterWaitsFor(t, "west")
	proceed()
	l.ended(t)
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("the deletion created %d instances, want none", n)
	}
	l.operators[len(l.operators)-1].Kill()
	l.operator(t, "--recreate-cluster")
	l.recreated(t)

	l.dynamicPool(t, dynamic)
	await(t, "the dynamic group runs again", patience, func(ctx context.Context) error {
		return l.spread(ctx, dynamic, l.both(1, 1))
	})
	created = l.countCreations()
	proceed = l.hang(t, l.west)
	l.remove(t, "cluster", clusterName)
	l.clusterWaitsFor(t, "west")
	l.runSteps(t, deletePage, "When the deletion does not end")
	await(t, "the Cluster has ended without west", endsWithin, l.empty)
	proceed()
	await(t, "west still has what was left behind", patience, func(ctx context.Context) error {
		return l.west.settled(ctx, dynamic, 1)
	})
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("the deletion created %d instances, want none", n)
	}
	// The user creates the Cluster again. The operator must also import the dynamic group, which remained on the shard
	// "west".
	l.create(t.Context(), t, &clusterv1.Cluster{ObjectMeta: objectMeta(clusterName), Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
			Kind: "NstanceCluster", Name: clusterName}}})
	l.recreated(t)
	l.restored(t, dynamic, map[*shard]int{l.west: 1})
}

// recreated waits until the Cluster exists, the static groups are imported, and the record of the deletion is removed.
func (l *lab) recreated(t *testing.T) {
	t.Helper()
	await(t, "the Cluster is back", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.spread(ctx, workers, l.both(2, 2)), l.spread(ctx, guarded, map[*shard]int{l.east: 1}),
			l.poolRuns(ctx, workers, 4), l.absent(ctx, &corev1.ConfigMap{}, in(deleted)))
	})
}

// hang pauses the server's process with SIGSTOP. The returned function makes the process continue. At the end of the
// test, the process continues in any case.
func (l *lab) hang(t *testing.T, s *shard) (proceed func()) {
	t.Helper()
	server := s.server()
	if err := server.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	proceed = func() { _ = server.Signal(syscall.SIGCONT) } // The process may have ended.
	t.Cleanup(proceed)
	return proceed
}

// remove deletes an object, if it exists, with the real kubectl. It does not wait until the object is gone.
func (l *lab) remove(t *testing.T, kind, name string) {
	t.Helper()
	if kind == "cluster" || kind == "machinepool" {
		kind += ".cluster.x-k8s.io"
	}
	l.kubectl(t, "-n", namespace, "delete", kind, name, "--wait=false", "--ignore-not-found")
}

// withoutWest removes the shard "west" from the operator's configuration file. It returns the content that the file had
// before.
func (l *lab) withoutWest(t *testing.T) (before []byte) {
	t.Helper()
	before = tail(l.configFile())
	east := fmt.Sprintf(
		"cluster_id: %s\ntenant: %s\nshards:\n  east:\n    registration_addr: %q\n    operator_addr: %q\n", clusterID,
		tenant, address(l.east.ports[2]), address(l.east.ports[3]))
	if err := os.WriteFile(l.configFile(), []byte(east), 0o600); err != nil {
		t.Fatal(err)
	}
	return before
}

// poolWaitsFor returns an error unless a pool is being deleted and a condition of the pool says that the deletion waits
// for the shard.
func (l *lab) poolWaitsFor(ctx context.Context, pool, shard string) error {
	return has(ctx, l, &v1beta1.NstanceMachinePool{}, pool, func(p *v1beta1.NstanceMachinePool) error {
		return deletingBecause(p.Status.Conditions, "shard "+shard+", which")
	})
}

// clusterWaitsFor waits until a condition of the NstanceCluster says that its deletion waits for the given shard, and
// until the shard "east" has deleted the group "dynamic".
func (l *lab) clusterWaitsFor(t *testing.T, shard string) {
	t.Helper()
	await(t, "the Cluster waits for "+shard, patience, func(ctx context.Context) error {
		return errors.Join(has(ctx, l, &v1beta1.NstanceCluster{}, clusterName, func(c *v1beta1.NstanceCluster) error {
			return deletingBecause(c.Status.Conditions, "do not answer: "+shard)
		}), l.withoutGroup(ctx, dynamic, l.east))
	})
}

func deletingBecause(conditions []metav1.Condition, text string) error {
	ready := meta.FindStatusCondition(conditions, v1beta1.ReadyCondition)
	if ready == nil || ready.Reason != v1beta1.DeletingReason || !strings.Contains(ready.Message, text) {
		return fmt.Errorf("condition %+v, want %s with %q", ready, v1beta1.DeletingReason, text)
	}
	return nil
}

// ended waits until no object of the Cluster exists, and the shards have only their static groups, at the configured
// sizes.
func (l *lab) ended(t *testing.T) {
	t.Helper()
	await(t, "the Cluster has ended", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.empty(ctx), l.static(ctx), l.withoutGroup(ctx, dynamic, l.shards()...))
	})
}

// empty returns an error if an object of the Cluster exists, or if the deletion of the Cluster is not recorded.
func (l *lab) empty(ctx context.Context) error {
	for _, list := range []client.ObjectList{&clusterv1.ClusterList{}, &v1beta1.NstanceClusterList{},
		&clusterv1.MachinePoolList{}, &v1beta1.NstanceMachinePoolList{}, &v1beta1.NstanceShardGroupList{},
		&clusterv1.MachineList{}, &v1beta1.NstanceMachineList{}} {
		if err := l.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		if n := meta.LenList(list); n > 0 {
			return fmt.Errorf("%d objects are left: %T", n, list)
		}
	}
	return l.Client.Get(ctx, in(deleted), &corev1.ConfigMap{})
}

// static returns an error unless the static groups have their configured sizes and the on-demand group is empty.
func (l *lab) static(ctx context.Context) error {
	return errors.Join(l.east.settled(ctx, workers, 2), l.west.settled(ctx, workers, 2),
		l.east.settled(ctx, guarded, 1), l.east.settled(ctx, spot, 1),
		l.east.counts(ctx, machines, 0), l.west.counts(ctx, machines, 0))
}

// withoutGroup returns an error while a shard has the group or an instance of it.
func (l *lab) withoutGroup(ctx context.Context, group string, shards ...*shard) error {
	for _, s := range shards {
		if status, err := s.group(ctx, group); err == nil {
			return fmt.Errorf("%s still has %v", s.id, status)
		}
		instances, err := s.instances(ctx, "")
		if err != nil {
			return err
		}
		for _, instance := range instances {
			if instance.GetGroup() == group {
				return fmt.Errorf("%s still has instance %s of %s", s.id, instance.GetInstanceId(), group)
			}
		}
	}
	return nil
}

// counts returns an error unless the shard has "want" instances of a group, on-demand ones included.
func (s *shard) counts(ctx context.Context, group string, want int) error {
	instances, err := s.instances(ctx, group)
	if err == nil && len(instances) != want {
		err = fmt.Errorf("%s has %d instances of %s, want %d", s.id, len(instances), group, want)
	}
	return err
}

// countCreations returns the number of create calls of both shards so far.
func (l *lab) countCreations() (n int) {
	for _, s := range l.shards() {
		s.mu.Lock()
		for _, event := range s.events {
			if event.GetType() == nstancev1.InstanceEvent_TYPE_CREATING {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}

// dynamicPool creates a pool of two instances over both shards, and its MachinePool.
func (l *lab) dynamicPool(t *testing.T, group string) {
	t.Helper()
	l.create(t.Context(), t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(group),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: group, Shards: []string{"east", "west"}, Config: fromWorker}})
	l.create(t.Context(), t, referringPool(group, group, 2))
}

// referringPool returns a MachinePool that refers to an NstanceMachinePool.
func referringPool(name, infra string, replicas int32) *clusterv1.MachinePool {
	none := ""
	return &clusterv1.MachinePool{ObjectMeta: objectMeta(name),
		Spec: clusterv1.MachinePoolSpec{ClusterName: clusterName, Replicas: &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{ClusterName: clusterName,
				Bootstrap: clusterv1.Bootstrap{DataSecretName: &none},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
					Kind: "NstanceMachinePool", Name: infra}}}}}
}

// steady returns once a state has lasted for five seconds. It fails the test if the state changes.
func steady(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 5*time.Second; <-time.After(200 * time.Millisecond) {
		if err := check(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
