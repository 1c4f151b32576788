package pool

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// importInput is everything that decisions about imports depend on.
type importInput struct {
	namespace, cluster string
	// groups are the groups of every configured shard, by shard ID. No shard is missing.
	groups       map[string][]*nstancev1.GroupStatus
	pools        []v1beta1.NstanceMachinePool
	machinePools []clusterv1.MachinePool
}

// importedGroup is a group to import, with its new pool and MachinePool.
type importedGroup struct {
	group string
	// pool is the group's pool. If create is true, the pool does not exist yet and must be created.
	pool        *v1beta1.NstanceMachinePool
	create      bool
	machinePool *clusterv1.MachinePool
}

// refusal is a group that cannot be imported, and the reason.
type refusal struct{ group, reason string }

// decideImport finds the groups that have no pool, and the pools whose import was interrupted. It skips a group that is
// being deleted on a shard, or whose MachinePool is being deleted.
func decideImport(in importInput) (found []importedGroup, refused []refusal) {
	parts := map[string]map[string]*nstancev1.GroupStatus{}
	deleting := map[string]bool{}
	for shard, groups := range in.groups {
		for _, g := range groups {
			if parts[g.GetGroup()] == nil {
				parts[g.GetGroup()] = map[string]*nstancev1.GroupStatus{}
			}
			parts[g.GetGroup()][shard] = g
			deleting[g.GetGroup()] = deleting[g.GetGroup()] || g.GetDeleting()
		}
	}
	pools, names := map[string]*v1beta1.NstanceMachinePool{}, map[string]bool{}
	for i := range in.pools {
		pool := &in.pools[i]
		names[pool.Name] = true
		if cluster := pool.Labels[clusterv1.ClusterNameLabel]; cluster == "" || cluster == in.cluster {
			pools[pool.Spec.Group] = pool
		}
	}
	referred, taken, ending := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range in.machinePools {
		taken[in.machinePools[i].Name] = true
		if stored := readStoredPool(&in.machinePools[i]); stored != nil && pools[stored.Spec.Group] == nil {
			pools[stored.Spec.Group] = stored // it is about to be created again
		}
		over := !in.machinePools[i].DeletionTimestamp.IsZero()
		ending[in.machinePools[i].Name] = ending[in.machinePools[i].Name] || over
		if name, ok := referencedPool(&in.machinePools[i]); ok {
			referred[name], ending[name] = true, ending[name] || over
		}
	}
	for _, group := range slices.Sorted(maps.Keys(parts)) {
		pool := pools[group]
		if deleting[group] || pool != nil && !importInterrupted(pool, referred) {
			continue
		}
		one := importedGroup{group: group, pool: pool, create: pool == nil}
		if pool == nil {
			made, why := importedPool(in, group, parts[group])
			if names[group] {
				why = "another group already has an NstanceMachinePool with this name"
			}
			if why != "" {
				refused = append(refused, refusal{group, why})
				continue
			}
			one.pool = made
		}
		// A MachinePool that references this pool's name is being deleted. Do not create the pool yet, because Cluster
		// API would delete the new pool and its group.
		if ending[one.pool.Name] {
			continue
		}
		if taken[one.pool.Name] && !referred[one.pool.Name] {
			refused = append(refused,
				refusal{group, "a MachinePool with this name exists and references something else"})
			continue
		}
		one.machinePool = importedMachinePool(in, one.pool, parts[group])
		found = append(found, one)
	}
	return found, refused
}

// importInterrupted reports whether an import created the pool but not its MachinePool. A pool gets its finalizer only
// when it has a MachinePool. So if the pool has the finalizer, its MachinePool existed and a user has deleted it.
func importInterrupted(pool *v1beta1.NstanceMachinePool, referred map[string]bool) bool {
	return pool.Labels[v1beta1.ImportedLabel] == "true" && pool.DeletionTimestamp.IsZero() && !referred[pool.Name] &&
		!controllerutil.ContainsFinalizer(pool, v1beta1.MachinePoolFinalizer)
}

