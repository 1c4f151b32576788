package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

// TestPools tests mistakes that users may make with pools and with the operator's Secrets.
func TestPools(t *testing.T) {
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
		{"orphan", l.testOrphan},
		{"secrets", l.testSecrets},
		{"reference", l.testReference},
		{"renamed", l.testRenamed},
		{"shared", l.testShared},
		{"static", l.testDeleteStatic},
	} {
		if !t.Run(part.name, part.run) {
			return // Later parts would fail for the same reason.
		}
	}
}

// testOrphan creates a Machine whose NstanceMachine does not exist. Cluster API creates such a Machine if the
// NstanceMachine is deleted at the moment of the creation.
func (l *lab) testOrphan(t *testing.T) {
	const orphan = "wrk01k1bnbb2we2dbk3cgk8v7tz41"
	none, pool := "", &clusterv1.MachinePool{}
	if err := l.Client.Get(t.Context(), in(workers), pool); err != nil {
		t.Fatal(err)
	}
	machine := &clusterv1.Machine{ObjectMeta: objectMeta(orphan), Spec: clusterv1.MachineSpec{ClusterName: clusterName,
		Bootstrap: clusterv1.Bootstrap{DataSecretName: &none},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
			Kind: "NstanceMachine", Name: orphan}}}
	machine.Labels = map[string]string{clusterv1.MachinePoolNameLabel: workers, clusterv1.ClusterNameLabel: clusterName}
	machine.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pool,
		clusterv1.GroupVersion.WithKind("MachinePool"))}
	l.create(t.Context(), t, machine)
	took := await(t, "the Machine without instance is gone", patience, func(ctx context.Context) error {
		return l.absent(ctx, &clusterv1.Machine{}, in(orphan))
	})
	if took < 55*time.Second {
		t.Errorf("it was deleted after %s, want a minute", took)
	}
	await(t, "an event says why", patience, func(ctx context.Context) error {
		return l.hasEvent(ctx, v1beta1.InstanceGoneReason, "Machine", orphan)
	})
	l.restored(t, workers, l.both(2, 2))
}

// testSecrets deletes the Secrets with the operator's key and certificate. The operator must write them again. After a
// restart, it must use the new Secrets.
func (l *lab) testSecrets(t *testing.T) {
	names := []string{"nstance-operator-key", "nstance-operator-cert"}
	before := map[string]map[string][]byte{}
	for _, name := range names {
		secret := &corev1.Secret{}
		if err := l.Client.Get(t.Context(), in(name), secret); err != nil {
			t.Fatal(err)
		}
		before[name] = secret.Data
		l.remove(t, "secret", name)
	}
	await(t, "the Secrets are back", patience, func(ctx context.Context) (err error) {
		for _, name := range names {
			err = errors.Join(err, has(ctx, l, &corev1.Secret{}, name, func(s *corev1.Secret) error {
				if !maps.EqualFunc(s.Data, before[name], func(a, b []byte) bool { return string(a) == string(b) }) {
					return fmt.Errorf("secret %s has other values than before", name)
				}
				return nil
			}), l.hasEvent(ctx, v1beta1.SecretRestoredReason, "Secret", name))
		}
		return err
	})
	l.operators[len(l.operators)-1].Kill()
	l.operator(t)
	if err := l.scale(t.Context(), workers, 6); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(3, 3))
	if err := l.scale(t.Context(), workers, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, workers, l.both(2, 2))
}

// hasEvent returns an error unless an event about the object has the given reason.
func (l *lab) hasEvent(ctx context.Context, reason, kind, name string) error {
	list := &eventsv1.EventList{}
	if err := l.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for _, event := range list.Items {
		if event.Reason == reason && event.Regarding.Kind == kind && event.Regarding.Name == name {
			return nil
		}
	}
	return fmt.Errorf("no event %s about %s %s", reason, kind, name)
}

