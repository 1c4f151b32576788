// Package machine owns NstanceMachines: it asks the servers for the instances of individual machines, has instances
// deleted when their machine goes, and tells Cluster API of all of them, those of pools too, what the servers say.
//
// Invariant: an individual machine stands for at most one instance: the instance's ID is stored in the machine before
// the server is asked for it, and asking again with the same ID makes no second one. An instance counts as gone only
// when a leader that answers said so: a shard that is not heard of never deletes a Machine.
package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines,verbs=get;list;watch;update;patch;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinetemplates,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinetemplates/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machines,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,namespace=nstance-system,resources=events,verbs=create;patch;update
// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=events,verbs=create;patch;update

// Options of Setup. Client, Reader and Recorder are the manager's when they are nil.
type Options struct {
	Client   client.Client // reads from a cache
	Reader   client.Reader // does not
	Recorder events.EventRecorder
	Shards   shards.Shards
	// Namespace of all objects; Cluster and Tenant name the only Cluster whose objects are looked at.
	Namespace, Cluster, Tenant string
	Now                        func() time.Time // time.Now when nil
	Rand                       io.Reader        // crypto/rand.Reader when nil
	Log                        *slog.Logger
}

func (o *Options) defaults(mgr ctrl.Manager) error {
	if o.Shards == nil || o.Log == nil || o.Namespace == "" || o.Cluster == "" || o.Tenant == "" {
		return errors.New("machine: incomplete options")
	}
	if o.Client == nil {
		o.Client = mgr.GetClient()
	}
	if o.Reader == nil {
		o.Reader = mgr.GetAPIReader()
	}
	if o.Recorder == nil {
		o.Recorder = mgr.GetEventRecorder("nstance-machine")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	return nil
}

// parallel is how many machines are worked on at a time: a reconciliation may wait for a server's answer.
const parallel = 16

// Setup registers the controllers of NstanceMachine and NstanceMachineTemplate, and the indexes they need.
func Setup(mgr ctrl.Manager, o Options) error {
	if err := o.defaults(mgr); err != nil {
		return err
	}
	for _, i := range indexes {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), i.object, i.field, i.values); err != nil {
			return fmt.Errorf("index %s: %w", i.field, err)
		}
	}
	r := newReconciler(o)
	err := ctrl.NewControllerManagedBy(mgr).Named("nstancemachine").
		For(&v1beta1.NstanceMachine{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(r.ofMachine)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.ofCluster),
			builder.WithPredicates(pauseChanged)).
		Watches(&v1beta1.NstanceMachinePool{}, handler.EnqueueRequestsFromMapFunc(r.ofPool),
			builder.WithPredicates(goes)).
		WatchesRawSource(shards.Source(o.Shards, r.ofShards)).
		WithOptions(controller.Options{MaxConcurrentReconciles: parallel}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("controller of NstanceMachine: %w", err)
	}
	t := &templates{Options: o}
	err = ctrl.NewControllerManagedBy(mgr).Named("nstancemachinetemplate").
		For(&v1beta1.NstanceMachineTemplate{}).
		WatchesRawSource(shards.Source(o.Shards, t.ofShards)).
		Complete(t)
	if err != nil {
		return fmt.Errorf("controller of NstanceMachineTemplate: %w", err)
	}
	return nil
}
