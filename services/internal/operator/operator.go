// Package operator assembles nstance-operator: the manager and its cache, the identity, the connections to the shards,
// and all reconcilers.
//
// Invariant: a standby changes nothing in Kubernetes or on the servers, and a process that loses the leadership ends.
package operator

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	kubecluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/cluster"
	"github.com/nstance-kit/nstance/services/internal/operator/drain"
	"github.com/nstance-kit/nstance/services/internal/operator/identity"
	"github.com/nstance-kit/nstance/services/internal/operator/machine"
	"github.com/nstance-kit/nstance/services/internal/operator/ondemand"
	"github.com/nstance-kit/nstance/services/internal/operator/pool"
	"github.com/nstance-kit/nstance/services/internal/operator/report"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/settings"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// name is the operator's name in events and in requests to the API server.
const name = "nstance-operator"

// Config is the complete configuration of an operator.
type Config struct {
	Options     Options
	Environment settings.Environment
	// Settings is the initial content of the configuration file. The operator also applies later changes of the file.
	Settings settings.Config
	// Rest is the client configuration for the API server.
	Rest    *rest.Config
	Version string
	Log     logr.Logger
	// Dial holds additional options for connections to shards, for tests. Optional.
	Dial []grpc.DialOption
}

// Run runs the operator until ctx ends, and then returns nil. It returns an error if the leadership is lost. The
// caller must then end the process.
func Run(ctx context.Context, c Config) error {
	ctrl.SetLogger(c.Log)
	log := slog.New(logr.ToSlogHandler(c.Log))
	adjust := func(r *rest.Config) { configureClient(r, c.Environment.JSON, c.Version) }
	restConfig := rest.CopyConfig(c.Rest)
	adjust(restConfig)
	mgr, err := newControllerManager(c, restConfig)
	if err != nil {
		return err
	}
	client := mgr.GetClient()
	problems := &scope.Problems{}
	var set *shards.Set
	keeper := identity.New(identity.Options{
		Client: client, Namespace: c.Environment.Namespace, CAConfigMap: c.Environment.CAConfigMap,
		CertSecret: c.Environment.CertSecret,
		KeySecret:  c.Environment.KeySecret, NonceSecret: c.Environment.NonceSecret, Cluster: c.Settings.Cluster,
		Tenant: c.Settings.Tenant,
		Rand:   rand.Reader, Now: time.Now, Recorder: mgr.GetEventRecorder(name), Problems: problems, Log: log,
		Replaced: func() { set.Reconnect() },
	})
	set = shards.New(shards.Options{TLS: keeper.TLS, Now: time.Now, Log: log,
		Dial: append([]grpc.DialOption{grpc.WithStatsHandler(keeper.RenewalRequests())}, c.Dial...)})
	set.Configure(operatorAddrs(c.Settings))
	drains := drain.NewMetrics()
	stop, err := registerCollectors(set, keeper, drains)
	if err != nil {
		return err
	}
	defer stop()
	if err := addProbes(mgr, keeper); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return runLeader(ctx, c, keeper, set, problems, log)
	})); err != nil {
		return err
	}
	if err := setupControllers(mgr, c, set, drains, problems, adjust, log); err != nil {
		return err
	}
	log.Info("starting nstance-operator", "version", c.Version, "cluster", c.Settings.Cluster, "tenant",
		c.Settings.Tenant, "namespace", c.Environment.Namespace,
		"shards", c.Settings.IDs())
	return mgr.Start(ctx)
}

// configurationSource is the source of problems of the configuration file.
const configurationSource = "the configuration file"

// runLeader runs while this process is the leader. It obtains and maintains the identity and connects the shards. It
// returns when ctx ends.
func runLeader(ctx context.Context, c Config, keeper *identity.Keeper, set *shards.Set, problems *scope.Problems,
	log *slog.Logger) error {
	var current atomic.Pointer[settings.Config]
	current.Store(&c.Settings)
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() {
		settings.Watch(ctx, c.Options.ConfigFile, c.Settings, log, func(next settings.Config) {
			current.Store(&next)
			set.Configure(operatorAddrs(next))
		}, func(err error) { problems.Set(configurationSource, v1beta1.ConfigurationInvalidReason, err) })
	})
	registration := func() map[string]string { return registrationAddrs(*current.Load()) }
	if keeper.Await(ctx, registration) != nil {
		return nil
	}
	background.Go(func() { set.Run(ctx) })
	for {
		err := keeper.Run(ctx, func(ctx context.Context, key ed25519.PublicKey) (
			*nstancev1.OperatorServiceRenewCertificateResponse, error) {
			return renewCertificate(ctx, set, key)
		})
		if err == nil {
			return nil
		}
		log.Error("the identity is lost; registering again", "error", err)
		if keeper.Await(ctx, registration) != nil {
			return nil
		}
	}
}

