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
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

func diffObjects(a, b any) string { return cmp.Diff(a, b) }

const namespace = "nstance-system"

// recorder keeps events as "{name}: {type} {reason} {note}".
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s: %s %s %s", regarding.(client.Object).GetName(), kind, reason,
		fmt.Sprintf(note, args...)))
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.events
	r.events = nil
	return out
}

// errCrash is what a write says after which the process is no more.
var errCrash = errors.New("crash")

// world is a cluster with servers, and an operator that may be ended and started anew.
type world struct {
	t       *testing.T
	shards  *shardstest.Set
	client  client.Client
	rec     *Reconciler
	now     time.Time
	rand    *rand.Rand
	events  recorder
	writes  int
	crashes int
	crashIn int  // writes until a crash; 0: none
	unsaved bool // the write of the crash is not done: it comes after the call before it
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, shards: shardstest.New("a", "b"), now: shardstest.Start, rand: rand.New(rand.NewPCG(seed, 1))}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1beta1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	b := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1beta1.NstanceMachine{},
		&v1beta1.NstanceMachineTemplate{})
	for _, i := range indexes {
		b = b.WithIndex(i.object, i.field, i.values)
	}
	w.client = b.WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, o, opts...) })
		},
	}).Build()
	for _, id := range w.shards.IDs() {
		w.shards.Of(id).SetGroup(&nstancev1.GroupStatus{Group: "workers", Template: "t", InstanceType: "m5.large"})
	}
	w.restart()
	return w
}

// write counts, and crashes after the write that it is time for.
func (w *world) write(do func() error) error {
	if w.crashIn < 0 {
		return errCrash
	}
	if w.crashIn == 1 && w.unsaved {
		w.crashIn = -1
		return errCrash
	}
	err := do()
	w.writes++
	if w.crashIn > 0 {
		if w.crashIn--; w.crashIn == 0 {
			w.crashIn = -1
			return errCrash
		}
	}
	return err
}

// restart is a new operator process: it remembers nothing.
func (w *world) restart() {
	w.crashIn = 0
	w.rec = newReconciler(Options{Client: w.client, Reader: w.client, Recorder: &w.events, Shards: w.shards,
		Namespace: namespace, Cluster: "prod", Tenant: "default",
		Now: func() time.Time { return w.now }, Rand: randomness{w.rand}, Log: slog.New(slog.DiscardHandler)})
}

type randomness struct{ *rand.Rand }

func (r randomness) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return len(p), nil
}

