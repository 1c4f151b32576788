// Package drain owns the Nodes of instances that go: it cordons and drains them before the servers delete the
// instances, and removes them from the workload cluster when they have.
//
// Invariant: a server that waits for a drain is answered at the deadline at the latest, whatever the pods do. An
// instance has one drain at a time, and what a drain has come to is in the cluster alone: a new leader goes on where
// the last one was. A Node is removed only when the leader of its shard has said of its very instance that it is gone;
// that it is missing in a list is no reason.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=get
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=get;list;watch

// DefaultParallel is how many Nodes are drained at a time.
const DefaultParallel = 16

// Options of Setup. Client and Recorder are the manager's when they are nil.
type Options struct {
	Client    client.Client // of the cluster with the NstanceMachines; reads from a cache
	Recorder  events.EventRecorder
	Namespace string
	Shards    shards.Shards
	// Workload is the cluster with the Nodes, the manager itself if it is the same; Config is the way to it.
	Workload cluster.Cluster
	// Parallel is how many Nodes are drained at a time, DefaultParallel when 0. Those with the nearest deadlines come
	// first.
	Parallel int
	// RetryEviction is the pause after an eviction that a PodDisruptionBudget refused, two seconds when 0.
	RetryEviction time.Duration
	Log           *slog.Logger
}

// nodeByProviderID is the name of the index of Nodes in the cache.
const nodeByProviderID = "spec.providerID"

// Setup adds the coordinator of drains and the removal of Nodes, which run while this process leads.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Shards == nil || o.Workload == nil || o.Log == nil || o.Namespace == "" {
		return errors.New("drain: incomplete options")
	}
	if o.Client == nil {
		o.Client = mgr.GetClient()
	}
	if o.Recorder == nil {
		o.Recorder = mgr.GetEventRecorder("nstance-drain")
	}
	err := o.Workload.GetFieldIndexer().IndexField(context.Background(), &corev1.Node{}, nodeByProviderID,
		func(object client.Object) []string {
			if id := object.(*corev1.Node).Spec.ProviderID; id != "" {
				return []string{id}
			}
			return nil
		})
	if err != nil {
		return fmt.Errorf("index of Nodes: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(o.Workload.GetConfig(), o.Workload.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("client of the workload cluster: %w", err)
	}
	instruments, err := register(metrics.Registry)
	if err != nil {
		return err
	}
	c := newCoordinator(o, kube, o.Workload.GetClient(), o.Workload.GetEventRecorder("nstance-drain"), instruments)
	if err := mgr.Add(&runner{c, o.Workload}); err != nil {
		return err
	}
	return nil
}

// runner runs the coordinator once the cache of Nodes is filled.
type runner struct {
	*coordinator
	workload cluster.Cluster
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *runner) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable. It returns when ctx is over and all that it started has ended.
func (r *runner) Start(ctx context.Context) error {
	informer, err := r.workload.GetCache().GetInformer(ctx, &corev1.Node{})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("watch Nodes: %w", err)
	}
	if !r.workload.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	handle, err := informer.AddEventHandler(r.nodeChanges())
	if err != nil {
		return fmt.Errorf("watch Nodes: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(handle) }()
	r.run(ctx)
	return nil
}
