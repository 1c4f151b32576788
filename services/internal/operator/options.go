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

// off is the address of an endpoint that is not served.
const off = "0"

// Options are nstance-operator's command line.
type Options struct {
	ConfigFile string
	// HealthAddr and MetricsAddr are where probes and metrics are served; "0": not at all.
	HealthAddr, MetricsAddr string
	LeaderElect             bool
	// DisableWebhooks changes nothing: there are none.
	DisableWebhooks bool
	Zap             zap.Options
	Version         bool
}

const usage = `nstance-operator keeps Cluster API's objects and the servers of an Nstance cluster in step: MachinePools and groups, Machines and
instances, drained Nodes and deletions, and machines for the Pods that ask for one.

Usage:
  nstance-operator [flags]

It reads the configuration file (cluster_id, tenant, shards with registration_addr and operator_addr), registers with the nonce in the Secret
nstance-operator-nonce if it has no certificate yet, and connects to the leader of every shard. It runs in a cluster as its ServiceAccount, or
outside with --kubeconfig or KUBECONFIG. Any number may run with --leader-elect: one works, the others wait. All state is in Kubernetes and on the
servers.

Flags:
`

const exits = `
Exit status: 0 on a clean stop (SIGTERM, SIGINT), 1 on an error (which a lost leadership is), 2 on a wrong command line, environment or
configuration file.
`

// newFlags returns the flags, which write into the options.
func newFlags(o *Options) *pflag.FlagSet {
	flags := pflag.NewFlagSet("nstance-operator", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringVar(&o.ConfigFile, "config", "/etc/nstance/operator/config.yaml",
		"path to the operator configuration `FILE`")
	flags.StringVar(&o.HealthAddr, "health-probe-bind-address", ":8081",
		"`ADDRESS` of the probes /healthz and /readyz; 0: none")
	flags.StringVar(&o.MetricsAddr, "metrics-bind-address", off, "`ADDRESS` of /metrics; 0: none")
	flags.BoolVar(&o.LeaderElect, "leader-elect", false,
		"have one of several operators lead, by the Lease nstance-operator-leader-election")
	flags.BoolVar(&o.DisableWebhooks, "disable-webhooks", false,
		"disable admission webhooks; there are none: what they would check, the resource definitions check")
	standard := flag.NewFlagSet("", flag.ContinueOnError)
	config.RegisterFlags(standard)
	o.Zap.BindFlags(standard)
	flags.AddGoFlagSet(standard)
	flags.BoolVar(&o.Version, "version", false, "print the version and exit")
	return flags
}

// ParseOptions reads a command line. Help goes to out, and the error is then pflag.ErrHelp.
func ParseOptions(args []string, out io.Writer) (Options, error) {
	var o Options
	flags := newFlags(&o)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, usage, flags.FlagUsagesWrapped(140), "\nEnvironment:\n")
		_ = settings.WriteHelp(out) // to a terminal
		fmt.Fprint(out, exits)
	}
	if err := flags.Parse(args); err != nil {
		return Options{}, err
	}
	if flags.NArg() > 0 {
		return Options{}, fmt.Errorf("it takes no arguments, have %q", flags.Args())
	}
	if o.ConfigFile == "" {
		return Options{}, errors.New("--config is empty")
	}
	for name, addr := range map[string]*string{"--health-probe-bind-address": &o.HealthAddr,
		"--metrics-bind-address": &o.MetricsAddr} {
		if *addr == "" {
			*addr = off
		}
		if *addr == off {
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
