package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// importer creates pools for the groups that have none. It looks for such groups in the mirrors. Before it creates
// anything, it asks every shard: without the answer of one shard, the number of replicas would be wrong.
type importer struct {
	pools

	mu sync.Mutex
	// reported maps each group that could not be imported to the reason, so that each reason is reported once.
	reported map[string]string
}

func newImporter(p pools) *importer { return &importer{pools: p, reported: map[string]string{}} }

// importRequest returns a request to import all groups. It is always the same request.
func (r *importer) importRequest() []reconcile.Request {
	return []reconcile.Request{r.Request("import")}
}

func (r *importer) setup(b *ctrl.Builder) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return r.importRequest()
	})
	start := make(chan event.GenericEvent, 1)
	start <- event.GenericEvent{Object: &v1beta1.NstanceMachinePool{}}
	return r.WatchCluster(b, func(context.Context) []reconcile.Request { return r.importRequest() }).
		Watches(&v1beta1.NstanceMachinePool{}, all, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&clusterv1.MachinePool{}, all, builder.WithPredicates(onlyDeletions)).
		WatchesRawSource(source.Channel(start, all)).
		WatchesRawSource(shards.Source(r.Shards, func(c shards.Change) []reconcile.Request {
			if c.Kind == shards.ShardState || c.Kind == shards.GroupChanged {
				return r.importRequest()
			}
			return nil
		})).
		Complete(r.Supervise(r, nil))
}

// Reconcile implements reconcile.Reconciler.
func (r *importer) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	in := importInput{namespace: r.Namespace, cluster: r.ClusterName(), groups: map[string][]*nstancev1.GroupStatus{}}
	var of []shards.Shard
	for _, shard := range r.Shards.All() {
		if !shard.State().Answers() {
			return reconcile.Result{}, nil // a change of the shard's state causes another request
		}
		of, in.groups[shard.ID()] = append(of, shard), shard.Groups()
	}
	if p, err := r.Permission(ctx, r.Client); err != nil || p.Paused || p.Ending {
		return reconcile.Result{}, err
	}
	if err := r.listPools(ctx, r.Client, &in); err != nil {
		return reconcile.Result{}, err
	}
	if found, refused := decideImport(in); len(found) == 0 {
		r.reportRefusals(in.cluster, refused)
		return reconcile.Result{}, nil
	}
	// There seems to be a group to import. Mirrors and cache may be out of date, so ask the API server and every shard.
	if err := r.listPools(ctx, r.Reader, &in); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.listGroups(ctx, of, &in); err != nil {
		return reconcile.Result{}, err
	}
	// The shards' answers may have taken long. The Cluster may have been paused or deleted meanwhile.
	if p, err := r.Permission(ctx, r.Reader); err != nil || p.Paused || p.Ending {
		return reconcile.Result{}, err
	}
	found, refused := decideImport(in)
	r.reportRefusals(in.cluster, refused)
	var errs []error
	for _, one := range found {
		errs = append(errs, r.createImported(ctx, one))
	}
	return reconcile.Result{}, errors.Join(errs...)
}

// listPools lists all pools and MachinePools of the namespace.
func (r *importer) listPools(ctx context.Context, from client.Reader, in *importInput) error {
	pools, machinePools := &v1beta1.NstanceMachinePoolList{}, &clusterv1.MachinePoolList{}
	if err := from.List(ctx, pools, client.InNamespace(r.Namespace)); err != nil {
		return fmt.Errorf("list pools: %w", err)
	}
	if err := from.List(ctx, machinePools, client.InNamespace(r.Namespace)); err != nil {
		return fmt.Errorf("list machine pools: %w", err)
	}
	in.pools, in.machinePools = pools.Items, machinePools.Items
	return nil
}

// listGroups asks all shards for their groups, in parallel.
func (r *importer) listGroups(ctx context.Context, of []shards.Shard, in *importInput) error {
	answers := make([]*nstancev1.ListGroupsResponse, len(of))
	calls, inner := errgroup.WithContext(ctx)
	for i, shard := range of {
		calls.Go(func() (err error) {
			if answers[i], err = shard.API().ListGroups(inner, &nstancev1.ListGroupsRequest{}); err != nil {
				return fmt.Errorf("list groups of shard %s: %w", shard.ID(), err)
			}
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		return err
	}
	for i, shard := range of {
		in.groups[shard.ID()] = answers[i].GetGroups()
	}
	return nil
}

// createImported creates the missing objects of a group. If it is interrupted after it has created the pool, a later
// import creates the MachinePool.
func (r *importer) createImported(ctx context.Context, one importedGroup) error {
	if one.create {
		if err := r.Client.Create(ctx, one.pool); err != nil {
			return fmt.Errorf("import group %s: create pool: %w", one.group, err)
		}
	}
	if err := r.Client.Create(ctx, one.machinePool); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("import group %s: create machine pool: %w", one.group, err)
	}
	over := strings.Join(one.pool.Spec.Shards, ", ")
	r.Log.Info("imported group", "group", one.group, "replicas", *one.machinePool.Spec.Replicas, "shards", over)
	r.recordEvents(one.pool, normalEvent(v1beta1.ImportedReason, "group %s of shards %s, %d replicas", one.group, over,
		*one.machinePool.Spec.Replicas))
	return nil
}

// reportRefusals reports groups that cannot be imported. The events are about the NstanceCluster, because these groups
// have no Kubernetes object.
func (r *importer) reportRefusals(cluster string, list []refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reasons := map[string]string{}
	for _, one := range list {
		reasons[one.group] = one.reason
		if r.reported[one.group] == one.reason {
			continue
		}
		r.Log.Warn("group cannot be imported", "group", one.group, "reason", one.reason)
		about := &v1beta1.NstanceCluster{}
		about.APIVersion, about.Kind = v1beta1.GroupVersion.String(), "NstanceCluster"
		about.Namespace, about.Name = r.Namespace, cluster
		r.recordEvents(about, warningEvent(v1beta1.RefusedReason, "group %s cannot be imported: %s", one.group,
			one.reason))
	}
	r.reported = reasons
}

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
