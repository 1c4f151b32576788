package pool

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
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
	// refusedRetry is when what a shard refused is said to it again: its configuration may have changed.
	refusedRetry = time.Minute
	// answerHolds is for how long a shard's answer is believed rather than a mirror that has said nothing since.
	answerHolds = 2 * time.Second
	// removalRetry is when a group that should be on its way out, but is not so by the mirror, is deleted again.
	removalRetry = 10 * time.Second
	// mostProviderIDs is what a list of the API holds.
	mostProviderIDs = 10_000
)

// groupInput is all that decisions on a shard group are made from.
type groupInput struct {
	group  *v1beta1.NstanceShardGroup
	paused bool
	// wanted: the pool is there, is not being deleted, and names the shard.
	wanted bool
	// configured: the operator's configuration names the shard.
	configured bool
	state      shards.State
	// known is the group as the leader said last, nil when there is none; both it and instances mean something once the
	// state is synced.
	known     *nstancev1.GroupStatus
	instances []*nstancev1.InstanceStatus
	last      outcome
	now       time.Time
}

// outcome is what became of the last call about a group.
type outcome struct {
	at time.Time
	// upsert was refused, in these words.
	upsert  *nstancev1.UpsertGroupRequest
	refused string
	// The mirror said before when the shard answered after.
	before, after *nstancev1.GroupStatus
	// removed is when the group was deleted.
	removed time.Time
}

// answers reports whether the shard can be asked, and what its mirror does not have is not there.
func (in *groupInput) answers() bool { return in.configured && in.state.Reachable && in.state.Synced }

// connecting reports whether it is too early to say whether the shard can be reached.
func (in *groupInput) connecting() bool {
	return in.configured && !in.state.Reachable && !in.state.Synced && in.state.Err == ""
}

// call is what the shard is to be told: one of the first two or, when neither, nothing.
type call struct {
	upsert *nstancev1.UpsertGroupRequest
	remove bool
	// refused is why the shard is not told the same again, before again has passed.
	refused string
	again   time.Duration
}

func decideCall(in groupInput) call {
	switch {
	case in.paused || !in.answers():
		return call{}
	case in.group.DeletionTimestamp.IsZero():
		upsert := push(in.group.Spec, owned(in.group), in.known)
		if upsert != nil && proto.Equal(upsert, in.last.upsert) {
			if left := in.last.at.Add(refusedRetry).Sub(in.now); left > 0 {
				return call{refused: in.last.refused, again: left}
			}
		}
		return call{upsert: upsert}
	case in.wanted || !controllerutil.ContainsFinalizer(in.group, v1beta1.ShardGroupFinalizer):
		return call{}
	case in.known != nil && in.known.GetDeleting():
		return call{} // its last instance will end it, and the mirror tells
	case in.known != nil && !in.last.removed.IsZero():
		if left := in.last.removed.Add(removalRetry).Sub(in.now); left > 0 {
			return call{again: left}
		}
	}
	return call{remove: true}
}

// result is what came of a call.
type result struct {
	call call
	err  error
	// group is what the shard answered to an upsert; restored what it answered to a removal.
	group    *nstancev1.GroupStatus
	restored bool
}

// refused reports whether a shard will say the same again.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.AlreadyExists, codes.NotFound,
		codes.Unimplemented:
		return true
	}
	return false
}

// words are what a shard said.
func words(err error) string { return status.Convert(err).Message() }

// groupPlan is a shard group as it is to be written.
type groupPlan struct {
	group      *v1beta1.NstanceShardGroup
	conditions conditions
	events     []notice
}

func decideGroup(in groupInput, did result) groupPlan {
	plan := groupPlan{group: in.group.DeepCopy()}
	plan.conditions.paused(in.paused)
	if in.paused {
		return plan
	}
	deleting := !in.group.DeletionTimestamp.IsZero()
	if deleting {
		if done, e := removed(in, did); done {
			controllerutil.RemoveFinalizer(plan.group, v1beta1.ShardGroupFinalizer)
			plan.events = e
			return plan
		}
	} else {
		controllerutil.AddFinalizer(plan.group, v1beta1.ShardGroupFinalizer)
	}
	plan.reachable(in)
	known := in.known
	if did.group != nil {
		known = did.group
	}
	if in.configured && in.state.Synced && known != nil {
		plan.mirror(known, in.instances)
	} else if in.configured && in.state.Synced {
		plan.group.Status.ActualSize, plan.group.Status.Healthy, plan.group.Status.ProviderIDs = ptr.To(int32(0)),
			ptr.To(int32(0)), nil
	}
	switch {
	case deleting:
		message := "the shard's instances are being deleted"
		if did.err != nil {
			message = words(did.err)
		}
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "%s", message)
	case !in.configured:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.UnknownShardReason,
			"shard %s is not in the operator's configuration", in.group.Spec.Shard)
	case in.connecting(), in.state.Reachable && !in.state.Synced:
		// What was known may well hold still.
		if meta.FindStatusCondition(in.group.Status.Conditions, v1beta1.ReadyCondition) == nil {
			plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.WaitingForShardReason,
				"shard %s is being connected", in.group.Spec.Shard)
		}
	case !in.state.Reachable:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.UnreachableReason, "shard %s: %s",
			in.group.Spec.Shard, in.state.Err)
	default:
		plan.pushed(in, did, known)
	}
	return plan
}

