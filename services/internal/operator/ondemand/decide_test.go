package ondemand

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const clusterName = "prod--default"

func podOf(uid types.UID, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "pod-" + string(uid), UID: uid,
		Annotations: map[string]string{v1beta1.OnDemandGroupAnnotation: "gpu"}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, fn := range change {
		fn(pod)
	}
	return pod
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = phase }
}

func goes(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

// snapshotOf returns a snapshot with the given pods, the group "gpu" on shard a, and the group's pool.
func snapshotOf(pods ...*corev1.Pod) snapshot {
	w := snapshot{cluster: clusterName, namespace: "nstance-system", pods: pods,
		alive: map[types.UID]*corev1.Pod{}, nodes: map[string]*corev1.Node{},
		machines: map[string]*clusterv1.Machine{},
		infra:    map[string]*v1beta1.NstanceMachine{},
		pools: map[string]*v1beta1.NstanceMachinePool{"gpu": {ObjectMeta: metav1.ObjectMeta{Name: "pool",
			UID: "pool-uid"}, Spec: v1beta1.NstanceMachinePoolSpec{Group: "gpu"}}},
		shards: []shardView{{"a", true, map[string]bool{"gpu": true}}, {"b", true, map[string]bool{"gone": false}}}}
	for _, pod := range pods {
		if !podFinished(pod) {
			w.alive[pod.UID] = pod
		}
	}
	return w
}

// with adds to the snapshot the Machine that decideSweep creates for the pod with the given UID. If infra is true, it
// also adds the NstanceMachine.
func (snap snapshot) with(uid types.UID, infra bool) snapshot {
	pod := podOf(uid)
	m, i := snap.newObjects(machineCreation{name: machineName("gpu", uid), pod: pod, pool: snap.pools["gpu"]})
	snap.machines[m.Name] = m
	if infra {
		snap.infra[i.Name] = i
	}
	return snap
}

// onNode adds to the snapshot the Machine and the NstanceMachine of a pod. The NstanceMachine has an instance, whose
// Node is reserved for the pod.
func (snap snapshot) onNode(uid types.UID, node string) snapshot {
	snap = snap.with(uid, true)
	name := machineName("gpu", uid)
	snap.infra[name].Status.InstanceID, snap.infra[name].Spec.ProviderID = "i", "test:///"+node
	labels, taint := reservation(snap.machines[name])
	snap.nodes["test:///"+node] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: labels},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint}}}
	return snap
}

func boundTo(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = node }
}

func tolerant(pod *corev1.Pod) { pod.Spec.Tolerations = []corev1.Toleration{toleration(pod.UID)} }

// changedMind removes the annotation.
func changedMind(pod *corev1.Pod) { pod.Annotations = nil }

// besides adds to the snapshot a pod that no longer has the annotation, although its machine may still exist.
func (snap snapshot) besides(pod *corev1.Pod) snapshot {
	snap.alive[pod.UID] = pod
	return snap
}

func (snap snapshot) change(fn func(*snapshot)) snapshot { fn(&snap); return snap }

func clusterEnds(w *snapshot) { w.ending = true }

