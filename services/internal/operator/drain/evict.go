package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/drain"
)

// helper is kubectl's drain as `kubectl drain --ignore-daemonsets --delete-emptydir-data --force` does it.
func (t *task) helper(ctx context.Context) *drain.Helper {
	return &drain.Helper{Ctx: ctx, Client: t.kube, Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true,
		GracePeriodSeconds:   -1,
		EvictErrorRetryDelay: t.RetryEviction, Out: io.Discard, ErrOut: io.Discard}
}

func (t *task) cordon(ctx context.Context, nodes []corev1.Node) error {
	for i := range nodes {
		if err := drain.RunCordonOrUncordon(t.helper(ctx), &nodes[i], true); err != nil {
			return fmt.Errorf("cordon: %w", err)
		}
	}
	return nil
}

// evict evicts the pods of the Nodes and waits until they are gone.
func (t *task) evict(ctx context.Context, nodes []corev1.Node) error {
	h, left := t.helper(ctx), &leftover{pods: map[string]bool{}}
	h.OnPodDeletionOrEvictionFinished = func(pod *corev1.Pod, _ bool, err error) {
		if err == nil {
			left.remove(name(pod))
		}
	}
	defer t.report(ctx, left)()
	for i := range nodes {
		if silent(&nodes[i]) {
			// Its kubelet will never say that a pod has ended.
			h.SkipWaitForDeleteTimeoutSeconds = 1
		}
	}
	// A pod may have been bound at the moment the Node was cordoned: it is there at the second look.
	for range 3 {
		pods, err := podsToEvict(h, nodes)
		if err != nil || len(pods) == 0 {
			return err
		}
		for i := range pods {
			left.add(name(&pods[i]))
		}
		if err := t.inTime(ctx, func() error { return h.DeleteOrEvictPods(pods) }); err != nil {
			return fmt.Errorf("evict: %w", err)
		}
		if h.SkipWaitForDeleteTimeoutSeconds > 0 {
			return nil
		}
	}
	return errors.New("evict: new pods come to a Node that is cordoned")
}

// inTime returns when do does, or when ctx is over: kubectl's pause after a refused eviction cannot be cut short
// otherwise.
func (t *task) inTime(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	t.work.Go(func() { done <- do() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// silent: the Node's kubelet does not report.
func silent(node *corev1.Node) bool {
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

// podsOn names the pods that a drain would still have to move.
func (t *task) podsOn(ctx context.Context, nodes []corev1.Node) (out []string, err error) {
	pods, err := podsToEvict(t.helper(ctx), nodes)
	for i := range pods {
		out = append(out, name(&pods[i]))
	}
	slices.Sort(out)
	return out, err
}

func name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// leftover is the pods that an eviction waits for.
type leftover struct {
	mu   sync.Mutex
	pods map[string]bool
}

func (l *leftover) add(pod string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[pod] = true
}

func (l *leftover) remove(pod string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, pod)
}

func (l *leftover) list() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.pods))
}

// report logs every minute which pods are waited for, until the function that it returns is called.
func (t *task) report(ctx context.Context, left *leftover) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(progress)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				t.log.Info("drain goes on", "pods", left.list(), "deadline", t.deadlineNow())
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