// pushed says what became of the spec, on a shard that answers.
func (plan *groupPlan) pushed(in groupInput, did result, known *nstancev1.GroupStatus) {
	refusal := did.call.refused
	if refused(did.err) {
		refusal = words(did.err)
	}
	switch {
	case refusal != "":
		plan.conditions.set(v1beta1.ConfigValidCondition, false, v1beta1.RefusedReason, "%s", refusal)
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.RefusedReason, "shard %s refused the group: %s",
			in.group.Spec.Shard, refusal)
		was := meta.FindStatusCondition(in.group.Status.Conditions, v1beta1.ConfigValidCondition)
		if was == nil || was.Status != metav1.ConditionFalse || was.Message != refusal {
			plan.events = append(plan.events, warning(v1beta1.RefusedReason, "shard %s refused the group: %s",
				in.group.Spec.Shard, refusal))
		}
	case did.err != nil:
		plan.conditions.set(v1beta1.ReadyCondition, false, v1beta1.NotReadyReason, "shard %s: %s", in.group.Spec.Shard,
			words(did.err))
	default:
		plan.group.Status.ObservedGeneration = in.group.Generation
		plan.conditions.set(v1beta1.ConfigValidCondition, true, v1beta1.AcceptedReason, "")
		want, actual, healthy := size(in.group.Spec), known.GetActualSize(), known.GetHealthy()
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

// removed reports whether the shard no longer has, or will not lose, what the finalizer stands for.
func removed(in groupInput, did result) (bool, []notice) {
	code := status.Code(did.err)
	switch {
	case in.wanted:
		return true, nil // its pool makes it again; nothing is to happen to the instances
	case !in.configured:
		return true,
			[]notice{warning(v1beta1.ShardRemovedReason,
				"shard %s is not in the operator's configuration any more: its group %s was left as it is",
				in.group.Spec.Shard, in.group.Spec.Group)}
	case !did.call.remove:
		return false, nil
	case did.err == nil:
		return did.restored, nil
	}
	return code == codes.NotFound || code == codes.FailedPrecondition && in.known.GetIsStatic(), nil
}

// reachable says whether the shard can be reached, unless it is too early for that.
func (plan *groupPlan) reachable(in groupInput) {
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
		plan.events = append(plan.events, warning(last.Reason, "shard %s: %s", shard, last.Message))
	}
}

// mirror puts what the shard said into the status.
func (plan *groupPlan) mirror(known *nstancev1.GroupStatus, instances []*nstancev1.InstanceStatus) {
	s := &plan.group.Status
	s.IsStatic = known.GetIsStatic()
	s.ActualSize, s.Healthy = ptr.To(count(known.GetActualSize())), ptr.To(count(known.GetHealthy()))
	if config := merged(known); !same(s.Config, config) {
		s.Config = config
	}
	// Those of instances that are being deleted too: Cluster API deletes the Node of an ID that is no longer listed,
	// and it must be drained before.
	var ids []string
	for _, i := range instances {
		if i.GetProviderId() != "" && !i.GetOnDemand() {
			ids = append(ids, i.GetProviderId())
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	s.ProviderIDs = ids[:min(len(ids), mostProviderIDs)]
}

// count is a server's number in Kubernetes' type.
func count(n uint32) int32 { return int32(min(n, math.MaxInt32)) }

// definition is a group as the server merged it, in Kubernetes' spelling.
type definition struct {
	Template      string            `json:"template,omitempty"`
	Kind          string            `json:"kind,omitempty"`
	Arch          string            `json:"arch,omitempty"`
	InstanceType  string            `json:"instanceType,omitempty"`
	InstanceTypes []string          `json:"instanceTypes,omitempty"`
	SubnetPool    string            `json:"subnetPool,omitempty"`
	Vars          map[string]string `json:"vars,omitempty"`
	Args          json.RawMessage   `json:"args,omitempty"`
	LoadBalancers []string          `json:"loadBalancers,omitempty"`
	DrainTimeout  string            `json:"drainTimeout,omitempty"`
	MaxSurge      uint32            `json:"maxSurge,omitempty"`
	MaxUnhealthy  string            `json:"maxUnhealthy,omitempty"`
}

func merged(g *nstancev1.GroupStatus) *apiextensionsv1.JSON {
	d := definition{Template: g.GetTemplate(), Kind: g.GetKind(), Arch: g.GetArch(), InstanceType: g.GetInstanceType(),
		InstanceTypes: g.GetInstanceTypes(),
		SubnetPool:    g.GetSubnetPool(), Vars: g.GetVars(), LoadBalancers: g.GetLoadBalancers(),
		MaxSurge: g.GetMaxSurge(), MaxUnhealthy: g.GetMaxUnhealthy()}
	if g.GetDrainTimeout() != nil {
		d.DrainTimeout = g.GetDrainTimeout().AsDuration().String()
	}
	if json.Valid([]byte(g.GetArgsJson())) {
		d.Args = json.RawMessage(g.GetArgsJson())
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil // strings and valid JSON always can be
	}
	return &apiextensionsv1.JSON{Raw: text}
}

// same compares by meaning: the API server writes what it was given in another order.
func same(a, b *apiextensionsv1.JSON) bool {
	if a == nil || b == nil {
		return a == b
	}
	var left, right any
	return json.Unmarshal(a.Raw, &left) == nil && json.Unmarshal(b.Raw, &right) == nil && reflect.DeepEqual(left, right)
}

// finish makes the status complete, for the moment of writing it.
func (plan *groupPlan) finish(was *v1beta1.NstanceShardGroup, generation int64,
	now time.Time) v1beta1.NstanceShardGroupStatus {
	s := *plan.group.Status.DeepCopy()
	s.Conditions = plan.conditions.over(was.Status.Conditions, generation, now)
	if meta.IsStatusConditionTrue(s.Conditions, v1beta1.ShardReachableCondition) &&
		!equality.Semantic.DeepEqual(s, was.Status) {
		s.LastSyncTime = ptr.To(metav1.NewTime(now.Truncate(time.Second)))
	}
	return s
}
