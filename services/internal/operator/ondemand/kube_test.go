package ondemand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
	"github.com/nstance-kit/nstance/tests/kube"
)

const patience = 40 * time.Second

// lab is a real API server with fake shards.
type lab struct {
	*testing.T
	kube   *kube.Cluster
	client client.Client
	shards *shardstest.Set
	stop   func()
}

func (l *lab) must(errs ...error) {
	l.Helper()
	if err := errors.Join(errs...); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) eventually(what string, is func() bool) {
	l.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			l.Fatalf("not within %s: %s", patience, what)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func (l *lab) start() {
	l.Helper()
	shared := true
	mgr, err := ctrl.NewManager(l.kube.Config, ctrl.Options{Scheme: l.client.Scheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}},
			ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
				Namespaces: map[string]cache.Config{cache.AllNamespaces: {}}}}},
		Controller: config.Controller{SkipNameValidation: &shared}})
	l.must(err)
	l.must(scope.NodeByProviderID.Add(mgr.GetFieldIndexer()))
	l.must(Setup(mgr, scope.Scope{Shards: l.shards, Namespace: namespace, Cluster: "prod", Tenant: "default",
		Log: slog.New(slog.NewTextHandler(l.Output(), nil))}, mgr))
	ctx, cancel := context.WithCancel(l.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	l.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			l.Error(err)
		}
		l.stop = func() {}
	}
}

func (l *lab) pod(name string, annotations map[string]string) *corev1.Pod {
	l.Helper()
	now := int64(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &now, Containers: []corev1.Container{{Name: "c",
			Image: "none"}}}}
	l.must(l.client.Create(l.Context(), pod))
	return pod
}

// pods lists the UIDs of the pods that have both a Machine and its NstanceMachine.
func (l *lab) pods() (uids []string) {
	l.Helper()
	var machines clusterv1.MachineList
	var infra v1beta1.NstanceMachineList
	l.must(l.client.List(l.Context(), &machines), l.client.List(l.Context(), &infra))
	for _, m := range machines.Items {
		for _, i := range infra.Items {
			if ref := metav1.GetControllerOf(&i); i.Name == m.Name && ref != nil && ref.UID == m.UID {
				uids = append(uids, m.Labels[v1beta1.PodUIDLabel])
			}
		}
	}
	slices.Sort(uids)
	return uids
}

func (l *lab) has(pods ...*corev1.Pod) func() bool {
	return func() bool {
		var want []string
		for _, pod := range pods {
			want = append(want, string(pod.UID))
		}
		slices.Sort(want)
		return slices.Equal(l.pods(), want)
	}
}

func TestControllerOnARealAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k, err := kube.Start(ctx, kube.Options{Dir: t.TempDir(), CoreCRDs: true, CRDs: []string{"../../../../config/crd"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	scheme := runtime.NewScheme()
	l := &lab{T: t, kube: k, shards: shardstest.New("a", "b"), stop: func() {}}
	l.must(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme), clusterv1.AddToScheme(scheme))
	l.client, err = client.New(k.Config, client.Options{Scheme: scheme})
	l.must(err)
	for _, name := range []string{namespace, "apps"} {
		l.must(l.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	l.must(l.client.Create(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: clusterName}, Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api", Port: 443}}}))
	l.shards.Of("a").SetGroup(&nstancev1.GroupStatus{Group: "gpu"})
	l.must(l.client.Create(ctx, &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: "gpu"},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: "gpu", Shards: []string{"a"}}}))
	asks := map[string]string{v1beta1.OnDemandGroupAnnotation: "gpu", v1beta1.OnDemandShardAnnotation: "a",
		v1beta1.OnDemandInstanceTypeAnnotation: "p5.48xlarge"}

	before := l.pod("before", asks)
	l.pod("plain", nil)
	l.start()
	defer func() { l.stop() }()
	l.eventually("a pod from before the start", l.has(before))
	one := l.pod("one", asks)
	l.eventually("a new pod", l.has(before, one))

	// A pod that is re-created under the same name has another UID and gets another machine. No garbage collector runs
	// here, so the NstanceMachine of a deleted Machine remains.
	l.must(l.client.Delete(ctx, one))
	again := l.pod("one", asks)
	l.eventually("a pod re-created under the same name", l.has(before, again))

	// Delete one pod and create another while no operator runs.
	l.stop()
	l.must(l.client.Delete(ctx, before))
	two := l.pod("two", asks)
	l.start()
	l.eventually("what happened meanwhile", l.has(again, two))

	l.must(l.client.Get(ctx, client.ObjectKeyFromObject(two), two)) // it has a toleration now
	two.Status.Phase = corev1.PodSucceeded
	l.must(l.client.Status().Update(ctx, two))
	l.eventually("a pod that has finished", l.has(again))

	bad := l.pod("bad", map[string]string{v1beta1.OnDemandGroupAnnotation: "none"})
	l.eventually("a warning", func() bool {
		var list eventsv1.EventList
		l.must(l.client.List(ctx, &list, client.InNamespace("apps")))
		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == bad.UID && e.Type == corev1.EventTypeWarning &&
				strings.Contains(e.Note, "no shard has a group none")
		})
	})
	if !l.has(again)() {
		t.Errorf("machines of pods %v", l.pods())
	}
	l.checkReservation(again)
	l.checkAdmission()
}

