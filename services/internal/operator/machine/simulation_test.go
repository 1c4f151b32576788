package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

func diffObjects(a, b any) string { return cmp.Diff(a, b) }

const namespace = "nstance-system"

// eventRecorder records events as "{name}: {type} {reason} {note}".
type eventRecorder struct {
	mu     sync.Mutex
	events []string
}

func (r *eventRecorder) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s: %s %s %s", regarding.(client.Object).GetName(), kind, reason,
		fmt.Sprintf(note, args...)))
}

func (r *eventRecorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.events
	r.events = nil
	return out
}

// errCrash is returned by the write at which the operator crashes.
var errCrash = errors.New("crash")

// simulatedOperator is the reconciler with an API server and shards in memory. It can be crashed and restarted.
type simulatedOperator struct {
	t       *testing.T
	shards  *shardstest.Set
	client  client.Client
	rec     *Reconciler
	now     time.Time
	rand    *rand.Rand
	events  eventRecorder
	writes  int
	crashes int
	crashIn int  // number of writes until a crash, 0 for none
	unsaved bool // The crash comes before the write instead of after it.
}

func newSimulatedOperator(t *testing.T, seed uint64) *simulatedOperator {
	op := &simulatedOperator{t: t, shards: shardstest.New("a", "b"), now: shardstest.Start,
		rand: rand.New(rand.NewPCG(seed, 1))}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1beta1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	b := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1beta1.NstanceMachine{},
		&v1beta1.NstanceMachineTemplate{})
	b = b.WithObjects(managedCluster())
	for _, i := range indexes {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	op.client = b.WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			return op.recordWrite(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			return op.recordWrite(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return op.recordWrite(func() error { return c.Delete(ctx, o, opts...) })
		},
	}).Build()
	for _, one := range op.shards.All() {
		id := one.ID()
		op.shards.Of(id).SetGroup(&nstancev1.GroupStatus{Group: "workers",
			MergedJson: `{"template":"t","instance_type":"m5.large"}`})
	}
	op.restart()
	return op
}

// recordWrite performs a write and counts it. crashIn is the number of writes until the operator crashes. The crash
// comes after the last of these writes, or before it if unsaved is true.
func (op *simulatedOperator) recordWrite(do func() error) error {
	if op.crashIn < 0 {
		return errCrash
	}
	if op.crashIn == 1 && op.unsaved {
		op.crashIn = -1
		return errCrash
	}
	err := do()
	op.writes++
	if op.crashIn > 0 {
		if op.crashIn--; op.crashIn == 0 {
			op.crashIn = -1
			return errCrash
		}
	}
	return err
}

// restart replaces the reconciler with a new one, which remembers nothing, as after a crash of the process.
func (op *simulatedOperator) restart() {
	op.crashIn = 0
	op.rec = &Reconciler{Scope: scope.Scope{Client: op.client, Reader: op.client, Recorder: &op.events,
		Shards:    op.shards,
		Namespace: namespace, Cluster: "prod", Tenant: "default",
		Now: func() time.Time { return op.now }, Rand: randomness{op.rand}, Log: slog.New(slog.DiscardHandler)}}
}

type randomness struct{ *rand.Rand }

func (r randomness) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return len(p), nil
}

// addMachine makes a Machine and its NstanceMachine, as Cluster API and its users do.
func (op *simulatedOperator) addMachine(name, shard string) {
	op.t.Helper()
	empty := ""
	cluster := v1beta1.ClusterName("prod", "default")
	owner := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		UID: types.UID("machine-" + name + op.now.String()), Finalizers: []string{clusterv1.MachineFinalizer}},
		Spec: clusterv1.MachineSpec{ClusterName: cluster, Bootstrap: clusterv1.Bootstrap{DataSecretName: &empty},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceMachine", Name: name}}}
	m := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		UID: types.UID("nm-" + name + op.now.String())},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: shard}}
	for _, o := range []client.Object{owner, m} {
		if err := op.client.Create(op.t.Context(), o); err != nil {
			op.t.Fatal(err)
		}
	}
}

func (op *simulatedOperator) machine(name string) *v1beta1.NstanceMachine {
	op.t.Helper()
	m := &v1beta1.NstanceMachine{}
	err := op.client.Get(op.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, m)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		op.t.Fatal(err)
	}
	return m
}

