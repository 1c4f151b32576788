package pool

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/capacity"
	"github.com/nstance-kit/nstance/services/internal/operator/distribute"
)

// mostInstances is what a shard may be asked to keep.
const mostInstances = 100_000

// poolInput is all that decisions on a pool are made from.
type poolInput struct {
	pool *v1beta1.NstanceMachinePool
	// machinePool says how many replicas there are to be; nil when there is none of our Cluster.
	machinePool *clusterv1.MachinePool
	// groups are all shard groups of the pool's group, those of other pools too, by name.
	groups []*v1beta1.NstanceShardGroup
	// cluster is the name of our Cluster; paused whether it, or the pool, is paused.
	cluster string
	paused  bool
}

// poolPlan is a pool as it is to be written, and what is to become of its shard groups.
type poolPlan struct {
	pool       *v1beta1.NstanceMachinePool
	conditions conditions
	events     []notice
	// create and update are shard groups as they are to be; remove are to be deleted.
	create, update, remove []*v1beta1.NstanceShardGroup
	// gone: nothing is left that the finalizer stands for.
	gone bool
	// machinePool has the annotations as they are to be; nil: they are not looked at.
	machinePool *clusterv1.MachinePool
}

func decidePool(in poolInput) poolPlan {
	plan := poolPlan{pool: in.pool.DeepCopy()}
	plan.conditions.paused(in.paused)
	var mine []*v1beta1.NstanceShardGroup
	taken := map[string]*v1beta1.NstanceShardGroup{}
	for _, g := range in.groups {
		taken[g.Name] = g
		// One of our Cluster that nobody controls has lost its owner: it becomes ours.
		owner, cluster := metav1.GetControllerOf(g), g.Labels[clusterv1.ClusterNameLabel]
		if owner == nil && (cluster == in.cluster || cluster == "") || owner != nil && owner.UID == in.pool.UID {
			mine = append(mine, g)
		}
	}
	switch {
	case in.paused:
	case !in.pool.DeletionTimestamp.IsZero():
		for _, g := range mine {
			if g.DeletionTimestamp.IsZero() {
				plan.remove = append(plan.remove, g)
			}
		}
		plan.sum(mine)
		plan.gone = len(mine) == 0
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.DeletingReason,
			"%d shards have not deleted their instances yet", len(mine))
	case in.machinePool == nil:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.WaitingForMachinePoolReason,
			"no MachinePool of cluster %s refers to the pool", in.cluster)
	default:
		plan.share(in, mine, taken)
	}
	return plan
}

// share is a pool in service.
func (plan *poolPlan) share(in poolInput, mine []*v1beta1.NstanceShardGroup,
	taken map[string]*v1beta1.NstanceShardGroup) {
	pool := plan.pool
	controllerutil.AddFinalizer(pool, v1beta1.MachinePoolFinalizer)
	label(pool, clusterv1.ClusterNameLabel, in.cluster)
	label(pool, v1beta1.GroupLabel, pool.Spec.Group)
	pool.Status.InfrastructureMachineKind = machineKind

	replicas := ptr.Deref(in.machinePool.Spec.Replicas, 1)
	var problems, scaled []string
	if shares := distribute.Split(replicas, pool.Spec.Shards); len(shares) > 0 && shares[0].Size > mostInstances {
		problems = append(problems, fmt.Sprintf("%d replicas are more than %d a shard", replicas, mostInstances))
	} else {
		for _, share := range shares {
			name := v1beta1.ShardGroupName(pool.Spec.Group, share.Shard)
			have := taken[name]
			switch {
			case have == nil:
				plan.create = append(plan.create, newGroup(in, share))
			case !have.DeletionTimestamp.IsZero():
				// It is made again when it is gone.
			case !slices.Contains(mine, have):
				problems = append(problems, fmt.Sprintf("shard group %s belongs to another pool", name))
			default:
				want := have.DeepCopy()
				fill(want, in, share)
				if from := ptr.Deref(have.Spec.Size, 0); from != share.Size {
					scaled = append(scaled, fmt.Sprintf("%s %d to %d", share.Shard, from, share.Size))
				}
				plan.update = append(plan.update, want)
			}
		}
	}
	if len(scaled) > 0 {
		plan.events = append(plan.events, normal(v1beta1.ScalingReason, "%d replicas: %s", replicas,
			strings.Join(scaled, ", ")))
	}
	for _, g := range mine {
		if !slices.Contains(pool.Spec.Shards, g.Spec.Shard) && g.DeletionTimestamp.IsZero() {
			plan.remove = append(plan.remove, g)
			plan.events = append(plan.events, normal(v1beta1.ShardRemovedReason,
				"shard %s is no longer among the pool's: its group is deleted", g.Spec.Shard))
		}
	}
	plan.sum(mine)
	plan.readiness(in, mine, problems)
	plan.capacity(in, mine)
}

// newGroup is a shard group that is not there yet. It has its finalizer from the first: nothing is pushed for one
// without.
func newGroup(in poolInput, share distribute.Share) *v1beta1.NstanceShardGroup {
	g := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: in.pool.Namespace,
		Name:       v1beta1.ShardGroupName(in.pool.Spec.Group, share.Shard),
		Finalizers: []string{v1beta1.ShardGroupFinalizer}}}
	fill(g, in, share)
	return g
}