// importedPool returns a pool with the group's own settings, so that pushing the pool changes nothing. If the group is
// dynamic on a shard, it must have the same settings on all shards: pushing the settings of one shard to another would
// replace instances there.
func importedPool(in importInput, group string, parts map[string]*nstancev1.GroupStatus) (
	pool *v1beta1.NstanceMachinePool, why string) {
	shards := slices.Sorted(maps.Keys(parts))
	pool = &v1beta1.NstanceMachinePool{ObjectMeta: importedMeta(in, group, group),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: group, Shards: shards}}
	var settings map[string]any
	from := "" // the first shard on which the group is dynamic
	for _, shard := range shards {
		if parts[shard].GetIsStatic() {
			continue
		}
		other := importedSettings(parts[shard])
		if from == "" {
			from, settings = shard, other
		}
		if fields := differingFields(settings, other); len(fields) > 0 {
			return nil, disagreement(from, shard, fields)
		}
	}
	for _, shard := range shards {
		g := parts[shard]
		switch {
		case !g.GetIsStatic():
		case from != "":
			want := v1beta1.NstanceShardGroupSpec{Size: ptr.To(toInt32(g.GetSize())), Config: treeConfig(settings)}
			if push := upsertRequest(want, nil, g); push != nil {
				return nil, disagreement(from, shard, differingFields(nil, parseTree(push.GetPatch())))
			}
		case settings == nil:
			settings = importedSettings(g)
		default:
			// A setting of the overrides is imported only if it is the same on all shards. If it differs, the pool does
			// not set it, and each shard keeps its own value.
			for _, field := range differingFields(settings, importedSettings(g)) {
				delete(settings, field)
			}
		}
	}
	pool.Spec.Config = treeConfig(settings)
	return pool, ""
}

func disagreement(a, b string, fields []string) string {
	return fmt.Sprintf("shards %s and %s disagree on %s: make them equal, or create the pool yourself", a, b,
		strings.Join(fields, ", "))
}

// importedSettings returns a group's own settings without its size, which the MachinePool gets, and without what
// nstance-admin sets to pause or repeat a rollout: a pool that had these settings would revert later ones.
func importedSettings(g *nstancev1.GroupStatus) map[string]any {
	return without(parseTree(config.PatchOf(ownSpec(g)).JSON()), map[string]any{"size": nil,
		"rollout": map[string]any{"paused": nil, "revision": nil}}, nil)
}

// differingFields returns the names of the fields that are not equal in two objects, sorted.
func differingFields(a, b map[string]any) []string {
	return slices.Sorted(maps.Keys(config.Difference(a, b)))
}

// importedMachinePool returns a MachinePool whose replicas are the sum of the group's current sizes on all shards. The
// name of the bootstrap secret is empty, because the servers provide the userdata.
func importedMachinePool(in importInput, pool *v1beta1.NstanceMachinePool,
	parts map[string]*nstancev1.GroupStatus) *clusterv1.MachinePool {
	var sum uint64
	for _, shard := range pool.Spec.Shards {
		sum += uint64(parts[shard].GetSize())
	}
	replicas := toInt32(uint32(min(sum, math.MaxUint32)))
	return &clusterv1.MachinePool{
		ObjectMeta: importedMeta(in, pool.Name, pool.Spec.Group),
		Spec: clusterv1.MachinePoolSpec{
			ClusterName: in.cluster, Replicas: ptr.To(replicas),
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: in.cluster, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
					Kind: machinePoolKind, Name: pool.Name},
			}},
		},
	}
}

func importedMeta(in importInput, name, group string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: in.namespace, Name: name,
		Labels: map[string]string{clusterv1.ClusterNameLabel: in.cluster, v1beta1.GroupLabel: group,
			v1beta1.ImportedLabel: "true"}}
}
