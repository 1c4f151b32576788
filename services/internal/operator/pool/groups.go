package pool

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// groups reconciles NstanceShardGroups: it is the only one that calls shards. No two calls are about the same group at
// the same time.
type groups struct {
	Options
	gate gate

	mu   sync.Mutex
	last map[string]outcome
}

func newGroups(o Options) *groups { return &groups{Options: o, last: map[string]outcome{}} }

func (r *groups) setup(b *ctrl.Builder, o controller.Options) error {
	o.MaxConcurrentReconciles = parallelGroups
	// Our own writes too: one was made on top of what the cache had, and when the cache shows it, it may turn out to be
	// less than was wanted.
	return b.For(&v1beta1.NstanceShardGroup{}).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.groupsOfPool),
			builder.WithPredicates(said)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.groupsOfCluster),
			builder.WithPredicates(pauseChanged)).
		WatchesRawSource(shards.Source(r.Shards, r.ofShards)).
		WithOptions(o).Complete(r)
}

// ofShards are the requests for what changed on a shard.
func (r *groups) ofShards(c shards.Change) []reconcile.Request {
	switch c.Kind {
	case shards.GroupChanged, shards.InstanceChanged, shards.DrainPending:
		if c.Group != "" {
			return []reconcile.Request{r.request(v1beta1.ShardGroupName(c.Group, c.Shard))}
		}
	case shards.ShardState:
		return r.groupsOf(context.Background(), client.MatchingLabels{v1beta1.ShardLabel: c.Shard})
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *groups) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	group := &v1beta1.NstanceShardGroup{}
	if found, err := r.get(ctx, request.Name, group); err != nil || !found {
		r.remember(request.Name, outcome{})
		return reconcile.Result{}, err
	}
	if !r.ours(group) {
		return reconcile.Result{}, nil
	}
	in, mirror, err := r.input(ctx, group)
	if err != nil {
		return reconcile.Result{}, err
	}
	did := result{call: decideCall(in)}
	if did.call.upsert != nil || did.call.remove {
		leave, ok := r.gate.enter(group.Spec.Shard)
		if !ok {
			return reconcile.Result{RequeueAfter: gateRetry}, nil
		}
		did = r.perform(ctx, group, did.call)
		leave()
		r.remember(group.Name, after(in, mirror, did))
	}
	plan := decideGroup(in, did)
	if err := r.write(ctx, group, plan); err != nil {
		return soon(err)
	}
	again := did.call.again
	if in.known != mirror || did.group != nil {
		again = answerHolds // the mirror's turn
	}
	switch {
	case did.err != nil && refused(did.err) && did.call.upsert != nil:
		again = refusedRetry
	case did.err != nil && group.DeletionTimestamp.IsZero(), did.err != nil && len(plan.group.Finalizers) > 0:
		return reconcile.Result{}, fmt.Errorf("group %s on shard %s: %w", group.Spec.Group, group.Spec.Shard, did.err)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// input gathers what decisions are made from. mirror is what the mirror says, which the shard's last answer may know
// better.
func (r *groups) input(ctx context.Context, group *v1beta1.NstanceShardGroup) (in groupInput,
	mirror *nstancev1.GroupStatus, err error) {
	in = groupInput{group: group, now: r.Now()}
	pool, err := r.pool(ctx, group)
	if err != nil {
		return in, nil, err
	}
	if in.paused, err = r.clusterPaused(ctx); err != nil {
		return in, nil, err
	}
	in.paused = in.paused || pausedByAnnotation(group) || pool != nil && pausedByAnnotation(pool)
	in.wanted = pool != nil && pool.DeletionTimestamp.IsZero() && pool.Spec.Group == group.Spec.Group &&
		slices.Contains(pool.Spec.Shards, group.Spec.Shard)
	shard, ok := r.Shards.Shard(group.Spec.Shard)
	if in.configured = ok; !ok {
		return in, nil, nil
	}
	in.state = shard.State()
	mirror, _ = shard.Group(group.Spec.Group)
	in.instances = shard.Instances(group.Spec.Group)
	r.mu.Lock()
	in.last = r.last[group.Name]
	r.mu.Unlock()
	in.known = mirror
	if in.last.after != nil && in.last.before == mirror && in.now.Sub(in.last.at) < answerHolds {
		in.known = in.last.after
	}
	return in, mirror, nil
}

// pool is the pool that a group is of, nil when it is gone. For one that is being deleted the cache's word is not
// enough: whether its pool wants it decides over the group's instances.
func (r *groups) pool(ctx context.Context, group *v1beta1.NstanceShardGroup) (*v1beta1.NstanceMachinePool, error) {
	owner := metav1.GetControllerOf(group)
	if owner == nil || owner.Kind != machinePoolKind {
		return nil, nil
	}
	from := client.Reader(r.Client)
	if !group.DeletionTimestamp.IsZero() {
		from = r.Reader
	}
	pool := &v1beta1.NstanceMachinePool{}
	err := from.Get(ctx, client.ObjectKey{Namespace: group.Namespace, Name: owner.Name}, pool)
	if apierrors.IsNotFound(err) || err == nil && pool.UID != owner.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pool: %w", err)
	}
	return pool, nil
}

func (r *groups) perform(ctx context.Context, group *v1beta1.NstanceShardGroup, c call) (did result) {
	did = result{call: c}
	shard, ok := r.Shards.Shard(group.Spec.Shard)
	if !ok {
		return result{} // removed from the configuration this very moment: that is another change
	}
	switch {
	case c.upsert != nil:
		answer, err := shard.API().UpsertGroup(ctx, c.upsert)
		did.group, did.err = answer.GetGroup(), err
	case c.remove:
		answer, err := shard.API().DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Group: group.Spec.Group})
		did.restored, did.err = answer.GetRestoredStatic(), err
	}
	log := r.Log.With("shard", group.Spec.Shard, "group", group.Spec.Group)
	switch {
	case did.err != nil:
		log.Warn("group not pushed", "error", did.err)
	case c.remove:
		log.Info("group deleted", "restored", did.restored)
	default:
		log.Info("group pushed", "size", size(group.Spec))
	}
	return did
}