// deleteMachine deletes a Machine as a user does. runClusterAPI does Cluster API's part.
func (op *simulatedOperator) deleteMachine(name string) {
	op.t.Helper()
	was := op.crashIn
	op.crashIn = 0
	defer func() { op.crashIn = was }()
	o := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := client.IgnoreNotFound(op.client.Delete(op.t.Context(), o)); err != nil {
		op.t.Fatal(err)
	}
}

// runClusterAPI does the work of Cluster API for each Machine that is being deleted. It deletes the Machine's
// NstanceMachine. Once the NstanceMachine is gone, it removes the Machine.
func (op *simulatedOperator) runClusterAPI() {
	op.t.Helper()
	was := op.crashIn
	op.crashIn = 0
	defer func() { op.crashIn = was }()
	var machines clusterv1.MachineList
	if err := op.client.List(op.t.Context(), &machines); err != nil {
		op.t.Fatal(err)
	}
	for i := range machines.Items {
		o := &machines.Items[i]
		if o.DeletionTimestamp.IsZero() {
			continue
		}
		if m := op.machine(o.Name); m != nil {
			if m.DeletionTimestamp.IsZero() {
				if err := op.client.Delete(op.t.Context(), m); err != nil {
					op.t.Fatal(err)
				}
			}
			continue
		}
		o.Finalizers = nil
		if err := op.client.Update(op.t.Context(), o); err != nil {
			op.t.Fatal(err)
		}
	}
}

// reconcileAll reconciles every machine once. If the operator crashes, it restarts the operator.
func (op *simulatedOperator) reconcileAll() {
	op.t.Helper()
	var machines v1beta1.NstanceMachineList
	if err := op.client.List(op.t.Context(), &machines); err != nil {
		op.t.Fatal(err)
	}
	for i := range machines.Items {
		op.now = op.now.Add(time.Millisecond)
		if _, err := op.rec.Reconcile(op.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(
			&machines.Items[i])}); err != nil && op.crashIn >= 0 {
			op.t.Fatalf("reconcile %s: %v", machines.Items[i].Name, err)
		}
		if op.crashIn < 0 {
			op.crashes++
			op.restart()
		}
	}
}

// settle reconciles until nothing is written any more.
func (op *simulatedOperator) settle() {
	op.t.Helper()
	for range 30 {
		writes, crashes := op.writes, op.crashes
		op.now = op.now.Add(creationDoubt)
		op.runClusterAPI()
		op.reconcileAll()
		if op.writes == writes && op.crashes == crashes {
			return
		}
	}
	op.t.Fatal("the reconciler does not converge")
}

// serverInstances returns the on-demand instances that are not deleted, by shard and ID.
func (op *simulatedOperator) serverInstances() map[string]bool {
	out := map[string]bool{}
	for _, one := range op.shards.All() {
		id := one.ID()
		for _, i := range op.shards.Of(id).Instances("") {
			if i.GetOnDemand() {
				out[id+"/"+i.GetInstanceId()] = true
			}
		}
	}
	return out
}

func (op *simulatedOperator) calls() (calls []string) {
	for _, one := range op.shards.All() {
		id := one.ID()
		for _, call := range op.shards.Of(id).Calls() {
			calls = append(calls, id+" "+call)
		}
	}
	return calls
}

// TestMachineDeletedUnseen checks that the instance of a deleted Machine is deleted, even if Cluster API has never seen
// the Machine.
func TestMachineDeletedUnseen(t *testing.T) {
	for _, created := range []bool{true, false} {
		op := newSimulatedOperator(t, 1)
		op.addMachine("one", "a")
		owner := &clusterv1.Machine{}
		if err := op.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "one"}, owner); err != nil {
			t.Fatal(err)
		}
		owner.Finalizers = nil
		if err := op.client.Update(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
		if !created {
			op.crashIn = 1 // after the choice of an ID, before the instance is created
		}
		op.reconcileAll()
		if n := len(op.serverInstances()); created != (n == 1) {
			t.Fatalf("%d instances before the deletion", n)
		}
		op.deleteMachine("one")
		op.settle()
		if m, left := op.machine("one"), op.serverInstances(); m != nil || len(left) > 0 {
			t.Errorf("%v and the instances %v are left", m, left)
		}
	}
}

