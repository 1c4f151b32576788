// Package operator is nstance-operator put together: the manager with its cache, the identity, the connections to the
// shards, and every reconciler.
//
// Invariant: whoever does not lead changes nothing, in Kubernetes or on the servers, and whoever has ceased to lead has
// ended.
package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/operator/cluster"
	"github.com/nstance-kit/nstance/services/internal/operator/drain"
	"github.com/nstance-kit/nstance/services/internal/operator/identity"
	"github.com/nstance-kit/nstance/services/internal/operator/machine"
	"github.com/nstance-kit/nstance/services/internal/operator/ondemand"
	"github.com/nstance-kit/nstance/services/internal/operator/pool"
	"github.com/nstance-kit/nstance/services/internal/operator/report"
	"github.com/nstance-kit/nstance/services/internal/operator/settings"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// name is what the operator calls itself in events and to the API server.
const name = "nstance-operator"

// Config is all that an operator runs with.
type Config struct {
	Options     Options
	Environment settings.Environment
	// Settings are the content of the configuration file, which is followed from then on.
	Settings settings.Config
	// Rest reaches the API server.
	Rest    *rest.Config
	Version string
	Log     logr.Logger
	// Dial are further options of connections to shards. Optional; for tests.
	Dial []grpc.DialOption
}

// Run runs the operator until ctx ends, and returns nil then. The error says why it ended by itself: a lost leadership,
// or a registration that cannot succeed. The process has to end with it.
func Run(ctx context.Context, c Config) error {
	ctrl.SetLogger(c.Log)
	log := slog.New(logr.ToSlogHandler(c.Log))
	adjust := func(r *rest.Config) { adjustClient(r, c.Environment.JSON, c.Version) }
	restConfig := rest.CopyConfig(c.Rest)
	adjust(restConfig)
	mgr, err := newManager(c, restConfig)
	if err != nil {
		return err
	}
	client := mgr.GetClient()
	keeper := identity.New(identity.Options{
		Client: client, Namespace: c.Environment.Namespace, CAConfigMap: c.Environment.CAConfigMap,
		CertSecret: c.Environment.CertSecret,
		KeySecret:  c.Environment.KeySecret, NonceSecret: c.Environment.NonceSecret, Cluster: c.Settings.Cluster,
		Tenant: c.Settings.Tenant,
		Rand:   rand.Reader, Now: time.Now, Log: log,
	})
	set := shards.New(shards.Options{Credentials: keeper.Credentials, Now: time.Now, Log: log, Dial: c.Dial})
	set.Configure(operatorAddrs(c.Settings))
	stop, err := register(set, keeper)
	if err != nil {
		return err
	}
	defer stop()
	if err := probes(mgr, keeper); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return connect(ctx, c, keeper, set, log)
	})); err != nil {
		return err
	}
	if err := controllers(ctx, mgr, c, set, adjust, log); err != nil {
		return err
	}
	log.Info("nstance-operator starts", "version", c.Version, "cluster", c.Settings.Cluster, "tenant",
		c.Settings.Tenant, "namespace", c.Environment.Namespace,
		"shards", c.Settings.IDs())
	return mgr.Start(ctx)
}

// connect is what the leader does beside reconciling: it gets and keeps the identity, and the connections to the
// shards.
func connect(ctx context.Context, c Config, keeper *identity.Keeper, set *shards.Set, log *slog.Logger) error {
	if err := keeper.Ensure(ctx, registrationAddrs(c.Settings)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("identity: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		set.Run(ctx)
	}()
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		settings.Watch(ctx, c.Options.ConfigFile, c.Settings, nil, log, func(next settings.Config) {
			set.Configure(operatorAddrs(next))
		})
	}()
	err := keeper.Run(ctx, func(ctx context.Context) (*nstancev1.OperatorServiceRenewCertificateResponse, error) {
		return renew(ctx, set)
	})
	cancel()
	<-done
	<-followed
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}

// renew asks the first shard that answers.
func renew(ctx context.Context, all shards.Shards) (*nstancev1.OperatorServiceRenewCertificateResponse, error) {
	var problems []error
	for _, id := range all.IDs() {
		shard, ok := all.Shard(id)
		if !ok || !shard.State().Reachable {
			continue
		}
		answer, err := shard.API().RenewCertificate(ctx, &nstancev1.OperatorServiceRenewCertificateRequest{})
		if err == nil {
			return answer, nil
		}
		problems = append(problems, fmt.Errorf("shard %s: %w", id, err))
	}
	if len(problems) == 0 {
		return nil, status.Error(codes.Unavailable, "no shard is reachable")
	}
	return nil, errors.Join(problems...)
}

// controllers sets up every reconciler.
func controllers(ctx context.Context, mgr ctrl.Manager, c Config, set shards.Shards, adjust func(*rest.Config),
	log *slog.Logger) error {
	namespace, id, tenant := c.Environment.Namespace, c.Settings.Cluster, c.Settings.Tenant
	var external *clusterv1.APIEndpoint
	if !c.Environment.Endpoint.IsZero() {
		external = &clusterv1.APIEndpoint{Host: c.Environment.Endpoint.Host, Port: c.Environment.Endpoint.Port}
	}
	workload, err := cluster.OpenWorkload(ctx, mgr, cluster.WorkloadOptions{
		Namespace: namespace, Cluster: id, Tenant: tenant, External: external != nil, Adjust: adjust,
		Options: workloadOptions(mgr), Log: log,
	})
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		setup func() error
	}{
		{"cluster", func() error {
			return cluster.Setup(mgr, cluster.Options{Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder(name),
				Shards: set, Namespace: namespace,
				Cluster: id, Tenant: tenant, Config: mgr.GetConfig(), External: external,
				ServiceAccount: c.Environment.ServiceAccount, Now: time.Now, Log: log})
		}},
		{"pool", func() error {
			return pool.Setup(mgr, pool.Options{Shards: set, Namespace: namespace, Cluster: id, Tenant: tenant,
				Log: log})
		}},
		{"machine", func() error {
			return machine.Setup(mgr, machine.Options{Shards: set, Namespace: namespace, Cluster: id, Tenant: tenant,
				Log: log})
		}},
		{"ondemand", func() error {
			return ondemand.Setup(mgr, ondemand.Options{Shards: set, Namespace: namespace, Cluster: id, Tenant: tenant,
				Workload: workload, Log: log})
		}},
		{"drain", func() error {
			return drain.Setup(mgr, drain.Options{Shards: set, Namespace: namespace, Workload: workload, Log: log})
		}},
		{"report", func() error {
			return report.Setup(mgr, report.Options{Shards: set, Namespace: namespace, Cluster: id, Tenant: tenant,
				Log: log})
		}},
	} {
		if err := part.setup(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

func operatorAddrs(c settings.Config) map[string]string {
	out := make(map[string]string, len(c.Shards))
	for id, at := range c.Shards {
		out[id] = at.Operator
	}
	return out
}

func registrationAddrs(c settings.Config) map[string]string {
	out := make(map[string]string, len(c.Shards))
	for id, at := range c.Shards {
		out[id] = at.Registration
	}
	return out
}

// register adds collectors to the registry that the manager serves. stop removes them.
func register(all ...prometheus.Collector) (stop func(), err error) {
	var done []prometheus.Collector
	stop = func() {
		for _, one := range done {
			metrics.Registry.Unregister(one)
		}
	}
	for _, one := range all {
		err := metrics.Registry.Register(one)
		if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			continue // another operator of this process: a test
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("register metrics: %w", err)
		}
		done = append(done, one)
	}
	return stop, nil
}