// after is what is to be remembered of a call.
func after(in groupInput, mirror *nstancev1.GroupStatus, did result) outcome {
	switch {
	case did.call.upsert != nil && did.err == nil:
		return outcome{at: in.now, before: mirror, after: did.group}
	case did.call.upsert != nil && refused(did.err):
		last := in.last
		last.upsert, last.refused, last.at = did.call.upsert, words(did.err), in.now
		return last
	case did.call.remove && did.err == nil && !did.restored:
		return outcome{removed: in.now}
	}
	return in.last
}

func (r *groups) remember(name string, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o == (outcome{}) {
		delete(r.last, name)
		return
	}
	r.last[name] = o
}

// write writes what is different, and tells of it.
func (r *groups) write(ctx context.Context, was *v1beta1.NstanceShardGroup, plan groupPlan) error {
	now := r.Now()
	object := was.DeepCopy()
	object.Finalizers = plan.group.Finalizers
	leaves := !was.DeletionTimestamp.IsZero() && len(object.Finalizers) < len(was.Finalizers)
	if leaves {
		r.tell(was, plan.events...)
	}
	if err := r.patch(ctx, was, object); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write shard group: %w", err))
	}
	if leaves {
		return nil
	}
	before := object.DeepCopy()
	object.Status = plan.finish(was, object.Generation, now)
	if err := r.patchStatus(ctx, before, object); err != nil {
		return fmt.Errorf("write status of shard group: %w", err)
	}
	r.tell(was, plan.events...)
	return nil
}

// gate bounds how many calls one shard may hold up, so that one that does not answer leaves workers to the others.
type gate struct {
	mu     sync.Mutex
	within map[string]int
}

const (
	gateWidth = 8
	gateRetry = 250 * time.Millisecond
)

func (g *gate) enter(shard string) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.within[shard] >= gateWidth {
		return nil, false
	}
	if g.within == nil {
		g.within = map[string]int{}
	}
	g.within[shard]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.within[shard]--
	}, true
}
