package machine

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// step is what is to be done next. Those before wait are followed by another decision, those after it come when the
// status is stored.
type step string

const (
	choose  step = "choose"  // store the finalizer, the shard and an ID for the instance
	keep    step = "keep"    // store the finalizer and the provider ID
	create  step = "create"  // CreateInstance
	ask     step = "ask"     // GetInstanceStatus
	destroy step = "destroy" // DeleteInstance
	wait    step = "wait"    // nothing, until something changes

	deleteOwner step = "delete owner" // the Machine goes, and this one with it
	deleteSelf  step = "delete self"
	release     step = "release" // drop the finalizer
)

// view is all that a decision rests on.
type view struct {
	machine *v1beta1.NstanceMachine
	// owner is the Machine that this one belongs to, nil if there is none (yet); ownerGone: there was one.
	owner     *clusterv1.Machine
	ownerGone bool
	// poolGone: the pool of a pool machine is being deleted, or is no more.
	poolGone bool
	paused   bool
	// shards are those of the configuration file, in order.
	shards []shardView
	// answer is what a call in this pass said of the instance; newer than any mirror.
	answer *answer
	// fault is why the last call did not do.
	fault *fault
	now   metav1.Time
}

// shardView is what one shard's mirror says of the machine's group and instance.
type shardView struct {
	id                string
	reachable, synced bool
	group             *nstancev1.GroupStatus
	instance          *nstancev1.InstanceStatus
}

func (s *shardView) hasGroup() bool { return s.group != nil && !s.group.GetDeleting() }

// answer is a leader's word on the instance: nil means that there is none.
type answer struct{ instance *nstancev1.InstanceStatus }

// decision is the next step, with what it needs, and the status as it should then be.
type decision struct {
	step        step
	shard, kind string // choose
	providerID  string // keep
	status      v1beta1.NstanceMachineStatus
	// warning, when set, is an event's reason and text that no condition tells of.
	warning, text string
}

// isPoolMachine: the instance belongs to its group, which made it.
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

func decide(v view) decision {
	m := v.machine
	d := decision{step: wait, status: *m.Status.DeepCopy()}
	if v.paused {
		v.set(&d, v1beta1.PausedCondition, true, v1beta1.PausedReason,
			"the machine or its cluster is paused: nothing is done")
		return d
	}
	v.set(&d, v1beta1.PausedCondition, false, v1beta1.NotPausedReason, "")
	d.status.ObservedGeneration = m.Generation
	gone := meta.IsStatusConditionTrue(m.Status.Conditions, v1beta1.ServerDeletedCondition)
	switch {
	case !m.DeletionTimestamp.IsZero():
		v.end(&d, gone)
	case gone:
		v.discard(&d)
	case v.ownerGone && !isPoolMachine(m):
		d.step = deleteSelf
	case m.Spec.InstanceID == "" || m.Spec.Shard == "":
		v.place(&d)
	default:
		v.live(&d)
	}
	return d
}

// mayCreate says whether Cluster API's contract allows to ask for the instance, and if not, why.
func (v *view) mayCreate() (why string) {
	switch {
	case v.owner == nil:
		return "no Machine refers to this one yet"
	case !v.owner.DeletionTimestamp.IsZero():
		return "the Machine is being deleted"
	case v.owner.Spec.Bootstrap.DataSecretName == nil:
		return "the Machine's bootstrap.dataSecretName is not set yet (it may be empty: userdata is the server's)"
	}
	return ""
}

// place finds a shard for the instance.
func (v *view) place(d *decision) {
	m := v.machine
	refuse := func(reason, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		v.set(d, v1beta1.InstanceCreatedCondition, false, reason, text)
		v.set(d, v1beta1.ReadyCondition, false, reason, text)
	}
	if isPoolMachine(m) {
		// Its pool's controller makes it with both; it asks for nothing.
		refuse(v1beta1.WaitingForInstanceReason, "the machine of a pool names no instance")
		return
	}
	if why := v.mayCreate(); why != "" {
		refuse(v1beta1.WaitingForMachineReason, "%s", why)
		return
	}
	wanted, group := m.Spec.Shard, m.Spec.GroupRef.Name
	if wanted == "" {
		// Set by whoever made the Machine to spread machines (Cluster API contract, failure domains).
		wanted = v.owner.Spec.FailureDomain
	}
	if wanted != "" && v.shard(wanted) == nil {
		refuse(v1beta1.UnknownShardReason, "shard %s is not in the operator's configuration", wanted)
		return
	}
	unheard := ""
	for i := range v.shards {
		s := &v.shards[i]
		if wanted != "" && s.id != wanted {
			continue
		}
		switch {
		case !s.reachable || !s.synced:
			unheard = s.id
		case s.hasGroup():
			d.step, d.shard, d.kind = choose, s.id, s.group.GetKind()
			return
		}
	}
	switch {
	case unheard != "":
		refuse(v1beta1.WaitingForShardReason, "shard %s does not answer yet", unheard)
	case wanted != "":
		refuse(v1beta1.RefusedReason, "shard %s has no group %s", wanted, group)
	default:
		refuse(v1beta1.RefusedReason, "no shard has a group %s", group)
	}
}

