package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
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

const (
	// refusedRetry is the time until a refused request is repeated. The shard's configuration may change meanwhile.
	refusedRetry = time.Minute
	// answerHolds is how long a shard's answer takes precedence over the shard's mirror. If the mirror changes earlier,
	// the precedence ends.
	answerHolds = 2 * time.Second
	// removalRetry is the time until the operator repeats a DeleteGroup call, if the mirror does not show that the
	// group is being deleted.
	removalRetry = 10 * time.Second
	// maxProviderIDs is the longest list of provider IDs that the API accepts.
	maxProviderIDs = 10_000
)

// groupInput is everything that decisions about a shard group depend on.
type groupInput struct {
	group *v1beta1.NstanceShardGroup
	// paused: an object or the Cluster is paused. ending: the Cluster is being deleted or does not exist. skip: the
	// deletion of the shard group does not wait for the shard.
	paused, ending, skip bool
	// wanted: the pool exists, is not being deleted, and lists the shard.
	wanted bool
	// lastOne: the object cannot be created again, because the definition of shard groups is being deleted.
	lastOne bool
	// configured: the operator's configuration lists the shard.
	configured bool
	state      shards.State
	// known is the newest status of the group from the shard's leader, nil if the shard has no such group. known and
	// instances are valid only if state.Synced is true.
	known     *nstancev1.GroupStatus
	instances []*nstancev1.InstanceStatus
	// capacity is that of the group's instance type, nil if unknown.
	capacity corev1.ResourceList
	last     outcome
	now      time.Time
}

// outcome is what the reconciler remembers of the last call for a group.
type outcome struct {
	at time.Time
	// upsert is the newest request that the shard refused, nil if the shard has accepted a request since then. refused
	// is the shard's reason.
	upsert  *nstancev1.UpsertGroupRequest
	refused string
	// after is the shard's answer to the last call about the group. before is what the mirror showed before that call.
	before, after *nstancev1.GroupStatus
	// vain is the newest request that the shard accepted although it changed nothing: a newer server has a setting that
	// the operator cannot read, and spells its value otherwise. settings are the group's settings then.
	vain     *nstancev1.UpsertGroupRequest
	settings string
	// removed is the time of the last DeleteGroup call.
	removed time.Time
}

// answers reports whether the shard can be called and its mirror is complete.
func (in *groupInput) answers() bool { return in.configured && in.state.Answers() }

// connecting reports whether the first connection to the shard is still being made.
func (in *groupInput) connecting() bool {
	return in.configured && !in.state.Reachable && !in.state.Synced && in.state.Err == ""
}

// shardCall is the next call to the shard. At most one of upsert and remove is set.
type shardCall struct {
	upsert *nstancev1.UpsertGroupRequest
	// chosen are the instances to delete before the upsert. Each of these deletions also lowers the size by one.
	chosen []string
	remove bool
	// If the shard refused the same request earlier, refused is its reason, and again is the time until the request is
	// repeated.
	refused string
	again   time.Duration
}

// decideCall returns the next call to the shard. The call makes the shard's group match the shard group object.
func decideCall(in groupInput) shardCall {
	switch {
	case in.paused || !in.answers(), in.ending && in.group.DeletionTimestamp.IsZero():
		return shardCall{}
	case in.group.DeletionTimestamp.IsZero() && setsSize(in.group):
		return shardCall{refused: sizeRefused}
	case in.group.DeletionTimestamp.IsZero():
		upsert := upsertRequest(in.group.Spec, ownedFields(in.group), in.known)
		if upsert != nil && proto.Equal(upsert, in.last.upsert) {
			if left := in.last.at.Add(refusedRetry).Sub(in.now); left > 0 {
				return shardCall{refused: in.last.refused, again: left}
			}
		}
		if upsert != nil && proto.Equal(upsert, in.last.vain) && settingsOf(in.known) == in.last.settings {
			return shardCall{}
		}
		return shardCall{upsert: upsert, chosen: instancesToRemove(in, upsert)}
	case in.wanted || !controllerutil.ContainsFinalizer(in.group, v1beta1.ShardGroupFinalizer):
		return shardCall{}
	case in.known != nil && in.known.GetDeleting():
		return shardCall{} // the group ends with its last instance, and the mirror will show that
	case in.known != nil && !in.last.removed.IsZero():
		if left := in.last.removed.Add(removalRetry).Sub(in.now); left > 0 {
			return shardCall{again: left}
		}
	}
	return shardCall{remove: true}
}

