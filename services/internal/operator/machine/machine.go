// Package machine reconciles NstanceMachines. It asks the servers to create the instances of individual machines and to
// delete the instances of deleted machines. It reports the states of all instances, including those of pools, to
// Cluster API.
//
// Invariants:
//
//   - An individual machine has at most one instance. The operator stores the instance's ID in the machine before it
//     asks the server to create the instance. A repeated request with the same ID creates no second instance.
//   - An instance counts as gone only when a leader says so. An unreachable shard never causes a Machine to be deleted.
package machine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinetemplates,verbs=list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinetemplates/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machines,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=list;watch

// parallel is the number of machines reconciled at a time. It is high because a reconciliation may wait for a server.
const parallel = 16

// Setup registers the controllers of NstanceMachine and NstanceMachineTemplate, and their indexes, among
// them [scope.MachineByInstance].
func Setup(mgr ctrl.Manager, s scope.Scope) error {
	s = s.From(mgr, "nstance-machine")
	for _, i := range indexes {
		if err := i.Add(mgr.GetFieldIndexer()); err != nil {
			return err
		}
	}
	r := &Reconciler{Scope: s}
	all := func(ctx context.Context) []reconcile.Request { return r.requestsFor(ctx) }
	err := s.WatchCluster(s.NewController(mgr, "nstancemachine", parallel), all).
		For(&v1beta1.NstanceMachine{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(r.requestsForMachine)).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.requestsForPool),
			builder.WithPredicates(scope.DeletionChanged[client.Object]())).
		WatchesRawSource(shards.Source(s.Shards, r.requestsForChange)).
		Complete(s.Supervise(r, &v1beta1.NstanceMachine{}))
	if err != nil {
		return fmt.Errorf("controller of NstanceMachine: %w", err)
	}
	if err := newOrphanReconciler(r).setup(mgr); err != nil {
		return err
	}
	t := &templateReconciler{Scope: s, types: shards.Types{Now: s.Now}}
	err = s.NewController(mgr, "nstancemachinetemplate", 1).
		For(&v1beta1.NstanceMachineTemplate{}).
		WatchesRawSource(shards.Source(s.Shards, t.requestsForChange)).
		Complete(s.Supervise(t, &v1beta1.NstanceMachineTemplate{}))
	if err != nil {
		return fmt.Errorf("controller of NstanceMachineTemplate: %w", err)
	}
	return nil
}

// Names of the indexes in the cache.
const (
	machineByInfrastructure = "nstance.dev/machine.infrastructure"
	byShard                 = "nstance.dev/machine.shard"
	byWaitingGroup          = "nstance.dev/machine.waiting-group"
	byPool                  = "nstance.dev/machine.pool"
)

// indexes are the cache indexes that Setup adds.
var indexes = []scope.Index{
	scope.MachineByInstance,
	{Object: &clusterv1.Machine{}, Field: machineByInfrastructure, Values: func(o client.Object) []string {
		ref := o.(*clusterv1.Machine).Spec.InfrastructureRef
		if ref.APIGroup != v1beta1.GroupVersion.Group || ref.Kind != "NstanceMachine" {
			return nil
		}
		return []string{ref.Name}
	}},
	// A machine without a shard is indexed under the empty name.
	{Object: &v1beta1.NstanceMachine{}, Field: byShard, Values: func(o client.Object) []string {
		return []string{o.(*v1beta1.NstanceMachine).Spec.Shard}
	}},
	// Index only machines without an instance, because only they depend on the state of their group.
	{Object: &v1beta1.NstanceMachine{}, Field: byWaitingGroup, Values: func(o client.Object) []string {
		if m := o.(*v1beta1.NstanceMachine); m.Status.InstanceID == "" && !isPoolMachine(m) {
			return []string{m.Spec.GroupRef.Name}
		}
		return nil
	}},
	{Object: &v1beta1.NstanceMachine{}, Field: byPool, Values: func(o client.Object) (names []string) {
		for _, ref := range o.GetOwnerReferences() {
			if ref.Kind == "NstanceMachinePool" {
				names = append(names, ref.Name)
			}
		}
		return names
	}},
}

func isClusterAPIVersion(apiVersion string) bool {
	return strings.HasPrefix(apiVersion, clusterv1.GroupVersion.Group+"/")
}

// requestsFor returns requests for the machines that the options select.
func (r *Reconciler) requestsFor(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	return r.Requests(ctx, &v1beta1.NstanceMachineList{}, opts...)
}