// renewCertificate gets a certificate for a new key from the first shard that accepts the request. It asks the
// reachable shards first. It asks the unreachable ones too: after an interrupted renewal, a shard may refuse all calls
// with the operator's old key except a repetition of that renewal. Such a shard counts as unreachable.
func renewCertificate(ctx context.Context, all shards.Shards, key ed25519.PublicKey) (
	*nstancev1.OperatorServiceRenewCertificateResponse, error) {
	var problems []error
	var reachable, others []shards.Shard
	for _, shard := range all.All() {
		if shard.State().Reachable {
			reachable = append(reachable, shard)
		} else {
			others = append(others, shard)
		}
	}
	for _, shard := range append(reachable, others...) {
		answer, err := shard.API().RenewCertificate(ctx, &nstancev1.OperatorServiceRenewCertificateRequest{
			PublicKey: key})
		if err == nil {
			return answer, nil
		}
		problems = append(problems, fmt.Errorf("shard %s: %w", shard.ID(), err))
	}
	if len(problems) == 0 {
		return nil, status.Error(codes.Unavailable, "no shard is reachable")
	}
	return nil, errors.Join(problems...)
}

// setupControllers sets up all reconcilers.
func setupControllers(mgr ctrl.Manager, c Config, set shards.Shards, drains *drain.Metrics,
	problems *scope.Problems, adjust func(*rest.Config), log *slog.Logger) error {
	s := scope.Scope{Shards: set, Namespace: c.Environment.Namespace, Cluster: c.Settings.Cluster,
		Tenant: c.Settings.Tenant, Log: log}
	for name, err := range map[string]error{
		"cluster": cluster.Setup(mgr, cluster.Options{Scope: s, Config: mgr.GetConfig(),
			External: c.Environment.Endpoint, ServiceAccount: c.Environment.ServiceAccount,
			Recreate: c.Options.RecreateCluster, Problems: problems}),
		"pool":    pool.Setup(mgr, s),
		"machine": machine.Setup(mgr, s),
		"report":  report.Setup(mgr, s),
	} {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return cluster.SetupWorkload(mgr, cluster.WorkloadOptions{
		Scope: s, External: !c.Environment.Endpoint.IsZero(), Adjust: adjust,
		Options: workloadOptions(mgr), Problems: problems,
	}, func(workload kubecluster.Cluster) error {
		if err := scope.NodeByProviderID.Add(workload.GetFieldIndexer()); err != nil {
			return err
		}
		if err := drain.Setup(mgr, s, workload, drains); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if !c.Options.OnDemandPods {
			return nil
		}
		if err := ondemand.Setup(mgr, s, workload); err != nil {
			return fmt.Errorf("ondemand: %w", err)
		}
		return nil
	})
}

// operatorAddrs returns the operator addresses by shard.
func operatorAddrs(c settings.Config) map[string]string {
	out := make(map[string]string, len(c.Shards))
	for id, at := range c.Shards {
		out[id] = at.Operator
	}
	return out
}

// registrationAddrs returns the registration addresses by shard.
func registrationAddrs(c settings.Config) map[string]string {
	out := make(map[string]string, len(c.Shards))
	for id, at := range c.Shards {
		out[id] = at.Registration
	}
	return out
}

// DescribeMetrics sends the descriptions of the operator's own metrics, for docs/reference/metrics.md.
func DescribeMetrics(out chan<- *prometheus.Desc) {
	shards.New(shards.Options{}).Describe(out)
	new(identity.Keeper).Describe(out)
	drain.NewMetrics().Describe(out)
}

// registerCollectors adds collectors to the registry that the manager serves. stop removes them again.
func registerCollectors(all ...prometheus.Collector) (stop func(), err error) {
	var done []prometheus.Collector
	stop = func() {
		for _, one := range done {
			metrics.Registry.Unregister(one)
		}
	}
	for _, one := range all {
		err := metrics.Registry.Register(one)
		if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			continue // registered by another operator in this process, in a test
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("register metrics: %w", err)
		}
		done = append(done, one)
	}
	return stop, nil
}

// disabledAddr is the address of a disabled endpoint.
const disabledAddr = "0"

