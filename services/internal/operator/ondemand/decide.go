package ondemand

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// snapshot is everything that a sweep depends on.
type snapshot struct {
	cluster, namespace string
	// ending: the Cluster is being deleted or does not exist. No machine is created then.
	ending bool
	// pods are the pods that request a machine by annotation. alive are the unfinished pods that request or have a
	// machine, by UID.
	pods  []*corev1.Pod
	alive map[types.UID]*corev1.Pod
	// machines and infra are the Machines and the NstanceMachines that were created for pods, by name.
	machines map[string]*clusterv1.Machine
	infra    map[string]*v1beta1.NstanceMachine
	nodes    map[string]*corev1.Node                // the Nodes of these machines, by provider ID
	pools    map[string]*v1beta1.NstanceMachinePool // by the name of the group
	shards   []shardView
}

type shardView struct {
	id     string
	usable bool // reachable and synced
	groups map[string]bool
}

// machineCreation is a machine to create for a pod. If the Machine exists already (field machine), only the
// NstanceMachine is missing.
type machineCreation struct {
	name    string
	pod     *corev1.Pod
	pool    *v1beta1.NstanceMachinePool
	machine *clusterv1.Machine
}

// machineRemoval is a machine to delete, because its pod no longer needs it. infra is nil if there is no
// NstanceMachine.
type machineRemoval struct {
	machine *clusterv1.Machine
	infra   *v1beta1.NstanceMachine
}

// nodeReservation is a Node to reserve for the pod of its machine.
type nodeReservation struct {
	node    *corev1.Node
	machine *clusterv1.Machine
}

// podWarning is a warning event about a pod that waits for a machine.
type podWarning struct {
	pod          *corev1.Pod
	reason, text string
}

// decision is the result of a sweep.
type decision struct {
	create  []machineCreation
	remove  []machineRemoval
	reserve []nodeReservation
	// tolerate are the pods that lack the toleration for the taint of their machine's Node.
	tolerate []*corev1.Pod
	warn     []podWarning
	// waiting: a pod waits for a change on a shard or for a pool.
	waiting bool
}

var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// machineName returns the name of a pod's machine, which depends only on the group and the pod's UID.
func machineName(group string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return group + "-" + strings.ToLower(encoding.EncodeToString(sum[:]))[:10]
}

// decideSweep returns the machines to create and delete, and the Nodes to reserve for their pods.
func decideSweep(w snapshot) (d decision) {
	asking := map[types.UID]*corev1.Pod{}
	for _, pod := range w.pods {
		asking[pod.UID] = pod
	}
	for _, m := range w.machines {
		if !m.DeletionTimestamp.IsZero() {
			continue
		}
		uid, infra, node := types.UID(m.Labels[v1beta1.PodUIDLabel]), w.infra[m.Name], w.nodeOf(m.Name)
		if pod := w.alive[uid]; pod == nil || !needsMachine(pod, m, infra, node) {
			if !w.hasGuest(m, node) {
				d.remove = append(d.remove, machineRemoval{m, infra})
			}
			continue
		}
		pod, pool := asking[uid], w.pools[m.Labels[v1beta1.GroupLabel]]
		switch {
		case infra != nil:
			if node != nil && node.DeletionTimestamp.IsZero() && !isReserved(node, m) {
				d.reserve = append(d.reserve, nodeReservation{node, m})
			}
			if pod != nil && pod.Spec.NodeName == "" {
				d.explainWait(pod, infra)
				d.addToleration(pod)
			}
		case pool == nil:
			d.waiting = true
			if pod != nil {
				d.warn = append(d.warn, podWarning{pod, v1beta1.WaitingForMachinePoolReason, "waiting for an " +
					"NstanceMachinePool of group " + m.Labels[v1beta1.GroupLabel]})
			}
		default:
			d.create = append(d.create, machineCreation{name: m.Name, pod: pod, pool: pool, machine: m})
		}
	}
	waiting := w.pods
	if w.ending {
		d.create, d.waiting, waiting = nil, false, nil
	}
	for _, pod := range waiting {
		// A pod that is on a Node needs no machine, nor does a pod that is being deleted.
		if w.alive[pod.UID] == nil || !pod.DeletionTimestamp.IsZero() || pod.Spec.NodeName != "" ||
			pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
			continue
		}
		w.decideMachine(&d, pod)
	}
	slices.SortFunc(d.create, func(a, b machineCreation) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(d.remove, func(a, b machineRemoval) int { return cmp.Compare(a.machine.Name, b.machine.Name) })
	return d
}

