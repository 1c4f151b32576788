// Package cluster owns what Cluster API needs of a cluster before it has machines: the Cluster and NstanceCluster of
// the tenant, the kubeconfig that Cluster API's core reaches the workload cluster with, and the operator's own way
// there.
//
// Invariant: there is one Cluster, named after Nstance's cluster and tenant, and what a person or Cluster API has
// written into it stays.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
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
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters/status,verbs=get;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters/status,verbs=get;patch

// Options of [Setup]. All are required.
type Options struct {
	Client   client.Client
	Recorder events.EventRecorder
	Shards   shards.Shards
	// Namespace of all objects; Cluster and Tenant name the only Cluster.
	Namespace, Cluster, Tenant string
	// Config is how the operator reaches the API server.
	Config *rest.Config
	// External is the API server of an external workload cluster; nil: the operator's own is it.
	External *clusterv1.APIEndpoint
	// ServiceAccount is whose tokens are in the kubeconfig. Not needed with External.
	ServiceAccount string
	Now            func() time.Time
	Log            *slog.Logger
}

// name is that of the Cluster and the NstanceCluster.
func (o *Options) name() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: v1beta1.ClusterName(o.Cluster, o.Tenant)}
}

// Setup registers the controller of the NstanceCluster, which makes it and its Cluster, and what keeps the kubeconfig.
func Setup(mgr ctrl.Manager, o Options) error {
	endpoint := o.External
	if endpoint == nil {
		own, err := endpointOf(o.Config)
		if err != nil {
			return err
		}
		endpoint = &own
	}
	r := &reconciler{Options: o, endpoint: *endpoint, kubeconfig: newKubeconfig(o)}
	ours := predicate.NewPredicateFuncs(func(object client.Object) bool {
		return client.ObjectKeyFromObject(object) == o.name()
	})
	request := []reconcile.Request{{NamespacedName: o.name()}}
	err := ctrl.NewControllerManagedBy(mgr).Named("nstancecluster").
		For(&v1beta1.NstanceCluster{}, builder.WithPredicates(ours)).
		Watches(&clusterv1.Cluster{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(ours)).
		WatchesRawSource(shards.Source(o.Shards, func(c shards.Change) []reconcile.Request {
			if c.Kind != shards.ShardState {
				return nil
			}
			return request
		})).
		// Without any object yet, somebody has to begin; and the kubeconfig has news.
		WatchesRawSource(
			source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
				queue.Add(request[0])
				go r.kubeconfig.tell(ctx, func() { queue.Add(request[0]) })
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

// reconciler makes the Cluster and the NstanceCluster, and keeps the latter's status.
type reconciler struct {
	Options
	endpoint   clusterv1.APIEndpoint
	kubeconfig *kubeconfig
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	infra, err := r.infra(ctx)
	var cluster *clusterv1.Cluster
	if err == nil {
		cluster, err = r.cluster(ctx)
	}
	if apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil // made a moment ago: the cache will show it
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if !infra.DeletionTimestamp.IsZero() || !cluster.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // when they are gone, they are made anew
	}
	before := infra.DeepCopy()
	r.decide(infra, cluster)
	if err := r.patchStatus(ctx, infra, before); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.initialize(ctx, cluster); apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil // somebody else wrote it, which the cache will show
	} else if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// conflictRetry is the pause after somebody else's write got in the way.
const conflictRetry = 100 * time.Millisecond

// infra returns the NstanceCluster, making it if there is none.
func (r *reconciler) infra(ctx context.Context) (*v1beta1.NstanceCluster, error) {
	var c v1beta1.NstanceCluster
	err := r.Client.Get(ctx, r.name(), &c)
	switch {
	case apierrors.IsNotFound(err):
		c = v1beta1.NstanceCluster{ObjectMeta: r.meta(), Spec: v1beta1.NstanceClusterSpec{
			ControlPlaneEndpoint: r.endpoint}}
		if err := r.Client.Create(ctx, &c); err != nil {
			return nil, fmt.Errorf("create NstanceCluster %s: %w", r.name(), err)
		}
		r.Log.Info("The NstanceCluster is made", "name", c.Name)
	case err != nil:
		return nil, fmt.Errorf("read NstanceCluster: %w", err)
	case c.Spec.ControlPlaneEndpoint.IsZero() && c.DeletionTimestamp.IsZero():
		before := c.DeepCopy()
		c.Spec.ControlPlaneEndpoint = r.endpoint
		if err := r.Client.Patch(ctx, &c, client.MergeFrom(before)); err != nil {
			return nil, fmt.Errorf("patch NstanceCluster %s: %w", r.name(), err)
		}
	}
	return &c, nil
}

// cluster returns the Cluster, making it if there is none.
func (r *reconciler) cluster(ctx context.Context) (*clusterv1.Cluster, error) {
	var c clusterv1.Cluster
	err := r.Client.Get(ctx, r.name(), &c)
	switch {
	case apierrors.IsNotFound(err):
		c = clusterv1.Cluster{ObjectMeta: r.meta(), Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: r.endpoint,
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceCluster", Name: r.name().Name},
		}}
		if err := r.Client.Create(ctx, &c); err != nil {
			return nil, fmt.Errorf("create Cluster %s: %w", r.name(), err)
		}
		r.Log.Info("The Cluster is made", "name", c.Name)
	case err != nil:
		return nil, fmt.Errorf("read Cluster: %w", err)
	}
	return &c, nil
}

func (r *reconciler) meta() metav1.ObjectMeta {
	name := r.name()
	return metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name,
		Labels: map[string]string{clusterv1.ClusterNameLabel: name.Name}}
}

func (r *reconciler) patchStatus(ctx context.Context, infra, before *v1beta1.NstanceCluster) error {
	patch := client.MergeFrom(before)
	if text, err := patch.Data(infra); err != nil || string(text) == "{}" {
		return err
	}
	if err := r.Client.Status().Patch(ctx, infra, patch); err != nil {
		return fmt.Errorf("patch status of NstanceCluster %s: %w", r.name(), err)
	}
	return nil
}
