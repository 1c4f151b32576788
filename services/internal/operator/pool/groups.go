package pool

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// groupReconciler reconciles NstanceShardGroups. It is the only reconciler that calls shards, and it never makes two
// concurrent calls for one group.
type groupReconciler struct {
	pools
	gate  callGate
	types shards.Types

	mu       sync.Mutex
	outcomes map[string]outcome // by the name of the shard group
}

func newGroupReconciler(p pools) *groupReconciler {
	return &groupReconciler{pools: p, types: shards.Types{Now: p.Now}, outcomes: map[string]outcome{}}
}

func (r *groupReconciler) setup(b *ctrl.Builder) error {
	// The reconciler also watches the objects that it writes itself. It computes each write from the cache, which may
	// be out of date. When the cache shows the write, the reconciler runs again and writes what is still missing.
	return r.WatchCluster(b, r.allGroups).For(&v1beta1.NstanceShardGroup{}).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.requestsForPool),
			builder.WithPredicates(specChanged)).
		WatchesRawSource(shards.Source(r.Shards, r.requestsForChange)).
		Complete(r.Supervise(r, &v1beta1.NstanceShardGroup{}))
}

// requestsForChange returns the requests that a change on a shard causes.
func (r *groupReconciler) requestsForChange(c shards.Change) []reconcile.Request {
	switch c.Kind {
	case shards.GroupChanged, shards.InstanceChanged, shards.DrainPending:
		if c.Group != "" {
			return []reconcile.Request{r.Request(v1beta1.ShardGroupName(c.Group, c.Shard))}
		}
	case shards.ShardState:
		return r.groupRequests(context.Background(), client.MatchingLabels{v1beta1.ShardLabel: c.Shard})
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *groupReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	group := &v1beta1.NstanceShardGroup{}
	if found, err := r.Read(ctx, request.Name, group); err != nil || !found {
		r.rememberOutcome(request.Name, outcome{})
		return reconcile.Result{}, err
	}
	if !r.InCluster(group) {
		return reconcile.Result{}, nil
	}
	in, mirror, err := r.gatherInput(ctx, group)
	if err != nil {
		return reconcile.Result{}, err
	}
	did := callResult{call: decideCall(in)}
	if did.call.upsert != nil || did.call.remove {
		leave, ok := r.gate.acquire(group.Spec.Shard)
		if !ok {
			return reconcile.Result{RequeueAfter: gateRetry}, nil
		}
		did = r.performCall(ctx, group, did.call)
		leave()
		r.rememberOutcome(group.Name, outcomeAfter(in, mirror, did))
	}
	plan := decideGroup(in, did)
	if err := r.writePlan(ctx, group, plan); err != nil {
		return scope.RetryConflict(err)
	}
	again := did.call.again
	if in.known != mirror || did.group != nil {
		again = answerHolds // until then the mirror should show the answer
	}
	switch {
	case did.err != nil && isRefusal(did.err) && did.call.upsert != nil:
		again = refusedRetry
	case did.err != nil && group.DeletionTimestamp.IsZero(), did.err != nil && len(plan.group.Finalizers) > 0:
		return reconcile.Result{}, fmt.Errorf("group %s on shard %s: %w", group.Spec.Group, group.Spec.Shard, did.err)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// gatherInput gathers the input of decisions about a shard group. The result mirror is the group's status in the
// shard's mirror. As long as the mirror does not show the shard's last answer, in.known is that answer. Otherwise,
// in.known is the status in the mirror.
func (r *groupReconciler) gatherInput(ctx context.Context, group *v1beta1.NstanceShardGroup) (in groupInput,
	mirror *nstancev1.GroupStatus, err error) {
	in = groupInput{group: group, now: r.Now()}
	pool, err := r.readOwner(ctx, group)
	if err != nil {
		return in, nil, err
	}
	objects := []client.Object{group}
	if pool != nil {
		objects = append(objects, pool)
	}
	permission, err := r.Permission(ctx, r.Client, objects...)
	if err != nil {
		return in, nil, err
	}
	in.paused, in.ending, in.skip = permission.Paused, permission.Ending, permission.Skip[group.Spec.Shard]
	in.wanted = pool != nil && pool.DeletionTimestamp.IsZero() && pool.Spec.Group == group.Spec.Group &&
		slices.Contains(pool.Spec.Shards, group.Spec.Shard)
	if in.wanted && !group.DeletionTimestamp.IsZero() {
		if in.lastOne, err = r.isLastOne(ctx, group); err != nil {
			return in, nil, err
		}
	}
	shard, ok := r.Shards.Shard(group.Spec.Shard)
	if in.configured = ok; !ok {
		return in, nil, nil
	}
	in.state = shard.State()
	mirror, _ = shard.Group(group.Spec.Group)
	in.instances = shard.Instances(group.Spec.Group)
	r.mu.Lock()
	in.last = r.outcomes[group.Name]
	r.mu.Unlock()
	in.known = mirror
	if in.last.after != nil && in.last.before == mirror && in.now.Sub(in.last.at) < answerHolds {
		in.known = in.last.after
	}
	instanceType := config.ReadSettings(in.known.GetMergedJson()).InstanceType
	capacity, known := r.types.Capacity(ctx, shard, instanceType)
	if !known && instanceType == instanceTypeOf(group.Status.Config) {
		capacity = group.Status.Capacity // an earlier answer
	}
	in.capacity = capacity
	return in, mirror, nil
}

// isLastOne reports whether the API server refuses every new shard group, because the definition of shard groups is
// being deleted. Otherwise the answer is that the object exists.
func (r *groupReconciler) isLastOne(ctx context.Context, group *v1beta1.NstanceShardGroup) (bool, error) {
	again := &v1beta1.NstanceShardGroup{Spec: group.Spec}
	again.Namespace, again.Name = group.Namespace, group.Name
	err := r.Client.Create(ctx, again, client.DryRunAll)
	switch {
	case apierrors.IsMethodNotSupported(err):
		return true, nil
	case err == nil, apierrors.IsAlreadyExists(err):
		return false, nil
	}
	return false, fmt.Errorf("ask whether shard groups can be created: %w", err)
}

// readOwner returns the pool that owns a shard group, nil if the pool no longer exists. If the shard group is being
// deleted, readOwner asks the API server instead of the cache, because the answer decides whether the instances are
// deleted.
func (r *groupReconciler) readOwner(ctx context.Context, group *v1beta1.NstanceShardGroup) (*v1beta1.NstanceMachinePool,
	error) {
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

func (r *groupReconciler) performCall(ctx context.Context, group *v1beta1.NstanceShardGroup,
	c shardCall) (did callResult) {
	did = callResult{call: c}
	shard, ok := r.Shards.Shard(group.Spec.Shard)
	if !ok {
		return callResult{} // the shard was just removed from the configuration, which causes another request
	}
	switch {
	case c.upsert != nil:
		did.group, did.err = r.push(ctx, shard, group, c)
	case c.remove:
		answer, err := shard.API().DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Group: group.Spec.Group})
		did.restored, did.err = answer.GetRestoredStatic(), err
	}
	log := r.Log.With("shard", group.Spec.Shard, "group", group.Spec.Group)
	switch {
	case did.err != nil:
		log.Warn("failed to push group", "error", did.err)
	case c.remove:
		log.Info("deleted group", "restored", did.restored)
	default:
		log.Info("pushed group", "size", wantedSize(group.Spec))
	}
	return did
}

// push first deletes the instances that were chosen for a scale-down, until the group has the wanted size. It then
// sends the shard the remaining changes. If the shard refuses to delete a chosen instance, the shard itself chooses
// another one.
func (r *groupReconciler) push(ctx context.Context, shard shards.Shard, group *v1beta1.NstanceShardGroup,
	c shardCall) (known *nstancev1.GroupStatus, err error) {
	upsert := c.upsert
	for _, id := range c.chosen {
		answer, err := shard.API().DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: id,
			Reason: "its Machine was chosen for a scale-down", Decrement: true})
		if err != nil && !isRefusal(err) {
			return nil, err
		}
		log := r.Log.With("shard", group.Spec.Shard, "group", group.Spec.Group, "instance", id)
		if err != nil {
			log.Warn("the shard refused to delete the chosen instance", "error", err)
		} else {
			log.Info("deleted the chosen instance")
		}
		if answer.GetGroup() == nil {
			continue
		}
		known = answer.GetGroup()
		upsert = upsertRequest(group.Spec, ownedFields(group), known)
		if known.GetSize() <= wantedSize(group.Spec) {
			break
		}
	}
	if upsert == nil {
		return known, nil
	}
	answer, err := shard.API().UpsertGroup(ctx, upsert)
	return answer.GetGroup(), err
}