func TestLifeOfAMachine(t *testing.T) {
	op := newSimulatedOperator(t, 1)
	op.addMachine("one", "a")
	op.settle()
	m := op.machine("one")
	if m.Labels[clusterv1.ClusterNameLabel] != "prod--default" || m.Spec.Shard != "a" || m.Spec.InstanceID == "" ||
		m.Spec.ProviderID != "test:///a/"+m.Spec.InstanceID || !m.Status.Ready ||
		m.Status.InstanceID != m.Spec.InstanceID {
		t.Fatalf("%+v", m)
	}
	if calls := op.calls(); !cmp.Equal(calls, []string{"a CreateInstance " + m.Spec.InstanceID}) {
		t.Errorf("calls %q", calls)
	}
	if events := op.events.take(); !cmp.Equal(events, []string{"one: Normal Created instance " + m.Spec.InstanceID +
		" on shard a"}) {
		t.Errorf("events %q", events)
	}

	// Nothing is left to do, so the operator must not write or call anything.
	writes := op.writes
	op.restart()
	for range 3 {
		op.reconcileAll()
	}
	if calls := op.calls(); op.writes != writes || len(calls) > 0 {
		t.Errorf("%d writes and calls %q although nothing changed", op.writes-writes, calls)
	}

	op.shards.Of("a").HoldDrains()
	op.deleteMachine("one")
	op.settle()
	if m := op.machine("one"); m == nil || m.Status.State != "deleting" {
		t.Fatalf("the machine was deleted before its instance: %+v", m)
	}
	if calls := op.calls(); !cmp.Equal(calls, []string{"a DeleteInstance " + m.Spec.InstanceID}) {
		t.Errorf("calls %q", calls)
	}
	op.shards.Of("a").Kill(m.Spec.InstanceID)
	op.settle()
	if m := op.machine("one"); m != nil {
		t.Errorf("the machine still exists: %+v", m)
	}
	if calls := op.calls(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
}

// TestSpread checks that machines that specify no shard are spread evenly over the shards that have their group.
func TestSpread(t *testing.T) {
	op := newSimulatedOperator(t, 9)
	op.addMachine("west", "a")
	op.settle()
	for i := range 9 {
		op.addMachine(fmt.Sprintf("m%d", i), "")
	}
	op.settle()
	counts := map[string]int{}
	for instance := range op.serverInstances() {
		shard, _, _ := strings.Cut(instance, "/")
		counts[shard]++
	}
	if d := cmp.Diff(map[string]int{"a": 5, "b": 5}, counts); d != "" {
		t.Error(d)
	}
}

// TestServerDeletes checks that the operator deletes the Machine of an instance that is gone, without a call to the
// server.
func TestServerDeletes(t *testing.T) {
	op := newSimulatedOperator(t, 2)
	op.addMachine("one", "b")
	op.settle()
	id := op.machine("one").Spec.InstanceID
	op.calls()
	op.shards.Of("b").Kill(id)
	op.reconcileAll()
	var owner clusterv1.Machine
	if err := op.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "one"}, &owner); err != nil ||
		owner.DeletionTimestamp.IsZero() {
		t.Fatalf("the Machine of a gone instance was not deleted: %v", err)
	}
	if _, ok := owner.Annotations[clusterv1.ExcludeNodeDrainingAnnotation]; !ok {
		t.Error("Cluster API would drain the Node of a gone instance")
	}
	op.settle()
	if m := op.machine("one"); m != nil {
		t.Errorf("the machine still exists: %+v", m)
	}
	if calls := op.calls(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
}

// TestInstanceMissingFromTheMirror checks that the leader is asked about an instance that the mirror no longer has.
func TestInstanceMissingFromTheMirror(t *testing.T) {
	op := newSimulatedOperator(t, 3)
	op.addMachine("one", "b")
	op.settle()
	b := op.shards.Of("b")
	b.SetState(func(s *shards.State) { s.Reachable, s.Synced = false, false })
	b.Forget(op.machine("one").Spec.InstanceID)
	op.settle()
	if m := op.machine("one"); m == nil || hasCondition(m.Status.Conditions, "ServerDeleted=InstanceGone") {
		t.Fatal("the machine was deleted although its shard is unreachable")
	}
	b.SetState(func(s *shards.State) { s.Reachable = true })
	op.settle()
	if op.machine("one") == nil {
		t.Fatal("the machine was deleted although the mirror is not synced")
	}
	b.SetState(func(s *shards.State) { s.Synced = true })
	op.settle()
	if m := op.machine("one"); m != nil {
		t.Errorf("the machine still exists: %+v", m.Status)
	}
}

