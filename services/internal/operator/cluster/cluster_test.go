package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

const namespace = "nstance-system"

// testReconciler is a reconciler with an in-memory Kubernetes API. It issues the tokens "token-1", "token-2" and so on,
// with the requested lifetime.
type testReconciler struct {
	*reconciler
	shards   *shardstest.Set
	recorder *events.FakeRecorder
	tokens   int
	clusters int
	// answer is the API server's answer to a request with the kubeconfig in the Secret.
	answer atomic.Pointer[apierrors.StatusError]
	// skew is how far the API server's clock is ahead of the operator's.
	skew time.Duration
	// limited is true if the operator may not create ServiceAccounts and roles, as in an installation by the chart.
	limited bool
}

func newTestReconciler(t *testing.T, objects ...client.Object) *testReconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme,
		v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &testReconciler{shards: shardstest.New("west", "east"), recorder: events.NewFakeRecorder(100)}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(
		&v1beta1.NstanceCluster{}, &clusterv1.Cluster{}).
		WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object,
			opts ...client.CreateOption) error {
			switch o.(type) {
			case *clusterv1.Cluster:
				w.clusters++
				o.SetUID(types.UID(fmt.Sprint("cluster-", w.clusters)))
			case *corev1.ServiceAccount, *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
				if w.limited {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "objects"}, o.GetName(),
						errors.New("not permitted"))
				}
			}
			return c.Create(ctx, o, opts...)
		}, SubResourceCreate: func(ctx context.Context, c client.Client, sub string,
			o, body client.Object, opts ...client.SubResourceCreateOption) error {
			if err := c.SubResource(sub).Create(ctx, o, body, opts...); err != nil {
				return err
			}
			w.tokens++
			request := body.(*authenticationv1.TokenRequest)
			request.Status.Token = fmt.Sprintf("token-%d", w.tokens)
			request.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(w.skew +
				time.Duration(*request.Spec.ExpirationSeconds)*time.Second))
			return nil
		}}).Build()
	o := Options{Scope: scope.Scope{Client: kube, Recorder: w.recorder, Shards: w.shards, Namespace: namespace,
		Cluster: "demo", Tenant: "default", Now: time.Now, Log: slog.New(slog.DiscardHandler)},
		Config: &rest.Config{Host: "https://10.96.0.1:443", BearerToken: "operator's own",
			TLSClientConfig: rest.TLSClientConfig{CAData: []byte("the CA")}},
		ServiceAccount: "nstance-capi-workload", Problems: &scope.Problems{}}
	w.reconciler = &reconciler{Options: o, endpoint: clusterv1.APIEndpoint{Host: "10.96.0.1", Port: 443},
		kubeconfig: &kubeconfigKeeper{Options: o}}
	w.kubeconfig.try = func(context.Context, []byte) error {
		if answer := w.answer.Load(); answer != nil {
			return answer
		}
		return nil
	}
	return w
}

func (r *testReconciler) reconcile(t *testing.T) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
}

func (r *testReconciler) read(t *testing.T) (*v1beta1.NstanceCluster, *clusterv1.Cluster) {
	t.Helper()
	var infra v1beta1.NstanceCluster
	var cluster clusterv1.Cluster
	if err := errors.Join(r.Client.Get(t.Context(), r.objectKey(), &infra),
		r.Client.Get(t.Context(), r.objectKey(), &cluster)); err != nil {
		t.Fatal(err)
	}
	return &infra, &cluster
}

func serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nstance-capi-workload"}}
}

