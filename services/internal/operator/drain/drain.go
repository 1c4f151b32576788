// Package drain drains the Nodes of instances before the servers delete them, and removes the Nodes afterwards.
//
// Invariants:
//
//   - The operator acknowledges each drain to the waiting server by the deadline, regardless of the state of the pods.
//   - An instance has at most one drain. The progress of the drain is stored only in the cluster, so the next leader of
//     the operators continues the drain.
//   - A Node is removed only if the shard's leader says that the Node's instance is gone. It does not suffice that the
//     instance is missing from a list of instances.
package drain

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=get
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=list;watch

// parallel is the number of Nodes drained at a time. Earlier deadlines come first.
const parallel = 16

// Setup adds the coordinator, which drains and removes Nodes while this process is the leader. workload is the cluster
// with the Nodes. If the Nodes are in the manager's own cluster, workload is mgr. The caches must have the indexes
// [scope.MachineByInstance] and [scope.NodeByProviderID].
func Setup(mgr ctrl.Manager, s scope.Scope, workload cluster.Cluster, m *Metrics) error {
	kube, err := kubernetes.NewForConfigAndClient(workload.GetConfig(), workload.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("client of the workload cluster: %w", err)
	}
	return mgr.Add(newCoordinator(s.From(mgr, "nstance-drain"), kube, workload, m))
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (c *coordinator) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable. It waits until the cache of Nodes is filled. It returns after ctx ends and all
// goroutines have stopped.
func (c *coordinator) Start(ctx context.Context) error {
	informer, err := c.workload.GetCache().GetInformer(ctx, &corev1.Node{})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("watch Nodes: %w", err)
	}
	if !c.workload.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	handle, err := informer.AddEventHandler(c.nodeChanges())
	if err != nil {
		return fmt.Errorf("watch Nodes: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(handle) }()
	c.run(ctx)
	return nil
}
