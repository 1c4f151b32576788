package operator

import (
	"log/slog"
	"net/http"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/internal/operator/drain"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/settings"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// recordingManager records what is added to a manager.
type recordingManager struct {
	ctrl.Manager
	added []manager.Runnable
}

// Add implements manager.Manager.
func (m *recordingManager) Add(one manager.Runnable) error {
	m.added = append(m.added, one)
	return m.Manager.Add(one)
}

// newRecordingManager returns a manager that needs no API server.
func newRecordingManager(t *testing.T) *recordingManager {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	shared := true
	mgr, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &shared},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		},
		NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) {
			return &informertest.FakeInformers{Scheme: scheme}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &recordingManager{Manager: mgr}
}

// TestEveryControllerRetriesSoon checks that no controller waits longer than 30 s before it repeats a failed
// reconciliation.
func TestEveryControllerRetriesSoon(t *testing.T) {
	mgr := newRecordingManager(t)
	log := slog.New(slog.DiscardHandler)
	set := shards.New(shards.Options{Now: time.Now, Log: log})
	c := Config{Options: Options{OnDemandPods: true}, Rest: mgr.GetConfig(),
		Settings:    settings.Config{Cluster: "demo", Tenant: "default"},
		Environment: settings.Environment{Namespace: "nstance-system", ServiceAccount: "nstance-operator"}}
	if err := setupControllers(mgr, c, set, drain.NewMetrics(), &scope.Problems{}, func(*rest.Config) {},
		log); err != nil {
		t.Fatal(err)
	}
	controllers := 0
	for _, one := range mgr.added {
		value := reflect.Indirect(reflect.ValueOf(one))
		if value.Kind() != reflect.Struct || !value.FieldByName("RateLimiter").IsValid() {
			continue
		}
		controllers++
		name := value.FieldByName("Name").String()
		limiter, ok := value.FieldByName("RateLimiter").Interface().(workqueue.TypedRateLimiter[reconcile.Request])
		if !ok {
			t.Errorf("controller %s has the rate limiter %v", name, value.FieldByName("RateLimiter"))
			continue
		}
		var longest time.Duration
		for range 40 {
			longest = max(longest, limiter.When(reconcile.Request{}))
		}
		if longest > 30*time.Second || longest < 10*time.Second {
			t.Errorf("controller %s repeats a failed reconciliation after up to %s, want 10 s to 30 s", name, longest)
		}
	}
	if controllers < 9 {
		t.Errorf("found %d controllers", controllers)
	}
}