func TestClusterIsCreated(t *testing.T) {
	w := newTestReconciler(t)
	w.limited = true
	w.shards.Of("west").SetState(func(s *shards.State) { s.Zone, s.Region = "west-1", "us" })
	w.shards.Of("east").SetState(func(s *shards.State) { s.Zone, s.Region = "", "" })
	w.reconcile(t)
	infra, cluster := w.read(t)
	endpoint := clusterv1.APIEndpoint{Host: "10.96.0.1", Port: 443}
	if infra.Name != "demo--default" || infra.Spec.ControlPlaneEndpoint != endpoint ||
		cluster.Spec.ControlPlaneEndpoint != endpoint {
		t.Errorf("%s: %+v, %+v", infra.Name, infra.Spec, cluster.Spec)
	}
	if ref := cluster.Spec.InfrastructureRef; ref.APIGroup != "infrastructure.cluster.x-k8s.io" ||
		ref.Kind != "NstanceCluster" || ref.Name != "demo--default" {
		t.Errorf("infrastructureRef %+v", ref)
	}
	if infra.Status.Initialization.Provisioned == nil || !*infra.Status.Initialization.Provisioned {
		t.Error("it is not provisioned")
	}
	if d := cmp.Diff([]clusterv1.FailureDomain{{Name: "east"}, {Name: "west",
		Attributes: map[string]string{"zone": "west-1", "region": "us"}}}, infra.Status.FailureDomains); d != "" {
		t.Error(d)
	}
	if !meta.IsStatusConditionTrue(cluster.Status.Conditions, clusterv1.ClusterControlPlaneInitializedCondition) ||
		!*cluster.Status.Initialization.ControlPlaneInitialized {
		t.Errorf("status of the Cluster: %+v", cluster.Status)
	}
	ready := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, "kustomize/rbac") {
		t.Errorf("without a kubeconfig: %+v", ready)
	}

	// A second pass changes nothing.
	before := []string{infra.ResourceVersion, cluster.ResourceVersion}
	w.reconcile(t)
	infra, cluster = w.read(t)
	if d := cmp.Diff(before, []string{infra.ResourceVersion, cluster.ResourceVersion}); d != "" {
		t.Errorf("written again: %s", d)
	}

	// Add the shard "north" and make the shard "west" unreachable. The zone of "west" must stay in the status.
	w.shards.Add("north")
	w.shards.Of("west").SetState(func(s *shards.State) { *s = shards.State{} })
	w.Problems = &scope.Problems{} // as if it had succeeded
	w.reconcile(t)
	infra, _ = w.read(t)
	if len(infra.Status.FailureDomains) != 3 || infra.Status.FailureDomains[2].Attributes["zone"] != "west-1" {
		t.Errorf("failure domains %+v", infra.Status.FailureDomains)
	}
	if !meta.IsStatusConditionTrue(infra.Status.Conditions, v1beta1.ReadyCondition) {
		t.Errorf("conditions %+v", infra.Status.Conditions)
	}
}

// TestDeletedClusterStaysDeleted checks that a deleted Cluster is not created again. As with Cluster API, the
// NstanceCluster disappears before the Cluster.
func TestDeletedClusterStaysDeleted(t *testing.T) {
	w := newTestReconciler(t)
	w.reconcile(t)
	_, cluster := w.read(t)
	cluster.Finalizers = []string{clusterv1.ClusterFinalizer}
	mustSucceed(t, w.Client.Update(t.Context(), cluster))
	group := &v1beta1.NstanceShardGroup{ObjectMeta: w.objectMeta(), Spec: v1beta1.NstanceShardGroupSpec{Shard: "west"}}
	mustSucceed(t, w.Client.Create(t.Context(), group))
	w.shards.Of("west").SetState(func(s *shards.State) { s.Reachable = false })
	mustSucceed(t, w.Client.Delete(t.Context(), cluster))
	w.reconcile(t)
	infra, cluster := w.read(t)
	if ready := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.ReadyCondition); ready == nil ||
		ready.Reason != v1beta1.DeletingReason || !strings.Contains(ready.Message, "west") {
		t.Errorf("the condition does not name the shard: %+v", ready)
	}
	mustSucceed(t, w.Client.Delete(t.Context(), infra))
	w.reconcile(t)
	cluster.Finalizers = nil
	mustSucceed(t, w.Client.Update(t.Context(), cluster))

	restarted := &reconciler{Options: w.Options, endpoint: w.endpoint, kubeconfig: w.kubeconfig}
	w.reconciler = restarted
	for range 3 {
		w.reconcile(t)
	}
	if in, err := w.gatherInput(t.Context()); err != nil || in.cluster != nil || in.infra != nil || in.record == nil {
		t.Fatalf("after the deletion: %+v, error %v", in, err)
	}

	record := newRecord(namespace, "demo--default")
	mustSucceed(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(record), record))
	record.Annotations = map[string]string{v1beta1.RecreateAnnotation: "true"}
	mustSucceed(t, w.Client.Update(t.Context(), record))
	w.reconcile(t)
	w.read(t)
	if in, err := w.readRecord(t.Context()); in != nil || err != nil {
		t.Errorf("the record is left: %v, error %v", in, err)
	}
}