// add makes a Machine and its NstanceMachine, as Cluster API and its users do.
func (w *world) add(name, shard string) {
	w.t.Helper()
	empty := ""
	cluster := v1beta1.ClusterName("prod", "default")
	owner := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		UID: types.UID("machine-" + name + w.now.String()), Finalizers: []string{clusterv1.MachineFinalizer}},
		Spec: clusterv1.MachineSpec{ClusterName: cluster, Bootstrap: clusterv1.Bootstrap{DataSecretName: &empty},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupVersion.Group,
				Kind: "NstanceMachine", Name: name}}}
	m := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		UID: types.UID("nm-" + name + w.now.String())},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: shard}}
	for _, o := range []client.Object{owner, m} {
		if err := w.client.Create(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) machine(name string) *v1beta1.NstanceMachine {
	w.t.Helper()
	m := &v1beta1.NstanceMachine{}
	err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, m)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// deleteMachine is what a user does; core stands for Cluster API's part of it.
func (w *world) deleteMachine(name string) {
	w.t.Helper()
	was := w.crashIn
	w.crashIn = 0
	defer func() { w.crashIn = was }()
	o := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := client.IgnoreNotFound(w.client.Delete(w.t.Context(), o)); err != nil {
		w.t.Fatal(err)
	}
}

// core is what Cluster API does: a Machine that goes takes its infrastructure with it, and goes itself when that is
// gone.
func (w *world) core() {
	w.t.Helper()
	was := w.crashIn
	w.crashIn = 0
	defer func() { w.crashIn = was }()
	var machines clusterv1.MachineList
	if err := w.client.List(w.t.Context(), &machines); err != nil {
		w.t.Fatal(err)
	}
	for i := range machines.Items {
		o := &machines.Items[i]
		if o.DeletionTimestamp.IsZero() {
			continue
		}
		if m := w.machine(o.Name); m != nil {
			if m.DeletionTimestamp.IsZero() {
				if err := w.client.Delete(w.t.Context(), m); err != nil {
					w.t.Fatal(err)
				}
			}
			continue
		}
		o.Finalizers = nil
		if err := w.client.Update(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
}

// pass reconciles every machine once. After a crash the process is started anew.
func (w *world) pass() {
	w.t.Helper()
	var machines v1beta1.NstanceMachineList
	if err := w.client.List(w.t.Context(), &machines); err != nil {
		w.t.Fatal(err)
	}
	for i := range machines.Items {
		w.now = w.now.Add(time.Millisecond)
		if _, err := w.rec.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(
			&machines.Items[i])}); err != nil && w.crashIn >= 0 {
			w.t.Fatalf("reconcile %s: %v", machines.Items[i].Name, err)
		}
		if w.crashIn < 0 {
			w.crashes++
			w.restart()
		}
	}
}

// settle reconciles until nothing is written any more.
func (w *world) settle() {
	w.t.Helper()
	for range 30 {
		writes, crashes := w.writes, w.crashes
		w.now = w.now.Add(doubt)
		w.core()
		w.pass()
		if w.writes == writes && w.crashes == crashes {
			return
		}
	}
	w.t.Fatal("does not settle")
}

// onServers lists the on-demand instances that are not deleted, by shard and ID.
func (w *world) onServers() map[string]bool {
	out := map[string]bool{}
	for _, id := range w.shards.IDs() {
		for _, i := range w.shards.Of(id).Instances("") {
			if i.GetOnDemand() {
				out[id+"/"+i.GetInstanceId()] = true
			}
		}
	}
	return out
}

func (w *world) calls() (calls []string) {
	for _, id := range w.shards.IDs() {
		for _, call := range w.shards.Of(id).Calls() {
			calls = append(calls, id+" "+call)
		}
	}
	return calls
}

func TestLifeOfAMachine(t *testing.T) {
	w := newWorld(t, 1)
	w.add("one", "")
	w.settle()
	m := w.machine("one")
	if m.Labels[clusterv1.ClusterNameLabel] != "prod--default" || m.Spec.Shard != "a" || m.Spec.InstanceID == "" ||
		m.Spec.ProviderID != "test:///a/"+m.Spec.InstanceID || !m.Status.Ready ||
		m.Status.InstanceID != m.Spec.InstanceID {
		t.Fatalf("%+v", m)
	}
	if calls := w.calls(); !cmp.Equal(calls, []string{"a CreateInstance " + m.Spec.InstanceID}) {
		t.Errorf("calls %q", calls)
	}
	if events := w.events.take(); !cmp.Equal(events, []string{"one: Normal Created instance " + m.Spec.InstanceID +
		" on shard a"}) {
		t.Errorf("events %q", events)
	}

	// A settled world is left alone.
	writes := w.writes
	w.restart()
	for range 3 {
		w.pass()
	}
	if calls := w.calls(); w.writes != writes || len(calls) > 0 {
		t.Errorf("%d writes and calls %q in a settled world", w.writes-writes, calls)
	}

	w.shards.Of("a").HoldDrains()
	w.deleteMachine("one")
	w.settle()
	if m := w.machine("one"); m == nil || m.Status.State != "deleting" {
		t.Fatalf("gone before its instance: %+v", m)
	}
	if calls := w.calls(); !cmp.Equal(calls, []string{"a DeleteInstance " + m.Spec.InstanceID}) {
		t.Errorf("calls %q", calls)
	}
	w.shards.Of("a").Kill(m.Spec.InstanceID)
	w.settle()
	if m := w.machine("one"); m != nil {
		t.Errorf("still there: %+v", m)
	}
	if calls := w.calls(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
}

// TestServerDeletes: an instance that is gone takes its Machine with it, and nobody is asked to delete it.
func TestServerDeletes(t *testing.T) {
	w := newWorld(t, 2)
	w.add("one", "b")
	w.settle()
	id := w.machine("one").Spec.InstanceID
	w.calls()
	w.shards.Of("b").Kill(id)
	w.pass()
	var owner clusterv1.Machine
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "one"}, &owner); err != nil ||
		owner.DeletionTimestamp.IsZero() {
		t.Fatalf("the Machine stays: %v", err)
	}
	if _, ok := owner.Annotations[clusterv1.ExcludeNodeDrainingAnnotation]; !ok {
		t.Error("Cluster API would drain a machine that is gone")
	}
	w.settle()
	if m := w.machine("one"); m != nil {
		t.Errorf("still there: %+v", m)
	}
	if calls := w.calls(); len(calls) > 0 {
		t.Errorf("calls %q", calls)
	}
}

