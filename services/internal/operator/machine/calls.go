package machine

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// fault is the reason why a call failed, and the time until the call is repeated.
type fault struct {
	reason, text string
	after        time.Duration
	// refused is true if a repetition of the failed call would fail again.
	refused bool
}

const (
	// These are the pauses before a call is repeated. retrySoon applies if a server was unreachable, retryFull if
	// capacity was lacking, and retryRefused if the server refused the request.
	retrySoon    = 5 * time.Second
	retryFull    = 30 * time.Second
	retryRefused = 10 * time.Minute
	// creationDoubt is how long a server may still process a CreateInstance call after its answer was lost.
	creationDoubt = 15 * time.Second
)

// faultOf converts the error of a call to a fault. It returns nil if the error means that the instance does not exist.
func faultOf(s step, err error) *fault {
	code, text := status.Code(err), scope.Truncate(status.Convert(err).Message())
	switch {
	case s != stepCreate && (code == codes.NotFound || code == codes.InvalidArgument):
		// An instance whose ID the server refuses cannot exist.
		return nil
	case s == stepCreate && code == codes.AlreadyExists:
		// An instance with this ID existed and is gone. So the instance does not exist, and the call has not failed.
		return nil
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return &fault{reason: v1beta1.WaitingForShardReason, text: "the leader did not answer",
			after: retrySoon}
	case codes.ResourceExhausted:
		return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryFull}
	case codes.FailedPrecondition:
		if s == stepCreate {
			text += ": delete the Machine to try again"
		}
		return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryRefused, refused: s == stepCreate}
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented,
		codes.OutOfRange:
		return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryRefused, refused: s == stepCreate}
	}
	return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryFull}
}

// performCall makes the call for a step and stores the answer in the view.
func (r *Reconciler) performCall(ctx context.Context, v *view, s step) {
	m := v.machine
	shard, ok := r.Shards.Shard(m.Spec.Shard)
	if !ok {
		v.fault = &fault{reason: v1beta1.UnknownShardReason,
			text:  "shard " + m.Spec.Shard + " was removed from the operator's configuration",
			after: retrySoon}
		return
	}
	api, log := shard.API(), r.Log.With("shard", m.Spec.Shard, "machine", m.Name, "instance", m.Spec.InstanceID)
	var instance *nstancev1.InstanceStatus
	var err error
	switch s {
	case stepCreate:
		if f := r.refused.lookup(m, v.shard(m.Spec.Shard), v.now.Time); f != nil {
			v.fault = f
			return
		}
		log.Info("creating instance", "group", m.Spec.GroupRef.Name)
		var answer *nstancev1.CreateInstanceResponse
		answer, err = api.CreateInstance(ctx, &nstancev1.CreateInstanceRequest{Group: m.Spec.GroupRef.Name,
			InstanceId:   m.Spec.InstanceID,
			InstanceType: m.Spec.InstanceType, Vars: m.Spec.Vars})
		instance = answer.GetInstance()
	case stepDestroy:
		log.Info("deleting instance")
		var answer *nstancev1.DeleteInstanceResponse
		answer, err = api.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: m.Spec.InstanceID,
			Reason: "machine deleted"})
		instance = answer.GetInstance()
	case stepAsk:
		var answer *nstancev1.GetInstanceStatusResponse
		answer, err = api.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: m.Spec.InstanceID})
		instance = answer.GetInstance()
	}
	if err != nil {
		if v.fault = faultOf(s, err); v.fault == nil {
			if s == stepDestroy && m.Status.InstanceID == "" && r.refused.inDoubt(m.UID, v.now.Time) {
				v.fault = &fault{reason: v1beta1.DeletingReason,
					text: "waiting for an earlier CreateInstance call that " +
						"shard " + m.Spec.Shard + " may still process", after: retrySoon}
				return
			}
			v.answer = &answer{}
			return
		}
		v.fault.text = "shard " + m.Spec.Shard + ": " + v.fault.text
		if s == stepCreate {
			r.refused.rememberLost(m.UID, v.now.Time)
		}
		log.Warn("call failed", "call", string(s), "error", err)
		if v.fault.refused {
			r.refused.remember(m, v.shard(m.Spec.Shard), v.fault, v.now.Time)
		}
		return
	}
	if instance.GetInstanceId() != m.Spec.InstanceID {
		v.fault = &fault{reason: v1beta1.CreateFailedReason, text: "the server answered for another instance",
			after: retryFull}
		return
	}
	if s == stepDestroy && m.Status.State != stateDeleted && instance.GetState() != stateDeleted &&
		instance.GetState() != stateDeleting {
		// The server accepted the deletion, but the mirror of the shard does not show that yet. The stored answer
		// prevents a repeated call.
		instance = &nstancev1.InstanceStatus{InstanceId: m.Spec.InstanceID, State: stateDeleting}
	}
	v.answer = &answer{instance: instance}
}