// TestInfraClusterDeletedAlone checks that the operator creates a deleted NstanceCluster again if its Cluster was not
// deleted.
func TestInfraClusterDeletedAlone(t *testing.T) {
	w := newTestReconciler(t)
	w.reconcile(t)
	infra, _ := w.read(t)
	mustSucceed(t, w.Client.Delete(t.Context(), infra))
	w.reconcile(t)
	w.reconcile(t)
	w.read(t)
	if in, err := w.readRecord(t.Context()); in != nil || err != nil {
		t.Errorf("a deletion was recorded: %v, error %v", in, err)
	}
}

func TestDecidePhase(t *testing.T) {
	now := metav1.Now()
	alive, dying := &clusterv1.Cluster{}, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}
	infra, infraDying := &v1beta1.NstanceCluster{},
		&v1beta1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}
	record := &corev1.ConfigMap{}
	again := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{v1beta1.RecreateAnnotation: "true"}}}
	for name, c := range map[string]struct {
		in   phaseInput
		want phase
	}{
		"first start":                      {phaseInput{}, living},
		"Cluster exists":                   {phaseInput{cluster: alive, infra: infra}, living},
		"NstanceCluster deleted alone":     {phaseInput{cluster: alive, infra: infraDying}, living},
		"Cluster being deleted":            {phaseInput{cluster: dying, infra: infra}, ending},
		"being deleted, to be recreated":   {phaseInput{cluster: dying, recreate: true}, ending},
		"recorded":                         {phaseInput{record: record}, ended},
		"recorded, NstanceCluster is left": {phaseInput{record: record, infra: infraDying}, ended},
		"annotated":                        {phaseInput{record: again}, living},
		"flag":                             {phaseInput{record: record, recreate: true}, living},
		"not recorded":                     {phaseInput{infra: infraDying}, ending},
		"Cluster lost":                     {phaseInput{infra: infra}, living},
	} {
		if got := decidePhase(c.in); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func mustSucceed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUserFieldsAreKept(t *testing.T) {
	name := metav1.ObjectMeta{Namespace: namespace, Name: "demo--default"}
	theirs := clusterv1.APIEndpoint{Host: "api.example.com", Port: 6443}
	w := newTestReconciler(t, &v1beta1.NstanceCluster{ObjectMeta: name},
		&clusterv1.Cluster{ObjectMeta: name, Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: theirs,
			ControlPlaneRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "controlplane.cluster.x-k8s.io", Kind: "Some", Name: "theirs"}}})
	w.reconcile(t)
	infra, cluster := w.read(t)
	if cluster.Spec.ControlPlaneEndpoint != theirs || infra.Spec.ControlPlaneEndpoint.Host != "10.96.0.1" {
		t.Errorf("endpoints %v and %v", cluster.Spec.ControlPlaneEndpoint, infra.Spec.ControlPlaneEndpoint)
	}
	if len(cluster.Status.Conditions) != 0 {
		t.Errorf("a control plane provider sets what it initialized: %+v", cluster.Status.Conditions)
	}
}

func TestPaused(t *testing.T) {
	for name, change := range map[string]func(*v1beta1.NstanceCluster, *clusterv1.Cluster){
		"by the Cluster": func(_ *v1beta1.NstanceCluster, c *clusterv1.Cluster) { c.Spec.Paused = new(true) },
		"by an annotation": func(i *v1beta1.NstanceCluster, _ *clusterv1.Cluster) {
			i.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		},
	} {
		w := newTestReconciler(t)
		w.reconcile(t)
		infra, cluster := w.read(t)
		change(infra, cluster)
		if err := errors.Join(w.Client.Update(t.Context(), infra), w.Client.Update(t.Context(), cluster)); err != nil {
			t.Fatal(err)
		}
		w.shards.Add("north")
		w.reconcile(t)
		infra, _ = w.read(t)
		if !meta.IsStatusConditionTrue(infra.Status.Conditions, v1beta1.PausedCondition) ||
			len(infra.Status.FailureDomains) != 2 {
			t.Errorf("%s: %+v", name, infra.Status)
		}
	}
}

