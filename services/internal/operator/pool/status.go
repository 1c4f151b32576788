package pool

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// conditions are the conditions that a decision sets. mergeInto adds the generation and the time to each condition.
type conditions []metav1.Condition

func (c *conditions) set(kind string, ok bool, reason, format string, args ...any) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	*c = append(*c, metav1.Condition{Type: kind, Status: status, Reason: reason,
		Message: scope.ConditionMessage(fmt.Sprintf(format, args...))})
}

// mergeInto merges c into the conditions that an object has. If a condition keeps its status, it also keeps its
// transition time.
func (c conditions) mergeInto(have []metav1.Condition, generation int64, now time.Time) []metav1.Condition {
	out := append([]metav1.Condition(nil), have...)
	for _, condition := range c {
		condition.ObservedGeneration, condition.LastTransitionTime = generation,
			metav1.NewTime(now.Truncate(time.Second))
		meta.SetStatusCondition(&out, condition)
	}
	return out
}

// setPaused sets the Paused condition of the Cluster API contract.
func (c *conditions) setPaused(paused bool) {
	if paused {
		c.set(v1beta1.PausedCondition, true, v1beta1.PausedReason, "the object, its pool or its Cluster is paused")
		return
	}
	c.set(v1beta1.PausedCondition, false, v1beta1.NotPausedReason, "")
}

// notice is a Kubernetes event to record.
type notice struct {
	warning      bool
	reason, note string
}

func normalEvent(reason, format string, args ...any) notice {
	return notice{reason: reason, note: fmt.Sprintf(format, args...)}
}

func warningEvent(reason, format string, args ...any) notice {
	return notice{true, reason, fmt.Sprintf(format, args...)}
}

// recordEvents records events. The reason also serves as the event's action.
func (p *pools) recordEvents(about runtime.Object, events ...notice) {
	for _, e := range events {
		kind := corev1.EventTypeNormal
		if e.warning {
			kind = corev1.EventTypeWarning
		}
		p.Recorder.Eventf(about, nil, kind, e.reason, e.reason, "%s", scope.Truncate(e.note))
	}
}