// checkReservation checks that the Node of the pod's machine is reserved for the pod.
func (l *lab) checkReservation(pod *corev1.Pod) {
	l.Helper()
	l.must(l.client.Get(l.Context(), client.ObjectKeyFromObject(pod), pod))
	if !slices.Contains(pod.Spec.Tolerations, toleration(pod.UID)) {
		l.Errorf("tolerations %+v", pod.Spec.Tolerations)
	}
	infra := &v1beta1.NstanceMachine{}
	l.must(l.client.Get(l.Context(), client.ObjectKey{Namespace: namespace, Name: machineName("gpu", pod.UID)}, infra))
	infra.Spec.ProviderID = "test:///1"
	l.must(l.client.Update(l.Context(), infra))
	l.must(l.client.Create(l.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec: corev1.NodeSpec{ProviderID: infra.Spec.ProviderID}}))
	reserved := func() bool {
		node := &corev1.Node{}
		l.must(l.client.Get(l.Context(), client.ObjectKey{Name: "n"}, node))
		return node.Labels[v1beta1.OnDemandGroupNodeLabel] == "gpu" &&
			node.Labels[v1beta1.OnDemandPodNodeLabel] == string(pod.UID) &&
			slices.Contains(node.Spec.Taints, corev1.Taint{Key: v1beta1.OnDemandPodNodeLabel, Value: string(pod.UID),
				Effect: corev1.TaintEffectNoSchedule})
	}
	l.eventually("the Node is reserved", reserved)
	l.must(l.client.Patch(l.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`))))
	l.eventually("the Node is reserved again", reserved)
}

// checkAdmission installs the admission policy that adds a node selector to pods, and checks its effect.
func (l *lab) checkAdmission() {
	l.Helper()
	l.must(l.kube.Create(l.Context(),
		"../../../operator/kustomize/components/on-demand-admission/on-demand.yaml"))
	group := map[string]string{v1beta1.OnDemandGroupAnnotation: "gpu"}
	n := 0
	created := func(annotations, selector map[string]string, node string) map[string]string {
		n++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: fmt.Sprint("admitted-", n),
			Annotations: annotations}, Spec: corev1.PodSpec{NodeSelector: selector, NodeName: node,
			Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
		l.must(l.client.Create(l.Context(), pod))
		return pod.Spec.NodeSelector
	}
	gpu := map[string]string{v1beta1.OnDemandGroupNodeLabel: "gpu"}
	l.eventually("the policy is in force", func() bool { return maps.Equal(created(group, nil, ""), gpu) })
	for _, test := range []struct {
		annotations, selector map[string]string
		node                  string
		want                  map[string]string
	}{
		{group, map[string]string{"a": "b"}, "", map[string]string{"a": "b", v1beta1.OnDemandGroupNodeLabel: "gpu"}},
		{group, map[string]string{v1beta1.OnDemandGroupNodeLabel: "own"}, "",
			map[string]string{v1beta1.OnDemandGroupNodeLabel: "own"}},
		{group, nil, "n", nil},
		{nil, map[string]string{"a": "b"}, "", map[string]string{"a": "b"}},
		{map[string]string{v1beta1.OnDemandGroupAnnotation: "No group"}, nil, "", nil},
	} {
		if got := created(test.annotations, test.selector, test.node); !maps.Equal(got, test.want) {
			l.Errorf("annotations %v, selector %v: got %v", test.annotations, test.selector, got)
		}
	}
}