// webhooksFlag is the name of a flag that is accepted and ignored.
const webhooksFlag = "disable-webhooks"

const defaultConfigFile = "/etc/nstance/operator/config.yaml"

// Options are the command line flags of nstance-operator.
type Options struct {
	ConfigFile string
	// HealthAddr and MetricsAddr are the addresses of the probes and the metrics. "0" disables them.
	HealthAddr, MetricsAddr string
	LeaderElect             bool
	// RecreateCluster lets the operator create a deleted Cluster again.
	RecreateCluster bool
	// OnDemandPods lets the operator create machines for Pods that request one.
	OnDemandPods bool
	Zap          zap.Options
	Version      bool
}

const usage = `nstance-operator connects Cluster API with the servers of an Nstance cluster.

It reconciles MachinePools with groups and Machines with instances, drains Nodes before their instances are deleted, and
creates machines for Pods that request one.

Usage:
  nstance-operator [flags]
  nstance-operator uninstall [flags]   delete the Cluster, before the operator or its namespace is removed

The operator reads its configuration file (cluster_id, tenant, shards with registration_addr and operator_addr). If it
has no certificate, it registers with the nonce in the Secret nstance-operator-nonce. Then it connects to the leader of
every shard. It runs in a cluster with a ServiceAccount, or outside with --kubeconfig or KUBECONFIG. Several can run
with --leader-elect: one is active and the others stand by. All state is in Kubernetes and on the servers.

Flags:
`

const exitStatusHelp = `
Exit status: 0 after SIGTERM or SIGINT, 1 after an error or a lost leadership, 2 for an invalid command line,
environment or configuration file.
`

// newFlags returns the flags that set the options.
func newFlags(o *Options) *pflag.FlagSet {
	flags := pflag.NewFlagSet("nstance-operator", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringVar(&o.ConfigFile, "config", defaultConfigFile,
		"path to the operator configuration `FILE`")
	flags.StringVar(&o.HealthAddr, "health-probe-bind-address", ":8081",
		"`ADDRESS` of the probes /healthz and /readyz; 0 disables them")
	flags.StringVar(&o.MetricsAddr, "metrics-bind-address", disabledAddr, "`ADDRESS` of /metrics; 0 disables it")
	flags.BoolVar(&o.LeaderElect, "leader-elect", false,
		"elect one active operator with the Lease nstance-operator-leader-election")
	flags.BoolVar(&o.RecreateCluster, "recreate-cluster", false,
		"create the Cluster again although it was deleted")
	flags.BoolVar(&o.OnDemandPods, "on-demand-pods", true,
		"create machines for Pods that request one; without it, the operator needs no right to change Pods")
	// Manifests written for other operators set this flag.
	flags.Bool(webhooksFlag, false, "")
	_ = flags.MarkDeprecated(webhooksFlag, "remove it: nstance-operator has no webhooks, and the API server runs its "+
		"admission policies") // The flag exists, and the text is not empty.
	standard := flag.NewFlagSet("", flag.ContinueOnError)
	config.RegisterFlags(standard)
	o.Zap.BindFlags(standard)
	flags.AddGoFlagSet(standard)
	flags.BoolVar(&o.Version, "version", false, "print the version and exit")
	return flags
}

// ParseOptions parses a command line. --help writes the help to out and returns pflag.ErrHelp.
func ParseOptions(args []string, out io.Writer) (Options, error) {
	var o Options
	flags := newFlags(&o)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, usage, flags.FlagUsagesWrapped(140), "\nEnvironment:\n")
		_ = settings.WriteHelp(out) // to a terminal
		fmt.Fprint(out, exitStatusHelp)
	}
	if err := flags.Parse(args); err != nil {
		return Options{}, err
	}
	if flags.NArg() > 0 {
		return Options{}, fmt.Errorf("takes no arguments, got %q", flags.Args())
	}
	if o.ConfigFile == "" {
		return Options{}, errors.New("--config is empty")
	}
	for name, addr := range map[string]*string{"--health-probe-bind-address": &o.HealthAddr,
		"--metrics-bind-address": &o.MetricsAddr} {
		if *addr == "" {
			*addr = disabledAddr
		}
		if *addr == disabledAddr {
			continue
		}
		_, port, err := net.SplitHostPort(*addr)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return Options{}, fmt.Errorf("%s: %q is not an address such as :8081 or 127.0.0.1:8081", name,
				strings.TrimSpace(*addr))
		}
	}
	return o, nil
}