func TestBeingDeleted(t *testing.T) {
	w := newTestReconciler(t)
	w.reconcile(t)
	_, cluster := w.read(t)
	cluster.Finalizers = []string{"example.com/hold"}
	if err := errors.Join(w.Client.Update(t.Context(), cluster), w.Client.Delete(t.Context(), cluster)); err != nil {
		t.Fatal(err)
	}
	w.shards.Add("north")
	w.reconcile(t)
	if infra, _ := w.read(t); len(infra.Status.FailureDomains) != 2 {
		t.Errorf("%+v", infra.Status)
	}
}

func (r *testReconciler) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	var s corev1.Secret
	if err := r.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "demo--default-kubeconfig"},
		&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (r *testReconciler) token(t *testing.T) string {
	t.Helper()
	config, err := parseKubeconfig(r.secret(t).Data["value"])
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://10.96.0.1:443" || string(config.CAData) != "the CA" {
		t.Errorf("kubeconfig of %s with CA %q", config.Host, config.CAData)
	}
	return config.BearerToken
}

// TestKubeconfig checks that the Secret always has a valid token, that the token is replaced after half of its life,
// and that a deleted Secret is created again.
func TestKubeconfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestReconciler(t)
		w.limited = true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		notified := 0
		w.Problems.Notify(func() { notified++ })
		go func() { done <- w.kubeconfig.run(ctx) }()
		wait := func(d time.Duration) { <-time.After(d); synctest.Wait() }

		wait(10 * time.Second)
		if len(w.recorder.Events) != 0 {
			t.Error("that there is no Cluster yet is no event")
		}
		w.reconcile(t)
		wait(time.Minute) // without the ServiceAccount
		if notified == 0 ||
			!strings.Contains(w.Problems.String(), "ServiceAccount nstance-system/nstance-capi-workload") ||
			!strings.Contains(w.Problems.String(), "kubectl create serviceaccount nstance-capi-workload -n "+
				"nstance-system; kubectl create clusterrolebinding nstance-capi-workload-nstance-system "+
				"--clusterrole=nstance-operator-workload --serviceaccount=nstance-system:nstance-capi-workload") {
			t.Errorf("problem %q, told %d times", w.Problems.String(), notified)
		}
		if event := <-w.recorder.Events; !strings.HasPrefix(event, "Warning KubeconfigFailed ") ||
			len(w.recorder.Events) != 0 {
			t.Errorf("event %q, and %d more", event, len(w.recorder.Events))
		}
		w.limited = false
		if err := w.Client.Create(t.Context(), serviceAccount()); err != nil {
			t.Fatal(err)
		}
		w.limited = true
		wait(2 * time.Minute)
		secret := w.secret(t)
		if w.Problems.String() != "" || w.token(t) != "token-1" || secret.Type != "cluster.x-k8s.io/secret" ||
			secret.Labels["cluster.x-k8s.io/cluster-name"] != "demo--default" ||
			len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].Kind != "Cluster" {
			t.Errorf("problem %q, secret %+v", w.Problems.String(), secret.ObjectMeta)
		}
		wait(25 * time.Minute)
		if w.token(t) != "token-1" {
			t.Error("renewed too early")
		}
		wait(8 * time.Minute)
		if w.token(t) != "token-2" {
			t.Error("not renewed at half of its life")
		}
		if err := w.Client.Delete(t.Context(), w.secret(t)); err != nil {
			t.Fatal(err)
		}
		wait(90 * time.Second)
		if w.token(t) != "token-3" {
			t.Error("not made again")
		}
		for n, change := range []func(*corev1.Secret){
			func(s *corev1.Secret) { s.Data["value"] = []byte("damaged") },
			func(s *corev1.Secret) { s.Data["value"] = kubeconfigOf("", "token: replaced") },
			func(s *corev1.Secret) { s.Labels = nil },
			func(s *corev1.Secret) { s.OwnerReferences = nil },
		} {
			secret := w.secret(t)
			change(secret)
			if err := w.Client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			wait(time.Minute)
			if want := fmt.Sprint("token-", 4+n); w.token(t) != want ||
				w.secret(t).Labels[clusterv1.ClusterNameLabel] != "demo--default" {
				t.Errorf("change %d: token %q, want %q; labels %v", n, w.token(t), want, w.secret(t).Labels)
			}
			if owners := w.secret(t).OwnerReferences; len(owners) != 1 {
				t.Errorf("change %d: owners %v", n, owners)
			}
		}
		// A token of a ServiceAccount that was deleted and created again is refused.
		w.answer.Store(apierrors.NewUnauthorized("no such account"))
		wait(recheck)
		w.answer.Store(nil)
		wait(recheck)
		if w.token(t) != "token-8" || w.Problems.String() != "" {
			t.Errorf("token %q, problem %q", w.token(t), w.Problems.String())
		}
		w.answer.Store(apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no role")))
		wait(recheck)
		if problem := w.Problems.String(); !strings.Contains(problem, "nstance-capi-workload may not list Nodes") {
			t.Errorf("problem %q", problem)
		}
		w.answer.Store(nil)
		wait(time.Minute)
		if w.token(t) != "token-8" || w.Problems.String() != "" {
			t.Errorf("token %q, problem %q", w.token(t), w.Problems.String())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// keepKubeconfig calls a function while the operator maintains the kubeconfig of an existing Cluster.
func keepKubeconfig(t *testing.T, fn func(t *testing.T, w *testReconciler, wait func(time.Duration))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newTestReconciler(t)
		w.reconcile(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.kubeconfig.run(ctx) }()
		fn(t, w, func(d time.Duration) { <-time.After(d); synctest.Wait() })
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestKubeconfigDoesNotDependOnTheClock checks that a token is replaced after half of its life although the clocks of
// the API server and the operator differ.
func TestKubeconfigDoesNotDependOnTheClock(t *testing.T) {
	for _, skew := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		keepKubeconfig(t, func(t *testing.T, w *testReconciler, wait func(time.Duration)) {
			w.skew = skew
			mustSucceed(t, w.Client.Delete(t.Context(), w.secret(t)))
			wait(time.Minute)
			first := w.tokens
			wait(27 * time.Minute)
			if n := w.tokens - first; n != 0 {
				t.Errorf("clock %s ahead: %d tokens within 28 minutes", skew, n)
			}
			wait(5 * time.Minute)
			if n := w.tokens - first; n != 1 {
				t.Errorf("clock %s ahead: %d tokens within 33 minutes, want another one", skew, n)
			}
		})
	}
}

// TestKubeconfigIsRetriedSoon checks that the Secret is written within 30 s of the end of a long fault.
func TestKubeconfigIsRetriedSoon(t *testing.T) {
	keepKubeconfig(t, func(t *testing.T, w *testReconciler, wait func(time.Duration)) {
		mustSucceed(t, w.Client.Delete(t.Context(), serviceAccount()))
		mustSucceed(t, w.Client.Delete(t.Context(), w.secret(t)))
		w.limited = true
		for range 20 {
			wait(time.Minute)
			if w.Problems.String() == "" {
				t.Fatal("no fault")
			}
			w.limited = false
			mustSucceed(t, w.Client.Create(t.Context(), serviceAccount()))
			w.limited = true
			wait(30*time.Second + time.Millisecond)
			if problem := w.Problems.String(); problem != "" {
				t.Fatalf("30 s after the end of the fault: %s", problem)
			}
			mustSucceed(t, w.Client.Delete(t.Context(), serviceAccount()))
			mustSucceed(t, w.Client.Delete(t.Context(), w.secret(t)))
			wait(5 * time.Minute)
		}
	})
}

// TestKubeconfigFollowsTheCA checks that the kubeconfig gets a changed CA of the API server.
func TestKubeconfigFollowsTheCA(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	keepKubeconfig(t, func(t *testing.T, w *testReconciler, wait func(time.Duration)) {
		w.kubeconfig.Config.CAData, w.kubeconfig.Config.CAFile = nil, file
		for _, ca := range []string{"one", "two"} {
			mustSucceed(t, os.WriteFile(file, []byte(ca), 0o600))
			wait(30 * time.Second)
			config, err := parseKubeconfig(w.secret(t).Data["value"])
			if err != nil || string(config.CAData) != ca {
				t.Errorf("CA %q, error %v; want %q", config.CAData, err, ca)
			}
		}
	})
}

// TestKubeconfigComesWithTheCluster checks that the Secret exists once the NstanceCluster is provisioned. It repeats
// this for a second Cluster, which is created while the Secret of the first one still exists.
func TestKubeconfigComesWithTheCluster(t *testing.T) {
	w := newTestReconciler(t)
	mustSucceed(t, w.Client.Create(t.Context(), serviceAccount()))
	for i := range 2 {
		w.reconcile(t)
		infra, cluster := w.read(t)
		owners := w.secret(t).OwnerReferences
		if !meta.IsStatusConditionTrue(infra.Status.Conditions, v1beta1.ReadyCondition) || len(owners) != 1 ||
			owners[0].UID != cluster.UID || w.token(t) != fmt.Sprint("token-", i+1) {
			t.Errorf("Cluster %s: conditions %+v, owners of the Secret %+v", cluster.UID, infra.Status.Conditions,
				owners)
		}
		mustSucceed(t, w.Client.Delete(t.Context(), cluster))
	}
}

// TestKubeconfigCreatesTheAccount checks that an operator with the rights of an administrator, as in a development
// cluster, creates the account and its permissions itself.
func TestKubeconfigCreatesTheAccount(t *testing.T) {
	w := newTestReconciler(t)
	w.reconcile(t)
	if err := w.kubeconfig.ensureSecret(t.Context(), nil); err != nil || w.token(t) != "token-1" {
		t.Fatalf("token %q, %v", w.token(t), err)
	}
	account, role, binding := serviceAccount(), &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}
	for _, get := range []struct {
		namespace, name string
		object          client.Object
	}{{namespace, account.Name, account}, {"", "nstance-operator-workload", role},
		{"", "nstance-capi-workload-nstance-system", binding}} {
		if err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: get.namespace, Name: get.name},
			get.object); err != nil {
			t.Fatal(err)
		}
	}
	if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
		t.Error("pods can use the account")
	}
	if diff := cmp.Diff([]rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: account.Name}},
		binding.Subjects); diff != "" || binding.RoleRef.Name != role.Name {
		t.Errorf("%+v: %s", binding.RoleRef, diff)
	}
	text, err := os.ReadFile("../../../operator/kustomize/rbac/workload-role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	installed := &rbacv1.ClusterRole{}
	if err := yaml.Unmarshal(text, installed); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(installed.Rules, role.Rules); diff != "" || installed.Name != role.Name {
		t.Errorf("the role differs from the installed one: %s", diff)
	}
}

