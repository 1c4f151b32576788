package release

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

// testChart installs the release's chart in a real API server. The chart's Deployment must have the image of the
// release, and the API server must accept a custom resource.
func (d *dist) testChart(t *testing.T) {
	helm := tool(t, "helm")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cluster, err := kube.Start(ctx, kube.Options{Dir: t.TempDir(), CoreCRDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "nstance-system"}}
	if err := cluster.Client.Create(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	output(t, []string{"KUBECONFIG=" + cluster.Kubeconfig, "HELM_CACHE_HOME=" + t.TempDir()}, helm, "install",
		"nstance-operator", filepath.Join(d.dir, "nstance-operator-"+number+".tgz"), "--namespace", namespace.Name,
		"--set", "config.cluster_id=example", "--set", "config.shards.a.registration_addr=a:8992", "--set",
		"config.shards.a.operator_addr=a:8993")
	deployment := &appsv1.Deployment{}
	if err := cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace.Name, Name: "nstance-operator"},
		deployment); err != nil {
		t.Fatal(err)
	}
	if got := deployment.Spec.Template.Spec.Containers[0].Image; got != "ghcr.io/nstance-kit/nstance-operator:"+number {
		t.Errorf("the operator's image is %s", got)
	}
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "workers"},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []string{"a"}}}
	for {
		// The API server takes a moment to serve new kinds.
		if err = cluster.Client.Create(ctx, pool); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
