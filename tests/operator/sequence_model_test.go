package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// model is the state that the shards and Kubernetes should reach after the random steps so far.
type model struct {
	pools   map[string]*poolModel
	singles map[string]string // The shards of single Machines.
	pods    map[string]bool   // True if the pod requests a machine.
	paused  []string          // Paused pools.
	ended   bool              // The Cluster was deleted.
}

type poolModel struct {
	replicas   int
	static     bool
	configured int // The size of a static group in the shards' configuration.
	// frozen is true if the pool was deleted in this round of the test and is imported again. Changes to the pool may
	// then be lost.
	frozen bool
	// headless is true if the NstanceMachinePool was deleted, but its MachinePool still exists.
	headless bool
}

// livePools returns the pools that can be changed.
func (m *model) livePools() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m.pools)) {
		if one := m.pools[name]; !one.frozen && !one.headless {
			names = append(names, name)
		}
	}
	return names
}

func (m *model) podNames() []string { return slices.Sorted(maps.Keys(m.pods)) }

func (m *model) forgetPod(name string) { delete(m.pods, name) }

// resetModel makes the model describe the state right after the import of the shards' groups.
func (s *sequence) resetModel() {
	s.model = model{pools: map[string]*poolModel{
		workers: {replicas: 4, configured: 4, static: true},
		guarded: {replicas: 1, configured: 1, static: true}}, singles: map[string]string{}, pods: map[string]bool{}}
	s.startRound()
}

// startRound forgets the evictions and disturbances of the previous round, and permits changes to all pools again.
func (s *sequence) startRound() {
	s.evicted, s.disturbed = map[string]string{}, map[string]bool{}
	for _, one := range s.model.pools {
		one.frozen = false
	}
}

// recreateCluster deletes the pods that remain after the Cluster's deletion, and asks for the Cluster again.
func (s *sequence) recreateCluster() {
	s.t.Helper()
	for _, name := range s.model.podNames() {
		s.done(s.Client.Delete(s.t.Context(), &corev1.Pod{ObjectMeta: objectMeta(name)}))
	}
	s.resetModel()
	s.deletions = map[string]time.Time{}
	s.kubectl(s.t, "-n", namespace, "annotate", "configmap", deleted, v1beta1.RecreateAnnotation+"=true")
	s.recreated(s.t)
	s.controlPlane(s.t)
}

// listSecrets returns the names of the Secrets in the namespace.
func (s *sequence) listSecrets(ctx context.Context) (names []string) {
	s.t.Helper()
	var list corev1.SecretList
	if err := s.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		s.t.Fatal(err)
	}
	for _, secret := range list.Items {
		names = append(names, secret.Name)
	}
	return names
}

// converged returns an error unless the shards and Kubernetes have reached the state that the model describes.
func (s *sequence) converged(ctx context.Context) error {
	instances := map[string]*nstancev1.InstanceStatus{}
	counts, sizes, healthy := map[string]int{}, map[string]int{}, map[string]int{}
	for _, at := range s.shards() {
		list, err := at.instances(ctx, "")
		if err != nil {
			return err
		}
		for _, i := range list {
			instances[i.GetInstanceId()] = i
			counts[i.GetGroup()]++
		}
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		groups, err := at.ListGroups(call, &nstancev1.ListGroupsRequest{})
		cancel()
		if err != nil {
			return err
		}
		for _, g := range groups.GetGroups() {
			sizes[g.GetGroup()] += int(g.GetSize())
			healthy[g.GetGroup()] += int(g.GetHealthy())
		}
	}
	if err := s.nodesMatch(ctx, instances); err != nil {
		return err
	}
	if s.model.ended {
		return errors.Join(s.empty(ctx), s.static(ctx), s.onlyStatic(sizes),
			s.secretsAre(ctx, clusterName+"-kubeconfig"))
	}
	for name, one := range s.model.pools {
		if one.headless {
			continue
		}
		pool := &clusterv1.MachinePool{}
		if err := s.Client.Get(ctx, in(name), pool); err != nil {
			return err
		}
		if asked := value(pool.Spec.Replicas); asked != one.replicas || sizes[name] != asked || counts[name] != asked ||
			healthy[name] != asked || value(pool.Status.Replicas) != asked {
			return fmt.Errorf("%s: asked for %d; MachinePool %d of %d, size %d, %d instances, %d healthy", name,
				one.replicas, value(pool.Status.Replicas), asked, sizes[name], counts[name], healthy[name])
		}
	}
	return errors.Join(s.onlyAskedFor(ctx, sizes), s.requestsMet(ctx, counts[machines]),
		s.machinesMatch(ctx, instances), s.secretsAre(ctx))
}

// onlyStatic returns an error if a dynamic group is left on a shard.
func (s *sequence) onlyStatic(groups map[string]int) error {
	for _, name := range dynamicNames {
		if _, found := groups[name]; found {
			return fmt.Errorf("group %s is left on a shard", name)
		}
	}
	return nil
}