// fill makes a shard group what the pool says. Of a static group, template and subnet pool stay: they cannot be
// changed, and are not pushed.
func fill(g *v1beta1.NstanceShardGroup, in poolInput, share distribute.Share) {
	spec := in.pool.Spec
	label(g, clusterv1.ClusterNameLabel, in.cluster)
	label(g, v1beta1.GroupLabel, spec.Group)
	label(g, v1beta1.ShardLabel, share.Shard)
	if metav1.GetControllerOf(g) == nil {
		g.OwnerReferences = append(g.OwnerReferences, *metav1.NewControllerRef(in.pool,
			v1beta1.GroupVersion.WithKind(machinePoolKind)))
	}
	template, subnetPool := spec.Template, spec.SubnetPool
	if g.Status.IsStatic {
		template, subnetPool = g.Spec.Template, g.Spec.SubnetPool
	}
	g.Spec = v1beta1.NstanceShardGroupSpec{Group: spec.Group, Shard: share.Shard, Size: ptr.To(share.Size),
		Template: template, SubnetPool: subnetPool,
		InstanceType: spec.InstanceType, Vars: maps.Clone(spec.Vars)}
	remember(g)
}

func label(object metav1.Object, name, value string) {
	labels := object.GetLabels()
	if labels[name] == value {
		return
	}
	if labels == nil {
		labels = map[string]string{}
	}
	labels[name] = value
	object.SetLabels(labels)
}