func TestCreateRefused(t *testing.T) {
	for _, c := range []struct {
		code   codes.Code
		calls  int // of five passes
		reason string
		warn   bool
	}{
		{codes.InvalidArgument, 1, "CreateFailed", true},
		{codes.FailedPrecondition, 1, "CreateFailed", true},
		{codes.ResourceExhausted, 5, "CreateFailed", true},
		{codes.Unavailable, 5, "WaitingForShard", false},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			op := newSimulatedOperator(t, 4)
			asked := 0
			op.shards.Of("a").Fail(func(method string) error {
				if method != "CreateInstance" {
					return nil
				}
				asked++
				return status.Error(c.code, "not now")
			})
			op.addMachine("one", "a")
			for range 5 {
				op.reconcileAll()
			}
			m := op.machine("one")
			if asked != c.calls || !hasCondition(m.Status.Conditions, "InstanceCreated="+c.reason) {
				t.Errorf("CreateInstance was called %d times; conditions %+v", asked, m.Status.Conditions)
			}
			warned := 0
			for _, e := range op.events.take() {
				if strings.Contains(e, "Warning CreateFailed shard a: not now") {
					warned++
				}
			}
			if c.code == codes.FailedPrecondition && !hasText(m.Status.Conditions, "delete the Machine to try again") {
				t.Error("the condition does not say how to try again")
			}
			if (warned == 1) != c.warn || warned > 1 {
				t.Errorf("%d warning events", warned)
			}
			id := m.Spec.InstanceID
			op.shards.Of("a").Fail(nil)
			op.now = op.now.Add(retryRefused)
			op.settle()
			if m := op.machine("one"); !m.Status.Ready || m.Spec.InstanceID != id {
				t.Errorf("the instance was not created once the server accepted it: %+v", m)
			}
		})
	}
}

func hasText(conditions []metav1.Condition, text string) bool {
	for _, c := range conditions {
		if strings.Contains(c.Message, text) {
			return true
		}
	}
	return false
}

// TestLostAnswer deletes a machine after the answer to its CreateInstance call was lost, but before the server has
// processed the call. The machine must stay until its instance is deleted.
func TestLostAnswer(t *testing.T) {
	op := newSimulatedOperator(t, 7)
	a := op.shards.Of("a")
	a.Fail(func(method string) error {
		if method == "CreateInstance" {
			return status.Error(codes.Unavailable, "connection lost")
		}
		return nil
	})
	op.addMachine("one", "a")
	op.reconcileAll()
	id := op.machine("one").Spec.InstanceID
	op.deleteMachine("one")
	op.runClusterAPI()
	op.reconcileAll()
	if op.machine("one") == nil {
		t.Fatal("the machine was deleted although its instance may still be created")
	}
	a.Fail(nil)
	// The server processes the lost CreateInstance call only now.
	if _, err := a.API().CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "workers",
		InstanceId: id}); err != nil {
		t.Fatal(err)
	}
	op.settle()
	if left := op.serverInstances(); op.machine("one") != nil || len(left) > 0 {
		t.Errorf("left %v", left)
	}

	op.addMachine("two", "a")
	a.Fail(func(method string) error {
		if method == "CreateInstance" {
			return status.Error(codes.Unavailable, "connection lost")
		}
		return nil
	})
	op.reconcileAll()
	op.deleteMachine("two")
	op.settle()
	op.now = op.now.Add(creationDoubt)
	op.settle()
	if op.machine("two") != nil {
		t.Error("the machine still waits after creationDoubt")
	}
}

// managedCluster returns the Cluster that the operator itself creates.
func managedCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: v1beta1.ClusterName("prod", "default")}, Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api", Port: 443}}}
}

