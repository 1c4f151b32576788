package operator

import (
	"context"
	"fmt"
	"slices"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

func in(name string) client.ObjectKey { return client.ObjectKey{Namespace: namespace, Name: name} }

func (l *lab) shards() []*shard { return []*shard{l.east, l.west} }

// has reads an object once, without waiting. It passes the object to the function "why" and returns the error of that
// function.
func has[T client.Object](ctx context.Context, l *lab, object T, name string, why func(T) error) error {
	if err := l.Client.Get(ctx, in(name), object); err != nil {
		return err
	}
	return why(object)
}

func condition(conditions []metav1.Condition, kind string, want metav1.ConditionStatus) error {
	found := meta.FindStatusCondition(conditions, kind)
	if found == nil || found.Status != want {
		return fmt.Errorf("condition %s is %+v, want %s", kind, found, want)
	}
	return nil
}

// spread returns an error unless the group has the given sizes on the shards and all its instances are healthy. The
// NstanceShardGroups, the NstanceMachinePool, the Machines and the Nodes in Kubernetes must show the same instances.
func (l *lab) spread(ctx context.Context, group string, sizes map[*shard]int) error {
	total := 0
	for s, size := range sizes {
		total += size
		if err := s.settled(ctx, group, size); err != nil {
			return err
		}
		if err := has(ctx, l, &v1beta1.NstanceShardGroup{}, v1beta1.ShardGroupName(group, s.id),
			func(g *v1beta1.NstanceShardGroup) error {
				if value(g.Spec.Size) != size || value(g.Status.ActualSize) != size ||
					value(g.Status.Healthy) != size ||
					len(g.Status.ProviderIDs) != size {
					return fmt.Errorf("shard group %s: size %d, actual %d, healthy %d, %d provider IDs; want %d",
						g.Name,
						value(g.Spec.Size), value(g.Status.ActualSize),
						value(g.Status.Healthy), len(g.Status.ProviderIDs), size)
				}
				return nil
			}); err != nil {
			return err
		}
	}
	if err := has(ctx, l, &v1beta1.NstanceMachinePool{}, group, func(p *v1beta1.NstanceMachinePool) error {
		if value(p.Status.Replicas) != total || value(p.Status.ReadyReplicas) != total ||
			len(p.Spec.ProviderIDList) != total {
			return fmt.Errorf("pool %s: %d replicas, %d ready, %d provider IDs; want %d", group,
				value(p.Status.Replicas), value(p.Status.ReadyReplicas),
				len(p.Spec.ProviderIDList), total)
		}
		return nil
	}); err != nil {
		return err
	}
	return l.joined(ctx, group, sizes)
}

// joined returns an error unless every instance of a group has a ready Node, and a Machine that refers to this Node.
func (l *lab) joined(ctx context.Context, group string, sizes map[*shard]int) error {
	for s := range sizes {
		instances, err := s.instances(ctx, group)
		if err != nil {
			return err
		}
		for _, instance := range instances {
			id := instance.GetInstanceId()
			if err := l.nodeReady(ctx, id); err != nil {
				return err
			}
			if err := l.machineRuns(ctx, id, id); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lab) nodeReady(ctx context.Context, name string) error {
	var node corev1.Node
	if err := l.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not ready", name)
}

// machineRuns returns an error unless the NstanceMachine with the given name has a running Machine. Cluster API must
// have found the given Node for this Machine.
func (l *lab) machineRuns(ctx context.Context, name, node string) error {
	var infra v1beta1.NstanceMachine
	if err := l.Client.Get(ctx, in(name), &infra); err != nil {
		return err
	}
	for _, owner := range infra.OwnerReferences {
		if owner.Kind == "Machine" {
			return has(ctx, l, &clusterv1.Machine{}, owner.Name, func(m *clusterv1.Machine) error {
				if m.Status.NodeRef.Name != node || m.Status.Phase != string(clusterv1.MachinePhaseRunning) {
					return fmt.Errorf("machine %s: phase %s, node %q, want Running with %s", m.Name, m.Status.Phase,
						m.Status.NodeRef.Name, node)
				}
				return nil
			})
		}
	}
	return fmt.Errorf("NstanceMachine %s has no Machine as its owner: %v", name, infra.OwnerReferences)
}

// absent returns an error while an object still exists.
func (l *lab) absent(ctx context.Context, object client.Object, key client.ObjectKey) error {
	err := l.Client.Get(ctx, key, object)
	if err == nil {
		return fmt.Errorf("%T %s is still there", object, key.Name)
	}
	return client.IgnoreNotFound(err)
}

// left returns nil once an instance, its Node and its Machine are gone. Until then it returns an error.
func (l *lab) left(ctx context.Context, s *shard, id string) error {
	all, err := s.instances(ctx, "")
	if err != nil {
		return err
	}
	for _, instance := range all {
		if instance.GetInstanceId() == id {
			return fmt.Errorf("instance %s is still there, %s", id, instance.GetState())
		}
	}
	if err := l.absent(ctx, &corev1.Node{}, client.ObjectKey{Name: id}); err != nil {
		return err
	}
	return l.noMachine(ctx, id)
}

func (l *lab) noMachine(ctx context.Context, instance string) error {
	var infra v1beta1.NstanceMachineList
	if err := l.Client.List(ctx, &infra, client.InNamespace(namespace)); err != nil {
		return err
	}
	for _, m := range infra.Items {
		if m.Status.InstanceID == instance || m.Spec.InstanceID == instance {
			return fmt.Errorf("NstanceMachine %s of %s is still there (deleted at %v)", m.Name, instance,
				m.DeletionTimestamp)
		}
	}
	var machines clusterv1.MachineList
	if err := l.Client.List(ctx, &machines, client.InNamespace(namespace)); err != nil {
		return err
	}
	for _, m := range machines.Items {
		if m.Status.NodeRef.Name == instance {
			return fmt.Errorf("machine %s of %s is still there (deleted at %v)", m.Name, instance, m.DeletionTimestamp)
		}
	}
	return nil
}

// poolRuns returns an error unless Cluster API reports the MachinePool as Running, with "replicas" Nodes.
func (l *lab) poolRuns(ctx context.Context, name string, replicas int) error {
	return has(ctx, l, &clusterv1.MachinePool{}, name, func(p *clusterv1.MachinePool) error {
		if p.Status.Phase != string(clusterv1.MachinePoolPhaseRunning) || len(p.Status.NodeRefs) != replicas ||
			value(p.Status.Replicas) != replicas ||
			value(p.Spec.Replicas) != replicas {
			return fmt.Errorf("MachinePool %s is %s with %d of %d replicas and %d nodes; want Running with %d", name,
				p.Status.Phase, value(p.Status.Replicas),
				value(p.Spec.Replicas), len(p.Status.NodeRefs), replicas)
		}
		return nil
	})
}

// scale sends the same request as `kubectl scale`.
func (l *lab) scale(ctx context.Context, name string, replicas int) error {
	pool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: int32(replicas)}}
	return l.Client.SubResource("scale").Update(ctx, pool, client.WithSubResourceBody(scale))
}

// ids returns the sorted IDs of a group's instances on the given shards.
func (l *lab) ids(t *testing.T, group string, shards ...*shard) (ids []string) {
	t.Helper()
	for _, s := range shards {
		instances, err := s.instances(t.Context(), group)
		if err != nil {
			t.Fatal(err)
		}
		for _, instance := range instances {
			ids = append(ids, instance.GetInstanceId())
		}
	}
	slices.Sort(ids)
	return ids
}

// one returns the ID of one instance of a group on a shard.
func (l *lab) one(t *testing.T, group string, s *shard) string {
	t.Helper()
	ids := l.ids(t, group, s)
	if len(ids) == 0 {
		t.Fatalf("%s has no instance of %s", s.id, group)
	}
	return ids[0]
}

// value returns the number that n points to, or 0 if n is nil.
func value(n *int32) int {
	if n == nil {
		return 0
	}
	return int(*n)
}
