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

// leaseName is the name of the Lease for leader election.
const leaseName = "nstance-operator-leader-election"

// Limits of the operator's requests to the API server, per second and in a burst. They suffice for a fleet of thousands
// of machines, of which hundreds may change at a time.
const (
	requestRate  = 50
	requestBurst = 100
)

// The operator needs these rights for leader election and for events about all objects.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=nstance-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=events,verbs=create

// configureClient sets the operator's user agent, rate limits and encoding in a client configuration.
func configureClient(r *rest.Config, speakJSON bool, version string) {
	r.UserAgent = name + "/" + version
	r.QPS, r.Burst = requestRate, requestBurst
	if speakJSON {
		r.ContentType, r.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	}
}

// newScheme returns a scheme with all types that the operator uses.
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

// newControllerManager returns the manager. Its cache holds the objects of the operator's namespace and the Pods of all
// namespaces. Secrets and ConfigMaps are not cached.
func newControllerManager(c Config, r *rest.Config) (ctrl.Manager, error) {
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
				Namespaces: map[string]cache.Config{cache.AllNamespaces: {}}, Transform: trimPod}},
		},
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: uncached()}},
		LeaderElection:                c.Options.LeaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       c.Environment.Namespace,
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        c.Options.HealthAddr,
		Metrics:                       metricsserver.Options{BindAddress: c.Options.MetricsAddr},
		GracefulShutdownTimeout:       &stop,
		// Permit controllers with the same name, because tests run several operators in one process.
		Controller: config.Controller{SkipNameValidation: &shared},
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	return mgr, nil
}

// workloadOptions configures the client and cache of an external workload cluster.
func workloadOptions(mgr ctrl.Manager) []kubecluster.Option {
	return []kubecluster.Option{func(o *kubecluster.Options) {
		o.Scheme = mgr.GetScheme()
		o.Logger = mgr.GetLogger()
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
		o.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: trimPod}}
		o.Client.Cache = &client.CacheOptions{DisableFor: uncached()}
	}}
}

// uncached returns the types that are always read from the API server.
func uncached() []client.Object { return []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}} }

// trimPod removes the fields of a Pod that the operator does not read, to save memory in the cache.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // a tombstone
	}
	pod.ManagedFields = nil
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Tolerations: pod.Spec.Tolerations}
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, Conditions: pod.Status.Conditions}
	return pod, nil
}

// addProbes adds /healthz and /readyz. A leader is ready once it has its identity; a standby is always ready.
func addProbes(mgr ctrl.Manager, keeper *identity.Keeper) error {
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
