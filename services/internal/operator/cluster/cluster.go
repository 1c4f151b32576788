// Package cluster provides what Cluster API needs before it has machines: the tenant's Cluster and NstanceCluster, the
// kubeconfig with which Cluster API's core reaches the workload cluster, and the operator's own client of that cluster.
//
// Invariants:
//
//   - There is one Cluster, named after Nstance's cluster and tenant. The operator keeps the fields that a user or
//     Cluster API has set.
//   - A deleted Cluster is not created again until a user asks for a new one. A ConfigMap records the deletion.
package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters/status,verbs=patch
// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=configmaps,verbs=get;create;delete

// Options configures [Setup]. All fields are required except External.
type Options struct {
	scope.Scope
	// Config is the operator's client configuration for the API server.
	Config *rest.Config
	// External is the API server of an external workload cluster. If it is zero, the operator's own cluster is the
	// workload cluster.
	External clusterv1.APIEndpoint
	// ServiceAccount is the account for the tokens in the kubeconfig. It is not used with External.
	ServiceAccount string
	// Recreate lets the operator create a deleted Cluster again, once.
	Recreate bool
	// Problems are reported in the condition Ready of the NstanceCluster, and by events.
	Problems *scope.Problems
}

// objectKey returns the name of the Cluster and the NstanceCluster.
func (o *Options) objectKey() types.NamespacedName {
	return o.Key(o.ClusterName())
}

// Setup registers the controller that creates the NstanceCluster and its Cluster, and the renewal of the kubeconfig.
func Setup(mgr ctrl.Manager, o Options) error {
	o.Scope = o.From(mgr, "nstance-operator")
	endpoint := o.External
	if endpoint.IsZero() {
		var err error
		if endpoint, err = endpointOf(o.Config); err != nil {
			return err
		}
	}
	r := &reconciler{Options: o, endpoint: endpoint, kubeconfig: &kubeconfigKeeper{Options: o, try: listNodes},
		recreate: o.Recreate}
	ours := predicate.NewPredicateFuncs(o.IsCluster)
	request := []reconcile.Request{{NamespacedName: o.objectKey()}}
	err := o.NewController(mgr, "nstancecluster", 1).
		For(&v1beta1.NstanceCluster{}, builder.WithPredicates(ours)).
		Watches(&clusterv1.Cluster{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(ours)).
		WatchesRawSource(shards.Source(o.Shards, func(c shards.Change) []reconcile.Request {
			if c.Kind != shards.ShardState {
				return nil
			}
			return request
		})).
		// Reconcile once at the start, to create the objects. Reconcile again whenever a problem changes.
		WatchesRawSource(
			source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
				queue.Add(request[0])
				r.Problems.Notify(func() { queue.Add(request[0]) })
				return nil
			})).
		Complete(o.Supervise(r, &v1beta1.NstanceCluster{}))
	if err != nil {
		return fmt.Errorf("controller of NstanceCluster: %w", err)
	}
	if !o.External.IsZero() {
		return nil
	}
	return mgr.Add(manager.RunnableFunc(r.kubeconfig.run))
}

// reconciler creates the Cluster and the NstanceCluster, updates the NstanceCluster's status, and records a deletion of
// the Cluster. Its fields need no lock, because it has only one worker.
type reconciler struct {
	Options
	endpoint   clusterv1.APIEndpoint
	kubeconfig *kubeconfigKeeper
	// recreate is true if the next reconciliation may remove the record of a deletion and create the Cluster again.
	recreate bool
	// cleared is the UID of the Cluster for which records of earlier deletions were removed.
	cleared types.UID
	// recorded are the problems for which the last reconciliation found or recorded events.
	recorded []scope.Problem
	// reported is true if the log already says that the Cluster is not created again.
	reported bool
}