// nodeOf returns the Node of a machine, nil if there is none.
func (snap *snapshot) nodeOf(machine string) *corev1.Node {
	if infra := snap.infra[machine]; infra != nil && infra.Spec.ProviderID != "" {
		return snap.nodes[infra.Spec.ProviderID]
	}
	return nil
}

// needsMachine reports whether an unfinished pod needs its machine. A pod that runs on another Node does not need it. A
// pod that is on no Node yet needs it only as long as the pod's annotation requests an instance of the machine's group.
func needsMachine(pod *corev1.Pod, m *clusterv1.Machine, infra *v1beta1.NstanceMachine, node *corev1.Node) bool {
	switch {
	case pod.Spec.NodeName == "":
		group, ok := pod.Annotations[v1beta1.OnDemandGroupAnnotation]
		return ok && group == m.Labels[v1beta1.GroupLabel]
	case infra == nil || infra.Spec.ProviderID == "":
		// The provider ID of the machine's instance is unknown. If the machine has an instance, the pod may run on that
		// instance's Node.
		return infra != nil && infra.Status.InstanceID != ""
	}
	return node != nil && node.Name == pod.Spec.NodeName
}

// hasGuest reports whether another pod that requests an instance of the group runs on the machine's Node. The Node is
// reserved for one pod, but a pod that tolerates every taint can run there, too. If the machine were deleted, that
// other pod would be evicted.
func (snap *snapshot) hasGuest(m *clusterv1.Machine, node *corev1.Node) bool {
	return node != nil && slices.ContainsFunc(snap.pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName == node.Name && snap.alive[pod.UID] != nil &&
			string(pod.UID) != m.Labels[v1beta1.PodUIDLabel] &&
			pod.Annotations[v1beta1.OnDemandGroupAnnotation] == m.Labels[v1beta1.GroupLabel]
	})
}

// reservation returns the labels and the taint of a machine's Node.
func reservation(m *clusterv1.Machine) (labels map[string]string, taint corev1.Taint) {
	group, uid := m.Labels[v1beta1.GroupLabel], m.Labels[v1beta1.PodUIDLabel]
	return map[string]string{v1beta1.OnDemandGroupNodeLabel: group, v1beta1.OnDemandPodNodeLabel: uid},
		corev1.Taint{Key: v1beta1.OnDemandPodNodeLabel, Value: uid, Effect: corev1.TaintEffectNoSchedule}
}

// isReserved reports whether a Node has the labels and the taint of its machine.
func isReserved(node *corev1.Node, m *clusterv1.Machine) bool {
	labels, taint := reservation(m)
	for name, value := range labels {
		if node.Labels[name] != value {
			return false
		}
	}
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == taint.Key && t.Value == taint.Value && t.Effect == taint.Effect
	})
}

// toleration returns the toleration that a pod needs to run on its machine's Node.
func toleration(uid types.UID) corev1.Toleration {
	return corev1.Toleration{Key: v1beta1.OnDemandPodNodeLabel, Operator: corev1.TolerationOpEqual,
		Value: string(uid), Effect: corev1.TaintEffectNoSchedule}
}

// addToleration plans to add to a pod the toleration for its machine's Node, if the pod lacks it.
func (d *decision) addToleration(pod *corev1.Pod) {
	if !slices.Contains(pod.Spec.Tolerations, toleration(pod.UID)) && pod.DeletionTimestamp.IsZero() {
		d.tolerate = append(d.tolerate, pod)
	}
}

// explainWait plans a warning for a pod if its machine cannot be created at present.
func (d *decision) explainWait(pod *corev1.Pod, infra *v1beta1.NstanceMachine) {
	created := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.InstanceCreatedCondition)
	if created == nil || created.Status != metav1.ConditionFalse {
		return
	}
	switch created.Reason {
	case v1beta1.CreateFailedReason, v1beta1.RefusedReason, v1beta1.UnknownShardReason, v1beta1.WaitingForShardReason,
		v1beta1.UnreachableReason:
		d.warn = append(d.warn, podWarning{pod, created.Reason, "waiting for machine " + infra.Name + ": " +
			created.Message})
	}
}

