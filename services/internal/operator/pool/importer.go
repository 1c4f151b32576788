package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// importer creates pools for the groups that have none. It looks for such groups in the mirrors. Before it creates
// anything, it asks every shard: without the answer of one shard, the number of replicas would be wrong.
type importer struct {
	pools
	// reported maps each group that could not be imported to the reason, so that each reason is reported once. Only the
	// single worker uses it.
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
