package machine

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// fault is why a call did not do, and when it is worth another try.
type fault struct {
	reason, text string
	after        time.Duration
	// refused: asking again the same thing will be answered in the same way, as far as one can tell.
	refused bool
}

const (
	// retrySoon is the pause after a server that did not answer, retryFull after a provider that is full, retryRefused
	// after a refusal that nothing that is seen here can turn.
	retrySoon    = 5 * time.Second
	retryFull    = 30 * time.Second
	retryRefused = 10 * time.Minute
	// doubt is for how long after a creation whose answer was lost the server may still be at it, unseen.
	doubt = 15 * time.Second
	// maxText is how much of a server's message is kept: an event's note has 1024 bytes.
	maxText = 900
)

// faultOf reads the answer to a call; nil when the error says that the instance is not there (any more), which is an
// answer too.
func faultOf(s step, err error) *fault {
	code, text := status.Code(err), status.Convert(err).Message()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + " ..."
	}
	switch {
	case s != create && code == codes.NotFound:
		return nil
	case s == create && code == codes.AlreadyExists:
		// The ID had its life.
		return nil
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return &fault{reason: v1beta1.WaitingForShardReason, text: "the shard's leader could not be asked",
			after: retrySoon}
	case codes.ResourceExhausted:
		return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryFull}
	case codes.FailedPrecondition:
		if s == create {
			text += ": delete the Machine to try again"
		}
		return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryRefused, refused: s == create}
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented,
		codes.OutOfRange:
		return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryRefused, refused: s == create}
	}
	return &fault{reason: v1beta1.CreateFailedReason, text: text, after: retryFull}
}

// call asks the machine's shard. Its answer goes into the view.
func (r *Reconciler) call(ctx context.Context, v *view, s step) {
	m := v.machine
	shard, ok := r.Shards.Shard(m.Spec.Shard)
	if !ok {
		v.fault = &fault{reason: v1beta1.UnknownShardReason, text: "the shard has left the operator's configuration",
			after: retrySoon}
		return
	}
	api, log := shard.API(), r.Log.With("shard", m.Spec.Shard, "machine", m.Name, "instance", m.Spec.InstanceID)
	var instance *nstancev1.InstanceStatus
	var err error
	switch s {
	case create:
		if f := r.refused.get(m, v.shard(m.Spec.Shard), v.now.Time); f != nil {
			v.fault = f
			return
		}
		log.Info("asking for an instance", "group", m.Spec.GroupRef.Name)
		var answer *nstancev1.CreateInstanceResponse
		answer, err = api.CreateInstance(ctx, &nstancev1.CreateInstanceRequest{Group: m.Spec.GroupRef.Name,
			InstanceId:   m.Spec.InstanceID,
			InstanceType: m.Spec.InstanceType, Vars: m.Spec.Vars})
		instance = answer.GetInstance()
	case destroy:
		log.Info("asking to delete an instance")
		var answer *nstancev1.DeleteInstanceResponse
		answer, err = api.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: m.Spec.InstanceID,
			Reason: "machine deleted"})
		instance = answer.GetInstance()
	case ask:
		var answer *nstancev1.GetInstanceStatusResponse
		answer, err = api.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: m.Spec.InstanceID})
		instance = answer.GetInstance()
	}
	if err != nil {
		if v.fault = faultOf(s, err); v.fault == nil {
			if s == destroy && m.Status.InstanceID == "" && r.refused.inDoubt(m.UID, v.now.Time) {
				v.fault = &fault{reason: v1beta1.DeletingReason,
					text: "an earlier request for the instance may still be on its way", after: retrySoon}
				return
			}
			v.answer = &answer{}
			return
		}
		if s == create {
			r.refused.doubt(m.UID, v.now.Time)
		}
		log.Warn("server's answer", "call", string(s), "error", err)
		if v.fault.refused {
			r.refused.put(m, v.shard(m.Spec.Shard), v.fault, v.now.Time)
		}
		return
	}
	if instance.GetInstanceId() != m.Spec.InstanceID {
		v.fault = &fault{reason: v1beta1.CreateFailedReason, text: "the server answered of another instance",
			after: retryFull}
		return
	}
	if s == destroy && m.Status.State != stateDeleted && instance.GetState() != stateDeleted &&
		instance.GetState() != stateDeleting {
		// It answered "done": it is not asked again.
		instance = &nstancev1.InstanceStatus{InstanceId: m.Spec.InstanceID, State: stateDeleting}
	}
	v.answer = &answer{instance: instance}
}
