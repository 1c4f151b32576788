package pool

import (
	"cmp"
	"encoding/json"
	"fmt"
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
)

// maxInstances is the largest number of instances that a shard accepts for one group.
const maxInstances = 100_000

// clusterEnding is the message of objects that are not reconciled because their Cluster is missing or being deleted.
const clusterEnding = "the Cluster is being deleted or does not exist"

// poolInput is everything that decisions about a pool depend on.
type poolInput struct {
	pool *v1beta1.NstanceMachinePool
	// machinePool has the wanted number of replicas. It is nil if the managed Cluster has no MachinePool for the pool.
	machinePool *clusterv1.MachinePool
	// groups are all shard groups of the pool's group. Some may belong to other pools.
	groups []*v1beta1.NstanceShardGroup
	// victims are instances of the pool whose Machines have the delete-machine annotation or are being deleted. They
	// are in the order in which they are deleted. The list is empty unless the pool shrinks.
	victims []victim
	// removed are the instances in [v1beta1.RemoveAnnotation] that do not exist any more.
	removed map[string]bool
	// configured are the IDs of the shards in the operator's configuration.
	configured map[string]bool
	// wait is how long to wait for Cluster API's finalizer on the MachinePool.
	wait time.Duration
	// cluster is the name of the managed Cluster. ending: the Cluster is being deleted or does not exist.
	cluster        string
	paused, ending bool
}

// poolPlan is the desired state of a pool, and the changes to its shard groups.
type poolPlan struct {
	pool       *v1beta1.NstanceMachinePool
	conditions conditions
	events     []notice
	// create and update are shard groups in their desired state; remove are shard groups to delete.
	create, update, remove []*v1beta1.NstanceShardGroup
	// The replicas are divided among "shards". unknown are the spec's shards that are neither configured nor in use.
	shards, unknown []string
	// finished: no shard group is left, so the finalizer can be removed.
	finished bool
	// machinePool has the desired annotations. It is nil if they must not change.
	machinePool *clusterv1.MachinePool
}

// decidePool returns what to write for a pool.
func decidePool(in poolInput) poolPlan {
	plan := poolPlan{pool: in.pool.DeepCopy()}
	plan.conditions.setPaused(in.paused)
	var mine []*v1beta1.NstanceShardGroup
	taken := map[string]*v1beta1.NstanceShardGroup{}
	for _, g := range in.groups {
		taken[g.Name] = g
		// The pool adopts shard groups of the managed Cluster that have no owner. It also adopts those whose owner is
		// the pool's MachinePool, because handOver has made it the owner.
		owner, cluster := metav1.GetControllerOf(g), g.Labels[clusterv1.ClusterNameLabel]
		if owner == nil && (cluster == in.cluster || cluster == "") || owner != nil && (owner.UID == in.pool.UID ||
			in.machinePool != nil && owner.UID == in.machinePool.UID) {
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
		plan.sumStatuses(mine)
		plan.finished = len(mine) == 0
		messages := make([]string, len(mine))
		for i, g := range mine {
			messages[i] = "waiting for shard " + g.Spec.Shard
			if ready := meta.FindStatusCondition(g.Status.Conditions, v1beta1.ReadyCondition); ready != nil &&
				ready.Reason == v1beta1.DeletingReason {
				messages[i] = ready.Message
			}
		}
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "%s", strings.Join(messages, "; "))
	case in.ending:
		plan.sumStatuses(mine)
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.DeletingReason, clusterEnding)
	case in.machinePool == nil && len(mine) > 0:
		plan.reportUnreferenced(in, mine)
	case in.machinePool == nil:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.WaitingForMachinePoolReason,
			"no MachinePool of cluster %s references the pool", in.cluster)
	case in.wait > 0 && len(mine) == 0:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.WaitingForMachinePoolReason,
			"Cluster API has not seen MachinePool %s yet", in.machinePool.Name)
	default:
		plan.splitReplicas(in, mine, taken)
	}
	return plan
}

