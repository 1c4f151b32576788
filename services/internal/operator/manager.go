package operator

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kubecluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/identity"
)

// lease is the Lease by which operators elect their leader.
const lease = "nstance-operator-leader-election"

// Requests to the API server: on average and at once. A fleet of thousands of machines changes by hundreds at a time.
const (
	requestRate  = 50
	requestBurst = 100
)

// Of leader election, and of events on everything there is.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=nstance-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch;update
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch;update

// adjustClient makes a client's configuration the operator's.
func adjustClient(r *rest.Config, speakJSON bool, version string) {
	r.UserAgent = name + "/" + version
	r.QPS, r.Burst = requestRate, requestBurst
	if speakJSON {
		r.ContentType, r.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	}
}

// newScheme knows every type that the operator reads or writes.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme,
		v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	return scheme, nil
}

// newManager makes the manager. Its cache holds the namespace's objects, and the Pods of all namespaces; Secrets and
// ConfigMaps are not cached.
func newManager(c Config, r *rest.Config) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	shared := true
	stop := 10 * time.Second
	mgr, err := ctrl.NewManager(r, ctrl.Options{
		Scheme: scheme,
		Logger: c.Log,
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{c.Environment.Namespace: {}},
			DefaultTransform:  cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
				Namespaces: map[string]cache.Config{cache.AllNamespaces: {}}, Transform: slimPod}},
		},
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: uncached()}},
		LeaderElection:                c.Options.LeaderElect,
		LeaderElectionID:              lease,
		LeaderElectionNamespace:       c.Environment.Namespace,
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        c.Options.HealthAddr,
		Metrics:                       metricsserver.Options{BindAddress: c.Options.MetricsAddr},
		GracefulShutdownTimeout:       &stop,
		// A process has one operator; a test's may have several.
		Controller: config.Controller{SkipNameValidation: &shared},
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	return mgr, nil
}

// workloadOptions are those of an external workload cluster's client and cache.
func workloadOptions(mgr ctrl.Manager) []kubecluster.Option {
	return []kubecluster.Option{func(o *kubecluster.Options) {
		o.Scheme = mgr.GetScheme()
		o.Logger = mgr.GetLogger()
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
		o.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: slimPod}}
		o.Client.Cache = &client.CacheOptions{DisableFor: uncached()}
	}}
}

func uncached() []client.Object { return []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}} }

// slimPod keeps of a Pod what is looked at in the cache: which Pod it is, what it asks for, where and how it is.
func slimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // a tombstone
	}
	pod.ManagedFields = nil
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, Conditions: pod.Status.Conditions}
	return pod, nil
}

// probes adds the checks of /healthz and /readyz: a leader is ready once it has its identity, others are at once.
func probes(mgr ctrl.Manager, keeper *identity.Keeper) error {
	return errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("identity", func(*http.Request) error {
			select {
			case <-mgr.Elected():
				if keeper.Current() == nil {
					return identity.ErrNone
				}
			default:
			}
			return nil
		}),
	)
}
