package drain

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
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

	drains, removals chan struct{} // each wakes one of the loops
	work             sync.WaitGroup

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
		retryEviction: 2 * time.Second, remover: newRemover(),
		drains: make(chan struct{}, 1), removals: make(chan struct{}, 1), tasks: map[key]*task{}}
}

func wake(loop chan struct{}) {
	select {
	case loop <- struct{}{}:
	default:
	}
}

// run drains and removes Nodes until ctx ends. It returns after all goroutines have stopped.
func (c *coordinator) run(ctx context.Context) {
	c.Shards.Notify(func(change shards.Change) {
		switch change.Kind {
		case shards.DrainPending, shards.InstanceChanged, shards.ShardState:
			c.remover.recordChange(change)
			wake(c.drains)
			wake(c.removals)
		}
	})
	wake(c.drains)
	wake(c.removals)
	c.work.Go(func() { c.loop(ctx, c.removals, c.removeNodes) })
	c.loop(ctx, c.drains, c.updateTasks)
	for _, t := range c.tasks {
		t.cancel(context.Cause(ctx))
	}
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
				t = newTask(c, k, d)
				c.tasks[k] = t
				c.work.Go(func() { t.run(ctx) })
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