// reportUnreferenced reports a pool that has shard groups but no MachinePool. Its instances keep running.
func (plan *poolPlan) reportUnreferenced(in poolInput, mine []*v1beta1.NstanceShardGroup) {
	plan.sumStatuses(mine)
	message := fmt.Sprintf("no MachinePool of cluster %s references NstanceMachinePool %s. Its instances keep "+
		"running. Set the infrastructureRef of a MachinePool to it, or run kubectl delete nstancemachinepool %[2]s "+
		"-n %[3]s to delete its dynamic group with all instances", in.cluster, in.pool.Name, in.pool.Namespace)
	plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.UnreferencedReason, "%s", message)
	before := meta.FindStatusCondition(in.pool.Status.Conditions, v1beta1.ReadyCondition)
	if before == nil || before.Reason != v1beta1.UnreferencedReason {
		plan.events = append(plan.events, warningEvent(v1beta1.UnreferencedReason, "%s", message))
	}
}

// splitReplicas divides the replicas of a pool that is not being deleted, and plans its shard groups.
func (plan *poolPlan) splitReplicas(in poolInput, mine []*v1beta1.NstanceShardGroup,
	taken map[string]*v1beta1.NstanceShardGroup) {
	pool := plan.pool
	controllerutil.AddFinalizer(pool, v1beta1.MachinePoolFinalizer)
	metav1.SetMetaDataLabel(&pool.ObjectMeta, clusterv1.ClusterNameLabel, in.cluster)
	metav1.SetMetaDataLabel(&pool.ObjectMeta, v1beta1.GroupLabel, pool.Spec.Group)
	pool.Status.InfrastructureMachineKind = machineKind

	replicas := ptr.Deref(in.machinePool.Spec.Replicas, 1)
	var problems, scaled []string
	plan.shards, plan.unknown = usedShards(in, mine)
	shares, chosen := splitReplicas(replicas, plan.shards), []victim(nil)
	if have := currentShares(plan.shards, mine, readShares(in.pool)); have != nil {
		shares, chosen = scaleShares(have, replicas, in.victims)
	}
	if slices.ContainsFunc(shares, func(s shardShare) bool { return s.Size > maxInstances }) {
		problems = append(problems, fmt.Sprintf("%d replicas exceed the limit of %d for each shard", replicas,
			maxInstances))
	} else {
		writeShares(pool, shares)
		for _, share := range shares {
			name := v1beta1.ShardGroupName(pool.Spec.Group, share.Shard)
			have := taken[name]
			switch {
			case have == nil:
				plan.create = append(plan.create, newShardGroup(in, share))
			case !have.DeletionTimestamp.IsZero():
				// This shard group is being deleted. Create it again only once it is gone.
			case !slices.Contains(mine, have):
				problems = append(problems, fmt.Sprintf("shard group %s belongs to another pool", name))
			default:
				want := have.DeepCopy()
				fillShardGroup(want, in, share)
				chooseInstances(want, in.removed, chosen)
				if from := ptr.Deref(have.Spec.Size, 0); from != share.Size {
					scaled = append(scaled, fmt.Sprintf("%s %d to %d", share.Shard, from, share.Size))
				}
				plan.update = append(plan.update, want)
			}
		}
	}
	if len(scaled) > 0 {
		plan.events = append(plan.events, normalEvent(v1beta1.ScalingReason, "%d replicas: %s", replicas,
			strings.Join(scaled, ", ")))
	}
	for _, g := range mine {
		if !slices.Contains(plan.shards, g.Spec.Shard) && g.DeletionTimestamp.IsZero() {
			plan.remove = append(plan.remove, g)
			plan.events = append(plan.events, normalEvent(v1beta1.ShardRemovedReason,
				"shard %s was removed from the pool: deleting its shard group", g.Spec.Shard))
		}
	}
	plan.sumStatuses(mine)
	plan.setReadiness(in, mine, problems)
	plan.setCapacity(in, mine)
}