// testReference changes the infrastructureRef of a MachinePool without the admission policy. The events must name the
// NstanceMachinePool whose instances keep running, and both ways out must work: the former reference, and the deletion
// of the NstanceMachinePool.
func (l *lab) testReference(t *testing.T) {
	const moved, other = "moved", "other"
	l.dynamicPool(t, moved)
	await(t, "the group runs", patience, func(ctx context.Context) error { return l.poolRuns(ctx, moved, 2) })
	kept := l.ids(t, moved, l.shards()...)
	l.create(t.Context(), t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(other),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: other, Shards: []string{"east", "west"}, Config: fromWorker}})
	refer := func(infra string) {
		t.Helper()
		l.kubectl(t, "-n", namespace, "patch", "machinepool.cluster.x-k8s.io", moved, "--type=merge", "-p",
			fmt.Sprintf(`{"spec":{"template":{"spec":{"infrastructureRef":{"name":%q}}}}}`, infra))
	}
	reported := func(ctx context.Context, pool string) error {
		return errors.Join(l.hasEvent(ctx, v1beta1.UnreferencedReason, "NstanceMachinePool", pool),
			has(ctx, l, &v1beta1.NstanceMachinePool{}, pool, func(p *v1beta1.NstanceMachinePool) error {
				ready := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ReadyCondition)
				if ready == nil || ready.Reason != v1beta1.UnreferencedReason {
					return fmt.Errorf("condition %+v", ready)
				}
				return nil
			}))
	}
	refer(other)
	await(t, "events report the instances of the former pool", patience, func(ctx context.Context) error {
		return errors.Join(reported(ctx, moved), l.hasEvent(ctx, v1beta1.UnreferencedReason, "MachinePool", moved),
			l.spread(ctx, other, l.both(1, 1)))
	})
	refer(moved)
	await(t, "the former pool is ready, and the other one is reported", patience, func(ctx context.Context) error {
		return errors.Join(reported(ctx, other),
			has(ctx, l, &v1beta1.NstanceMachinePool{}, moved, func(p *v1beta1.NstanceMachinePool) error {
				return condition(p.Status.Conditions, v1beta1.ReadyCondition, "True")
			}))
	})
	if after := l.ids(t, moved, l.shards()...); !slices.Equal(kept, after) {
		t.Errorf("the instances changed from %v to %v", kept, after)
	}
	l.remove(t, "nstancemachinepool", other)
	await(t, "the other group is gone", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.withoutGroup(ctx, other, l.shards()...),
			l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(other)))
	})
	l.remove(t, "machinepool", moved)
}

// testRenamed renames a pool: it creates another pool of the same group, and deletes the first one. The other pool must
// take over the instances.
func (l *lab) testRenamed(t *testing.T) {
	const old, renamed = "old", "renamed"
	l.dynamicPool(t, old)
	await(t, "the group runs", patience, func(ctx context.Context) error { return l.poolRuns(ctx, old, 2) })
	kept, created := l.ids(t, old, l.shards()...), l.countCreations()
	l.create(t.Context(), t, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(renamed),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: old, Shards: []string{"east", "west"}, Config: fromWorker}})
	l.create(t.Context(), t, referringPool(renamed, renamed, 2))
	await(t, "the other pool says that it waits", patience, func(ctx context.Context) error {
		return has(ctx, l, &v1beta1.NstanceMachinePool{}, renamed, func(p *v1beta1.NstanceMachinePool) error {
			ready := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ReadyCondition)
			if ready == nil || !strings.Contains(ready.Message, "belongs to another pool") {
				return fmt.Errorf("condition %+v", ready)
			}
			return nil
		})
	})
	l.remove(t, "machinepool", old)
	await(t, "the other pool has the instances", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.absent(ctx, &clusterv1.MachinePool{}, in(old)),
			l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(old)), l.poolRuns(ctx, renamed, 2),
			l.hasEvent(ctx, v1beta1.TakenOverReason, "NstanceMachinePool", renamed))
	})
	l.unchanged(t, old, kept, created)
	l.remove(t, "machinepool", renamed)
	await(t, "the group is gone", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.withoutGroup(ctx, old, l.shards()...),
			l.absent(ctx, &clusterv1.MachinePool{}, in(renamed)))
	})
}