// TestForgotten: an instance that was deleted while nobody looked is not in any list. Its leader is asked.
func TestForgotten(t *testing.T) {
	w := newWorld(t, 3)
	w.add("one", "b")
	w.settle()
	b := w.shards.Of("b")
	b.SetState(func(s *shards.State) { s.Reachable, s.Synced = false, false })
	b.Forget(w.machine("one").Spec.InstanceID)
	w.settle()
	if m := w.machine("one"); m == nil || hasCondition(m.Status.Conditions, "ServerDeleted=InstanceGone") {
		t.Fatal("deleted by a shard that says nothing")
	}
	b.SetState(func(s *shards.State) { s.Reachable = true })
	w.settle()
	if w.machine("one") == nil {
		t.Fatal("deleted before the mirror was read")
	}
	b.SetState(func(s *shards.State) { s.Synced = true })
	w.settle()
	if m := w.machine("one"); m != nil {
		t.Errorf("still there: %+v", m.Status)
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
			w := newWorld(t, 4)
			asked := 0
			w.shards.Of("a").Fail(func(method string) error {
				if method != "CreateInstance" {
					return nil
				}
				asked++
				return status.Error(c.code, "not now")
			})
			w.add("one", "a")
			for range 5 {
				w.pass()
			}
			m := w.machine("one")
			if asked != c.calls || !hasCondition(m.Status.Conditions, "InstanceCreated="+c.reason) {
				t.Errorf("asked %d times, conditions %+v", asked, m.Status.Conditions)
			}
			warned := 0
			for _, e := range w.events.take() {
				if strings.Contains(e, "Warning CreateFailed not now") {
					warned++
				}
			}
			if c.code == codes.FailedPrecondition && !hasText(m.Status.Conditions, "delete the Machine to try again") {
				t.Error("does not say what to do")
			}
			if (warned == 1) != c.warn || warned > 1 {
				t.Errorf("%d warnings", warned)
			}
			id := m.Spec.InstanceID
			w.shards.Of("a").Fail(nil)
			w.now = w.now.Add(retryRefused)
			w.settle()
			if m := w.machine("one"); !m.Status.Ready || m.Spec.InstanceID != id {
				t.Errorf("not created afterwards: %+v", m)
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

// TestLostAnswer: the server makes an instance though its answer is lost, and the machine is deleted before the server
// knows of the instance.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t, 7)
	a := w.shards.Of("a")
	a.Fail(func(method string) error {
		if method == "CreateInstance" {
			return status.Error(codes.Unavailable, "connection lost")
		}
		return nil
	})
	w.add("one", "a")
	w.pass()
	id := w.machine("one").Spec.InstanceID
	w.deleteMachine("one")
	w.core()
	w.pass()
	if w.machine("one") == nil {
		t.Fatal("the machine is gone, its instance may come yet")
	}
	a.Fail(nil)
	// The request from before arrives.
	if _, err := a.API().CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "workers",
		InstanceId: id}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if left := w.onServers(); w.machine("one") != nil || len(left) > 0 {
		t.Errorf("left %v", left)
	}

	w.add("two", "a")
	a.Fail(func(method string) error {
		if method == "CreateInstance" {
			return status.Error(codes.Unavailable, "connection lost")
		}
		return nil
	})
	w.pass()
	w.deleteMachine("two")
	w.settle()
	w.now = w.now.Add(doubt)
	w.settle()
	if w.machine("two") != nil {
		t.Error("the doubt does not end")
	}
}

// TestPaused: nothing is done but to say so, for the machine's own annotation and for its Cluster.
func TestPaused(t *testing.T) {
	w := newWorld(t, 5)
	yes := true
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: v1beta1.ClusterName("prod", "default")}, Spec: clusterv1.ClusterSpec{Paused: &yes}}
	if err := w.client.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	w.add("one", "a")
	w.settle()
	if m := w.machine("one"); m.Spec.InstanceID != "" || !hasCondition(m.Status.Conditions, "Paused=Paused") ||
		len(w.calls()) > 0 {
		t.Fatalf("%+v", m)
	}
	cluster.Spec.Paused = nil
	if err := w.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if m := w.machine("one"); !m.Status.Ready || !hasCondition(m.Status.Conditions, "Paused=NotPaused") {
		t.Fatalf("%+v", m)
	}
}

// TestOthersAreLeftAlone: a machine of another cluster in the same namespace.
func TestOthersAreLeftAlone(t *testing.T) {
	w := newWorld(t, 6)
	m := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other",
		Labels: map[string]string{clusterv1.ClusterNameLabel: "else"}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}}}
	if err := w.client.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if w.writes > 0 || len(w.machine("other").Status.Conditions) > 0 {
		t.Errorf("%d writes", w.writes)
	}
}

