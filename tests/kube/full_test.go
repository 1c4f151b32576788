package kube

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() {
		code, done, err := Isolate(func() error {
			return Prepare(context.Background(), Options{ControllerManager: true, Scheduler: true, Kwok: true,
				CAPI: true})
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if done {
			os.Exit(code)
		}
	}
	os.Exit(m.Run())
}

// TestCluster starts all components. A Node that the test creates must run a pod. It must become not ready when its
// machine is gone. Cluster API's webhooks must reject invalid objects and set defaults in valid ones.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	began := time.Now()
	c, err := Start(ctx, Options{Dir: t.TempDir(), ControllerManager: true, Scheduler: true, Kwok: true, CAPI: true,
		CRDs: []string{"../../config/crd"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop()
		if t.Failed() {
			for _, path := range c.Logs() {
				t.Logf("%s\n%s", path, Tail(path, 10))
			}
		}
	})
	t.Logf("started in %s", time.Since(began).Round(10*time.Millisecond))

	nodes := &Nodes{Client: c.Client}
	vm := &nstancev1.InstanceStatus{InstanceId: "knc-1", ProviderId: "tmux://knc-1", RegisteredAt: timestamppb.Now()}
	if err := nodes.join(ctx, vm); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	if err := c.Client.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "the pod to run", func() bool {
		return c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && pod.Status.Phase == corev1.PodRunning
	})
	if pod.Spec.NodeName != "knc-1" {
		t.Errorf("the pod runs on %q", pod.Spec.NodeName)
	}

	wrong := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "wrong"},
		Spec: clusterv1.ClusterSpec{
			Topology: clusterv1.Topology{ClassRef: clusterv1.ClusterClassRef{Name: "none"}, Version: "not-a-version"}}}
	if err := c.Client.Create(ctx, wrong); err == nil {
		t.Error("a cluster with a bad version was not refused")
	} else if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) {
		t.Errorf("refused with %v", err)
	}
	ref, err := c.StubControlPlane(ctx, "default", "stub")
	if err != nil {
		t.Fatal(err)
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "right"},
		Spec: clusterv1.ClusterSpec{ControlPlaneRef: ref}}
	if err := c.Client.Create(ctx, cluster); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "Cluster API to see the control plane", func() bool {
		return c.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster) == nil &&
			cluster.Status.Initialization.ControlPlaneInitialized != nil &&
			*cluster.Status.Initialization.ControlPlaneInitialized
	})

	if err := nodes.setKubelet(ctx, "knc-1", false); err != nil {
		t.Fatal(err)
	}
	left := time.Now()
	await(ctx, t, "the node to be NotReady", func() bool {
		var node corev1.Node
		if err := c.Client.Get(ctx, client.ObjectKey{Name: "knc-1"}, &node); err != nil {
			t.Fatal(err)
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status != corev1.ConditionTrue
			}
		}
		return false
	})
	t.Logf("NotReady %s after its machine went", time.Since(left).Round(100*time.Millisecond))
}

func await(ctx context.Context, t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("timeout: %s: %v", what, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