// settingsOf returns a text that is the same for two statuses with the same settings.
func settingsOf(g *nstancev1.GroupStatus) string { return g.GetSpecJson() + "\n" + g.GetMergedJson() }

// sizeRefused is the reason for refusing a spec.config that has a size.
const sizeRefused = "config.size: the replicas of the MachinePool set the size: remove it"

// setsSize reports whether spec.config has a size. The operator then makes no call, because the shard would accept it.
func setsSize(group *v1beta1.NstanceShardGroup) bool {
	_, has := configTree(group.Spec.Config)["size"]
	return has
}

// instancesToRemove returns the instances in [v1beta1.RemoveAnnotation] that the shard still has. It returns none if
// the group does not shrink.
func instancesToRemove(in groupInput, upsert *nstancev1.UpsertGroupRequest) (ids []string) {
	if upsert == nil || in.known == nil || wantedSize(in.group.Spec) >= in.known.GetSize() {
		return nil
	}
	for _, id := range chosenInstances(in.group) {
		if slices.ContainsFunc(in.instances, func(i *nstancev1.InstanceStatus) bool {
			return i.GetInstanceId() == id && i.GetState() != "deleted"
		}) {
			ids = append(ids, id)
		}
	}
	return ids
}

// callResult is the result of a call.
type callResult struct {
	call shardCall
	err  error
	// group is the shard's answer to an upsert. restored is true if a deletion removed only the override of the group,
	// because the group is static.
	group    *nstancev1.GroupStatus
	restored bool
}

// isRefusal reports whether err means that a repeated request would fail again unless the shard's configuration
// changes.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.AlreadyExists, codes.NotFound,
		codes.Unimplemented, codes.PermissionDenied, codes.ResourceExhausted:
		return true
	}
	return false
}

// statusMessage returns the message of a gRPC error.
func statusMessage(err error) string { return status.Convert(err).Message() }

// groupPlan is the desired state of a shard group object.
type groupPlan struct {
	group      *v1beta1.NstanceShardGroup
	conditions conditions
	events     []notice
}

// decideGroup returns the finalizers, status and events of a shard group after a call.
func decideGroup(in groupInput, did callResult) groupPlan {
	plan := groupPlan{group: in.group.DeepCopy()}
	plan.conditions.setPaused(in.paused)
	if in.paused {
		return plan
	}
	deleting := !in.group.DeletionTimestamp.IsZero()
	if deleting {
		if done, e := deletionFinished(in, did); done {
			controllerutil.RemoveFinalizer(plan.group, v1beta1.ShardGroupFinalizer)
			plan.events = e
			return plan
		}
	} else {
		controllerutil.AddFinalizer(plan.group, v1beta1.ShardGroupFinalizer)
	}
	plan.setReachable(in)
	known := in.known
	if did.group != nil {
		known = did.group
	}
	if in.configured && in.state.Synced && known != nil {
		plan.copyStatus(known, in.instances, in.capacity)
	} else if in.configured && in.state.Synced {
		plan.group.Status.ActualSize, plan.group.Status.Healthy, plan.group.Status.ProviderIDs = ptr.To(int32(0)),
			ptr.To(int32(0)), nil
	}
	switch {
	case deleting:
		message := deletionMessage(in, did)
		was := meta.FindStatusCondition(in.group.Status.Conditions, v1beta1.ReadyCondition)
		if (!in.configured || !in.state.Reachable && !in.connecting() || did.err != nil) &&
			(was == nil || was.Message != message) {
			plan.events = append(plan.events, warningEvent(v1beta1.DeletingReason, "%s", message))
		}
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "%s", message)
	case in.ending:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.DeletingReason, clusterEnding)
	case !in.configured:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.UnknownShardReason,
			"shard %s is not in the operator's configuration", in.group.Spec.Shard)
	case in.connecting(), in.state.Reachable && !in.state.Synced:
		// The operator is connecting to the shard, or has not read the shard's groups yet. If the object has a Ready
		// condition, keep it.
		if meta.FindStatusCondition(in.group.Status.Conditions, v1beta1.ReadyCondition) == nil {
			plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.WaitingForShardReason,
				"connecting to shard %s", in.group.Spec.Shard)
		}
	case !in.state.Reachable:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.UnreachableReason, "shard %s: %s",
			in.group.Spec.Shard, in.state.Err)
	default:
		plan.setPushed(in, did, known)
	}
	return plan
}

