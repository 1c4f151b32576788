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

// Whatever stands in a MachinePool's annotations, what a user wrote there stays, what is ours is true, and writing it
// again changes nothing.
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
		annotate(mp, offer)
		for annotation, name := range map[string]string{cpuAnnotation: "cpu", memoryAnnotation: "memory"} {
			have, there := before[annotation]
			quantity, known := offer["cpu"], offer != nil
			if name == "memory" {
				quantity = offer["memory"]
			}
			switch now, is := mp.Annotations[annotation]; {
			case there && have != ours[name]:
				if now != have {
					t.Errorf("%q: a user's %s %q became %q", wrote, name, have, now)
				}
			case known && now != quantity.String():
				t.Errorf("%q: %s %q, an instance has %s", wrote, name, now, quantity.String())
			case !known && is:
				t.Errorf("%q: %s %q, of which nothing is known", wrote, name, now)
			}
		}
		if text := mp.Annotations[v1beta1.CapacityAnnotation]; text != "" &&
			json.Unmarshal([]byte(text), &map[string]string{}) != nil {
			t.Errorf("wrote %q", text)
		}
		after := maps.Clone(mp.Annotations)
		if annotate(mp, offer); !maps.Equal(after, mp.Annotations) {
			t.Errorf("%v becomes %v when nothing has changed", after, mp.Annotations)
		}
	})
}

// The fields that a group once said something of are remembered, whatever stood in the annotation before.
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
		before := owned(g)
		remember(g)
		after := owned(g)
		for _, field := range before {
			if !slices.Contains(after, field) {
				t.Errorf("%q: %q is forgotten", text, field)
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
		if remember(g); g.Annotations[v1beta1.OwnedFieldsAnnotation] != was || strings.Join(owned(g), ",") != was {
			t.Errorf("%q becomes %q", was, g.Annotations[v1beta1.OwnedFieldsAnnotation])
		}
	})
}