// decideMachine decides whether a pod gets a machine.
func (snap *snapshot) decideMachine(d *decision, pod *corev1.Pod) {
	a := pod.Annotations
	group, shard, instanceType := a[v1beta1.OnDemandGroupAnnotation], a[v1beta1.OnDemandShardAnnotation],
		a[v1beta1.OnDemandInstanceTypeAnnotation]
	refuse := func(reason, text string) {
		d.waiting = true
		d.warn = append(d.warn, podWarning{pod, reason, "no machine created for this pod: " + text})
	}
	switch {
	case ident.ValidateName(group) != nil:
		refuse(v1beta1.RefusedReason, v1beta1.OnDemandGroupAnnotation+" is not the name of a group")
		return
	case shard != "" && ident.ValidateName(shard) != nil:
		refuse(v1beta1.UnknownShardReason, v1beta1.OnDemandShardAnnotation+" is not the ID of a shard")
		return
	case len(instanceType) > 128 || strings.ContainsFunc(instanceType, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}):
		refuse(v1beta1.RefusedReason, v1beta1.OnDemandInstanceTypeAnnotation+" is not an instance type")
		return
	}
	name := machineName(group, pod.UID)
	if m := snap.machines[name]; m != nil {
		if m.Labels[v1beta1.PodUIDLabel] != string(pod.UID) {
			refuse(v1beta1.RefusedReason, "a Machine "+name+" exists that was not created for this pod")
		}
		return
	}
	if snap.infra[name] != nil {
		// The NstanceMachine of an earlier machine of this pod still exists. Create no machine before that object is
		// deleted.
		return
	}
	known, has, unheard, silent := false, false, false, []string(nil)
	for _, s := range snap.shards {
		if !s.usable {
			silent = append(silent, s.id)
		}
		if shard != "" && s.id != shard {
			continue
		}
		known = true
		has = has || s.usable && s.groups[group]
		unheard = unheard || !s.usable
	}
	pool := snap.pools[group]
	switch {
	case shard != "" && !known:
		refuse(v1beta1.UnknownShardReason, "shard "+shard+" is not in the operator's configuration")
	case !has && !unheard && shard != "":
		refuse(v1beta1.RefusedReason, "shard "+shard+" has no group "+group)
	case !has && !unheard:
		refuse(v1beta1.RefusedReason, "no shard has a group "+group)
	case pool == nil || !pool.DeletionTimestamp.IsZero():
		// The operator imports the group as a pool once all shards answer.
		if len(silent) > 0 {
			refuse(v1beta1.WaitingForShardReason, "group "+group+" has no NstanceMachinePool yet, and is imported "+
				"when all shards answer: waiting for "+strings.Join(silent, ", "))
		} else {
			refuse(v1beta1.WaitingForMachinePoolReason, "group "+group+" has no NstanceMachinePool, or it is being "+
				"deleted")
		}
	default:
		d.addToleration(pod)
		d.create = append(d.create, machineCreation{name: name, pod: pod, pool: pool})
	}
}

// newObjects returns a Machine and its NstanceMachine. The caller makes the Machine the owner of the NstanceMachine
// when the UID of the Machine is known. The NstanceMachine must have no other owner: if the Machine is deleted before
// it has Cluster API's finalizer, the garbage collector must also delete the NstanceMachine.
//
// The Machine does not get the labels of the Node. Cluster API would copy them to the Node before the Node has the
// taint.
func (snap *snapshot) newObjects(c machineCreation) (*clusterv1.Machine, *v1beta1.NstanceMachine) {
	group, uid := c.pod.Annotations[v1beta1.OnDemandGroupAnnotation], string(c.pod.UID)
	if c.machine != nil {
		group = c.machine.Labels[v1beta1.GroupLabel]
	}
	labels := func() map[string]string {
		return map[string]string{clusterv1.ClusterNameLabel: snap.cluster, v1beta1.GroupLabel: group,
			v1beta1.PodUIDLabel: uid}
	}
	pod := map[string]string{v1beta1.PodAnnotation: c.pod.Namespace + "/" + c.pod.Name}
	owner := metav1.OwnerReference{APIVersion: v1beta1.GroupVersion.String(), Kind: "NstanceMachinePool",
		Name: c.pool.Name, UID: c.pool.UID}
	empty := ""
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: snap.namespace, Name: c.name, Labels: labels(), Annotations: pod,
			OwnerReferences: []metav1.OwnerReference{owner}},
		Spec: clusterv1.MachineSpec{
			ClusterName: snap.cluster,
			// Userdata comes from the server.
			Bootstrap: clusterv1.Bootstrap{DataSecretName: &empty},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceMachine", Name: c.name},
		},
	}
	infra := &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: snap.namespace, Name: c.name, Labels: labels(), Annotations: pod},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: group},
			Shard:        c.pod.Annotations[v1beta1.OnDemandShardAnnotation],
			InstanceType: c.pod.Annotations[v1beta1.OnDemandInstanceTypeAnnotation]},
	}
	return m, infra
}