// secretsAre returns an error unless the namespace has the same Secrets as at the start of the test, except the Secrets
// in "without".
func (s *sequence) secretsAre(ctx context.Context, without ...string) error {
	want := slices.DeleteFunc(slices.Clone(s.secrets), func(name string) bool { return slices.Contains(without, name) })
	if have := s.listSecrets(ctx); !slices.Equal(have, want) {
		return fmt.Errorf("secrets %v, want %v", have, want)
	}
	return nil
}

// nodesMatch returns an error unless every instance has a Node, every Node has an instance, and all Nodes are ready and
// schedulable.
func (s *sequence) nodesMatch(ctx context.Context, instances map[string]*nstancev1.InstanceStatus) error {
	var list corev1.NodeList
	if err := s.Client.List(ctx, &list); err != nil {
		return err
	}
	for _, node := range list.Items {
		if instances[node.Name] == nil {
			return fmt.Errorf("node %s has no instance", node.Name)
		}
		if node.Spec.Unschedulable {
			return fmt.Errorf("node %s is cordoned", node.Name)
		}
		if err := s.nodeReady(ctx, node.Name); err != nil {
			return err
		}
	}
	if len(list.Items) != len(instances) {
		return fmt.Errorf("%d Nodes of %d instances", len(list.Items), len(instances))
	}
	return nil
}

// onlyAskedFor returns an error if a dynamic group exists that is not in the model, or if an object of its pool exists.
func (s *sequence) onlyAskedFor(ctx context.Context, groups map[string]int) error {
	for _, name := range dynamicNames {
		one := s.model.pools[name]
		if one != nil && !one.headless {
			continue
		}
		if _, found := groups[name]; found {
			return fmt.Errorf("group %s is left on a shard", name)
		}
		err := s.absent(ctx, &v1beta1.NstanceMachinePool{}, in(name))
		if one == nil {
			err = errors.Join(err, s.absent(ctx, &clusterv1.MachinePool{}, in(name)))
		}
		for _, at := range s.shards() {
			err = errors.Join(err, s.absent(ctx, &v1beta1.NstanceShardGroup{}, in(v1beta1.ShardGroupName(name, at.id))))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// requestsMet returns an error unless all Machines that belong to no pool exist, and all pods that request a machine
// run. The parameter "instances" must be the number of these Machines and pods.
func (s *sequence) requestsMet(ctx context.Context, instances int) error {
	want := 0
	for _, name := range s.model.podNames() {
		if !s.model.pods[name] {
			continue
		}
		want++
		if err := has(ctx, s.lab, &corev1.Pod{}, name, func(p *corev1.Pod) error {
			if p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s", name, p.Status.Phase)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	for name, shard := range s.model.singles {
		err := s.Client.Get(ctx, in(name), &clusterv1.Machine{})
		// If the shard's leader has changed, the new leader may refuse an instance ID that the previous leader used for
		// an unfinished create. The operator then deletes the Machine.
		if apierrors.IsNotFound(err) && s.disturbed[shard] {
			s.record("machine", name+" was removed")
			delete(s.model.singles, name)
			continue
		}
		if err != nil {
			return err
		}
		want++
	}
	if instances != want {
		return fmt.Errorf("%d instances of %s, want %d", instances, machines, want)
	}
	return nil
}

// machinesMatch returns an error unless every instance has exactly one NstanceMachine and one Machine. Every
// NstanceMachine and every Machine must have an instance.
func (s *sequence) machinesMatch(ctx context.Context, instances map[string]*nstancev1.InstanceStatus) error {
	var all clusterv1.MachineList
	var infra v1beta1.NstanceMachineList
	if err := errors.Join(s.Client.List(ctx, &all, client.InNamespace(namespace)),
		s.Client.List(ctx, &infra, client.InNamespace(namespace))); err != nil {
		return err
	}
	for _, one := range infra.Items {
		if instances[one.Status.InstanceID] == nil || !one.DeletionTimestamp.IsZero() {
			return fmt.Errorf("NstanceMachine %s has instance %q, deleted at %v", one.Name, one.Status.InstanceID,
				one.DeletionTimestamp)
		}
	}
	for _, m := range all.Items {
		if instances[m.Status.NodeRef.Name] == nil || !m.DeletionTimestamp.IsZero() {
			return fmt.Errorf("Machine %s has Node %q, deleted at %v", m.Name, m.Status.NodeRef.Name,
				m.DeletionTimestamp)
		}
	}
	if len(all.Items) != len(instances) || len(infra.Items) != len(instances) {
		return fmt.Errorf("%d Machines and %d NstanceMachines of %d instances", len(all.Items), len(infra.Items),
			len(instances))
	}
	return nil
}

// hasInstance reports whether a Node's instance exists and is not being deleted.
func (s *sequence) hasInstance(node string) bool {
	return slices.Contains(s.ids(s.t, "", s.shards()...), node)
}
