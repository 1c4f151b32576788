package pool

import (
	"encoding/json"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// FuzzCapacityAnnotation checks that the operator keeps annotations that a user wrote, and that its own annotations are
// correct. Writing them a second time must change nothing.
func FuzzCapacityAnnotation(f *testing.F) {
	f.Add(`{"cpu":"2","memory":"8Gi"}`, "2", "8Gi", true, int64(2))
	f.Add(`{"cpu":"2"}`, "4", "", true, int64(2))
	f.Add(`null`, "", "", false, int64(0))
	f.Add(`{"cpu":2}`, "2", "x", true, int64(1))
	f.Add(`{"cpu":""}`, "", "\x00", false, int64(0))
	f.Fuzz(func(t *testing.T, wrote, cpu, memory string, known bool, cpus int64) {
		mp := &clusterv1.MachinePool{}
		for name, value := range map[string]string{v1beta1.CapacityAnnotation: wrote, cpuAnnotation: cpu,
			memoryAnnotation: memory} {
			if value != "" {
				metav1.SetMetaDataAnnotation(&mp.ObjectMeta, name, value)
			}
		}
		before := maps.Clone(mp.Annotations)
		ours := map[string]string{}
		if json.Unmarshal([]byte(wrote), &ours) != nil {
			ours = nil
		}
		var offer corev1.ResourceList
		if known {
			offer = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cpus, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(8<<30, resource.BinarySI)}
		}
		annotateCapacity(mp, offer)
		for annotation, name := range map[string]string{cpuAnnotation: "cpu", memoryAnnotation: "memory"} {
			have, there := before[annotation]
			quantity, known := offer["cpu"], offer != nil
			if name == "memory" {
				quantity = offer["memory"]
			}
			switch now, is := mp.Annotations[annotation]; {
			case there && have != ours[name]:
				if now != have {
					t.Errorf("%q: annotation %s of the user changed from %q to %q", wrote, name, have, now)
				}
			case known && now != quantity.String():
				t.Errorf("%q: %s %q, want %s", wrote, name, now, quantity.String())
			case !known && is:
				t.Errorf("%q: %s %q, want none, as the capacity is unknown", wrote, name, now)
			}
		}
		if text := mp.Annotations[v1beta1.CapacityAnnotation]; text != "" &&
			json.Unmarshal([]byte(text), &map[string]string{}) != nil {
			t.Errorf("the annotation %q is not a JSON object of strings", text)
		}
		after := maps.Clone(mp.Annotations)
		if annotateCapacity(mp, offer); !maps.Equal(after, mp.Annotations) {
			t.Errorf("a second write changed %v to %v", after, mp.Annotations)
		}
	})
}

// FuzzOwnedFields checks that [v1beta1.OwnedFieldsAnnotation] has all fields that a group sets or has set before. The
// annotation may contain any text before it is updated.
func FuzzOwnedFields(f *testing.F) {
	f.Add("", `{"instance_type":"m5.large"}`)
	f.Add(`{"vars":null}`, `{"vars":{"a":"1"}}`)
	f.Add(`{"vars":{"a":{"b":7}},"x":[{}]}`, `{"vars":"x","rollout":{}}`)
	f.Add("vars,vars", `{"":{"\u0000":null}}`)
	f.Fuzz(func(t *testing.T, text, settings string) {
		g := &v1beta1.NstanceShardGroup{Spec: v1beta1.NstanceShardGroupSpec{Config: jsonOf(settings)}}
		if text != "" {
			g.Annotations = map[string]string{v1beta1.OwnedFieldsAnnotation: text}
		}
		before := ownedFields(g)
		rememberOwnedFields(g)
		after := ownedFields(g)
		for _, part := range []map[string]any{before, configTree(g.Spec.Config)} {
			if lost := lostPath(part, after); lost != "" {
				t.Errorf("%q, %q: the field %s was lost", text, settings, lost)
			}
		}
		was := g.Annotations[v1beta1.OwnedFieldsAnnotation]
		if rememberOwnedFields(g); g.Annotations[v1beta1.OwnedFieldsAnnotation] != was ||
			len(after) > 0 && treeJSON(ownedFields(g)) != was {
			t.Errorf("a second write changed %q to %q", was, g.Annotations[v1beta1.OwnedFieldsAnnotation])
		}
	})
}

// lostPath returns a path that the first tree has and the second does not, or "".
func lostPath(tree, other map[string]any) string {
	for name, value := range tree {
		found, has := other[name]
		below, _ := value.(map[string]any)
		object, _ := found.(map[string]any)
		if !has {
			return "/" + name
		}
		if lost := lostPath(below, object); lost != "" {
			return "/" + name + lost
		}
	}
	return ""
}
