package operator

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/nstance-kit/nstance/services/internal/operator/settings"
)

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
