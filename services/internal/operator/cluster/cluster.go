// Package cluster provides what Cluster API needs before it has machines: the tenant's Cluster and NstanceCluster, the
// kubeconfig with which Cluster API's core reaches the workload cluster, and the operator's own client of that cluster.
//
// Invariant: there is one Cluster, named after Nstance's cluster and tenant. Fields set by a user or Cluster API stay.
package cluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters/status,verbs=get;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters/status,verbs=get;patch

// Options configures [Setup]. All fields are required except External.
type Options struct {
	scope.Scope
	// Config is the operator's client configuration for the API server.
	Config *rest.Config
	// External is the API server of an external workload cluster. If nil, the operator's own cluster is the workload.
	External *clusterv1.APIEndpoint
	// ServiceAccount is the account for the tokens in the kubeconfig. It is not used with External.
	ServiceAccount string
}

// objectKey returns the name of the Cluster and the NstanceCluster.
func (o *Options) objectKey() types.NamespacedName {
	return o.Key(o.ClusterName())
}

// Setup registers the controller that creates the NstanceCluster and its Cluster, and the renewal of the kubeconfig.
func Setup(mgr ctrl.Manager, o Options) error {
	o.Scope = o.From(mgr, "nstance-operator")
	endpoint := o.External
	if endpoint == nil {
		own, err := endpointOf(o.Config)
		if err != nil {
			return err
		}
		endpoint = &own
	}
	r := &reconciler{Options: o, endpoint: *endpoint, kubeconfig: newKubeconfigKeeper(o)}
	ours := predicate.NewPredicateFuncs(o.IsCluster)
	request := []reconcile.Request{{NamespacedName: o.objectKey()}}
	err := ctrl.NewControllerManagedBy(mgr).Named("nstancecluster").
		For(&v1beta1.NstanceCluster{}, builder.WithPredicates(ours)).
		Watches(&clusterv1.Cluster{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(ours)).
		WatchesRawSource(shards.Source(o.Shards, func(c shards.Change) []reconcile.Request {
			if c.Kind != shards.ShardState {
				return nil
			}
			return request
		})).
		// The first request creates the objects. Later ones follow changes of the kubeconfig's state.
		WatchesRawSource(
			source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
				queue.Add(request[0])
				go r.kubeconfig.notifyChanges(ctx, func() { queue.Add(request[0]) })
				return nil
			})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("controller of NstanceCluster: %w", err)
	}
	if o.External != nil {
		return nil
	}
	return mgr.Add(manager.RunnableFunc(r.kubeconfig.run))
}

// reconciler creates the Cluster and the NstanceCluster, and updates the status of the latter.
type reconciler struct {
	Options
	endpoint   clusterv1.APIEndpoint
	kubeconfig *kubeconfigKeeper
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	infra, err := r.ensureInfraCluster(ctx)
	var cluster *clusterv1.Cluster
	if err == nil {
		cluster, err = r.ensureCluster(ctx)
	}
	if err != nil {
		return scope.RetryConflict(err)
	}
	if !infra.DeletionTimestamp.IsZero() || !cluster.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // created again after the deletion
	}
	before := infra.DeepCopy()
	r.updateStatus(infra, cluster)
	if err := r.PatchStatus(ctx, before, infra); err != nil {
		return reconcile.Result{}, fmt.Errorf("patch status of NstanceCluster %s: %w", r.objectKey(), err)
	}
	return scope.RetryConflict(r.markInitialized(ctx, cluster))
}

// ensureInfraCluster returns the NstanceCluster, which it creates if there is none.
func (r *reconciler) ensureInfraCluster(ctx context.Context) (*v1beta1.NstanceCluster, error) {
	var c v1beta1.NstanceCluster
	err := r.Client.Get(ctx, r.objectKey(), &c)
	switch {
	case apierrors.IsNotFound(err):
		c = v1beta1.NstanceCluster{ObjectMeta: r.objectMeta(), Spec: v1beta1.NstanceClusterSpec{
			ControlPlaneEndpoint: r.endpoint}}
		if err := r.Client.Create(ctx, &c); err != nil {
			return nil, fmt.Errorf("create NstanceCluster %s: %w", r.objectKey(), err)
		}
		r.Log.Info("created the NstanceCluster", "name", c.Name)
	case err != nil:
		return nil, fmt.Errorf("read NstanceCluster: %w", err)
	case c.Spec.ControlPlaneEndpoint.IsZero() && c.DeletionTimestamp.IsZero():
		before := c.DeepCopy()
		c.Spec.ControlPlaneEndpoint = r.endpoint
		if err := r.Client.Patch(ctx, &c, client.MergeFrom(before)); err != nil {
			return nil, fmt.Errorf("patch NstanceCluster %s: %w", r.objectKey(), err)
		}
	}
	return &c, nil
}

// ensureCluster returns the Cluster, which it creates if there is none.
func (r *reconciler) ensureCluster(ctx context.Context) (*clusterv1.Cluster, error) {
	var c clusterv1.Cluster
	err := r.Client.Get(ctx, r.objectKey(), &c)
	switch {
	case apierrors.IsNotFound(err):
		c = clusterv1.Cluster{ObjectMeta: r.objectMeta(), Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: r.endpoint,
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceCluster", Name: r.objectKey().Name},
		}}
		if err := r.Client.Create(ctx, &c); err != nil {
			return nil, fmt.Errorf("create Cluster %s: %w", r.objectKey(), err)
		}
		r.Log.Info("created the Cluster", "name", c.Name)
	case err != nil:
		return nil, fmt.Errorf("read Cluster: %w", err)
	}
	return &c, nil
}

func (r *reconciler) objectMeta() metav1.ObjectMeta {
	name := r.objectKey()
	return metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name,
		Labels: map[string]string{clusterv1.ClusterNameLabel: name.Name}}
}