// outcomeAfter returns the outcome that the reconciler remembers after a call.
func outcomeAfter(in groupInput, mirror *nstancev1.GroupStatus, did callResult) outcome {
	switch {
	case did.call.upsert != nil && did.err == nil:
		last := outcome{at: in.now, before: mirror, after: did.group}
		if len(did.call.chosen) == 0 && settingsOf(in.known) == settingsOf(did.group) {
			last.vain, last.settings = did.call.upsert, settingsOf(did.group)
		}
		return last
	case did.call.upsert != nil && isRefusal(did.err):
		last := in.last
		last.upsert, last.refused, last.at = did.call.upsert, statusMessage(did.err), in.now
		return last
	case did.call.remove && did.err == nil && !did.restored:
		return outcome{removed: in.now}
	}
	return in.last
}

func (r *groupReconciler) rememberOutcome(name string, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o == (outcome{}) {
		delete(r.outcomes, name)
		return
	}
	r.outcomes[name] = o
}

// writePlan writes the plan's shard group to the API server and records the plan's events.
func (r *groupReconciler) writePlan(ctx context.Context, was *v1beta1.NstanceShardGroup, plan groupPlan) error {
	now := r.Now()
	object := was.DeepCopy()
	object.Finalizers = plan.group.Finalizers
	leaves := !was.DeletionTimestamp.IsZero() && len(object.Finalizers) < len(was.Finalizers)
	if leaves {
		r.recordEvents(was, plan.events...)
	}
	if err := r.Patch(ctx, was, object); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write shard group: %w", err))
	}
	if leaves {
		return nil
	}
	before := object.DeepCopy()
	object.Status = plan.finishStatus(was, object.Generation, now)
	if err := r.PatchStatus(ctx, before, object); err != nil {
		return fmt.Errorf("write status of shard group: %w", err)
	}
	r.recordEvents(was, plan.events...)
	return nil
}

// callGate limits the concurrent calls to one shard, so that a shard that does not answer cannot occupy all workers.
type callGate struct {
	mu    sync.Mutex
	calls map[string]int
}

const (
	callsPerShard = 8
	gateRetry     = 250 * time.Millisecond
)

func (g *callGate) acquire(shard string) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls[shard] >= callsPerShard {
		return nil, false
	}
	if g.calls == nil {
		g.calls = map[string]int{}
	}
	g.calls[shard]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.calls[shard]--
	}, true
}