// sum adds up what the shards said last, those that cannot be heard now too. A shard that the pool leaves counts as
// long as it has instances.
func (plan *poolPlan) sum(groups []*v1beta1.NstanceShardGroup) {
	var replicas, ready int32
	ids := []string(nil)
	heard, all, static := false, true, false
	for _, g := range groups {
		if g.Status.ActualSize != nil {
			heard = true
		} else if reachable := meta.FindStatusCondition(g.Status.Conditions,
			v1beta1.ShardReachableCondition); reachable == nil || reachable.Reason != v1beta1.UnknownShardReason {
			all = false
		}
		replicas += ptr.Deref(g.Status.ActualSize, 0)
		ready += ptr.Deref(g.Status.Healthy, 0)
		ids = append(ids, g.Status.ProviderIDs...)
		static = static || g.Status.IsStatic
	}
	pool := plan.pool
	if !all || len(plan.create) > 0 {
		// Statuses are lost when objects are moved to another cluster: what is not known to be gone stays.
		ids = append(ids, pool.Spec.ProviderIDList...)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	pool.Spec.ProviderIDList = ids[:min(len(ids), mostProviderIDs)]
	if heard || len(groups) == 0 && pool.Status.Replicas != nil {
		pool.Status.Replicas, pool.Status.ReadyReplicas = ptr.To(replicas), ptr.To(ready)
		pool.Status.IsStatic = static
	}
}

// readiness says whether all is as wanted, and whether Cluster API may take the pool for provisioned, which it then
// stays.
func (plan *poolPlan) readiness(in poolInput, groups []*v1beta1.NstanceShardGroup, problems []string) {
	pool := plan.pool
	var unknown, unreachable []string
	undecided, accepted := len(plan.create) > 0, 0
	reason, messages := "", []string(nil)
	worse := func(r, message string) {
		if reason == "" || slices.Index(severity, r) < slices.Index(severity, reason) {
			reason = r
		}
		messages = append(messages, message)
	}
	for _, problem := range problems {
		worse(v1beta1.RefusedReason, problem)
	}
	for _, g := range groups {
		shard := g.Spec.Shard
		if !slices.Contains(pool.Spec.Shards, shard) {
			worse(v1beta1.ScalingReason, shard+": is leaving the pool")
			continue
		}
		reachable := meta.FindStatusCondition(g.Status.Conditions, v1beta1.ShardReachableCondition)
		taken := meta.IsStatusConditionTrue(g.Status.Conditions, v1beta1.ConfigValidCondition)
		switch {
		case reachable != nil && reachable.Status == metav1.ConditionFalse &&
			reachable.Reason == v1beta1.UnknownShardReason:
			unknown = append(unknown, shard)
		case reachable != nil && reachable.Status == metav1.ConditionFalse:
			unreachable = append(unreachable, shard)
		case !taken:
			undecided = true
		}
		if taken {
			accepted++
		}
		ready := meta.FindStatusCondition(g.Status.Conditions, v1beta1.ReadyCondition)
		switch {
		case ready == nil:
			worse(v1beta1.ScalingReason, shard+": has not been told yet")
		case ready.Status != metav1.ConditionTrue:
			worse(ready.Reason, shard+": "+ready.Message)
		case g.Status.ObservedGeneration != g.Generation || plan.changes(g):
			worse(v1beta1.ScalingReason, shard+": has not been told yet")
		}
	}
	for _, g := range plan.create {
		worse(v1beta1.ScalingReason, g.Spec.Shard+": has not been told yet")
	}
	switch {
	case len(unknown) > 0:
		plan.conditions.set(v1beta1.ShardsReachableCondition, false, v1beta1.UnknownShardReason,
			"not in the operator's configuration: %s", strings.Join(append(unknown, unreachable...), ", "))
	case len(unreachable) > 0:
		plan.conditions.set(v1beta1.ShardsReachableCondition, false, v1beta1.UnreachableReason, "unreachable: %s",
			strings.Join(unreachable, ", "))
	case len(plan.create) == 0:
		plan.conditions.set(v1beta1.ShardsReachableCondition, true, v1beta1.ReachableReason, "")
	}
	if reason == "" {
		plan.conditions.set(v1beta1.ReadyCondition, true, v1beta1.ReadyReason, "")
	} else {
		plan.conditions.set(v1beta1.ReadyCondition, false, reason, "%s", strings.Join(messages, "; "))
	}
	if !undecided && accepted > 0 {
		pool.Status.Ready, pool.Status.Initialization.Provisioned = true, ptr.To(true)
	}
}

// severity orders the reasons for not being ready, the worst first: with several shards, the worst is told.
var severity = []string{v1beta1.RefusedReason, v1beta1.UnknownShardReason, v1beta1.UnreachableReason,
	v1beta1.BlockedReason, v1beta1.NotReadyReason,
	v1beta1.DeletingReason, v1beta1.WaitingForShardReason, v1beta1.ScalingReason}

// changes reports whether the plan changes the spec of a shard group.
func (plan *poolPlan) changes(g *v1beta1.NstanceShardGroup) bool {
	return slices.ContainsFunc(plan.update, func(want *v1beta1.NstanceShardGroup) bool {
		return want.Name == g.Name && (ptr.Deref(want.Spec.Size, 0) != ptr.Deref(g.Spec.Size, 0) ||
			want.Spec.Template != g.Spec.Template ||
			want.Spec.SubnetPool != g.Spec.SubnetPool || want.Spec.InstanceType != g.Spec.InstanceType ||
			!maps.Equal(want.Spec.Vars, g.Spec.Vars))
	})
}

// The cluster autoscaler's annotations of what a node of a group has
// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/clusterapi/README.md, scale from zero).
const (
	cpuAnnotation    = "capacity.cluster-autoscaler.kubernetes.io/cpu"
	memoryAnnotation = "capacity.cluster-autoscaler.kubernetes.io/memory"
)

// capacity says what one instance offers, if all shards' instances offer the same and it is known.
func (plan *poolPlan) capacity(in poolInput, groups []*v1beta1.NstanceShardGroup) {
	types := []string{plan.pool.Spec.InstanceType}
	if types[0] == "" {
		types = nil
		for _, g := range groups {
			if g.Status.Config == nil {
				continue
			}
			var d definition
			if json.Unmarshal(g.Status.Config.Raw, &d) == nil && d.InstanceType != "" {
				types = append(types, d.InstanceType)
			}
		}
	}
	var offer corev1.ResourceList
	for i, instanceType := range types {
		one := capacity.Of(instanceType)
		if one == nil || i > 0 && (!one.Cpu().Equal(*offer.Cpu()) || !one.Memory().Equal(*offer.Memory())) {
			offer = nil
			break
		}
		offer = one
	}
	plan.pool.Status.Capacity = offer
	plan.machinePool = in.machinePool.DeepCopy()
	annotate(plan.machinePool, offer)
}

// annotate gives a MachinePool the autoscaler's annotations. What is there and was not written by us is a user's, and
// stays.
func annotate(mp *clusterv1.MachinePool, offer corev1.ResourceList) {
	wrote := map[string]string{}
	if text := mp.Annotations[v1beta1.CapacityAnnotation]; text != "" {
		if json.Unmarshal([]byte(text), &wrote) != nil {
			wrote = map[string]string{}
		}
	}
	writes := map[string]string{}
	for _, a := range []struct{ annotation, name string }{{cpuAnnotation, "cpu"}, {memoryAnnotation, "memory"}} {
		have, there := mp.Annotations[a.annotation]
		if there && have != wrote[a.name] {
			continue
		}
		quantity, known := offer[corev1.ResourceName(a.name)]
		if !known {
			delete(mp.Annotations, a.annotation)
			continue
		}
		if mp.Annotations == nil {
			mp.Annotations = map[string]string{}
		}
		writes[a.name] = quantity.String()
		mp.Annotations[a.annotation] = quantity.String()
	}
	if len(writes) == 0 {
		delete(mp.Annotations, v1beta1.CapacityAnnotation)
		return
	}
	text, err := json.Marshal(writes)
	if err != nil {
		return // strings always can be
	}
	mp.Annotations[v1beta1.CapacityAnnotation] = string(text)
}

// finish makes the status complete, for the moment of writing it.
func (plan *poolPlan) finish(was *v1beta1.NstanceMachinePool, generation int64,
	now time.Time) v1beta1.NstanceMachinePoolStatus {
	s := *plan.pool.Status.DeepCopy()
	s.ObservedGeneration = generation
	s.Conditions = plan.conditions.over(was.Status.Conditions, generation, now)
	return s
}
