// Package drain drains the Nodes of instances before the servers delete them, and removes the Nodes afterwards.
//
// Invariants:
//
//   - A server that waits for a drain gets the acknowledgement by the deadline, regardless of the state of the pods.
//   - An instance has at most one drain. Its progress is stored only in the cluster, so a new leader continues it.
//   - A Node is removed only if the leader of its shard says that its instance is gone. Its absence from a list is not
//     enough.
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

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=get
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=get;list;watch

// DefaultParallel is the default number of Nodes drained at a time.
const DefaultParallel = 16

// Options configures [Setup]. A nil Client or Recorder is taken from the manager.
type Options struct {
	Client    client.Client // of the cluster with the NstanceMachines; reads from the cache
	Recorder  events.EventRecorder
	Namespace string
	Shards    shards.Shards
	// Workload is the cluster with the Nodes. It is the manager itself if both clusters are the same.
	Workload cluster.Cluster
	// Parallel is the number of Nodes drained at a time, DefaultParallel if 0. Earlier deadlines come first.
	Parallel int
	// RetryEviction is the pause after a PodDisruptionBudget refused an eviction, two seconds if 0.
	RetryEviction time.Duration
	Log           *slog.Logger
}

const (
	// nodeByProviderID is the name of the cache's index of Nodes.
	nodeByProviderID = "spec.providerID"
	// machineByInstance is the name of the cache's index of NstanceMachines.
	machineByInstance = "nstance.dev/drain.instance"
)

func indexMachine(object client.Object) []string {
	return []string{object.(*v1beta1.NstanceMachine).Spec.InstanceID}
}

// Setup adds the coordinator, which drains and removes Nodes while this process is the leader.
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
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &v1beta1.NstanceMachine{}, machineByInstance,
		indexMachine)
	if err != nil {
		return fmt.Errorf("index of NstanceMachines: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(o.Workload.GetConfig(), o.Workload.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("client of the workload cluster: %w", err)
	}
	instruments, err := registerMetrics(metrics.Registry)
	if err != nil {
		return err
	}
	c := newCoordinator(o, kube, o.Workload.GetClient(), o.Workload.GetEventRecorder("nstance-drain"), instruments)
	if err := mgr.Add(&runner{c, o.Workload}); err != nil {
		return err
	}
	return nil
}

// runner starts the coordinator once the cache of Nodes is filled.
type runner struct {
	*coordinator
	workload cluster.Cluster
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *runner) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable. It returns after ctx ends and all goroutines have stopped.
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