// setPushed sets the conditions that say whether a reachable shard accepted the spec and has the wanted instances.
func (plan *groupPlan) setPushed(in groupInput, did callResult, known *nstancev1.GroupStatus) {
	refusal := did.call.refused
	if isRefusal(did.err) {
		refusal = statusMessage(did.err)
	}
	message := fmt.Sprintf("shard %s refused the group: %s", in.group.Spec.Shard, refusal)
	if refusal == sizeRefused {
		message = refusal
	}
	switch {
	case refusal != "":
		plan.conditions.set(v1beta1.ConfigValidCondition, false, v1beta1.RefusedReason, "%s", refusal)
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.RefusedReason, "%s", message)
		was := meta.FindStatusCondition(in.group.Status.Conditions, v1beta1.ConfigValidCondition)
		if was == nil || was.Status != metav1.ConditionFalse || was.Message != refusal {
			plan.events = append(plan.events, warningEvent(v1beta1.RefusedReason, "%s", message))
		}
	case did.err != nil:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.NotReadyReason, "shard %s: %s", in.group.Spec.Shard,
			statusMessage(did.err))
	default:
		plan.group.Status.ObservedGeneration = in.group.Generation
		plan.conditions.set(v1beta1.ConfigValidCondition, true, v1beta1.AcceptedReason, "")
		want, actual, healthy := wantedSize(in.group.Spec), known.GetActualSize(), known.GetHealthy()
		switch {
		case actual == want && healthy == actual:
			plan.conditions.set(v1beta1.ReadyCondition, true, v1beta1.ReadyReason, "")
		case known.GetBlockedReason() != "":
			plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.BlockedReason, "%s", known.GetBlockedReason())
		default:
			plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.ScalingReason, "%d of %d instances, %d healthy",
				actual, want, healthy)
		}
	}
}

// deletionFinished reports whether the finalizer of a deleted shard group can be removed. It can be removed if the
// shard no longer has the group, or if the group must stay in the shard.
func deletionFinished(in groupInput, did callResult) (bool, []notice) {
	code := status.Code(did.err)
	switch {
	case in.wanted:
		// The pool still needs the group in the shard. Remove the finalizer, and keep the group and its instances. The
		// pool's reconciler then creates the shard group object again. It would not do so while the Cluster is being
		// deleted, and could not while the definition of shard groups is. In these cases, keep the finalizer until the
		// pool is deleted too.
		return !in.ending && !in.lastOne, nil
	case in.skip && !in.answers():
		return true, []notice{warningEvent(v1beta1.ShardSkippedReason,
			"shard %s was skipped: its group %s with %d instances was left behind", in.group.Spec.Shard,
			in.group.Spec.Group, ptr.Deref(in.group.Status.ActualSize, 0))}
	case !did.call.remove:
		return false, nil
	case did.err == nil:
		return did.restored, nil
	}
	// A shard never has a group with a name that it refuses.
	return code == codes.NotFound || code == codes.InvalidArgument && in.known == nil ||
		code == codes.FailedPrecondition && in.known.GetIsStatic(), nil
}