// TestPaused checks that a paused machine, or a machine of a paused Cluster, gets the Paused condition and no other
// change.
func TestPaused(t *testing.T) {
	op := newSimulatedOperator(t, 5)
	yes := true
	cluster := managedCluster()
	if err := op.client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
		t.Fatal(err)
	}
	cluster.Spec.Paused = &yes
	if err := op.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	op.addMachine("one", "a")
	op.settle()
	if m := op.machine("one"); m.Spec.InstanceID != "" || !hasCondition(m.Status.Conditions, "Paused=Paused") ||
		len(op.calls()) > 0 {
		t.Fatalf("%+v", m)
	}
	cluster.Spec.Paused = nil
	if err := op.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	op.settle()
	if m := op.machine("one"); !m.Status.Ready || !hasCondition(m.Status.Conditions, "Paused=NotPaused") {
		t.Fatalf("%+v", m)
	}
}

// TestMachinesOfOtherClustersAreUnchanged checks that a machine of another cluster in the namespace is not changed.
func TestMachinesOfOtherClustersAreUnchanged(t *testing.T) {
	op := newSimulatedOperator(t, 6)
	m := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other",
		Labels: map[string]string{clusterv1.ClusterNameLabel: "else"}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}}}
	if err := op.client.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	op.settle()
	if op.writes > 0 || len(op.machine("other").Status.Conditions) > 0 {
		t.Errorf("%d writes", op.writes)
	}
}

// TestCrashAtEveryWrite runs the life of a machine with a crash before or after each write.
func TestCrashAtEveryWrite(t *testing.T) {
	for _, unsaved := range []bool{false, true} {
		for at := 1; ; at++ {
			op := newSimulatedOperator(t, uint64(at))
			op.crashIn, op.unsaved = at, unsaved
			op.addMachine("one", "")
			op.settle()
			m := op.machine("one")
			if m == nil || !m.Status.Ready {
				t.Fatalf("crash at write %d: not ready: %+v", at, m)
			}
			if diff := cmp.Diff(map[string]bool{m.Spec.Shard + "/" + m.Spec.InstanceID: true},
				op.serverInstances()); diff != "" {
				t.Fatalf("crash at write %d:\n%s", at, diff)
			}
			op.deleteMachine("one")
			op.settle()
			crashed := op.crashes > 0
			if left := op.serverInstances(); op.machine("one") != nil || len(left) > 0 {
				t.Fatalf("crash at write %d: instances %v are left", at, left)
			}
			if !crashed {
				if at < 5 {
					t.Errorf("only %d writes", at)
				}
				break
			}
		}
	}
}

// TestRandomHistories runs random histories: machines are created and deleted, instances die, shards disconnect, and
// the operator crashes at its writes. At the end, machines and instances match one to one. No machine may ever have had
// two instances.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		simulateHistory(t, seed)
	}
}

func simulateHistory(t *testing.T, seed uint64) {
	op := newSimulatedOperator(t, seed)
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...)
	}
	made := map[types.UID]string{} // machine -> instance
	created := map[string]int{}    // creations, by instance
	shardIDs := []string{"a", "b"}
	for n := range 80 {
		op.now = op.now.Add(time.Second)
		s := op.shards.Of(shardIDs[op.rand.IntN(2)])
		switch op.rand.IntN(10) {
		case 0, 1:
			op.addMachine(fmt.Sprintf("m%d", n), []string{"", "a", "b"}[op.rand.IntN(3)])
		case 2:
			op.deleteMachine(fmt.Sprintf("m%d", op.rand.IntN(n+1)))
		case 3:
			for id := range op.serverInstances() {
				shard, instance, _ := strings.Cut(id, "/")
				op.shards.Of(shard).Kill(instance)
				if op.rand.IntN(2) == 0 {
					op.shards.Of(shard).Forget(instance)
				}
				break
			}
		case 4:
			s.SetState(func(st *shards.State) { st.Reachable = !st.Reachable })
		case 5:
			s.SetState(func(st *shards.State) { st.Reachable, st.Synced = false, false })
		case 6:
			s.SetState(func(st *shards.State) { st.Reachable, st.Synced = true, true })
		case 7:
			op.crashIn, op.unsaved = 1+op.rand.IntN(5), op.rand.IntN(2) == 0
		case 8:
			s.Fail(func(string) error {
				if op.rand.IntN(2) == 0 {
					return status.Error(codes.Unavailable, "lost")
				}
				return nil
			})
		case 9:
			op.runClusterAPI()
		}
		op.reconcileAll()
		op.checkCreations(made, created, fail)
	}
	op.crashIn = 0
	for _, id := range shardIDs {
		op.shards.Of(id).Fail(nil)
		op.shards.Of(id).SetState(func(st *shards.State) { st.Reachable, st.Synced = true, true })
	}
	op.settle()
	op.checkCreations(made, created, fail)
	op.checkInstances(fail)
	for n := range 80 {
		op.deleteMachine(fmt.Sprintf("m%d", n))
	}
	op.settle()
	var left v1beta1.NstanceMachineList
	if err := op.client.List(t.Context(), &left); err != nil || len(left.Items) > 0 {
		fail("%d machines are left (%v)", len(left.Items), err)
	}
	if left := op.serverInstances(); len(left) > 0 {
		fail("instances are leaked: %v", left)
	}
}