// usedShards returns the shards that share the replicas, and the unknown shards of the spec. An unknown shard is not
// configured and has no shard group. It gets no share, because it may be a typing error. As long as the spec has an
// unknown shard, shards that were removed from the spec stay in use, and the shards with the most instances come first
// in the result "used". When the replicas are divided, these shards get the remainder.
func usedShards(in poolInput, mine []*v1beta1.NstanceShardGroup) (used, unknown []string) {
	sizes := map[string]int32{}
	for _, g := range mine {
		sizes[g.Spec.Shard] = ptr.Deref(g.Spec.Size, 0)
	}
	for _, shard := range in.pool.Spec.Shards {
		if _, ok := sizes[shard]; ok || in.configured[shard] {
			used = append(used, shard)
		} else {
			unknown = append(unknown, shard)
		}
	}
	if len(unknown) == 0 {
		return used, nil
	}
	for _, g := range mine {
		if !slices.Contains(used, g.Spec.Shard) && g.DeletionTimestamp.IsZero() {
			used = append(used, g.Spec.Shard)
		}
	}
	slices.SortStableFunc(used, func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	return used, unknown
}

// currentShares returns the shares of a pool in the order of its shards. A shard group that is missing or being deleted
// changes no share: its stored share counts. currentShares returns nil if the pool's list of shards has changed. In
// this case, the replicas are divided equally. Without stored shares, it also returns nil if a shard group is missing.
func currentShares(shards []string, mine []*v1beta1.NstanceShardGroup, stored map[string]int32) []shardShare {
	sizes := map[string]int32{}
	for _, g := range mine {
		if g.DeletionTimestamp.IsZero() && g.Spec.Size != nil {
			sizes[g.Spec.Shard] = max(0, *g.Spec.Size)
		}
	}
	if stored != nil {
		return knownShares(shards, sizes, stored)
	}
	var shares []shardShare
	for _, shard := range shards {
		size, exists := sizes[shard]
		if !exists {
			return nil
		}
		shares = append(shares, shardShare{shard, size})
	}
	if len(sizes) != len(shards) {
		return nil
	}
	return shares
}

// chosenInstances returns the instances in a shard group's [v1beta1.RemoveAnnotation].
func chosenInstances(g *v1beta1.NstanceShardGroup) []string {
	text := g.Annotations[v1beta1.RemoveAnnotation]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// chooseInstances updates the [v1beta1.RemoveAnnotation] of g. It adds the chosen victims that are on the shard of g.
// It drops the instances that are in the map "removed".
func chooseInstances(g *v1beta1.NstanceShardGroup, removed map[string]bool, chosen []victim) {
	ids := slices.DeleteFunc(chosenInstances(g), func(id string) bool { return removed[id] })
	for _, v := range chosen {
		if v.shard == g.Spec.Shard {
			ids = append(ids, v.instance)
		}
	}
	if len(ids) == 0 {
		delete(g.Annotations, v1beta1.RemoveAnnotation)
		return
	}
	metav1.SetMetaDataAnnotation(&g.ObjectMeta, v1beta1.RemoveAnnotation, strings.Join(ids, ","))
}

// newShardGroup returns a new shard group. It has its finalizer from the start, so that every deletion is handled.
func newShardGroup(in poolInput, share shardShare) *v1beta1.NstanceShardGroup {
	g := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: in.pool.Namespace,
		Name:       v1beta1.ShardGroupName(in.pool.Spec.Group, share.Shard),
		Finalizers: []string{v1beta1.ShardGroupFinalizer}}}
	fillShardGroup(g, in, share)
	return g
}