// testShared creates two MachinePools for one NstanceMachinePool, and deletes the second. With the admission policy,
// the API server must refuse a second MachinePool.
func (l *lab) testShared(t *testing.T) {
	ctx := t.Context()
	const first, second = "first", "second"
	l.dynamicPool(t, first)
	await(t, "the group runs", patience, func(ctx context.Context) error { return l.spread(ctx, first, l.both(1, 1)) })
	kept, created := l.ids(t, first, l.shards()...), l.countCreations()
	l.create(ctx, t, referringPool(second, first, 0))
	for _, name := range []string{first, second} {
		await(t, name+" says that the pool is shared", patience, func(ctx context.Context) error {
			return errors.Join(has(ctx, l, &clusterv1.MachinePool{}, name, func(p *clusterv1.MachinePool) error {
				return condition(p.Status.Conditions, v1beta1.PoolSharedCondition, "True")
			}), l.hasEvent(ctx, v1beta1.PoolSharedReason, "MachinePool", name))
		})
	}
	before := &v1beta1.NstanceMachinePool{}
	if err := l.Client.Get(ctx, in(first), before); err != nil {
		t.Fatal(err)
	}
	l.remove(t, "machinepool", second)
	await(t, "the second is gone, the pool is back", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.absent(ctx, &clusterv1.MachinePool{}, in(second)),
			has(ctx, l, &v1beta1.NstanceMachinePool{}, first, func(p *v1beta1.NstanceMachinePool) error {
				if p.UID == before.UID {
					return errors.New("it is still the deleted one")
				}
				return nil
			}),
			has(ctx, l, &clusterv1.MachinePool{}, first, func(p *clusterv1.MachinePool) error {
				if p.Annotations[v1beta1.StoredPoolAnnotation] != "" {
					return errors.New("the annotation is left")
				}
				return condition(p.Status.Conditions, v1beta1.PoolSharedCondition, "False")
			}), l.spread(ctx, first, l.both(1, 1)))
	})
	l.unchanged(t, first, kept, created)

	root, err := kube.Root()
	if err != nil {
		t.Fatal(err)
	}
	l.kubectl(t, "apply", "-f", filepath.Join(root, "services", "operator", "kustomize", "base", "admission.yaml"))
	// The API server needs some seconds until it enforces a new policy.
	await(t, "the policy refuses a second one", patience, func(ctx context.Context) error {
		err := l.Client.Create(ctx, referringPool(second, first, 0), client.DryRunAll)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "belongs to MachinePool "+first) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if err := l.Client.Create(ctx, referringPool(second, "other", 0), client.DryRunAll); err != nil {
		t.Errorf("a MachinePool of another NstanceMachinePool: %v", err)
	}
	for _, change := range [][]string{
		{"machinepool.cluster.x-k8s.io", first, `{"spec":{"template":{"spec":{"infrastructureRef":{"name":"other"}}}}}`},
		{"machinepool.cluster.x-k8s.io", first, `{"spec":{"template":{"spec":{"infrastructureRef":{"kind":"Other"}}}}}`},
		{"machine.cluster.x-k8s.io", l.machineOf(t, kept[0]), `{"spec":{"infrastructureRef":{"name":"other"}}}`},
		{"cluster.cluster.x-k8s.io", clusterName, `{"spec":{"infrastructureRef":{"name":"other"}}}`},
	} {
		what := "the policy refuses another infrastructureRef of a " + change[0]
		await(t, what, patience, func(ctx context.Context) error {
			out, err := l.tryKubectl(ctx, "-n", namespace, "patch", change[0], change[1], "--type=merge", "-p",
				change[2], "--dry-run=server")
			if err == nil || !strings.Contains(out, "infrastructureRef cannot change") {
				return fmt.Errorf("got %w: %s", err, out)
			}
			return nil
		})
	}
	if err := l.scale(ctx, first, 4); err != nil {
		t.Fatal(err)
	}
	l.restored(t, first, l.both(2, 2))
	l.remove(t, "machinepool", first)
	await(t, "the group is gone with its last MachinePool", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.withoutGroup(ctx, first, l.shards()...),
			l.absent(ctx, &clusterv1.MachinePool{}, in(first)),
			l.absent(ctx, &v1beta1.NstanceMachinePool{}, in(first)))
	})
}