func TestKubeconfigOfAnExternalCluster(t *testing.T) {
	w := newTestReconciler(t)
	w.External = clusterv1.APIEndpoint{Host: "api", Port: 6443}
	w.reconcile(t)
	if problem := w.Problems.String(); problem != "" || w.tokens > 0 {
		t.Errorf("it is the admin's: %d tokens, problem %q", w.tokens, problem)
	}
}

func TestEndpointOf(t *testing.T) {
	for host, want := range map[string]clusterv1.APIEndpoint{
		"https://10.96.0.1:443": {Host: "10.96.0.1", Port: 443}, "https://api.example.com": {Host: "api.example.com",
			Port: 443}, "127.0.0.1:6443": {Host: "127.0.0.1", Port: 6443},
		"https://[fd00::1]:6443": {Host: "fd00::1", Port: 6443}, "http://127.0.0.1": {Host: "127.0.0.1", Port: 80},
	} {
		if got, err := endpointOf(&rest.Config{Host: host}); err != nil || got != want {
			t.Errorf("%s: %v, %v", host, got, err)
		}
	}
	for _, host := range []string{"", "https://", "https://a:0", "https://a:70000", "https://a b"} {
		if got, err := endpointOf(&rest.Config{Host: host}); err == nil {
			t.Errorf("%q is accepted as %v", host, got)
		}
	}
}

