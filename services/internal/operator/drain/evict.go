package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/drain"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// kubectlHelper returns kubectl's drain with the options --ignore-daemonsets --delete-emptydir-data --force.
func (t *task) kubectlHelper(ctx context.Context) *drain.Helper {
	return &drain.Helper{Ctx: ctx, Client: t.kube, Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true,
		GracePeriodSeconds:   -1,
		EvictErrorRetryDelay: t.retryEviction, Out: io.Discard, ErrOut: io.Discard}
}

// cordon cordons the Nodes. It always writes to a Node that was cordoned because of a spare: updateNodes may be about
// to uncordon it, and then fails with a conflict, or may have done so although the cache does not show that yet.
func (t *task) cordon(ctx context.Context, nodes []corev1.Node) error {
	for i := range nodes {
		if _, spare := nodes[i].Annotations[v1beta1.SpareCordonAnnotation]; spare {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}},"spec":{"unschedulable":true}}`,
				v1beta1.SpareCordonAnnotation)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodes[i].Name}}
			if err := t.nodes.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); err != nil {
				return fmt.Errorf("cordon: %w", err)
			}
			continue
		}
		if err := drain.RunCordonOrUncordon(t.kubectlHelper(ctx), &nodes[i], true); err != nil {
			return fmt.Errorf("cordon: %w", err)
		}
	}
	return nil
}

// evict evicts the pods of the Nodes and waits until the pods have ended.
func (t *task) evict(ctx context.Context, nodes []corev1.Node) error {
	h := t.kubectlHelper(ctx)
	for i := range nodes {
		if kubeletSilent(&nodes[i]) {
			// A kubelet that has stopped reporting does not report the end of a pod either. So do not wait for a pod
			// that was deleted more than a second ago.
			h.SkipWaitForDeleteTimeoutSeconds = 1
		}
	}
	// A new pod may have been bound to the Node just before the Node was cordoned. So list the pods again after each
	// eviction.
	for range 3 {
		pods, err := podsToEvict(h, nodes)
		if err != nil || len(pods) == 0 {
			return err
		}
		if err := t.runUntilDone(ctx, nodes, func() error { return h.DeleteOrEvictPods(pods) }); err != nil {
			return fmt.Errorf("evict: %w", err)
		}
		if h.SkipWaitForDeleteTimeoutSeconds > 0 {
			return nil
		}
	}
	return errors.New("evict: new pods keep appearing on a cordoned Node")
}

// runUntilDone calls the function do and returns its error. If ctx ends first, runUntilDone returns the cause without
// waiting for the end of do, because kubectl's pause after a refused eviction cannot be interrupted. While do runs,
// runUntilDone logs the remaining pods every minute.
func (t *task) runUntilDone(ctx context.Context, nodes []corev1.Node, do func() error) error {
	done := make(chan error, 1)
	t.work.Go(func() { done <- do() })
	ticker := time.NewTicker(progress)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
			if left, err := t.podsOn(ctx, nodes); err == nil {
				t.log.Info("drain in progress", "pods", left, "deadline", t.currentDeadline())
			}
		}
	}
}

// kubeletSilent reports whether the Node's kubelet has stopped reporting.
func kubeletSilent(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionUnknown
		}
	}
	return false
}

func podsToEvict(h *drain.Helper, nodes []corev1.Node) (pods []corev1.Pod, err error) {
	for i := range nodes {
		list, problems := h.GetPodsForDeletion(nodes[i].Name)
		if len(problems) > 0 {
			return nil, fmt.Errorf("list pods: %w", errors.Join(problems...))
		}
		pods = append(pods, list.Pods()...)
	}
	return pods, nil
}

// podsOn returns the names of the pods that must still be evicted from the Nodes.
func (t *task) podsOn(ctx context.Context, nodes []corev1.Node) (out []string, err error) {
	pods, err := podsToEvict(t.kubectlHelper(ctx), nodes)
	for i := range pods {
		out = append(out, pods[i].Namespace+"/"+pods[i].Name)
	}
	slices.Sort(out)
	return out, err
}
