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
)

// importInput is all that is known of groups that may have to be imported.
type importInput struct {
	namespace, cluster string
	// groups are those of every configured shard, none missing, by the shard's ID.
	groups       map[string][]*nstancev1.GroupStatus
	pools        []v1beta1.NstanceMachinePool
	machinePools []clusterv1.MachinePool
}

// imported is a group that gets what it lacks of a pool.
type imported struct {
	group string
	// pool is to be made when create is true; else it is there.
	pool        *v1beta1.NstanceMachinePool
	create      bool
	machinePool *clusterv1.MachinePool
}

// refusal is a group that cannot be imported, and why.
type refusal struct{ group, why string }

// decideImport finds the groups without a pool, and the pools that an import was interrupted after. A group with a part
// that is being deleted waits until that is over, and so does one whose MachinePool is.
func decideImport(in importInput) (found []imported, refused []refusal) {
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
		over := !in.machinePools[i].DeletionTimestamp.IsZero()
		ending[in.machinePools[i].Name] = ending[in.machinePools[i].Name] || over
		if name, ok := poolOf(&in.machinePools[i]); ok {
			referred[name], ending[name] = true, ending[name] || over
		}
	}
	for _, group := range slices.Sorted(maps.Keys(parts)) {
		pool := pools[group]
		if deleting[group] || pool != nil && !halfDone(pool, referred) {
			continue
		}
		one := imported{group: group, pool: pool, create: pool == nil}
		if pool == nil {
			made, why := importedPool(in, group, parts[group])
			if names[group] {
				why = "there is a NstanceMachinePool of that name, of another group"
			}
			if why != "" {
				refused = append(refused, refusal{group, why})
				continue
			}
			one.pool = made
		}
		// Cluster API deletes the pool that a MachinePool refers to until there is none: one made now would take its
		// group along.
		if ending[one.pool.Name] {
			continue
		}
		if taken[one.pool.Name] && !referred[one.pool.Name] {
			refused = append(refused,
				refusal{group, "there is a MachinePool of that name, which refers to something else"})
			continue
		}
		one.machinePool = importedMachinePool(in, one.pool, parts[group])
		found = append(found, one)
	}
	return found, refused
}

// halfDone reports whether a pool was made by an import that did not come to make the MachinePool. One that has its
// finalizer has had a MachinePool once, which somebody has deleted since.
func halfDone(pool *v1beta1.NstanceMachinePool, referred map[string]bool) bool {
	return pool.Labels[v1beta1.ImportedLabel] == "true" && pool.DeletionTimestamp.IsZero() && !referred[pool.Name] &&
		!controllerutil.ContainsFinalizer(pool, v1beta1.MachinePoolFinalizer)
}

// importedPool is a pool that says what the group's parts say by themselves, so that nothing changes by pushing it.
// Parts of dynamic groups have to agree: whichever was pushed, it would replace the instances of another shard.
func importedPool(in importInput, group string, parts map[string]*nstancev1.GroupStatus) (
	pool *v1beta1.NstanceMachinePool, why string) {
	shards := slices.Sorted(maps.Keys(parts))
	pool = &v1beta1.NstanceMachinePool{ObjectMeta: importedMeta(in, group, group),
		Spec: v1beta1.NstanceMachinePoolSpec{Group: group, Shards: shards}}
	var static, dynamic []v1beta1.NstanceMachinePoolSpec
	var of []string
	for _, shard := range shards {
		g := parts[shard]
		own, known := ownSpec(g)
		spec := v1beta1.NstanceMachinePoolSpec{Template: g.GetTemplate(), SubnetPool: own.SubnetPool,
			InstanceType: own.InstanceType, Vars: own.Vars}
		switch {
		case g.GetIsStatic():
			static = append(static, spec)
		default:
			if !known {
				spec.SubnetPool, spec.InstanceType, spec.Vars = g.GetSubnetPool(), g.GetInstanceType(), g.GetVars()
			}
			dynamic, of = append(dynamic, spec), append(of, shard)
		}
	}
	say := append(dynamic, static...)[0]
	for i, other := range dynamic {
		if fields := differences(say, other); len(fields) > 0 {
			return nil, fmt.Sprintf("shards %s and %s do not agree on %s: make them, or make its pool by hand", of[0],
				of[i], strings.Join(fields, ", "))
		}
	}
	pool.Spec.Template, pool.Spec.SubnetPool = say.Template, say.SubnetPool
	// Overrides of static groups are taken over where all say the same; otherwise they stay as they are, unsaid here.
	agreed := func(field string) bool {
		return !slices.ContainsFunc(static, func(other v1beta1.NstanceMachinePoolSpec) bool {
			return slices.Contains(differences(say, other), field)
		})
	}
	if len(dynamic) > 0 || agreed("instance type") {
		pool.Spec.InstanceType = say.InstanceType
	}
	if len(dynamic) > 0 || agreed("vars") {
		pool.Spec.Vars = maps.Clone(say.Vars)
	}
	return pool, ""
}

func differences(a, b v1beta1.NstanceMachinePoolSpec) (fields []string) {
	for _, field := range []struct {
		name string
		same bool
	}{{"template", a.Template == b.Template}, {"subnet pool", a.SubnetPool == b.SubnetPool},
		{"instance type", a.InstanceType == b.InstanceType}, {"vars", maps.Equal(a.Vars, b.Vars)}} {
		if !field.same {
			fields = append(fields, field.name)
		}
	}
	return fields
}

// importedMachinePool wants as many replicas as the shards do now. Userdata is the servers', so there is no bootstrap
// secret to wait for.
func importedMachinePool(in importInput, pool *v1beta1.NstanceMachinePool,
	parts map[string]*nstancev1.GroupStatus) *clusterv1.MachinePool {
	var sum uint64
	for _, shard := range pool.Spec.Shards {
		sum += uint64(parts[shard].GetSize())
	}
	replicas := count(uint32(min(sum, math.MaxUint32)))
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