// kubeconfigOf returns a kubeconfig. It adds the text cluster to the entry of the cluster, and the text user to the
// entry of the user.
func kubeconfigOf(cluster, user string) []byte {
	return []byte(
		"apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n" +
			"clusters: [{name: k, cluster: {server: 'https://api:6443', " + cluster + "}}]\nusers: [{name: u, user: {" +
			user + "}}]\n")
}

func TestParseKubeconfig(t *testing.T) {
	config, err := parseKubeconfig(kubeconfigOf("certificate-authority-data: "+"Y2E=", "token: secret"))
	if err != nil || config.Host != "https://api:6443" || config.BearerToken != "secret" ||
		string(config.CAData) != "ca" {
		t.Errorf("%+v, %v", config, err)
	}
	// Editors and shells add byte order marks, line ends and white space.
	good := string(kubeconfigOf("certificate-authority-data: Y2E=", "token: secret"))
	for name, text := range map[string]string{
		"CRLF":                  strings.ReplaceAll(good, "\n", "\r\n"),
		"a byte order mark":     "\ufeff" + good,
		"no last newline":       strings.TrimSpace(good),
		"blank lines":           "\n\n" + good + "\n \n",
		"a token with newlines": string(kubeconfigOf("certificate-authority-data: Y2E=", `token: "secret\r\n"`)),
		"a token with spaces":   string(kubeconfigOf("certificate-authority-data: Y2E=", `token: " secret "`)),
	} {
		config, err := parseKubeconfig([]byte(text))
		if err != nil || config.BearerToken != "secret" || string(config.CAData) != "ca" {
			t.Errorf("%s: %+v, %v", name, config, err)
		}
	}
	for name, test := range map[string]struct {
		text []byte
		want string
	}{
		"empty":      {nil, "key value is empty"},
		"nonsense":   {[]byte("{{{ token: secret"), "the text is not a kubeconfig"},
		"no context": {[]byte("apiVersion: v1\nkind: Config\ncurrent-context: x\n"), `context "x"`},
		"a program": {kubeconfigOf("",
			"exec: {apiVersion: client.authentication.k8s.io/v1, command: secret, interactiveMode: Never}"),
			"runs a program"},
		"a provider":   {kubeconfigOf("", "auth-provider: {name: gcp}"), "runs a program"},
		"a token file": {kubeconfigOf("", "tokenFile: /etc/secret"), "references a file"},
		"a key file":   {kubeconfigOf("", "client-key: /etc/secret"), "references a file"},
		"a CA file":    {kubeconfigOf("certificate-authority: /etc/ca", ""), "references a file"},
	} {
		config, err := parseKubeconfig(test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", name, config, err)
		}
	}
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add(kubeconfigOf("insecure-skip-tls-verify: true", "token: x"))
	f.Add(kubeconfigOf("certificate-authority-data: Y2E=", "exec: {command: x}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		config, err := parseKubeconfig(text)
		if err == nil && (config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" ||
			config.CAFile != "" || config.CertFile != "" || config.KeyFile != "") {
			t.Errorf("accepted %q", text)
		}
	})
}