// TestCrashAtEveryWrite: one machine's whole life, with a crash before or after each of its writes.
func TestCrashAtEveryWrite(t *testing.T) {
	for _, unsaved := range []bool{false, true} {
		for at := 1; ; at++ {
			w := newWorld(t, uint64(at))
			w.crashIn, w.unsaved = at, unsaved
			w.add("one", "")
			w.settle()
			m := w.machine("one")
			if m == nil || !m.Status.Ready {
				t.Fatalf("crash at write %d: not ready: %+v", at, m)
			}
			if diff := cmp.Diff(map[string]bool{"a/" + m.Spec.InstanceID: true}, w.onServers()); diff != "" {
				t.Fatalf("crash at write %d:\n%s", at, diff)
			}
			w.deleteMachine("one")
			w.settle()
			crashed := w.crashes > 0
			if left := w.onServers(); w.machine("one") != nil || len(left) > 0 {
				t.Fatalf("crash at write %d: left %v", at, left)
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

// TestWorlds plays random histories: machines come and go, instances die, shards are lost and come back, and the
// operator crashes after any of its writes. At the end every machine has exactly its instance and every instance its
// machine, nothing hangs, and no machine ever had two.
func TestWorlds(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		playWorld(t, seed)
	}
}

func playWorld(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...)
	}
	made := map[types.UID]string{} // machine -> instance
	created := map[string]int{}    // creations, by instance
	shardIDs := []string{"a", "b"}
	for n := range 80 {
		w.now = w.now.Add(time.Second)
		s := w.shards.Of(shardIDs[w.rand.IntN(2)])
		switch w.rand.IntN(10) {
		case 0, 1:
			w.add(fmt.Sprintf("m%d", n), []string{"", "a", "b"}[w.rand.IntN(3)])
		case 2:
			w.deleteMachine(fmt.Sprintf("m%d", w.rand.IntN(n+1)))
		case 3:
			for id := range w.onServers() {
				shard, instance, _ := strings.Cut(id, "/")
				w.shards.Of(shard).Kill(instance)
				if w.rand.IntN(2) == 0 {
					w.shards.Of(shard).Forget(instance)
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
			w.crashIn, w.unsaved = 1+w.rand.IntN(5), w.rand.IntN(2) == 0
		case 8:
			s.Fail(func(string) error {
				if w.rand.IntN(2) == 0 {
					return status.Error(codes.Unavailable, "lost")
				}
				return nil
			})
		case 9:
			w.core()
		}
		w.pass()
		w.count(made, created, fail)
	}
	w.crashIn = 0
	for _, id := range shardIDs {
		w.shards.Of(id).Fail(nil)
		w.shards.Of(id).SetState(func(st *shards.State) { st.Reachable, st.Synced = true, true })
	}
	w.settle()
	w.count(made, created, fail)
	w.compare(fail)
	for n := range 80 {
		w.deleteMachine(fmt.Sprintf("m%d", n))
	}
	w.settle()
	var left v1beta1.NstanceMachineList
	if err := w.client.List(t.Context(), &left); err != nil || len(left.Items) > 0 {
		fail("%d machines are left (%v)", len(left.Items), err)
	}
	if left := w.onServers(); len(left) > 0 {
		fail("instances are leaked: %v", left)
	}
}

// count checks that no machine ever had two instances, and that the same was not created after it was gone.
func (w *world) count(made map[types.UID]string, created map[string]int, fail func(string, ...any)) {
	for _, call := range w.calls() {
		fields := strings.Fields(call)
		if fields[1] == "CreateInstance" {
			created[fields[2]]++
		}
	}
	var machines v1beta1.NstanceMachineList
	if err := w.client.List(w.t.Context(), &machines); err != nil {
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

// compare checks that machines and instances are the same.
func (w *world) compare(fail func(string, ...any)) {
	var machines v1beta1.NstanceMachineList
	if err := w.client.List(w.t.Context(), &machines); err != nil {
		fail("%v", err)
	}
	want := map[string]bool{}
	for _, m := range machines.Items {
		want[m.Spec.Shard+"/"+m.Spec.InstanceID] = true
		if !m.Status.Ready || !m.DeletionTimestamp.IsZero() {
			fail("machine %s is not as it should be in the end: %+v", m.Name, m.Status)
		}
	}
	if diff := cmp.Diff(want, w.onServers()); diff != "" {
		fail("machines and instances differ:\n%s", diff)
	}
}
