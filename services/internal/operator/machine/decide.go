package machine

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// step is the next step for a machine. A step that calls a server or stores a choice is followed by another decision. A
// step that deletes an object is taken after the status was stored.
type step string

const (
	stepChoose  step = "choose"  // store the finalizer, the shard and an ID for the instance
	stepKeep    step = "keep"    // store the finalizer and the provider ID
	stepCreate  step = "create"  // CreateInstance
	stepAsk     step = "ask"     // GetInstanceStatus
	stepDestroy step = "destroy" // DeleteInstance
	stepWait    step = "wait"    // do nothing until something changes

	stepDeleteOwner step = "delete owner" // delete the Machine, and this object with it
	stepDeleteSelf  step = "delete self"
	stepRelease     step = "release" // drop the finalizer
)

// view is everything that decide depends on.
type view struct {
	machine *v1beta1.NstanceMachine
	// owner is the Machine of the NstanceMachine, nil if there is none. ownerGone is true if that Machine existed and
	// was deleted.
	owner     *clusterv1.Machine
	ownerGone bool
	// poolGone: the pool of a pool machine is being deleted or does not exist.
	poolGone bool
	// paused: an object or the Cluster is paused. ending: the Cluster is being deleted or does not exist. skip: the
	// deletion of the machine does not wait for the shard.
	paused, ending, skip bool
	// shards are the shards of the configuration file, sorted.
	shards []shardView
	// answer is what the server returned to a call in this reconciliation. It is newer than any mirror.
	answer *answer
	// fault is the reason why the last call for this machine failed, nil if it did not fail.
	fault *fault
	now   metav1.Time
}

// shardView is the state of the machine's group and instance in one shard's mirror.
type shardView struct {
	id                string
	reachable, synced bool
	group             *nstancev1.GroupStatus
	instance          *nstancev1.InstanceStatus
	// load is the number of the group's instances in the shard. It also counts the machines that are assigned to this
	// shard but have no instance yet. load is set only if the view's machine must still choose a shard.
	load int
}

func (s *shardView) hasGroup() bool { return s.group != nil && !s.group.GetDeleting() }

// answer is a leader's answer about the machine's instance. The field instance is nil if the instance does not exist.
type answer struct{ instance *nstancev1.InstanceStatus }

// decision is the next step, its arguments, and the resulting status.
type decision struct {
	step        step
	shard, kind string // choose
	providerID  string // keep
	status      v1beta1.NstanceMachineStatus
	// warning and text are the reason and the note of a warning event, for a problem that no condition shows.
	warning, text string
}

// isPoolMachine reports whether the machine belongs to a pool. The server creates the instances of pool machines to
// fill their group.
func isPoolMachine(m *v1beta1.NstanceMachine) bool {
	_, ok := m.Labels[clusterv1.MachinePoolNameLabel]
	return ok
}

func (v *view) shard(id string) *shardView {
	for i := range v.shards {
		if v.shards[i].id == id {
			return &v.shards[i]
		}
	}
	return nil
}

// decide returns the next step for a machine.
func decide(v view) decision {
	m := v.machine
	d := decision{step: stepWait, status: *m.Status.DeepCopy()}
	if v.paused {
		v.setCondition(&d, v1beta1.PausedCondition, true, v1beta1.PausedReason,
			"the machine or its cluster is paused")
		return d
	}
	v.setCondition(&d, v1beta1.PausedCondition, false, v1beta1.NotPausedReason, "")
	d.status.ObservedGeneration = m.Generation
	serverDeleted := meta.IsStatusConditionTrue(m.Status.Conditions, v1beta1.ServerDeletedCondition)
	switch {
	case !m.DeletionTimestamp.IsZero():
		v.decideDeletion(&d, serverDeleted)
	case serverDeleted:
		v.decideDiscard(&d)
	case v.ownerGone && !isPoolMachine(m):
		d.step = stepDeleteSelf
	case m.Spec.InstanceID == "" || m.Spec.Shard == "":
		v.chooseShard(&d)
	default:
		v.decideExisting(&d)
	}
	return d
}

