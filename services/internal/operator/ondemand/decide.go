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

// world is all that a sweep rests on.
type world struct {
	cluster, namespace string
	// pods are those with the annotation. alive are the UIDs of pods that are there and have not finished; of those
	// that machines were made for, and of those in pods, it knows all.
	pods  []*corev1.Pod
	alive map[types.UID]bool
	// machines and infra are those that were made for pods, by name.
	machines map[string]*clusterv1.Machine
	infra    map[string]*v1beta1.NstanceMachine
	pools    map[string]*v1beta1.NstanceMachinePool // by the name of the group
	shards   []shardView
}

type shardView struct {
	id     string
	heard  bool // its mirror can be believed
	groups map[string]bool
}

// creation is a machine to make for a pod. With machine set that part is there already.
type creation struct {
	name    string
	pod     *corev1.Pod
	pool    *v1beta1.NstanceMachinePool
	machine *clusterv1.Machine
}

// warning is what a pod is to be told, once.
type warning struct {
	pod          *corev1.Pod
	reason, text string
}

// decision is what a sweep is to do.
type decision struct {
	create []creation
	remove []*clusterv1.Machine
	warn   []warning
	// waiting: some pods have to wait for the shards to say something else, or for a pool.
	waiting bool
}

var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// machineName is the name of a pod's machine: the same for the same pod, whoever asks.
func machineName(group string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return group + "-" + strings.ToLower(encoding.EncodeToString(sum[:]))[:10]
}

func decide(w world) (d decision) {
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
			// It was not finished, and the pod does not say any more how.
			d.remove = append(d.remove, m)
		case pool == nil:
			d.waiting = true
		default:
			d.create = append(d.create, creation{name: m.Name, pod: pod, pool: pool, machine: m})
		}
	}
	for _, pod := range w.pods {
		// One that is bound and running does not need another Node; one that is on its way out will not use it.
		if !w.alive[pod.UID] || !pod.DeletionTimestamp.IsZero() || pod.Status.Phase != corev1.PodPending &&
			pod.Status.Phase != "" {
			continue
		}
		w.place(&d, pod)
	}
	slices.SortFunc(d.create, func(a, b creation) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(d.remove, func(a, b *clusterv1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return d
}

// place decides whether a pod that is to have a machine gets one.
func (w *world) place(d *decision, pod *corev1.Pod) {
	a := pod.Annotations
	group, shard, instanceType := a[v1beta1.OnDemandGroupAnnotation], a[v1beta1.OnDemandShardAnnotation],
		a[v1beta1.OnDemandInstanceTypeAnnotation]
	refuse := func(reason, text string) {
		d.waiting = true
		d.warn = append(d.warn, warning{pod, reason, text})
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
			refuse(v1beta1.RefusedReason, "Machine "+name+" belongs to something else")
		}
		return
	}
	if w.infra[name] != nil {
		// What is left of the one before has to go first.
		return
	}
	known, has, unheard := false, false, false
	for _, s := range w.shards {
		if shard != "" && s.id != shard {
			continue
		}
		known = true
		has = has || s.heard && s.groups[group]
		unheard = unheard || !s.heard
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
		// A group's pool is imported once all shards answer.
		d.waiting = true
	default:
		d.create = append(d.create, creation{name: name, pod: pod, pool: pool})
	}
}

// objects are the Machine and its NstanceMachine. The Machine's UID is not known before it is there, so the reference
// to it comes later.
func (w *world) objects(c creation) (*clusterv1.Machine, *v1beta1.NstanceMachine) {
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
			// Userdata is the server's.
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