// live follows an instance that has its ID.
func (v *view) live(d *decision) {
	m, s := v.machine, v.shard(v.machine.Spec.Shard)
	if !v.heard(d, s) {
		return
	}
	if !controllerutil.ContainsFinalizer(m, v1beta1.MachineFinalizer) {
		d.step = keep
		return
	}
	i := v.instance(s)
	seen := m.Status.InstanceID != "" || isPoolMachine(m)
	switch {
	case i != nil && i.GetState() != stateDeleted:
		v.follow(d, i)
	case i != nil, v.answer != nil:
		v.goneNow(d)
	case v.fault != nil:
		reason, text := v.fault.reason, v.fault.text
		if !seen {
			v.set(d, v1beta1.InstanceCreatedCondition, false, reason, text)
			v.set(d, v1beta1.ReadyCondition, false, reason, text)
		}
	case seen:
		// Not in the mirror may mean: not yet.
		d.step = ask
	default:
		if why := v.mayCreate(); why != "" {
			v.set(d, v1beta1.InstanceCreatedCondition, false, v1beta1.WaitingForMachineReason, why)
			v.set(d, v1beta1.ReadyCondition, false, v1beta1.WaitingForMachineReason, why)
			return
		}
		d.step = create
	}
}

// heard notes whether the shard is heard of. Only then is anything to be done.
func (v *view) heard(d *decision, s *shardView) bool {
	id := v.machine.Spec.Shard
	switch {
	case s == nil:
		v.set(d, v1beta1.ShardReachableCondition, false, v1beta1.UnknownShardReason, "shard "+id+
			" is not in the operator's configuration")
	case !s.reachable:
		v.set(d, v1beta1.ShardReachableCondition, false, v1beta1.UnreachableReason, "shard "+id+" does not answer")
	case !s.synced:
		v.set(d, v1beta1.ShardReachableCondition, false, v1beta1.WaitingForShardReason, "shard "+id+
			" has not told of its instances yet")
	default:
		v.set(d, v1beta1.ShardReachableCondition, true, v1beta1.ReachableReason, "")
		return true
	}
	if !meta.IsStatusConditionPresentAndEqual(d.status.Conditions, v1beta1.InstanceCreatedCondition,
		metav1.ConditionTrue) {
		c := meta.FindStatusCondition(d.status.Conditions, v1beta1.ShardReachableCondition)
		v.set(d, v1beta1.InstanceCreatedCondition, false, c.Reason, c.Message)
		v.set(d, v1beta1.ReadyCondition, false, c.Reason, c.Message)
	}
	return false
}

// instance is the newest word on the instance, nil if there is none.
func (v *view) instance(s *shardView) *nstancev1.InstanceStatus {
	if v.answer != nil {
		return v.answer.instance
	}
	return s.instance
}

// goneNow stores that the server said so, before anything follows from it.
func (v *view) goneNow(d *decision) {
	d.status.State = stateDeleted
	text := "the server says that instance " + v.machine.Spec.InstanceID + " is gone"
	v.set(d, v1beta1.ServerDeletedCondition, true, v1beta1.InstanceGoneReason, text)
	v.discard(d)
}

// discard lets the Machine of an instance that is gone go: the Machine, so that whoever owns it makes another (Cluster
// API contract).
func (v *view) discard(d *decision) {
	d.status.Ready = false
	v.set(d, v1beta1.ReadyCondition, false, v1beta1.InstanceGoneReason, "the instance is gone")
	switch {
	case v.owner == nil:
		d.step = deleteSelf
	case v.owner.DeletionTimestamp.IsZero():
		d.step = deleteOwner
	}
}

// end brings a machine that is being deleted to its end.
func (v *view) end(d *decision, gone bool) {
	m := v.machine
	if !controllerutil.ContainsFinalizer(m, v1beta1.MachineFinalizer) {
		return
	}
	d.status.Ready = false
	s := v.shard(m.Spec.Shard)
	switch {
	case gone, m.Spec.InstanceID == "", m.Spec.Shard == "":
		d.step = release
		return
	case isPoolMachine(m) && v.poolGone:
		// The group's fate is its instances'.
		d.step = release
		return
	case s == nil:
		d.step = release
		d.warning, d.text = v1beta1.ShardRemovedReason, "shard "+m.Spec.Shard+
			" is not in the operator's configuration any more: if instance "+m.Spec.InstanceID+
			" is still there, it stays"
		return
	}
	v.set(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "the instance is being deleted")
	if !v.heard(d, s) {
		v.set(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "the instance can only be deleted once shard "+
			m.Spec.Shard+" answers")
		return
	}
	i := v.instance(s)
	switch {
	case v.answer != nil && i == nil, i.GetState() == stateDeleted:
		d.step = release
	case i.GetState() == stateDeleting:
		d.status.State = stateDeleting
	case v.fault != nil:
		v.set(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, v.fault.text)
	case m.Status.State == stateDeleting && i == nil:
		d.step = ask
	case m.Status.State == stateDeleting:
		// The server has said so, and the mirror will.
	default:
		d.step = destroy
	}
}

// order is how an instance's states follow each other. A mirror that lags behind an answer does not take anything back.
var order = []string{"", "reserved", "created", "registered", stateDeleting, stateDeleted}

const (
	stateDeleting = "deleting"
	stateDeleted  = "deleted"
)

func later(a, b string) string {
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}