// mayCreate returns "" if Cluster API's contract allows the instance to be created, else the reason why not.
func (v *view) mayCreate() (why string) {
	switch {
	case v.ending:
		return "the Cluster is being deleted or does not exist"
	case v.owner == nil:
		return "no Machine references this object yet"
	case !v.owner.DeletionTimestamp.IsZero():
		return "the Machine is being deleted"
	case v.owner.Spec.Bootstrap.DataSecretName == nil:
		return "the Machine's bootstrap.dataSecretName is not set yet; set it to \"\", as userdata comes from the " +
			"server"
	}
	return ""
}

// chooseShard chooses the shard of the instance. It takes the shard that the NstanceMachine or its Machine specifies.
// If neither specifies one, it takes the shard with the fewest instances of the group. If several shards have the
// fewest, a hash of the machine's UID and the shard decides, because machines that are created together see the same
// counts.
func (v *view) chooseShard(d *decision) {
	m := v.machine
	refuse := func(reason, format string, args ...any) {
		v.setUncreated(d, reason, fmt.Sprintf(format, args...))
	}
	if isPoolMachine(m) {
		// The pool's controller sets the instance ID and the shard. Without both, the machine cannot get an instance.
		refuse(v1beta1.WaitingForInstanceReason, "the pool machine has no instance ID or shard")
		return
	}
	if why := v.mayCreate(); why != "" {
		refuse(v1beta1.WaitingForMachineReason, "%s", why)
		return
	}
	wanted, group := m.Spec.Shard, m.Spec.GroupRef.Name
	if wanted == "" {
		// A Machine's failure domain is the ID of a shard. The creator of the Machines sets it to spread them over the
		// shards (Cluster API contract).
		wanted = v.owner.Spec.FailureDomain
	}
	if wanted != "" && v.shard(wanted) == nil {
		refuse(v1beta1.UnknownShardReason, "shard %s is not in the operator's configuration", wanted)
		return
	}
	unheard := ""
	var best *shardView
	for i := range v.shards {
		s := &v.shards[i]
		if wanted != "" && s.id != wanted {
			continue
		}
		switch {
		case !s.reachable || !s.synced:
			unheard = s.id
		case s.hasGroup() && (best == nil || s.load < best.load ||
			s.load == best.load && hashOf(m.UID, s.id) < hashOf(m.UID, best.id)):
			best = s
		}
	}
	switch {
	case best != nil:
		d.step, d.shard, d.kind = stepChoose, best.id, best.group.GetKind()
	case unheard != "":
		refuse(v1beta1.WaitingForShardReason, "waiting for shard %s, which does not answer", unheard)
	case wanted != "":
		refuse(v1beta1.RefusedReason, "shard %s has no group %s", wanted, group)
	default:
		refuse(v1beta1.RefusedReason, "no shard has a group %s", group)
	}
}

// hashOf returns a hash of a machine and a shard. The order of the shards by this hash differs between machines.
func hashOf(machine types.UID, shard string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(machine) + "/" + shard)) // a hash never returns an error
	return h.Sum64()
}

// decideExisting decides the next step for a machine that already has an instance ID.
func (v *view) decideExisting(d *decision) {
	m, s := v.machine, v.shard(v.machine.Spec.Shard)
	if !v.checkShard(d, s) {
		return
	}
	if !controllerutil.ContainsFinalizer(m, v1beta1.MachineFinalizer) {
		d.step = stepKeep
		return
	}
	i := v.latestInstance(s)
	seen := m.Status.InstanceID != "" || isPoolMachine(m)
	switch {
	case i != nil && i.GetState() != stateDeleted:
		v.updateStatus(d, i)
	case i != nil, v.answer != nil:
		v.recordGone(d)
	case v.fault != nil:
		if !seen {
			v.setUncreated(d, v.fault.reason, v.fault.text)
		}
	case seen:
		// The mirror may not show the instance yet, so ask the leader whether the instance exists.
		d.step = stepAsk
	default:
		if why := v.mayCreate(); why != "" {
			v.setUncreated(d, v1beta1.WaitingForMachineReason, why)
			return
		}
		d.step = stepCreate
	}
}

