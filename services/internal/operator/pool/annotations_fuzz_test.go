package pool

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/capacity"
)

// FuzzCapacityAnnotation checks that the operator keeps annotations that a user wrote, and that its own annotations are
// correct. Writing them a second time must change nothing.
func FuzzCapacityAnnotation(f *testing.F) {
	f.Add(`{"cpu":"2","memory":"8Gi"}`, "2", "8Gi", "m5.large")
	f.Add(`{"cpu":"2"}`, "4", "", "m5.large")
	f.Add(`null`, "", "", "")
	f.Add(`{"cpu":2}`, "2", "x", "t3.micro")
	f.Add(`{"cpu":""}`, "", "\x00", "none")
	f.Fuzz(func(t *testing.T, wrote, cpu, memory, instanceType string) {
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
		offer := capacity.Of(instanceType)
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

// FuzzOwnedFields checks that [v1beta1.OwnedFieldsAnnotation] lists all fields that a group sets or has set before. The
// annotation may contain any text before it is updated.
func FuzzOwnedFields(f *testing.F) {
	f.Add("", "m5.large", "a")
	f.Add("vars", "", "")
	f.Add("vars,vars,,x y", "m5.large", "a")
	f.Add(",", "", "\x00")
	f.Fuzz(func(t *testing.T, text, instanceType, name string) {
		g := &v1beta1.NstanceShardGroup{Spec: v1beta1.NstanceShardGroupSpec{InstanceType: instanceType}}
		if name != "" {
			g.Spec.Vars = map[string]string{name: "1"}
		}
		if text != "" {
			g.Annotations = map[string]string{v1beta1.OwnedFieldsAnnotation: text}
		}
		before := ownedFields(g)
		rememberOwnedFields(g)
		after := ownedFields(g)
		for _, field := range before {
			if !slices.Contains(after, field) {
				t.Errorf("%q: the field %q was lost", text, field)
			}
		}
		if instanceType != "" && !slices.Contains(after, instanceTypeField) || name != "" &&
			!slices.Contains(after, varsField) {
			t.Errorf("%q: %v", text, after)
		}
		if len(after) > len(before)+2 {
			t.Errorf("%q: %v", text, after)
		}
		was := g.Annotations[v1beta1.OwnedFieldsAnnotation]
		if rememberOwnedFields(g); g.Annotations[v1beta1.OwnedFieldsAnnotation] != was ||
			strings.Join(ownedFields(g), ",") != was {
			t.Errorf("a second write changed %q to %q", was, g.Annotations[v1beta1.OwnedFieldsAnnotation])
		}
	})
}
