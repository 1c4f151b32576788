package ondemand

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// snapshot is everything that a sweep depends on.
type snapshot struct {
	cluster, namespace string
	// ending: the Cluster is being deleted or does not exist, so that no machine is created.
	ending bool
	// pods are the pods with the annotation. alive contains the UID of each pod that has a machine or the annotation:
	// true if the pod exists and has not finished.
	pods  []*corev1.Pod
	alive map[types.UID]bool
	// machines and infra are the objects created for pods, by name.
	machines map[string]*clusterv1.Machine
	infra    map[string]*v1beta1.NstanceMachine
	pools    map[string]*v1beta1.NstanceMachinePool // by the name of the group
	shards   []shardView
}

type shardView struct {
	id     string
	usable bool // reachable and synced
	groups map[string]bool
}

// machineCreation is a machine to create for a pod. If machine is set, only the NstanceMachine is missing.
type machineCreation struct {
	name    string
	pod     *corev1.Pod
	pool    *v1beta1.NstanceMachinePool
	machine *clusterv1.Machine
}

// podWarning is an event for a pod that gets no machine.
type podWarning struct {
	pod          *corev1.Pod
	reason, text string
}

// decision is the result of a sweep.
type decision struct {
	create []machineCreation
	remove []*clusterv1.Machine
	warn   []podWarning
	// waiting: a pod waits for a change on a shard or for a pool.
	waiting bool
}

var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// machineName returns the name of a pod's machine, which depends only on the group and the pod's UID.
func machineName(group string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return group + "-" + strings.ToLower(encoding.EncodeToString(sum[:]))[:10]
}

// decideSweep returns the machines to create and delete.
func decideSweep(w snapshot) (d decision) {
	asking := map[types.UID]*corev1.Pod{}
	for _, pod := range w.pods {
		asking[pod.UID] = pod
	}
	for _, m := range w.machines {
		if !m.DeletionTimestamp.IsZero() {
			continue
		}
		uid := types.UID(m.Labels[v1beta1.PodUIDLabel])
		pod, pool := asking[uid], w.pools[m.Labels[v1beta1.GroupLabel]]
		switch {
		case !w.alive[uid]:
			d.remove = append(d.remove, m)
		case w.infra[m.Name] != nil:
		case pod == nil:
			// The machine is incomplete, and the pod's annotations that complete it were removed.
			d.remove = append(d.remove, m)
		case pool == nil:
			d.waiting = true
		default:
			d.create = append(d.create, machineCreation{name: m.Name, pod: pod, pool: pool, machine: m})
		}
	}
	waiting := w.pods
	if w.ending {
		d.create, d.waiting, waiting = nil, false, nil
	}
	for _, pod := range waiting {
		// A running pod needs no other Node, and a pod that is being deleted will not use one.
		if !w.alive[pod.UID] || !pod.DeletionTimestamp.IsZero() || pod.Status.Phase != corev1.PodPending &&
			pod.Status.Phase != "" {
			continue
		}
		w.decideMachine(&d, pod)
	}
	slices.SortFunc(d.create, func(a, b machineCreation) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(d.remove, func(a, b *clusterv1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return d
}

// decideMachine decides whether a pod gets a machine.
func (w *snapshot) decideMachine(d *decision, pod *corev1.Pod) {
	a := pod.Annotations
	group, shard, instanceType := a[v1beta1.OnDemandGroupAnnotation], a[v1beta1.OnDemandShardAnnotation],
		a[v1beta1.OnDemandInstanceTypeAnnotation]
	refuse := func(reason, text string) {
		d.waiting = true
		d.warn = append(d.warn, podWarning{pod, reason, text})
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
	if m := w.machines[name]; m != nil {
		if m.Labels[v1beta1.PodUIDLabel] != string(pod.UID) {
			refuse(v1beta1.RefusedReason, "a Machine "+name+" exists that was not created for this pod")
		}
		return
	}
	if w.infra[name] != nil {
		// The rest of an earlier machine must be deleted first.
		return
	}
	known, has, unheard := false, false, false
	for _, s := range w.shards {
		if shard != "" && s.id != shard {
			continue
		}
		known = true
		has = has || s.usable && s.groups[group]
		unheard = unheard || !s.usable
	}
	pool := w.pools[group]
	switch {
	case shard != "" && !known:
		refuse(v1beta1.UnknownShardReason, "shard "+shard+" is not in the operator's configuration")
	case !has && !unheard && shard != "":
		refuse(v1beta1.RefusedReason, "shard "+shard+" has no group "+group)
	case !has && !unheard:
		refuse(v1beta1.RefusedReason, "no shard has a group "+group)
	case pool == nil || !pool.DeletionTimestamp.IsZero():
		// The group's pool is imported once all shards answer.
		d.waiting = true
	default:
		d.create = append(d.create, machineCreation{name: name, pod: pod, pool: pool})
	}
}

// newObjects returns the Machine and its NstanceMachine. The caller adds the owner reference to the Machine, because
// its UID is not known before its creation.
func (w *snapshot) newObjects(c machineCreation) (*clusterv1.Machine, *v1beta1.NstanceMachine) {
	group, uid := c.pod.Annotations[v1beta1.OnDemandGroupAnnotation], string(c.pod.UID)
	if c.machine != nil {
		group = c.machine.Labels[v1beta1.GroupLabel]
	}
	labels := func() map[string]string {
		return map[string]string{clusterv1.ClusterNameLabel: w.cluster, v1beta1.GroupLabel: group,
			v1beta1.PodUIDLabel: uid}
	}
	pod := map[string]string{v1beta1.PodAnnotation: c.pod.Namespace + "/" + c.pod.Name}
	owner := metav1.OwnerReference{APIVersion: v1beta1.GroupVersion.String(), Kind: "NstanceMachinePool",
		Name: c.pool.Name, UID: c.pool.UID}
	empty := ""
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: c.name, Labels: labels(), Annotations: pod,
			OwnerReferences: []metav1.OwnerReference{owner}},
		Spec: clusterv1.MachineSpec{
			ClusterName: w.cluster,
			// Userdata comes from the server.
			Bootstrap: clusterv1.Bootstrap{DataSecretName: &empty},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceMachine", Name: c.name},
		},
	}
	m.Labels[v1beta1.OnDemandGroupNodeLabel], m.Labels[v1beta1.OnDemandPodNodeLabel] = group, uid
	infra := &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: c.name, Labels: labels(), Annotations: pod,
			OwnerReferences: []metav1.OwnerReference{owner}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: group},
			Shard:        c.pod.Annotations[v1beta1.OnDemandShardAnnotation],
			InstanceType: c.pod.Annotations[v1beta1.OnDemandInstanceTypeAnnotation]},
	}
	return m, infra
}