// checkShard sets the ShardReachable condition. It reports whether the shard answers. If not, the machine must wait.
func (v *view) checkShard(d *decision, s *shardView) bool {
	id := v.machine.Spec.Shard
	switch {
	case s == nil:
		v.setCondition(d, v1beta1.ShardReachableCondition, false, v1beta1.UnknownShardReason, "shard "+id+
			" is not in the operator's configuration")
	case !s.reachable:
		v.setCondition(d, v1beta1.ShardReachableCondition, false, v1beta1.UnreachableReason, "shard "+id+
			" does not answer")
	case !s.synced:
		v.setCondition(d, v1beta1.ShardReachableCondition, false, v1beta1.WaitingForShardReason, "shard "+id+
			" has not listed its instances yet")
	default:
		v.setCondition(d, v1beta1.ShardReachableCondition, true, v1beta1.ReachableReason, "")
		return true
	}
	if !meta.IsStatusConditionPresentAndEqual(d.status.Conditions, v1beta1.InstanceCreatedCondition,
		metav1.ConditionTrue) {
		c := meta.FindStatusCondition(d.status.Conditions, v1beta1.ShardReachableCondition)
		v.setUncreated(d, c.Reason, c.Message)
	}
	return false
}

// latestInstance returns the latest state of the instance, nil if it does not exist.
func (v *view) latestInstance(s *shardView) *nstancev1.InstanceStatus {
	if v.answer != nil {
		return v.answer.instance
	}
	return s.instance
}

// recordGone records in the status that the server reported the instance as gone. The operator stores this status
// before it deletes the Machine.
func (v *view) recordGone(d *decision) {
	d.status.State = stateDeleted
	text := "the server reports that instance " + v.machine.Spec.InstanceID + " is gone"
	v.setCondition(d, v1beta1.ServerDeletedCondition, true, v1beta1.InstanceGoneReason, text)
	v.decideDiscard(d)
}

// decideDiscard deletes the Machine of an instance that is gone, so that the Machine's owner replaces it (Cluster API
// contract).
func (v *view) decideDiscard(d *decision) {
	d.status.Ready = false
	v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.InstanceGoneReason, "the instance is gone")
	switch {
	case v.owner == nil:
		d.step = stepDeleteSelf
	case v.owner.DeletionTimestamp.IsZero():
		d.step = stepDeleteOwner
	}
}

// deletingText is the message of a machine while the server deletes its instance.
const deletingText = "the instance is being deleted"

// decideDeletion handles a machine that is being deleted.
func (v *view) decideDeletion(d *decision, serverDeleted bool) {
	m := v.machine
	if !controllerutil.ContainsFinalizer(m, v1beta1.MachineFinalizer) {
		return
	}
	d.status.Ready = false
	s := v.shard(m.Spec.Shard)
	switch {
	case serverDeleted, m.Spec.InstanceID == "", m.Spec.Shard == "":
		d.step = stepRelease
		return
	case isPoolMachine(m) && (v.ending || v.poolGone) && !v.losesNode(s):
		// The pool or the Cluster is being deleted, so do not delete the instance here. A dynamic group is deleted
		// together with its pool, and so are its instances. A static group keeps its instances.
		d.step = stepRelease
		return
	case isPoolMachine(m) && v.owner != nil && v.owner.DeletionTimestamp.IsZero():
		// Only the NstanceMachine was deleted, not its Machine. This happens, for example, when the CRD is deleted. The
		// instance stays, and the pool's controller creates a new NstanceMachine for it.
		d.step = stepRelease
		return
	}
	v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, deletingText)
	if !v.checkShard(d, s) {
		if v.skip {
			d.step = stepRelease
			d.warning, d.text = v1beta1.ShardSkippedReason, "shard "+m.Spec.Shard+" was skipped: instance "+
				m.Spec.InstanceID+" was left behind"
			return
		}
		why := meta.FindStatusCondition(d.status.Conditions, v1beta1.ShardReachableCondition).Message
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "waiting for the instance to be "+
			"deleted: "+why+"; the annotation "+v1beta1.SkipShardsAnnotation+" skips the shard")
		return
	}
	i := v.latestInstance(s)
	switch {
	case v.answer != nil && i == nil, i.GetState() == stateDeleted:
		d.step = stepRelease
	case i.GetState() == stateDeleting:
		d.status.State = stateDeleting
	case v.fault != nil:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, v.fault.text)
	case m.Status.State == stateDeleting && i == nil:
		d.step = stepAsk
	case m.Status.State == stateDeleting:
		// The server has already accepted the deletion of the instance. Wait until the mirror shows that the instance
		// is gone.
	default:
		d.step = stepDestroy
	}
}