func TestDecide(t *testing.T) {
	name := machineName("gpu", "1")
	for title, c := range map[string]struct {
		state snapshot
		// want lists the decisions: "+name" creates a machine, "~name" completes it, and "-name" deletes it. "=node"
		// reserves a Node, "%pod" adds a toleration to a pod, and "!reason" is a warning. "?" means that a pod waits.
		want string
	}{
		"nothing":                   {snapshotOf(), ""},
		"Cluster ends":              {snapshotOf(podOf("1")).change(clusterEnds), ""},
		"Cluster ends, incomplete":  {snapshotOf(podOf("1")).with("1", false).change(clusterEnds), ""},
		"Cluster ends, pod deleted": {snapshotOf().with("1", true).change(clusterEnds), "-" + name},
		"a pod":                     {snapshotOf(podOf("1")), "+" + name + " %pod-1"},
		"without a phase yet":       {snapshotOf(podOf("1", inPhase(""))), "+" + name + " %pod-1"},
		"running without a machine": {snapshotOf(podOf("1", inPhase(corev1.PodRunning))), ""},
		"finished":                  {snapshotOf(podOf("1", inPhase(corev1.PodSucceeded))), ""},
		"on its way out":            {snapshotOf(podOf("1", goes)), ""},
		"has its machine":           {snapshotOf(podOf("1", inPhase(corev1.PodRunning), tolerant)).with("1", true), ""},
		"pending, has its machine":  {snapshotOf(podOf("1", tolerant)).with("1", true), ""},
		"pending, intolerant":       {snapshotOf(podOf("1")).with("1", true), "%pod-1"},
		"half made":                 {snapshotOf(podOf("1")).with("1", false), "~" + name},
		"half made, pod runs":       {snapshotOf(podOf("1", inPhase(corev1.PodRunning))).with("1", false), "~" + name},
		"half made, pool gone": {snapshotOf(podOf("1")).with("1", false).change(func(w *snapshot) {
			clear(w.pools)
		}), "!WaitingForMachinePool ?"},
		"on its way out with a machine": {snapshotOf(podOf("1", goes)).with("1", true), ""},
		"failed with a machine": {snapshotOf(podOf("1", inPhase(corev1.PodFailed))).with("1", true),
			"-" + name},
		"pod gone":            {snapshotOf().with("1", true), "-" + name},
		"pod gone, half made": {snapshotOf().with("1", false), "-" + name},
		"machine already goes": {snapshotOf().with("1", true).change(func(w *snapshot) {
			w.machines[name].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}),
			""},
		"re-created under another UID": {snapshotOf(podOf("2")).with("1", true), "+" + machineName("gpu", "2") + " -" +
			name + " %pod-2"},
		"annotation taken off":            {snapshotOf().with("1", true).besides(podOf("1", changedMind)), "-" + name},
		"annotation taken off, half made": {snapshotOf().with("1", false).besides(podOf("1", changedMind)), "-" + name},
		"annotation taken off, runs": {snapshotOf().onNode("1", "n").besides(podOf("1", changedMind, boundTo("n"))),
			""},
		"another group": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, "none"))).with("1", true),
			"-" + name + " !Refused ?"},
		"another group, runs": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, "none"),
			boundTo("n"))).onNode("1", "n"), ""},
		"bound, not started":     {snapshotOf(podOf("1", boundTo("other"))), ""},
		"runs on its machine":    {snapshotOf(podOf("1", boundTo("n"))).onNode("1", "n"), ""},
		"elsewhere, no instance": {snapshotOf(podOf("1", boundTo("other"))).with("1", true), "-" + name},
		"elsewhere, half made":   {snapshotOf(podOf("1", boundTo("other"))).with("1", false), "-" + name},
		"elsewhere, provider ID unknown": {snapshotOf(podOf("1", boundTo("other"))).with("1", true).change(
			func(w *snapshot) { w.infra[name].Status.InstanceID = "i" }), ""},
		"elsewhere, has a Node": {snapshotOf(podOf("1", boundTo("other"))).onNode("1", "n"), "-" + name},
		"elsewhere, no Node yet": {snapshotOf(podOf("1", boundTo("other"))).onNode("1", "n").change(func(w *snapshot) {
			clear(w.nodes)
		}), "-" + name},
		"pod gone, guest runs": {snapshotOf(podOf("2", boundTo("n"))).onNode("1", "n"), ""},
		"pod gone, guest of another group": {snapshotOf(podOf("2", boundTo("n"),
			annotated(v1beta1.OnDemandGroupAnnotation, "cpu"))).onNode("1", "n"), "-" + name},
		"pod gone, guest finished": {snapshotOf(podOf("2", boundTo("n"), inPhase(corev1.PodFailed))).onNode("1", "n"),
			"-" + name},
		"Node not reserved": {snapshotOf(podOf("1", tolerant)).onNode("1", "n").change(func(w *snapshot) {
			w.nodes["test:///n"].Labels = nil
		}), "=n"},
		"Node without its taint": {snapshotOf(podOf("1", tolerant)).onNode("1", "n").change(func(w *snapshot) {
			w.nodes["test:///n"].Spec.Taints = nil
		}), "=n"},
		"Node reserved for another": {snapshotOf(podOf("1", tolerant)).onNode("1", "n").change(func(w *snapshot) {
			w.nodes["test:///n"].Spec.Taints[0].Value = "2"
		}), "=n"},
		"not created": {snapshotOf(podOf("1", tolerant)).with("1", true).change(func(w *snapshot) {
			w.infra[name].Status.Conditions = []metav1.Condition{{Type: v1beta1.InstanceCreatedCondition,
				Status: metav1.ConditionFalse, Reason: v1beta1.CreateFailedReason}}
		}), "!CreateFailed"},
		"being created": {snapshotOf(podOf("1", tolerant)).with("1", true).change(func(w *snapshot) {
			w.infra[name].Status.Conditions = []metav1.Condition{{Type: v1beta1.InstanceCreatedCondition,
				Status: metav1.ConditionFalse, Reason: v1beta1.WaitingForMachineReason}}
		}), ""},
		"rest of the one before": {snapshotOf(podOf("1")).with("1", true).change(func(w *snapshot) {
			delete(w.machines, name)
		}),
			""},
		"name is taken": {snapshotOf(podOf("1")).with("1", true).change(func(w *snapshot) {
			w.machines[name].Labels[v1beta1.PodUIDLabel] = "9"
			w.alive["9"] = podOf("9")
		}),
			"!Refused ?"},
		"group unknown": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, "cpu"))),
			"!Refused ?"},
		"group being deleted": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, "gone"))),
			"!Refused ?"},
		"group is no name": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, "a--b"))),
			"!Refused ?"},
		"group is empty": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, ""))),
			"!Refused ?"},
		"shard": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandShardAnnotation, "a"))), "+" +
			name + " %pod-1"},
		"shard unknown": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandShardAnnotation, "x"))),
			"!UnknownShard ?"},
		"shard is no name": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandShardAnnotation, "X"))),
			"!UnknownShard ?"},
		"shard without the group": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandShardAnnotation, "b"))),
			"!Refused ?"},
		"shard silent": {snapshotOf(
			podOf("1", annotated(v1beta1.OnDemandShardAnnotation, "b"))).change(func(w *snapshot) {
			w.shards[1].usable = false
		}), "+" + name + " %pod-1"},
		"group may be on a silent": {snapshotOf(podOf("1")).change(func(w *snapshot) {
			w.shards = w.shards[1:]
			w.shards[0].usable = false
		}), "+" + name + " %pod-1"},
		"unknown, one shard silent": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, "cpu"))).change(
			func(w *snapshot) {
				w.shards[1].usable = false
			}), "!WaitingForShard ?"},
		"no pool yet": {snapshotOf(podOf("1")).change(func(w *snapshot) { clear(w.pools) }),
			"!WaitingForMachinePool ?"},
		"pool goes": {snapshotOf(podOf("1")).change(func(w *snapshot) {
			w.pools["gpu"].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}), "!WaitingForMachinePool ?"},
		"instance type is none": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandInstanceTypeAnnotation,
			"m5 large"))), "!Refused ?"},
		"instance type is too long": {snapshotOf(podOf("1", annotated(v1beta1.OnDemandInstanceTypeAnnotation,
			strings.Repeat("m", 129)))), "!Refused ?"},
		"one bad pod among good ones": {snapshotOf(podOf("1"), podOf("2",
			annotated(v1beta1.OnDemandGroupAnnotation, "cpu"))), "+" + name + " %pod-1 !Refused ?"},
	} {
		t.Run(title, func(t *testing.T) {
			d := decideSweep(c.state)
			var got []string
			for _, one := range d.create {
				got = append(got, map[bool]string{true: "~", false: "+"}[one.machine != nil]+one.name)
			}
			for _, one := range d.remove {
				got = append(got, "-"+one.machine.Name)
			}
			for _, one := range d.reserve {
				got = append(got, "="+one.node.Name)
			}
			for _, pod := range d.tolerate {
				got = append(got, "%"+pod.Name)
			}
			for _, one := range d.warn {
				got = append(got, "!"+one.reason)
			}
			if d.waiting {
				got = append(got, "?")
			}
			if diff := cmp.Diff(c.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestObjects(t *testing.T) {
	pod := podOf("0e7f6d2c-9a3b-4d1e-8f70-1b2c3d4e5f60", annotated(v1beta1.OnDemandShardAnnotation, "a"),
		annotated(v1beta1.OnDemandInstanceTypeAnnotation, "p5.48xlarge"))
	w := snapshotOf(pod)
	d := decideSweep(w)
	m, infra := w.newObjects(d.create[0])
	if m.Name != infra.Name || m.Spec.InfrastructureRef.Name != infra.Name || m.Spec.ClusterName != clusterName ||
		*m.Spec.Bootstrap.DataSecretName != "" {
		t.Errorf("%+v", m)
	}
	// newObjects sets no owner, because the caller makes the Machine the only owner. With a second owner, the garbage
	// collector would keep the NstanceMachine after the deletion of the Machine.
	if len(infra.OwnerReferences) != 0 {
		t.Errorf("%+v", infra.OwnerReferences)
	}
	if infra.Spec.GroupRef.Name != "gpu" || infra.Spec.Shard != "a" || infra.Spec.InstanceType != "p5.48xlarge" ||
		infra.Spec.InstanceID != "" {
		t.Errorf("%+v", infra.Spec)
	}
	// The Machine has no labels for the Node. Cluster API would copy them to the Node before the Node has its taint.
	for key, want := range map[string]string{v1beta1.OnDemandGroupNodeLabel: "",
		v1beta1.OnDemandPodNodeLabel: "", v1beta1.PodUIDLabel: string(pod.UID),
		v1beta1.GroupLabel: "gpu", clusterv1.ClusterNameLabel: clusterName} {
		if m.Labels[key] != want {
			t.Errorf("label %s is %q", key, m.Labels[key])
		}
	}
	if m.Annotations[v1beta1.PodAnnotation] != "apps/"+pod.Name || len(m.OwnerReferences) != 1 ||
		m.OwnerReferences[0].UID != "pool-uid" || m.OwnerReferences[0].Controller != nil {
		t.Errorf("%+v", m.ObjectMeta)
	}
}

// TestNames checks that the machines of 1,000 pods get different, valid names. A known pod must always get the same
// name.
func TestNames(t *testing.T) {
	var all []string
	for i := range 1000 {
		name := machineName(strings.Repeat("g", 32), types.UID(fmt.Sprint(i)))
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Fatalf("%s: %v", name, problems)
		}
		all = append(all, name)
	}
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 1000 {
		t.Errorf("%d different names of 1000", n)
	}
	if got, want := machineName("gpu", "0e7f6d2c-9a3b-4d1e-8f70-1b2c3d4e5f60"), "gpu-7ipwtvppnv"; got != want {
		t.Errorf("the name has changed: %s, want %s", got, want)
	}
}

// FuzzAnnotations checks that a pod with any annotations gets either a valid machine or a warning.
func FuzzAnnotations(f *testing.F) {
	f.Add("gpu", "a", "p5.48xlarge")
	f.Add("gpu", "", "")
	f.Add("a--b", "A", "m5 large")
	f.Add("", "x", "\x00")
	f.Fuzz(func(t *testing.T, group, shard, instanceType string) {
		w := snapshotOf(podOf("1", annotated(v1beta1.OnDemandGroupAnnotation, group),
			annotated(v1beta1.OnDemandShardAnnotation, shard),
			annotated(v1beta1.OnDemandInstanceTypeAnnotation, instanceType)))
		d := decideSweep(w)
		if len(d.create)+len(d.warn) != 1 {
			t.Fatalf("%d machines, %d warnings", len(d.create), len(d.warn))
		}
		for _, c := range d.create {
			m, infra := w.newObjects(c)
			if problems := validation.IsDNS1123Label(m.Name); len(problems) > 0 || infra.Spec.GroupRef.Name != "gpu" ||
				infra.Spec.Shard != "" && infra.Spec.Shard != "a" ||
				len(infra.Spec.InstanceType) > 128 || strings.ContainsAny(infra.Spec.InstanceType, " \n\x00") {
				t.Errorf("%+v", infra)
			}
		}
	})
}
