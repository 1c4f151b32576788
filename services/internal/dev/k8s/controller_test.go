package k8s

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	capiv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstance "github.com/nstance-kit/nstance/services/api/v1beta1"
)

const finalizer = "nstance.dev/test"

// sizer is a small operator. It copies the size from each shard group's spec to its status and creates a machine for
// the group. A finalizer keeps the group until the machine is deleted.
type sizer struct {
	client client.Client
	scheme *runtime.Scheme
}

func (s *sizer) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var group nstance.NstanceShardGroup
	if err := s.client.Get(ctx, req.NamespacedName, &group); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := group.DeepCopy()
	machine := &nstance.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: group.Namespace, Name: group.Name}}
	if !group.DeletionTimestamp.IsZero() {
		err := s.client.Delete(ctx, machine)
		if apierrors.IsNotFound(err) && controllerutil.RemoveFinalizer(&group, finalizer) {
			err = s.client.Patch(ctx, &group, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if controllerutil.AddFinalizer(&group, finalizer) {
		return reconcile.Result{}, s.client.Patch(ctx, &group, client.MergeFromWithOptions(before,
			client.MergeFromWithOptimisticLock{}))
	}
	if _, err := controllerutil.CreateOrUpdate(ctx, s.client, machine, func() error {
		machine.Spec.Shard = group.Spec.Shard
		return controllerutil.SetControllerReference(&group, machine, s.scheme)
	}); err != nil {
		return reconcile.Result{}, err
	}
	group.Status.ActualSize = group.Spec.Size
	group.Status.ObservedGeneration = group.Generation
	apimeta.SetStatusCondition(&group.Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue,
		Reason: "Sized", ObservedGeneration: group.Generation})
	if err := s.client.Status().Patch(ctx, &group, client.MergeFrom(before)); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// TestController runs a real controller-runtime manager with leader election against dev-k8s. It uses the types of
// Nstance's CRDs and of Cluster API. During the test, the manager's connection is cut and dev-k8s is restarted.
func TestController(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, stop := start(t, dir)
	wire := connect(t, addr)
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, nstance.AddToScheme, capiv1.AddToScheme} {
		if err := add(types); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	manager := must(ctrl.NewManager(config(wire.addr), ctrl.Options{
		Scheme: types, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0", Logger: logr.Discard(),
		LeaderElection: true, LeaderElectionID: "nstance-operator-leader-election", LeaderElectionNamespace: "default",
		LeaderElectionReleaseOnCancel: true,
	}))(t)
	if err := ctrl.NewControllerManagedBy(manager).For(&nstance.NstanceShardGroup{}).Owns(&nstance.NstanceMachine{}).
		Complete(&sizer{manager.GetClient(), types}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	}()

	c := must(client.New(config(addr), client.Options{Scheme: types}))(t)
	of := func(name string) *nstance.NstanceShardGroup {
		g := &nstance.NstanceShardGroup{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, g); err != nil {
			if !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			return nil
		}
		return g
	}
	sized := func(name string, size int32) {
		t.Helper()
		until(t, fmt.Sprintf("%s has the size %d", name, size), func() bool {
			g := of(name)
			return g != nil && g.Status.ActualSize != nil && *g.Status.ActualSize == size &&
				g.Status.ObservedGeneration == g.Generation && apimeta.IsStatusConditionTrue(g.Status.Conditions,
				"Ready")
		})
	}
	scale := func(name string, size int32) {
		t.Helper()
		g := of(name)
		before := g.DeepCopy()
		g.Spec.Size = &size
		if err := c.Patch(ctx, g, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	pool := &capiv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "workers"},
		Spec: capiv1.MachinePoolSpec{ClusterName: "c"}}
	if err := c.Create(ctx, pool); err != nil {
		t.Fatal(err)
	}
	group := &nstance.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "workers--dev-1"},
		Spec:       nstance.NstanceShardGroupSpec{Group: "workers", Shard: "dev-1", Size: ptr(int32(2))},
	}
	if err := controllerutil.SetControllerReference(pool, group, types); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, group); err != nil {
		t.Fatal(err)
	}
	sized("workers--dev-1", 2)
	var lease coordination.Lease
	if err := c.Get(ctx, client.ObjectKey{Namespace: "default", Name: "nstance-operator-leader-election"},
		&lease); err != nil || *lease.Spec.HolderIdentity == "" {
		t.Errorf("the lease: %v, %v", err, lease.Spec)
	}
	wire.cut(addr)
	scale("workers--dev-1", 3)
	sized("workers--dev-1", 3)

	// A person edits the file.
	put(t, `{"metadata":{"finalizers":["`+finalizer+
		`"]},"spec":{"group":"workers","shard":"dev-1","size":4}}`,
		dir, "nstanceshardgroups/default/workers--dev-1.json")
	sized("workers--dev-1", 4)

	// The manager must reconnect to the restarted server and continue.
	stop()
	addr, _ = start(t, dir)
	c = must(client.New(config(addr), client.Options{Scheme: types}))(t)
	scale("workers--dev-1", 5)
	wire.cut(addr)
	sized("workers--dev-1", 5)

	// The person's edit of the file has removed the group's owner reference. Restore the reference, so that the group
	// and its machine are deleted with the owner.
	g := of("workers--dev-1")
	before := g.DeepCopy()
	if err := controllerutil.SetControllerReference(pool, g, types); err != nil {
		t.Fatal(err)
	}
	if err := c.Patch(ctx, g, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, pool); err != nil {
		t.Fatal(err)
	}
	until(t, "the group and its machine are gone", func() bool {
		var list nstance.NstanceMachineList
		if err := c.List(ctx, &list, client.InNamespace("default")); err != nil {
			t.Fatal(err)
		}
		return of("workers--dev-1") == nil && len(list.Items) == 0
	})
	// Cluster API reads only the metadata of CRDs. It finds the contract versions in the labels of a CRD.
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(owned("apiextensions.k8s.io", "CustomResourceDefinition").gvk())
	if err := c.Get(ctx, client.ObjectKey{Name: "nstancemachinepools." + infra}, crd); err != nil ||
		crd.Labels["cluster.x-k8s.io/v1beta2"] != "v1beta1" {
		t.Errorf("the CRD: %v, %v", err, crd.Labels)
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.MatchingFields{"spec.providerID": "tmux://x"}); err != nil {
		t.Error(err)
	}
}