// losesNode reports whether Cluster API drains and deletes the Node of a static group's instance, although the group
// stays. If so, the operator deletes the instance, and the group replaces it. The Node is lost if its Machine is being
// deleted. While the Cluster is being deleted, the Node is lost only if its drain began before that deletion. Until the
// shard has listed its groups, every group counts as static.
func (v *view) losesNode(s *shardView) bool {
	if s == nil || s.synced && !s.group.GetIsStatic() || v.owner == nil || v.owner.DeletionTimestamp.IsZero() {
		return false
	}
	// While a Cluster is being deleted, Cluster API starts no drain. So if NodeDrainStartTime is set, the drain began
	// before the deletion of the Cluster.
	deletion := v.owner.Status.Deletion
	return !v.ending || deletion != nil && !deletion.NodeDrainStartTime.IsZero()
}

// stateOrder lists the states through which an instance goes, from the first to the last. The status never returns to
// an earlier state, even if the mirror is older than the leader's last answer.
var stateOrder = []string{"", "reserved", "created", "registered", stateDeleting, stateDeleted}

const (
	stateDeleting = "deleting"
	stateDeleted  = "deleted"
)

// laterState returns the later of two states.
func laterState(a, b string) string {
	if slices.Index(stateOrder, b) > slices.Index(stateOrder, a) {
		return b
	}
	return a
}

// drainLimit returns the limit that Cluster API must observe when it drains the Machine's Node, and when it then waits
// until the volumes are detached: the drain timeout of the Machine's group, in seconds. It returns nil if the limit
// must not change. This is so if the timeout is unknown, or if a user or a MachineDeployment has created the Machine.
//
// Without a limit, Cluster API drains for as long as a PodDisruptionBudget forbids an eviction, and waits for as long
// as a volume stays attached. It takes 0 for no limit.
func drainLimit(v *view) *int32 {
	if v.owner == nil || !isPoolMachine(v.machine) && v.owner.Labels[v1beta1.PodUIDLabel] == "" {
		return nil
	}
	s := v.shard(v.machine.Spec.Shard)
	if s == nil {
		return nil
	}
	timeout := config.ReadSettings(s.group.GetMergedJson()).DrainTimeout
	if timeout == nil {
		return nil
	}
	limit := timeout.D()
	seconds := int32(max(1, (limit+time.Second-1)/time.Second))
	have := v.owner.Spec.Deletion
	if ptr.Equal(have.NodeDrainTimeoutSeconds, &seconds) && ptr.Equal(have.NodeVolumeDetachTimeoutSeconds, &seconds) {
		return nil
	}
	return &seconds
}

// limitDrain writes the limit that [drainLimit] returns to the Machine.
func (r *Reconciler) limitDrain(ctx context.Context, v *view) error {
	limit := drainLimit(v)
	if limit == nil {
		return nil
	}
	next := v.owner.DeepCopy()
	next.Spec.Deletion.NodeDrainTimeoutSeconds, next.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = limit, limit
	if err := r.Patch(ctx, v.owner, next); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("limit the drain of Machine %s: %w", v.owner.Name, err)
	}
	v.owner = next
	return nil
}
