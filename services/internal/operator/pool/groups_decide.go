package pool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

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
	case in.group.DeletionTimestamp.IsZero() && refusedSetting(in.group) != "":
		return shardCall{refused: refusedSetting(in.group)}
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

const (
	// These are the reasons for refusing a spec.config that has a size or scaling.
	sizeRefused    = "config.size: the replicas of the MachinePool set the size: remove it"
	scalingRefused = "config.scaling: the MachinePool sets the size: remove it, and scale the MachinePool"
)

// refusedSetting returns why spec.config is refused, because it sets what the MachinePool sets; "": it does not. The
// operator then makes no call, because the shard would accept it.
func refusedSetting(group *v1beta1.NstanceShardGroup) string {
	config := configTree(group.Spec.Config)
	if _, has := config["size"]; has {
		return sizeRefused
	}
	if config["scaling"] != nil {
		return scalingRefused
	}
	return ""
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
		plan.group.Status.Spares = nil
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
	if refusal == sizeRefused || refusal == scalingRefused {
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
			plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.BlockedReason, "%s",
				cmp.Or(known.GetWait().GetText(), known.GetBlockedReason()))
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
	s.Spares = nil
	if n := known.GetSpares(); n != nil {
		s.Spares = &v1beta1.SparesStatus{Count: ptr.To(toInt32(n.GetCount())),
			Actual: ptr.To(toInt32(n.GetActual())), Ready: ptr.To(toInt32(n.GetReady()))}
	}
	if config := mergedConfig(known); !equalJSON(s.Config, config) {
		s.Config = config
	}
	s.Capacity = capacity
	// Include the provider IDs of instances that are being deleted. If the ID of such an instance were missing, Cluster
	// API would delete its Node, but the Node must be drained first. A spare is no replica: its ID follows once it is a
	// member.
	var ids []string
	for _, i := range instances {
		if i.GetProviderId() != "" && !i.GetOnDemand() && !i.GetSpare() {
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