// TestFollowsTheKubeconfig checks that the operator exits when the kubeconfig changes. After its restart, the operator
// uses the new kubeconfig. The operator ignores a kubeconfig that is invalid or missing.
func TestFollowsTheKubeconfig(t *testing.T) { synctest.Test(t, followKubeconfig) }

func followKubeconfig(t *testing.T) {
	at := types.NamespacedName{Namespace: namespace, Name: "demo--default-kubeconfig"}
	first, second := kubeconfigOf("", "token: first"), kubeconfigOf("", "token: second")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name},
		Data: map[string][]byte{"value": first}}
	w := newTestReconciler(t, secret)
	var log strings.Builder
	var problem atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- waitForChange(t.Context(), w.Client, at, first, func(err error) {
			if err != nil {
				problem.Store(true)
			}
		}, slog.New(slog.NewTextHandler(&log, nil)))
	}()
	put := func(text []byte) {
		t.Helper()
		secret.Data["value"] = text
		if err := w.Client.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	tick := func() {
		t.Helper()
		<-time.After(recheck)
		synctest.Wait()
		if len(done) > 0 {
			t.Fatalf("it has ended: %v", <-done)
		}
	}
	tick()
	put([]byte("\ufeff" + strings.ReplaceAll(string(first), "\n", "\r\n") + "\r\n")) // no change
	tick()
	put([]byte("nonsense"))
	tick()
	put(second)
	err := <-done
	if err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Error(err)
	}
	if !problem.Load() {
		t.Error("the invalid kubeconfig was not reported")
	}
	if !strings.Contains(log.String(), "is invalid") || strings.Contains(log.String(), "second") {
		t.Errorf("log: %s", log.String())
	}
	if _, err := readKubeconfig(t.Context(), w.Client, types.NamespacedName{Namespace: namespace,
		Name: "none"}); err == nil || !strings.Contains(err.Error(), "is missing: with NSTANCE_CAPI_ENDPOINT") {
		t.Error(err)
	}
}

