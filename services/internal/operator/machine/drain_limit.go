package machine

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// drainLimit returns the limit that Cluster API must observe when it drains the Machine's Node, and when it then waits
// until the volumes are detached: the drain timeout of the Machine's group, in seconds. It returns nil if the limit
// must not change. This is so if the timeout is unknown, or if a user or a MachineDeployment has created the Machine.
//
// Without a limit, Cluster API drains for as long as a PodDisruptionBudget forbids an eviction, and waits for as long
// as a volume stays attached. It takes 0 for no limit.
func drainLimit(v *view) *int32 {
	if v.owner == nil || !isPoolMachine(v.machine) && v.owner.Labels[v1beta1.PodUIDLabel] == "" {
		return nil
	}
	s := v.shard(v.machine.Spec.Shard)
	if s == nil {
		return nil
	}
	timeout := config.ReadSettings(s.group.GetMergedJson()).DrainTimeout
	if timeout == nil {
		return nil
	}
	limit := timeout.D()
	seconds := int32(max(1, (limit+time.Second-1)/time.Second))
	have := v.owner.Spec.Deletion
	if ptr.Equal(have.NodeDrainTimeoutSeconds, &seconds) && ptr.Equal(have.NodeVolumeDetachTimeoutSeconds, &seconds) {
		return nil
	}
	return &seconds
}

// limitDrain writes the limit that [drainLimit] returns to the Machine.
func (r *Reconciler) limitDrain(ctx context.Context, v *view) error {
	limit := drainLimit(v)
	if limit == nil {
		return nil
	}
	next := v.owner.DeepCopy()
	next.Spec.Deletion.NodeDrainTimeoutSeconds, next.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = limit, limit
	if err := r.Patch(ctx, v.owner, next); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("limit the drain of Machine %s: %w", v.owner.Name, err)
	}
	v.owner = next
	return nil
}