const (
	// endingRecheck is the time between two updates of the status while the Cluster is being deleted.
	endingRecheck = 5 * time.Second
	// recordRecheck is the time between two reads of the record of a deletion. The record, a ConfigMap, is not watched.
	recordRecheck = 10 * time.Second
	// waitRecheck is the time between two updates of the status while a shard does not answer.
	waitRecheck = 30 * time.Second
)

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	in, err := r.gatherInput(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch decidePhase(in) {
	case ending:
		return r.end(ctx, in)
	case ended:
		if !r.reported {
			r.Log.Info("the Cluster was deleted and is not created again; the ConfigMap says how to change that",
				"configmap", v1beta1.DeletionRecordName(r.ClusterName()))
			r.reported = true
		}
		return reconcile.Result{RequeueAfter: recordRecheck}, r.releaseInfraCluster(ctx, in.infra)
	}
	if in.infra != nil && !in.infra.DeletionTimestamp.IsZero() {
		// The NstanceCluster is being deleted, but its Cluster is not. Once the NstanceCluster is gone, the operator
		// creates a new one.
		return scope.RetryConflict(r.releaseInfraCluster(ctx, in.infra))
	}
	result, err := scope.RetryConflict(r.maintain(ctx, in))
	if waits, _ := r.silentShards(); waits != "" && err == nil && result.IsZero() {
		result.RequeueAfter = waitRecheck
	}
	return result, err
}

// gatherInput reads the objects that the phase depends on.
func (r *reconciler) gatherInput(ctx context.Context) (in phaseInput, err error) {
	cluster, infra := &clusterv1.Cluster{}, &v1beta1.NstanceCluster{}
	if found, err := r.Read(ctx, r.ClusterName(), cluster); err != nil {
		return in, err
	} else if found {
		in.cluster = cluster
	}
	if found, err := r.Read(ctx, r.ClusterName(), infra); err != nil {
		return in, err
	} else if found {
		in.infra = infra
	}
	if in.cluster == nil {
		if in.record, err = r.readRecord(ctx); err != nil {
			return in, err
		}
	}
	in.recreate = r.recreate
	return in, nil
}

// maintain creates the Cluster and the NstanceCluster if they are missing, and updates their statuses.
func (r *reconciler) maintain(ctx context.Context, in phaseInput) error {
	if in.cluster == nil || in.cluster.UID != r.cleared {
		if err := r.removeRecord(ctx); err != nil {
			return err
		}
	}
	infra, err := r.ensureInfraCluster(ctx, in.infra)
	if err != nil {
		return err
	}
	cluster, err := r.ensureCluster(ctx, in.cluster)
	if err != nil {
		return err
	}
	if cluster.UID != r.cleared && r.External.IsZero() {
		// As soon as the infrastructure is provisioned, Cluster API connects to the workload cluster. If it cannot
		// connect, it tries again only after 30 s. So create the kubeconfig first. If this fails, the status shows the
		// error, and kubeconfigKeeper.run retries in the background.
		_ = r.kubeconfig.updateSecret(ctx, cluster)
	}
	r.cleared, r.recreate, r.reported = cluster.UID, false, false
	r.Problems.Set("the reference of the Cluster", v1beta1.UnreferencedReason, r.checkReference(cluster))
	before := infra.DeepCopy()
	r.updateStatus(infra, cluster)
	if err := r.PatchStatus(ctx, before, infra); err != nil {
		return fmt.Errorf("patch status of NstanceCluster %s: %w", r.objectKey(), err)
	}
	r.recordProblems(infra)
	r.recordWait(before, infra)
	return r.markInitialized(ctx, cluster)
}

// recordProblems records an event for each new problem.
func (r *reconciler) recordProblems(infra *v1beta1.NstanceCluster) {
	all := r.Problems.All()
	for _, one := range all {
		if !slices.Contains(r.recorded, one) {
			r.Recorder.Eventf(infra, nil, corev1.EventTypeWarning, one.Reason, "Check", "%s",
				scope.Truncate(one.Message))
		}
	}
	r.recorded = all
}

// ensureInfraCluster creates the NstanceCluster if c is nil. Otherwise, it adds the finalizer and the endpoint to c if
// they are missing. A new NstanceCluster is created with the finalizer, so that every deletion is handled.
func (r *reconciler) ensureInfraCluster(ctx context.Context, c *v1beta1.NstanceCluster) (*v1beta1.NstanceCluster,
	error) {
	if c == nil {
		c = &v1beta1.NstanceCluster{ObjectMeta: r.objectMeta(), Spec: v1beta1.NstanceClusterSpec{
			ControlPlaneEndpoint: r.endpoint}}
		c.Finalizers = []string{v1beta1.ClusterFinalizer}
		if err := r.Client.Create(ctx, c); err != nil {
			return nil, fmt.Errorf("create NstanceCluster %s: %w", r.objectKey(), err)
		}
		r.Log.Info("created the NstanceCluster", "name", c.Name)
		return c, nil
	}
	before := c.DeepCopy()
	controllerutil.AddFinalizer(c, v1beta1.ClusterFinalizer)
	metav1.SetMetaDataLabel(&c.ObjectMeta, clusterv1.ClusterNameLabel, c.Name)
	if c.Spec.ControlPlaneEndpoint.IsZero() {
		c.Spec.ControlPlaneEndpoint = r.endpoint
	}
	if err := r.Patch(ctx, before, c); err != nil {
		return nil, fmt.Errorf("patch NstanceCluster %s: %w", r.objectKey(), err)
	}
	return c, nil
}