// requestsForChange returns requests for the machines that a change on a shard may affect.
func (r *Reconciler) requestsForChange(c shards.Change) []reconcile.Request {
	ctx := context.Background() // only the cache is read
	switch c.Kind {
	case shards.ShardState:
		return append(r.requestsFor(ctx, client.MatchingFields{byShard: c.Shard}),
			r.requestsFor(ctx, client.MatchingFields{byShard: ""})...)
	case shards.InstanceChanged, shards.DrainPending:
		return r.requestsFor(ctx, client.MatchingFields{scope.MachineByInstance.Field: c.Instance})
	case shards.GroupChanged:
		return r.requestsFor(ctx, client.MatchingFields{byWaitingGroup: c.Group})
	}
	return nil
}

// requestsForMachine returns a request for the NstanceMachine that a Machine references.
func (r *Reconciler) requestsForMachine(_ context.Context, o client.Object) []reconcile.Request {
	ref := o.(*clusterv1.Machine).Spec.InfrastructureRef
	if ref.APIGroup != v1beta1.GroupVersion.Group || ref.Kind != "NstanceMachine" {
		return nil
	}
	return []reconcile.Request{r.Request(ref.Name)}
}

// requestsForPool returns requests for the machines of a pool.
func (r *Reconciler) requestsForPool(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsFor(ctx, client.MatchingFields{byPool: o.GetName()})
}

func (v *view) setCondition(d *decision, condition string, is bool, reason, message string) {
	scope.SetCondition(&d.status.Conditions, v.machine.Generation, v.now.Time, condition, is, reason, message)
}

// setUncreated sets the conditions that say why there is no instance.
func (v *view) setUncreated(d *decision, reason, message string) {
	v.setCondition(d, v1beta1.InstanceCreatedCondition, false, reason, message)
	v.setCondition(d, v1beta1.ReadyCondition, false, reason, message)
}

// maxProviderID is the longest provider ID that the API accepts.
const maxProviderID = 512

// updateStatus updates the status from an existing instance.
func (v *view) updateStatus(d *decision, i *nstancev1.InstanceStatus) {
	m, s := v.machine, &d.status
	s.InstanceID = m.Spec.InstanceID
	s.State = laterState(s.State, i.GetState())
	s.FailureDomain = m.Spec.Shard
	if addresses := addressesOf(i); len(addresses) > 0 {
		s.Addresses = addresses
	}
	v.setCondition(d, v1beta1.InstanceCreatedCondition, true, v1beta1.CreatedReason, "")

	provider := m.Spec.ProviderID
	if id := i.GetProviderId(); provider == "" && id != "" && len(id) <= maxProviderID {
		d.step, d.providerID, provider = stepKeep, id, id
	}
	// A registered instance has booted, even if the provider last reported "pending": the provider is asked only every
	// few minutes.
	running := i.GetProviderState() == "running" || i.GetProviderState() == "pending" && s.State == "registered"
	if provider != "" && running {
		s.Initialization.Provisioned = ptr.To(true)
	}
	// After a change of the leader, the health is "unknown" until the agent reports to the new leader. During this
	// time, a ready instance stays ready.
	healthy := i.GetHealth() == "healthy" || i.GetHealth() == "unknown" && s.Ready
	s.Ready = running && healthy && s.State == "registered" && i.GetPreservedAt() == nil
	switch {
	case s.Ready && provider != "":
		v.setCondition(d, v1beta1.ReadyCondition, true, v1beta1.ReadyReason, "")
	case s.State == stateDeleting:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.DeletingReason, "the instance is being deleted")
	case i.GetPreservedAt() != nil:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.PreservedReason, "the instance failed, was replaced, "+
			"and is kept until "+i.GetPreservedUntil().AsTime().Format(time.RFC3339)+": "+i.GetPreserveReason())
	case s.State != "registered" || !running:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.WaitingForInstanceReason, "the instance is "+s.State+
			", its VM is "+cmp.Or(i.GetProviderState(), "unknown"))
	default:
		v.setCondition(d, v1beta1.ReadyCondition, false, v1beta1.NotReadyReason, "the instance is "+
			cmp.Or(i.GetHealth(), "unknown"))
	}
}

// addressesOf returns the instance's host name and private addresses. External addresses are not known.
func addressesOf(i *nstancev1.InstanceStatus) (out clusterv1.MachineAddresses) {
	for _, a := range []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: i.GetHostname()},
		{Type: clusterv1.MachineInternalIP, Address: i.GetIpv4()},
		{Type: clusterv1.MachineInternalIP, Address: i.GetIpv6()},
	} {
		if a.Address != "" && len(a.Address) <= 256 {
			out = append(out, a)
		}
	}
	return out
}

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
			r.refused.lost.Store(m.UID, v.now.Time)
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
