package drain

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// coordinator has one task for each drain that is pending. It looks at all of them whenever anything changes.
type coordinator struct {
	Options
	kube     kubernetes.Interface // of the workload cluster
	nodes    client.Client        // the same; reads from a cache
	recorder events.EventRecorder // the same
	metrics  *instruments
	slots    slots
	remover  remover

	drains, removals chan struct{} // wake one of the loops
	work             sync.WaitGroup

	tasks map[key]*task // of the drain loop alone
}

// key names an instance.
type key struct{ shard, instance string }

const (
	// pace is the least time between two looks, every how long one is due in any case.
	pace  = 20 * time.Millisecond
	every = 30 * time.Second
	// again is when a drain that was acknowledged, and is still said to be pending, is looked into once more.
	again = 30 * time.Second
)

// Why a drain ends before its work is done.
var (
	errDeadline = errors.New("the deadline has come")
	errVMGone   = errors.New("the machine is gone")
	errOver     = errors.New("nobody waits for the drain any more")
)

func newCoordinator(o Options, kube kubernetes.Interface, nodes client.Client, recorder events.EventRecorder,
	m *instruments) *coordinator {
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	if o.RetryEviction <= 0 {
		o.RetryEviction = 2 * time.Second
	}
	return &coordinator{Options: o, kube: kube, nodes: nodes, recorder: recorder, metrics: m,
		slots: slots{free: o.Parallel}, remover: newRemover(),
		drains: make(chan struct{}, 1), removals: make(chan struct{}, 1), tasks: map[key]*task{}}
}

func wake(loop chan struct{}) {
	select {
	case loop <- struct{}{}:
	default:
	}
}

// run works until ctx is over, and returns when everything has ended.
func (c *coordinator) run(ctx context.Context) {
	c.Shards.Notify(func(change shards.Change) {
		switch change.Kind {
		case shards.DrainPending, shards.InstanceChanged, shards.ShardState:
			c.remover.note(change)
			wake(c.drains)
			wake(c.removals)
		}
	})
	wake(c.drains)
	wake(c.removals)
	c.work.Go(func() { c.loop(ctx, c.removals, c.removeNodes) })
	c.loop(ctx, c.drains, c.look)
	for _, t := range c.tasks {
		t.cancel(context.Cause(ctx))
	}
	c.work.Wait()
}

func (c *coordinator) loop(ctx context.Context, due chan struct{}, look func(context.Context)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-ticker.C:
		}
		look(ctx)
		// What changes together is looked at together.
		if sleep(ctx, pace) != nil {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// look begins the drains that are pending, tells those that go on what is new, and ends those that nobody waits for any
// more.
func (c *coordinator) look(ctx context.Context) {
	pending := map[key]bool{}
	for _, id := range c.Shards.IDs() {
		shard, ok := c.Shards.Shard(id)
		if !ok {
			continue
		}
		for _, d := range shard.Drains() {
			k := key{id, d.Instance.GetInstanceId()}
			pending[k] = true
			t, ok := c.tasks[k]
			if ok && t.finishedBefore(time.Now().Add(-again)) {
				ok = false
			}
			if !ok {
				t = newTask(c, k, d)
				c.tasks[k] = t
				c.work.Go(func() { t.run(ctx) })
			}
			t.update(d)
		}
	}
	for k, t := range c.tasks {
		if !pending[k] {
			t.cancel(errOver)
			delete(c.tasks, k)
		}
	}
}