// checkCreations checks that no machine ever had two instances and that no ID was created twice.
func (op *simulatedOperator) checkCreations(made map[types.UID]string, created map[string]int,
	fail func(string, ...any)) {
	for _, call := range op.calls() {
		fields := strings.Fields(call)
		if fields[1] == "CreateInstance" {
			created[fields[2]]++
		}
	}
	var machines v1beta1.NstanceMachineList
	if err := op.client.List(op.t.Context(), &machines); err != nil {
		fail("%v", err)
	}
	mine := map[string]bool{}
	for _, m := range machines.Items {
		if m.Spec.InstanceID == "" {
			continue
		}
		if old, ok := made[m.UID]; ok && old != m.Spec.InstanceID {
			fail("machine %s had instance %s and now %s", m.Name, old, m.Spec.InstanceID)
		}
		made[m.UID] = m.Spec.InstanceID
		if mine[m.Spec.InstanceID] {
			fail("instance %s has two machines", m.Spec.InstanceID)
		}
		mine[m.Spec.InstanceID] = true
	}
	known := map[string]bool{}
	for _, id := range made {
		known[id] = true
	}
	for id := range created {
		if !known[id] {
			fail("instance %s was created without a machine that names it", id)
		}
	}
}

// checkInstances checks that every machine is ready and has its instance, and that no other instances exist.
func (op *simulatedOperator) checkInstances(fail func(string, ...any)) {
	var machines v1beta1.NstanceMachineList
	if err := op.client.List(op.t.Context(), &machines); err != nil {
		fail("%v", err)
	}
	want := map[string]bool{}
	for _, m := range machines.Items {
		want[m.Spec.Shard+"/"+m.Spec.InstanceID] = true
		if !m.Status.Ready || !m.DeletionTimestamp.IsZero() {
			fail("machine %s is not as it should be in the end: %+v", m.Name, m.Status)
		}
	}
	if diff := cmp.Diff(want, op.serverInstances()); diff != "" {
		fail("machines and instances differ:\n%s", diff)
	}
}

// TestWaitsAreReported checks that a machine that waits for a shard has an event that names the shard, both before its
// instance is created and while it is deleted.
func TestWaitsAreReported(t *testing.T) {
	op := newSimulatedOperator(t, 1)
	silent := func(is bool) {
		for _, one := range op.shards.All() {
			op.shards.Of(one.ID()).SetState(func(s *shards.State) { s.Reachable = !is })
		}
	}
	silent(true)
	op.addMachine("one", "a")
	op.settle()
	if events := strings.Join(op.events.take(), "\n"); !strings.Contains(events, "waiting for shard a") {
		t.Errorf("events while the instance cannot be created: %q", events)
	}
	silent(false)
	op.settle()
	op.events.take()
	silent(true)
	op.deleteMachine("one")
	for range 3 {
		op.runClusterAPI()
		op.reconcileAll()
	}
	if events := op.events.take(); len(events) != 1 || !strings.Contains(events[0], "Warning Deleting") ||
		!strings.Contains(events[0], "shard a does not answer") {
		t.Errorf("events while the instance cannot be deleted: %q", events)
	}
}