// fillShardGroup sets a shard group's spec from its pool.
func fillShardGroup(g *v1beta1.NstanceShardGroup, in poolInput, share shardShare) {
	spec := in.pool.Spec
	metav1.SetMetaDataLabel(&g.ObjectMeta, clusterv1.ClusterNameLabel, in.cluster)
	metav1.SetMetaDataLabel(&g.ObjectMeta, v1beta1.GroupLabel, spec.Group)
	metav1.SetMetaDataLabel(&g.ObjectMeta, v1beta1.ShardLabel, share.Shard)
	dropOwner(g, in.machinePool.UID)
	if metav1.GetControllerOf(g) == nil {
		g.OwnerReferences = append(g.OwnerReferences, *metav1.NewControllerRef(in.pool,
			v1beta1.GroupVersion.WithKind(machinePoolKind)))
	}
	settings := treeConfig(configTree(spec.Config))
	if equalJSON(settings, g.Spec.Config) {
		settings = g.Spec.Config
	}
	g.Spec = v1beta1.NstanceShardGroupSpec{Group: spec.Group, Shard: share.Shard, Size: ptr.To(share.Size),
		Config: settings}
	rememberOwnedFields(g)
}

// sumStatuses adds up the last known statuses of the shard groups, even if their shards are unreachable. A shard that
// was removed from the pool counts as long as it has instances.
func (plan *poolPlan) sumStatuses(groups []*v1beta1.NstanceShardGroup) {
	var replicas, ready int32
	var spares *v1beta1.SparesStatus
	ids := []string(nil)
	reported, all, static := false, true, false
	for _, g := range groups {
		if g.Status.ActualSize != nil {
			reported = true
		} else if reachable := meta.FindStatusCondition(g.Status.Conditions,
			v1beta1.ShardReachableCondition); reachable == nil || reachable.Reason != v1beta1.UnknownShardReason {
			all = false
		}
		replicas += ptr.Deref(g.Status.ActualSize, 0)
		ready += ptr.Deref(g.Status.Healthy, 0)
		spares = addSpares(spares, g.Status.Spares)
		ids = append(ids, g.Status.ProviderIDs...)
		static = static || g.Status.IsStatic
	}
	pool := plan.pool
	if !all || len(plan.create) > 0 {
		// Keep the known IDs until every shard group has reported. For example, the shard groups have no statuses after
		// the objects were moved to another cluster.
		ids = append(ids, pool.Spec.ProviderIDList...)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	pool.Spec.ProviderIDList = ids[:min(len(ids), maxProviderIDs)]
	if reported || len(groups) == 0 && pool.Status.Replicas != nil {
		pool.Status.Replicas, pool.Status.ReadyReplicas = ptr.To(replicas), ptr.To(ready)
		pool.Status.Spares = spares
		pool.Status.IsStatic = static
	}
}

// addSpares adds up two numbers of spares, of which each may be nil.
func addSpares(a, b *v1beta1.SparesStatus) *v1beta1.SparesStatus {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := func(a, b *int32) *int32 { return ptr.To(ptr.Deref(a, 0) + ptr.Deref(b, 0)) }
	return &v1beta1.SparesStatus{Count: sum(a.Count, b.Count), Actual: sum(a.Actual, b.Actual),
		Ready: sum(a.Ready, b.Ready)}
}

// setReadiness sets the Ready and ShardsReachable conditions. Once a shard has accepted the pool, setReadiness also
// marks the pool as provisioned for Cluster API. It never removes this mark.
func (plan *poolPlan) setReadiness(in poolInput, groups []*v1beta1.NstanceShardGroup, problems []string) {
	pool := plan.pool
	unknown, unreachable := plan.unknown, []string(nil)
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
	for _, shard := range plan.unknown {
		worse(v1beta1.UnknownShardReason, shard+": is not in the operator's configuration and gets no share; until "+
			"it is added or removed from the pool, no other shard is removed")
	}
	if before := meta.FindStatusCondition(in.pool.Status.Conditions, v1beta1.ReadyCondition); len(plan.unknown) > 0 &&
		(before == nil || before.Reason != v1beta1.UnknownShardReason) {
		plan.events = append(plan.events, warningEvent(v1beta1.UnknownShardReason, "%s", strings.Join(messages, "; ")))
	}
	for _, g := range groups {
		shard := g.Spec.Shard
		if !slices.Contains(plan.shards, shard) {
			worse(v1beta1.ScalingReason, shard+": is being removed from the pool")
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
			worse(v1beta1.ScalingReason, shard+": the change is not pushed yet")
		case ready.Status != metav1.ConditionTrue:
			worse(ready.Reason, shard+": "+ready.Message)
		case g.Status.ObservedGeneration != g.Generation || plan.changesSpec(g):
			worse(v1beta1.ScalingReason, shard+": the change is not pushed yet")
		}
	}
	for _, g := range plan.create {
		worse(v1beta1.ScalingReason, g.Spec.Shard+": the change is not pushed yet")
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

// severity lists the reasons for not being ready, the worst one first. A pool gets the worst reason of its shards.
var severity = []string{v1beta1.RefusedReason, v1beta1.UnknownShardReason, v1beta1.UnreachableReason,
	v1beta1.BlockedReason, v1beta1.NotReadyReason,
	v1beta1.DeletingReason, v1beta1.WaitingForShardReason, v1beta1.ScalingReason}

// changesSpec reports whether the plan changes the spec of a shard group.
func (plan *poolPlan) changesSpec(g *v1beta1.NstanceShardGroup) bool {
	return slices.ContainsFunc(plan.update, func(want *v1beta1.NstanceShardGroup) bool {
		return want.Name == g.Name && (ptr.Deref(want.Spec.Size, 0) != ptr.Deref(g.Spec.Size, 0) ||
			!equalJSON(want.Spec.Config, g.Spec.Config))
	})
}

// The cluster autoscaler reads these annotations to learn the size of a node that does not exist yet (scale from zero):
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/clusterapi/README.md
const (
	cpuAnnotation    = "capacity.cluster-autoscaler.kubernetes.io/cpu"
	memoryAnnotation = "capacity.cluster-autoscaler.kubernetes.io/memory"
)

// setCapacity sets the capacity of one instance, if it is known and the same on all shards.
func (plan *poolPlan) setCapacity(in poolInput, groups []*v1beta1.NstanceShardGroup) {
	want := instanceTypeOf(plan.pool.Spec.Config)
	var offers []corev1.ResourceList
	for _, g := range groups {
		has := instanceTypeOf(g.Status.Config)
		if has == "" {
			continue
		}
		offer := g.Status.Capacity
		// The shard's status still shows the earlier instance type if the pool's instance type has just changed.
		if want != "" && want != has {
			offer = nil
		}
		offers = append(offers, offer)
	}
	var offer corev1.ResourceList
	for i, one := range offers {
		if one == nil || i > 0 && (!one.Cpu().Equal(*offer.Cpu()) || !one.Memory().Equal(*offer.Memory())) {
			offer = nil
			break
		}
		offer = one
	}
	plan.pool.Status.Capacity = offer
	plan.machinePool = in.machinePool.DeepCopy()
	delete(plan.machinePool.Annotations, v1beta1.StoredPoolAnnotation) // the pool exists
	annotateCapacity(plan.machinePool, offer)
}

// annotateCapacity sets the autoscaler's annotations on a MachinePool. It keeps values that a user wrote.
func annotateCapacity(mp *clusterv1.MachinePool, offer corev1.ResourceList) {
	var wrote map[string]string
	if json.Unmarshal([]byte(mp.Annotations[v1beta1.CapacityAnnotation]), &wrote) != nil {
		wrote = nil
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
		writes[a.name] = quantity.String()
		metav1.SetMetaDataAnnotation(&mp.ObjectMeta, a.annotation, quantity.String())
	}
	if len(writes) == 0 {
		delete(mp.Annotations, v1beta1.CapacityAnnotation)
		return
	}
	text, err := json.Marshal(writes)
	if err != nil {
		return // not possible: strings can always be encoded
	}
	mp.Annotations[v1beta1.CapacityAnnotation] = string(text)
}

// finishStatus returns the pool's new status, which is written at the time now.
func (plan *poolPlan) finishStatus(was *v1beta1.NstanceMachinePool, generation int64,
	now time.Time) v1beta1.NstanceMachinePoolStatus {
	s := *plan.pool.Status.DeepCopy()
	s.ObservedGeneration = generation
	s.Conditions = plan.conditions.mergeInto(was.Status.Conditions, generation, now)
	return s
}
