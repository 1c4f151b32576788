package machine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
	"github.com/nstance-kit/nstance/tests/kube"
)

// TestControllersOnARealAPIServer runs the controllers against a real API server with the CRDs. It checks that their
// writes are valid and that every kind of change triggers them.
func TestControllersOnARealAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	k, err := kube.Start(ctx, kube.Options{Dir: t.TempDir(), CoreCRDs: true, CRDs: []string{"../../../../config/crd"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme),
		clusterv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(k.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	must(c.Create(ctx, managedCluster()))
	set := shardstest.New("a", "b")
	for _, one := range set.All() {
		id := one.ID()
		set.Of(id).HoldDrains()
	}
	mgr, err := ctrl.NewManager(k.Config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}}})
	must(err)
	must(Setup(mgr, scope.Scope{Shards: set, Namespace: namespace, Cluster: "prod", Tenant: "default",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))}))
	ended := make(chan error, 1)
	run, stop := context.WithCancel(ctx)
	go func() { ended <- mgr.Start(run) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	eventually := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(40 * time.Second); !is(); {
			if time.Now().After(end) {
				t.Fatal("waited 40 s for: " + what)
			}
			<-time.After(50 * time.Millisecond)
		}
	}
	get := func(o client.Object, name string) bool {
		t.Helper()
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
		must(client.IgnoreNotFound(err))
		return err == nil
	}
	condition := func(name, want string) func() bool {
		return func() bool {
			m := &v1beta1.NstanceMachine{}
			return get(m, name) && hasCondition(m.Status.Conditions, want)
		}
	}
	empty := ""
	add := func(name, shard string) {
		t.Helper()
		must(c.Create(ctx, &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: shard}}))
		eventually("the Machine is waited for", condition(name, "Ready=WaitingForMachine"))
		must(c.Create(ctx, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: clusterv1.MachineSpec{ClusterName: "prod--default",
				Bootstrap: clusterv1.Bootstrap{DataSecretName: &empty},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
					Kind: "NstanceMachine", Name: name}}}))
	}

	add("one", "b")
	eventually("the group is missed", condition("one", "InstanceCreated=Refused"))
	set.Of("b").SetState(func(s *shards.State) { s.Reachable = false })
	set.Of("b").SetGroup(&nstancev1.GroupStatus{Group: "workers", MergedJson: `{"instance_type":"m5.large"}`})
	eventually("the shard is waited for", condition("one", "InstanceCreated=WaitingForShard"))
	set.Of("b").SetState(func(s *shards.State) { s.Reachable = true })
	eventually("ready", condition("one", "Ready=Ready"))
	var m v1beta1.NstanceMachine
	get(&m, "one")
	if m.Spec.Shard != "b" || m.Spec.ProviderID == "" || m.Status.Initialization.Provisioned == nil ||
		len(m.Status.Addresses) == 0 || m.Status.FailureDomain != "b" {
		t.Errorf("%+v", m)
	}
	// The CRD forbids changing an instance ID.
	bad := m.DeepCopy()
	bad.Spec.InstanceID = "wrk" + strings.Repeat("0", 26)
	if err := c.Patch(ctx, bad, client.MergeFrom(&m)); !apierrors.IsInvalid(err) {
		t.Errorf("changing the instance ID: error %v, want it refused", err)
	}

	// When the server reports an instance as gone, its Machine is deleted.
	set.Of("b").Kill(m.Spec.InstanceID)
	eventually("the Machine goes", func() bool { return !get(&clusterv1.Machine{}, "one") })
	// The Machine is gone. No garbage collector runs here, so the controller must delete the NstanceMachine.
	eventually("the NstanceMachine goes", func() bool { return !get(&v1beta1.NstanceMachine{}, "one") })
	for _, call := range set.Of("b").Calls() {
		if strings.HasPrefix(call, "DeleteInstance") {
			t.Error("the server was asked to delete an instance that it had reported as gone")
		}
	}

	// The deletion of a machine waits until its instance is deleted.
	add("two", "")
	eventually("ready", condition("two", "Ready=Ready"))
	get(&m, "two")
	must(c.Delete(ctx, &m))
	eventually("the instance is being deleted", func() bool {
		i, _ := set.Of("b").Instance(m.Spec.InstanceID)
		return i.GetState() == "deleting"
	})
	if !get(&m, "two") {
		t.Fatal("the machine was deleted before its instance")
	}
	set.Of("b").Kill(m.Spec.InstanceID)
	eventually("the NstanceMachine goes", func() bool { return !get(&v1beta1.NstanceMachine{}, "two") })

	// Pools and templates.
	template := &v1beta1.NstanceMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "t"},
		Spec: v1beta1.NstanceMachineTemplateSpec{
			Template: v1beta1.NstanceMachineTemplateResource{Spec: v1beta1.NstanceMachineSpec{
				GroupRef: v1beta1.GroupReference{Name: "workers"}}}}}
	must(c.Create(ctx, template))
	eventually("the template's capacity", func() bool {
		get(template, "t")
		return template.Status.Capacity.Memory().String() == "8Gi"
	})
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "workers",
		Finalizers: []string{v1beta1.MachinePoolFinalizer}},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []string{"b"}}}
	must(c.Create(ctx, pool))
	set.Of("b").SetGroup(&nstancev1.GroupStatus{Group: "workers", Size: 1})
	group, _ := set.Of("b").Group("workers")
	id := group.GetInstanceIds()[0]
	must(c.Create(ctx, &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id,
		Labels: map[string]string{clusterv1.MachinePoolNameLabel: "workers",
			clusterv1.ClusterNameLabel: "prod--default"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1beta1.GroupVersion.String(), Kind: "NstanceMachinePool",
			Name: pool.Name, UID: pool.UID}}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: "b",
			InstanceID: id}}))
	eventually("ready", condition(id, "Ready=Ready"))
	set.Of("b").SetState(func(s *shards.State) { s.Reachable = false })
	eventually("unreachable", condition(id, "ShardReachable=Unreachable"))
	get(&m, id)
	must(c.Delete(ctx, &m))
	eventually("the shard is waited for", condition(id, "Ready=Deleting"))
	must(c.Delete(ctx, pool))
	eventually("the pool's machine goes with the pool, whatever the shard does", func() bool {
		return !get(&v1beta1.NstanceMachine{}, id)
	})
	if i, _ := set.Of("b").Instance(id); i.GetState() != "registered" {
		t.Errorf("the instance of a deleted pool is %s, want it untouched", i.GetState())
	}
}