// TestOtherReferenceIsReported checks that the NstanceCluster has a condition and an event if the Cluster references
// another object, and that a removed label of the NstanceCluster is written again.
func TestOtherReferenceIsReported(t *testing.T) {
	w := newTestReconciler(t)
	mustSucceed(t, w.Client.Create(t.Context(), serviceAccount()))
	w.reconcile(t)
	infra, cluster := w.read(t)
	cluster.Spec.InfrastructureRef.Name, infra.Labels = "other", nil
	mustSucceed(t, errors.Join(w.Client.Update(t.Context(), cluster), w.Client.Update(t.Context(), infra)))
	for len(w.recorder.Events) > 0 {
		<-w.recorder.Events
	}
	w.reconcile(t)
	infra, cluster = w.read(t)
	ready := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, `"other"`) ||
		!strings.Contains(ready.Message, "set it to NstanceCluster demo--default") {
		t.Errorf("condition %+v", ready)
	}
	if infra.Labels[clusterv1.ClusterNameLabel] != "demo--default" {
		t.Errorf("labels %v", infra.Labels)
	}
	select {
	case text := <-w.recorder.Events:
		if !strings.Contains(text, "Warning "+v1beta1.UnreferencedReason) {
			t.Errorf("event %q", text)
		}
	default:
		t.Error("no event")
	}
	cluster.Spec.InfrastructureRef.Name = "demo--default"
	mustSucceed(t, w.Client.Update(t.Context(), cluster))
	w.reconcile(t)
	if infra, _ = w.read(t); !meta.IsStatusConditionTrue(infra.Status.Conditions, v1beta1.ReadyCondition) {
		t.Errorf("conditions %+v", infra.Status.Conditions)
	}
}

// TestSilentShardIsReported checks that the NstanceCluster has a condition and an event with the shards that the
// operator waits for, from the first attempt to connect on.
func TestSilentShardIsReported(t *testing.T) {
	w := newTestReconciler(t)
	w.shards.Of("west").SetState(func(s *shards.State) { *s = shards.State{} })
	state := func() (status metav1.ConditionStatus, reason, message string) {
		w.reconcile(t)
		infra, _ := w.read(t)
		c := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.ShardsReachableCondition)
		if c == nil {
			t.Fatal("the condition ShardsReachable is missing")
		}
		return c.Status, c.Reason, c.Message
	}
	reported := func() (found []string) {
		for {
			select {
			case text := <-w.recorder.Events:
				if strings.Contains(text, v1beta1.UnreachableReason) {
					found = append(found, text)
				}
			default:
				return found
			}
		}
	}
	if status, reason, text := state(); status != metav1.ConditionFalse || reason != v1beta1.WaitingForShardReason ||
		!strings.Contains(text, "west") {
		t.Errorf("while it connects: %s %s %q", status, reason, text)
	}
	if events := reported(); len(events) > 0 {
		t.Errorf("events while it connects: %q", events)
	}
	w.shards.Of("west").SetState(func(s *shards.State) { s.Err = "connection refused" })
	for range 2 {
		if status, reason, text := state(); status != metav1.ConditionFalse || reason != v1beta1.UnreachableReason ||
			!strings.Contains(text, "west (connection refused)") || strings.Contains(text, "east") {
			t.Errorf("unreachable: %s %s %q", status, reason, text)
		}
	}
	if events := reported(); len(events) != 1 || !strings.Contains(events[0], "west (connection refused)") {
		t.Errorf("events %q", events)
	}
	w.shards.Of("west").SetState(func(s *shards.State) { *s = shards.State{Reachable: true, Synced: true} })
	if status, _, _ := state(); status != metav1.ConditionTrue {
		t.Errorf("reachable: %s", status)
	}
}