// deletionMessage says what the deletion of a shard group waits for.
func deletionMessage(in groupInput, did callResult) string {
	shard := in.group.Spec.Shard
	switch {
	case in.wanted:
		return "waiting for the deletion of the pool"
	case !in.configured:
		return fmt.Sprintf("waiting for shard %s, which is not in the operator's configuration: add it, or skip it "+
			"with the annotation %s", shard, v1beta1.SkipShardsAnnotation)
	case !in.state.Reachable && !in.connecting():
		return fmt.Sprintf("waiting for shard %s, which does not answer (%s); the annotation %s skips it", shard,
			in.state.Err, v1beta1.SkipShardsAnnotation)
	case did.err != nil:
		return fmt.Sprintf("shard %s: %s", shard, statusMessage(did.err))
	}
	return fmt.Sprintf("waiting for shard %s to delete its instances", shard)
}

// setReachable sets the ShardReachable condition, except while the first connection is being made.
func (plan *groupPlan) setReachable(in groupInput) {
	shard := in.group.Spec.Shard
	switch {
	case !in.configured:
		plan.conditions.set(v1beta1.ShardReachableCondition, false, v1beta1.UnknownShardReason,
			"shard %s is not in the operator's configuration", shard)
	case in.state.Reachable:
		plan.conditions.set(v1beta1.ShardReachableCondition, true, v1beta1.ReachableReason, "")
		return
	case in.connecting():
		return
	default:
		plan.conditions.set(v1beta1.ShardReachableCondition, false, v1beta1.UnreachableReason, "%s", in.state.Err)
	}
	if !meta.IsStatusConditionFalse(in.group.Status.Conditions, v1beta1.ShardReachableCondition) {
		last := plan.conditions[len(plan.conditions)-1]
		plan.events = append(plan.events, warningEvent(last.Reason, "shard %s: %s", shard, last.Message))
	}
}

// copyStatus copies the shard's view of the group into the status.
func (plan *groupPlan) copyStatus(known *nstancev1.GroupStatus, instances []*nstancev1.InstanceStatus,
	capacity corev1.ResourceList) {
	s := &plan.group.Status
	s.IsStatic = known.GetIsStatic()
	s.ActualSize, s.Healthy = ptr.To(toInt32(known.GetActualSize())), ptr.To(toInt32(known.GetHealthy()))
	if config := mergedConfig(known); !equalJSON(s.Config, config) {
		s.Config = config
	}
	s.Capacity = capacity
	// Include the provider IDs of instances that are being deleted. If the ID of such an instance were missing, Cluster
	// API would delete its Node, but the Node must be drained first.
	var ids []string
	for _, i := range instances {
		if i.GetProviderId() != "" && !i.GetOnDemand() {
			ids = append(ids, i.GetProviderId())
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	s.ProviderIDs = ids[:min(len(ids), maxProviderIDs)]
}

// toInt32 converts a server's number into an int32. A number that is too large becomes the largest int32.
func toInt32(n uint32) int32 { return int32(min(n, math.MaxInt32)) }

// mergedConfig returns all settings of the group that are in force.
func mergedConfig(g *nstancev1.GroupStatus) *apiextensionsv1.JSON {
	text := g.GetMergedJson()
	if !strings.HasPrefix(text, "{") || !json.Valid([]byte(text)) {
		return nil // the API server refuses anything else
	}
	return &apiextensionsv1.JSON{Raw: []byte(text)}
}

// equalJSON compares two JSON documents by value, because the API server changes the order and spelling of what it
// stores.
func equalJSON(a, b *apiextensionsv1.JSON) bool {
	if a == nil || b == nil {
		return a == b
	}
	var left, right any
	return json.Unmarshal(a.Raw, &left) == nil && json.Unmarshal(b.Raw, &right) == nil && reflect.DeepEqual(left, right)
}

// finishStatus returns the shard group's new status, which is written at the time now.
func (plan *groupPlan) finishStatus(was *v1beta1.NstanceShardGroup, generation int64,
	now time.Time) v1beta1.NstanceShardGroupStatus {
	s := *plan.group.Status.DeepCopy()
	s.Conditions = plan.conditions.mergeInto(was.Status.Conditions, generation, now)
	if meta.IsStatusConditionTrue(s.Conditions, v1beta1.ShardReachableCondition) &&
		!equality.Semantic.DeepEqual(s, was.Status) {
		s.LastSyncTime = ptr.To(metav1.NewTime(now.Truncate(time.Second)))
	}
	return s
}
