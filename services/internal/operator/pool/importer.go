package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// importer makes pools of the groups that have none. It looks at mirrors until it finds one, and asks every shard
// before it makes anything: with one shard missing, the sum of replicas would be wrong.
type importer struct {
	Options

	mu sync.Mutex
	// told are the groups that could not be imported, and why, by which they are told of once.
	told map[string]string
}

func newImporter(o Options) *importer { return &importer{Options: o, told: map[string]string{}} }

// everything is the only request: groups are looked at together.
func (r *importer) everything() []reconcile.Request { return []reconcile.Request{r.request("import")} }

func (r *importer) setup(b *ctrl.Builder, o controller.Options) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return r.everything()
	})
	start := make(chan event.GenericEvent, 1)
	start <- event.GenericEvent{Object: &v1beta1.NstanceMachinePool{}}
	return b.Watches(&v1beta1.NstanceMachinePool{}, all, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&clusterv1.MachinePool{}, all, builder.WithPredicates(onlyDeletions)).
		Watches(&clusterv1.Cluster{}, all, builder.WithPredicates(pauseChanged)).
		WatchesRawSource(source.Channel(start, all)).
		WatchesRawSource(shards.Source(r.Shards, func(c shards.Change) []reconcile.Request {
			if c.Kind == shards.ShardState || c.Kind == shards.GroupChanged {
				return r.everything()
			}
			return nil
		})).
		WithOptions(o).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *importer) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	in := importInput{namespace: r.Namespace, cluster: r.clusterName(), groups: map[string][]*nstancev1.GroupStatus{}}
	var of []shards.Shard
	for _, id := range r.Shards.IDs() {
		shard, ok := r.Shards.Shard(id)
		if !ok || !shard.State().Synced || !shard.State().Reachable {
			return reconcile.Result{}, nil // looked at again when that changes
		}
		of, in.groups[id] = append(of, shard), shard.Groups()
	}
	if paused, err := r.clusterPaused(ctx); err != nil || paused {
		return reconcile.Result{}, err
	}
	if err := r.read(ctx, r.Client, &in); err != nil {
		return reconcile.Result{}, err
	}
	if found, refused := decideImport(in); len(found) == 0 {
		r.refused(in.cluster, refused)
		return reconcile.Result{}, nil
	}
	// There seems to be something. Mirrors and cache may be behind, so everybody is asked.
	if err := r.read(ctx, r.Reader, &in); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.list(ctx, of, &in); err != nil {
		return reconcile.Result{}, err
	}
	found, refused := decideImport(in)
	r.refused(in.cluster, refused)
	var errs []error
	for _, one := range found {
		errs = append(errs, r.create(ctx, one))
	}
	return reconcile.Result{}, errors.Join(errs...)
}

// read reads all pools and MachinePools of the namespace.
func (r *importer) read(ctx context.Context, from client.Reader, in *importInput) error {
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

// list asks all shards at once.
func (r *importer) list(ctx context.Context, of []shards.Shard, in *importInput) error {
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

// create makes what a group lacks of a pool. Between the two writes it may end; what is there then is found again.
func (r *importer) create(ctx context.Context, one imported) error {
	if one.create {
		if err := r.Client.Create(ctx, one.pool); err != nil {
			return fmt.Errorf("import group %s: create pool: %w", one.group, err)
		}
	}
	if err := r.Client.Create(ctx, one.machinePool); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("import group %s: create machine pool: %w", one.group, err)
	}
	over := strings.Join(one.pool.Spec.Shards, ", ")
	r.Log.Info("group imported", "group", one.group, "replicas", *one.machinePool.Spec.Replicas, "shards", over)
	r.tell(one.pool, normal(v1beta1.ImportedReason, "group %s of shards %s, %d replicas", one.group, over,
		*one.machinePool.Spec.Replicas))
	return nil
}

// refused tells of groups that cannot be imported, on the cluster, as they have no object of their own.
func (r *importer) refused(cluster string, list []refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := map[string]string{}
	for _, one := range list {
		told[one.group] = one.why
		if r.told[one.group] == one.why {
			continue
		}
		r.Log.Warn("group not imported", "group", one.group, "reason", one.why)
		about := &v1beta1.NstanceCluster{}
		about.APIVersion, about.Kind = v1beta1.GroupVersion.String(), "NstanceCluster"
		about.Namespace, about.Name = r.Namespace, cluster
		r.tell(about, warning(v1beta1.RefusedReason, "group %s is not imported: %s", one.group, one.why))
	}
	r.told = told
}