// ensureCluster creates the Cluster if c is nil.
func (r *reconciler) ensureCluster(ctx context.Context, c *clusterv1.Cluster) (*clusterv1.Cluster, error) {
	if c != nil {
		return c, nil
	}
	c = &clusterv1.Cluster{ObjectMeta: r.objectMeta(), Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: r.endpoint,
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
			Kind: "NstanceCluster", Name: r.objectKey().Name},
	}}
	if err := r.Client.Create(ctx, c); err != nil {
		return nil, fmt.Errorf("create Cluster %s: %w", r.objectKey(), err)
	}
	r.Log.Info("created the Cluster", "name", c.Name)
	return c, nil
}

// checkReference returns an error if the Cluster references another object than the NstanceCluster of the operator.
func (r *reconciler) checkReference(cluster *clusterv1.Cluster) error {
	ref, name := cluster.Spec.InfrastructureRef, r.objectKey().Name
	if ref.APIGroup == v1beta1.GroupVersion.Group && ref.Kind == "NstanceCluster" && ref.Name == name {
		return nil
	}
	return fmt.Errorf("the infrastructureRef of Cluster %s is %s %q of %q, so that Cluster API does not use the "+
		"operator's NstanceCluster: set it to NstanceCluster %s of %s", name, ref.Kind, ref.Name, ref.APIGroup, name,
		v1beta1.GroupVersion.Group)
}

func (r *reconciler) objectMeta() metav1.ObjectMeta {
	name := r.objectKey()
	return metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name,
		Labels: map[string]string{clusterv1.ClusterNameLabel: name.Name}}
}

// workloadRole is the ClusterRole of Cluster API's core in the workload cluster.
const workloadRole = "nstance-operator-workload"

// workloadRules are the rules of services/operator/kustomize/rbac/workload-role.yaml, where they are explained.
func workloadRules() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"},
			Verbs: []string{"get", "list", "watch", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "namespaces", "persistentvolumes",
			"persistentvolumeclaims"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: read},
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattachments"}, Verbs: read},
		{NonResourceURLs: []string{"/"}, Verbs: []string{"get"}},
	}
}

// createAccount creates the ServiceAccount whose tokens are in Cluster API's kubeconfig. It also creates the
// permissions of this account. An operator on a developer's machine may create these objects. An operator in a cluster
// may not: there, the chart or the kustomize bases create them. If they are missing, the error contains the commands
// that create them.
func (k *kubeconfigKeeper) createAccount(ctx context.Context) error {
	binding := k.ServiceAccount + "-" + k.Namespace
	for _, object := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: workloadRole}, Rules: workloadRules()},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: binding},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: workloadRole},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: k.Namespace,
				Name: k.ServiceAccount}}},
		// Create the account last: if the account exists, the role and its binding exist too.
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.ServiceAccount},
			AutomountServiceAccountToken: ptr.To(false)},
	} {
		err := k.Client.Create(ctx, object)
		switch {
		case apierrors.IsForbidden(err):
			return fmt.Errorf("ServiceAccount %[1]s/%[2]s does not exist, and the operator may not create it: apply "+
				"services/operator/kustomize/rbac, or run: kubectl create serviceaccount %[2]s -n %[1]s; kubectl "+
				"create clusterrolebinding %[3]s --clusterrole=%[4]s --serviceaccount=%[1]s:%[2]s (%[5]w)", k.Namespace,
				k.ServiceAccount, binding, workloadRole, err)
		case err != nil && !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		case err == nil:
			k.Log.Info("created what Cluster API's account needs", "kind", fmt.Sprintf("%T", object), "name",
				object.GetName())
		}
	}
	return nil
}