// testDeleteStatic deletes the MachinePool of a static group while the Cluster is not being deleted. No instance and no
// Node may be replaced.
func (l *lab) testDeleteStatic(t *testing.T) {
	ctx := t.Context()
	kept, created := l.ids(t, workers, l.shards()...), l.countCreations()
	nodes, old := map[string]types.UID{}, &clusterv1.MachinePool{}
	for _, id := range kept {
		node := &corev1.Node{}
		if err := l.Client.Get(ctx, client.ObjectKey{Name: id}, node); err != nil {
			t.Fatal(err)
		}
		nodes[id] = node.UID
	}
	if err := l.Client.Get(ctx, in(workers), old); err != nil {
		t.Fatal(err)
	}
	l.remove(t, "machinepool", workers)
	await(t, "imported again", endsWithin, func(ctx context.Context) error {
		return errors.Join(has(ctx, l, &clusterv1.MachinePool{}, workers, func(p *clusterv1.MachinePool) error {
			if p.UID == old.UID {
				return errors.New("it is still the deleted one")
			}
			return nil
		}), l.spread(ctx, workers, l.both(2, 2)), l.poolRuns(ctx, workers, 4))
	})
	steady(t, "it stays so", func(ctx context.Context) error { return l.spread(ctx, workers, l.both(2, 2)) })
	l.unchanged(t, workers, kept, created)
	for id, uid := range nodes {
		node := &corev1.Node{}
		if err := l.Client.Get(ctx, client.ObjectKey{Name: id}, node); err != nil || node.UID != uid ||
			node.Spec.Unschedulable {
			t.Errorf("node %s: %v, UID %s before %s, cordoned %t", id, err, node.UID, uid, node.Spec.Unschedulable)
		}
	}
	// The pool must own its Machines again. If a Machine is deleted, its instance must be replaced. Scaling must also
	// work.
	l.remove(t, "machine.cluster.x-k8s.io", kept[0])
	await(t, "a deleted Machine is replaced", endsWithin, func(ctx context.Context) error {
		return errors.Join(l.noMachine(ctx, kept[0]), l.spread(ctx, workers, l.both(2, 2)))
	})
	if slices.Contains(l.ids(t, workers, l.shards()...), kept[0]) {
		t.Errorf("instance %s was not replaced", kept[0])
	}
	l.testDeleteStaticWithMachine(t)
}

// testDeleteStaticWithMachine deletes a Machine of a static group and the group's NstanceMachinePool while no operator
// runs. The Machine's instance is replaced, because Cluster API deletes the instance's Node.
func (l *lab) testDeleteStaticWithMachine(t *testing.T) {
	victim := l.one(t, workers, l.east)
	l.operators[len(l.operators)-1].Kill()
	for _, object := range []string{"machine.cluster.x-k8s.io/" + victim, "nstancemachinepool/" + workers} {
		l.kubectl(t, "-n", namespace, "delete", "--wait=false", object)
	}
	l.operator(t)
	await(t, "the instance of a deleted Machine is replaced", endsWithin, func(ctx context.Context) error {
		if slices.Contains(l.ids(t, workers, l.east), victim) {
			return fmt.Errorf("instance %s is left", victim)
		}
		return errors.Join(l.noMachine(ctx, victim), l.spread(ctx, workers, l.both(2, 2)))
	})
}

// unchanged fails the test unless a group has the same instances as before. It also fails the test if a shard has made
// a create call since countCreations returned "created".
func (l *lab) unchanged(t *testing.T, group string, before []string, created int) {
	t.Helper()
	if after := l.ids(t, group, l.shards()...); !slices.Equal(before, after) {
		t.Errorf("the instances of %s changed from %v to %v", group, before, after)
	}
	if n := l.countCreations() - created; n != 0 {
		t.Errorf("%d instances were created, want none", n)
	}
}
