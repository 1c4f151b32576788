package ondemand

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// FuzzPodAnnotation checks that podOfMachine returns only pods with a valid namespace and name, exactly as in the
// machine's annotation.
func FuzzPodAnnotation(f *testing.F) {
	for _, text := range []string{"apps/pod-1", "", "/", "apps/", "/pod", "apps/a/b", "apps/..", "Apps/pod", "a b/pod",
		"apps/\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			v1beta1.PodAnnotation: text}}}
		pod, ok := podOfMachine(m)
		if ok && (pod.String() != text || len(validation.IsDNS1123Label(pod.Namespace)) > 0 ||
			len(validation.IsDNS1123Subdomain(pod.Name)) > 0) {
			t.Errorf("%q is read as %v", text, pod)
		}
	})
}
