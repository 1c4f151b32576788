// Package drain drains the Nodes of instances before the servers delete them, and removes the Nodes afterwards. It also
// keeps the Nodes of warm spares cordoned.
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
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// coordinator runs one task for each pending drain. Whenever an instance or a shard changes, it compares its tasks with
// the pending drains.
type coordinator struct {
	scope.Scope
	workload cluster.Cluster      // the cluster with the Nodes
	kube     kubernetes.Interface // of the workload cluster
	nodes    client.Client        // of the workload cluster; reads from the cache
	recorder events.EventRecorder // of the workload cluster
	metrics  *Metrics
	slots    slots
	// retryEviction is the pause after a PodDisruptionBudget refused an eviction.
	retryEviction time.Duration
	remover       nodeRemover

	drains, nodeUpdates chan struct{} // each wakes one of the loops
	work                sync.WaitGroup

	tasks map[key]*task // used only by the drain loop
}

// key names an instance.
type key struct{ shard, instance string }

const (
	// Each of the coordinator's loops runs again after minInterval at the earliest, and after maxInterval at the
	// latest.
	minInterval = 20 * time.Millisecond
	maxInterval = 30 * time.Second
	// repeatAfter is the time after which the operator repeats an acknowledged drain that the shard still reports as
	// pending.
	repeatAfter = 30 * time.Second
)

// These errors are the reasons for stopping a drain early.
var (
	errDeadline = errors.New("the deadline has passed")
	errVMGone   = errors.New("the VM is gone")
	errOver     = errors.New("the drain is no longer pending")
)

func newCoordinator(s scope.Scope, kube kubernetes.Interface, workload cluster.Cluster, m *Metrics) *coordinator {
	return &coordinator{Scope: s, workload: workload, kube: kube, nodes: workload.GetClient(),
		recorder: workload.GetEventRecorder("nstance-drain"), metrics: m, slots: slots{free: parallel},
		retryEviction: 2 * time.Second, remover: nodeRemover{changed: map[key]bool{}, queried: map[key]time.Time{}},
		drains: make(chan struct{}, 1), nodeUpdates: make(chan struct{}, 1), tasks: map[key]*task{}}
}

func wake(loop chan struct{}) {
	select {
	case loop <- struct{}{}:
	default:
	}
}

// run drains and updates Nodes until ctx ends. It returns after all goroutines have stopped.
func (c *coordinator) run(ctx context.Context) {
	c.Shards.Notify(func(change shards.Change) {
		switch change.Kind {
		case shards.DrainPending, shards.InstanceChanged, shards.ShardState:
			c.remover.recordChange(change)
			wake(c.drains)
			wake(c.nodeUpdates)
		}
	})
	wake(c.drains)
	wake(c.nodeUpdates)
	c.work.Go(func() { c.loop(ctx, c.nodeUpdates, c.updateNodes) })
	c.loop(ctx, c.drains, c.updateTasks)
	c.work.Wait()
}

// loop calls the function check after each signal on the channel due, and at least once per maxInterval.
func (c *coordinator) loop(ctx context.Context, due chan struct{}, check func(context.Context)) {
	ticker := time.NewTicker(maxInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-ticker.C:
		}
		check(ctx)
		// Wait a little, so that the next check handles all changes that arrive meanwhile.
		if tasks.Sleep(ctx, minInterval) != nil {
			return
		}
	}
}

// updateTasks starts a task for each new drain and passes the current state of each drain to its task. It cancels the
// tasks of drains that are no longer pending.
func (c *coordinator) updateTasks(ctx context.Context) {
	pending := map[key]bool{}
	for _, shard := range c.Shards.All() {
		for _, d := range shard.Drains() {
			k := key{shard.ID(), d.Instance.GetInstanceId()}
			pending[k] = true
			t, ok := c.tasks[k]
			if ok && t.finishedBefore(time.Now().Add(-repeatAfter)) {
				ok = false
			}
			if !ok {
				t = newTask(ctx, c, k, d)
				c.tasks[k] = t
				c.work.Go(t.run)
			}
			t.setDrain(d)
		}
	}
	for k, t := range c.tasks {
		if !pending[k] {
			t.cancel(errOver)
			delete(c.tasks, k)
		}
	}
}

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

// slots limits the number of concurrent drains. A free slot goes to the waiting drain with the earliest deadline. So a
// spot instance with two minutes left does not wait for a drain that has an hour.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting []*waiter
}

type waiter struct {
	deadline func() time.Time
	granted  chan struct{}
}

// acquire waits for a slot. It returns false if ctx ends first. Whenever a slot becomes free, deadline is called again,
// because a deadline may change.
func (s *slots) acquire(ctx context.Context, deadline func() time.Time) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return true
	}
	w := &waiter{deadline, make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, other := range s.waiting {
		if other == w {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			s.mu.Unlock()
			return false
		}
	}
	s.mu.Unlock()
	// ctx has ended, but the slot was granted to this drain at the same moment. Give the slot back.
	s.release()
	return false
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	next := 0
	for i, w := range s.waiting {
		if w.deadline().Before(s.waiting[next].deadline()) {
			next = i
		}
	}
	w := s.waiting[next]
	s.waiting = append(s.waiting[:next], s.waiting[next+1:]...)
	close(w.granted)
}

// result is the outcome of a drain.
type result string

const (
	drained  result = "drained"
	deadline result = "deadline" // pods were left at the deadline
	noNode   result = "no_node"  // the instance has no Node
	failed   result = "failed"   // the Kubernetes API failed until the deadline
	dropped  result = "dropped"  // the drain is no longer pending; not counted
)

// Metrics are the metrics of drains.
type Metrics struct {
	active   prometheus.Gauge
	duration *prometheus.HistogramVec // result
}

// NewMetrics returns metrics without values.
func NewMetrics() *Metrics {
	return &Metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "nstance_operator_drains_active",
			Help: "Node drains in progress."}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "nstance_operator_drain_duration_seconds",
			Help: "Time from the start of a drain to its acknowledgement, by result: drained, deadline, no_node, " +
				"failed.",
			Buckets: prometheus.ExponentialBuckets(0.1, 3, 10)}, []string{"result"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.active.Describe(out)
	m.duration.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.active.Collect(out)
	m.duration.Collect(out)
}
