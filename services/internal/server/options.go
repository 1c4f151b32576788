package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// Options is nstance-server's command line.
type Options struct {
	ID string
	// HostID is true if the options contain no ID for the server. The server then uses its host name as its ID. If this
	// machine is Named (see [infra.Machine]), the server uses the provider's ID of the machine instead.
	HostID          bool
	Shard           string
	Location        objstore.Location
	CacheDir        string
	LeaderInterface string
	AdvertiseHost   string
	// HealthAddr is the address at which the server answers health probes before it knows the configuration.
	HealthAddr string
	// Instance is the number of this server, from 1, among the servers of one shard on one machine. It is 0 for a
	// single server.
	Instance int
	// Validate means that the program only checks a configuration: the one in ValidateFile, or the shard's
	// configuration in the bucket if ValidateFile is empty.
	Validate     bool
	ValidateFile string
	// ReportHealth means that the program reports the health of the server on this machine. See [ReportHealth].
	ReportHealth bool
	Debug        bool
	Version      bool
}

const usage = `nstance-server keeps the VMs of one zone shard alive.

Usage:
  nstance-server --id ID --shard SHARD --storage %s --bucket BUCKET [flags]
  nstance-server --validate=FILE        check a shard configuration and exit
  nstance-server --validate --shard SHARD --bucket BUCKET
                                        check the one in the bucket and exit

The server reads config/{shard}.jsonc from the bucket (written by the Terraform provider or "nstance-admin config
push") and stands for election through shard/{shard}/leader.json. While it leads, it creates, watches, certifies and
replaces the VMs of the shard. Any number of servers may run per shard: one leads, the others wait. All durable state is
in the bucket; the cache may be deleted at any time.

Flags:
`

const environment = `
Environment:
%s  NSTANCE_ENCRYPTION_KEY   the key that seals the cluster's secrets, where the configuration says "provider": "env"

Signals: SIGTERM and SIGINT stop the server and hand over. SIGUSR1 tells the leader that it may delete the orphans which
stopped the garbage collection.

Exit status: 0 on a clean stop (SIGTERM, SIGINT), 1 on an error or an invalid configuration, 2 on a wrong command line.
`

// ParseOptions parses a command line. It writes the help text to out and then returns pflag.ErrHelp.
func ParseOptions(args []string, out io.Writer) (Options, error) {
	var o Options
	flags := pflag.NewFlagSet("nstance-server", pflag.ContinueOnError)
	flags.SetOutput(out)
	flags.SortFlags = false
	flags.StringVar(&o.ID, "id", "",
		"this server's ID, unique in the shard (default: the machine's provider instance ID, else its host name)")
	flags.StringVar(&o.Shard, "shard", "", "shard to serve")
	flags.StringVar(&o.Location.Provider, "storage", open.Names()[0],
		"object storage: "+strings.Join(open.Names(), " or "))
	flags.StringVar(&o.Location.Bucket, "bucket", "", "bucket (for file: a directory)")
	flags.StringVar(&o.Location.Prefix, "prefix", "", "prefix of all keys in the bucket")
	flags.StringVar(&o.CacheDir, "cachedir", "./cache", "directory of the cache, which can be deleted at any time")
	flags.StringVar(&o.LeaderInterface, "leader-interface", "",
		"ID or ARN of the leader's network interface; must agree with the configuration")
	flags.StringVar(&o.AdvertiseHost, "advertise-host", "",
		"host that others reach this server under, where server.advertise does not say another (default: the "+
			"primary interface's address)")
	flags.StringVar(&o.HealthAddr, "health-addr", "",
		"address of the probe and /metrics from the start (default: port 8990; the configuration's health_addr is "+
			"served too)")
	flags.IntVar(&o.Instance, "instance", 0,
		"number `N` of this server, from 1, when several servers of one shard run on one machine (development). All\n"+
			"ports of the configuration are shifted by (N-1)*10")
	validate := flags.String("validate", "", "check a configuration `FILE` (without a file: the shard's own) and exit")
	flags.Lookup("validate").NoOptDefVal = "\x00"
	flags.BoolVar(&o.ReportHealth, "report-health", false,
		"report the health of the server on this machine to the machine's scaling group (NSTANCE_SCALING_GROUP)")
	flags.BoolVar(&o.Debug, "debug", false, "log more; serve gRPC health and reflection")
	verbose := flags.BoolP("verbose", "v", false, "the same as --debug")
	flags.BoolVar(&o.Version, "version", false, "print the version and exit")
	flags.Usage = func() {
		fmt.Fprintf(out, usage, strings.Join(open.Names(), "|"))
		fmt.Fprint(out, flags.FlagUsages())
		fmt.Fprintf(out, environment, open.Environment("  %s, for --storage %s\n"))
	}
	if err := flags.Parse(args); err != nil {
		return Options{}, err
	}
	o.Debug = o.Debug || *verbose
	if flags.Changed("validate") {
		o.Validate = true
		if *validate != "\x00" {
			o.ValidateFile = *validate
		}
	}
	if flags.NArg() > 0 {
		return Options{},
			fmt.Errorf("unexpected argument %q; --validate takes its file after an equals sign: --validate=FILE",
				flags.Arg(0))
	}
	if o.Version || o.ValidateFile != "" {
		return o, nil
	}
	return o, o.check()
}

func (o *Options) check() error {
	var errs []error
	if o.Instance < 0 || o.Instance > 100 {
		errs = append(errs, fmt.Errorf("--instance: %d is not between 1 and 100", o.Instance))
	}
	o.HealthAddr = cmp.Or(o.HealthAddr, fmt.Sprintf("0.0.0.0:%d", 8990+o.shift()))
	if _, port, err := net.SplitHostPort(o.HealthAddr); err != nil {
		errs = append(errs, fmt.Errorf("--health-addr: %q is not an address such as \"0.0.0.0:8990\"", o.HealthAddr))
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		errs = append(errs, fmt.Errorf("--health-addr: %q has no port from 0 to 65535", o.HealthAddr))
	}
	if err := validateHost(o.AdvertiseHost); err != nil {
		errs = append(errs, fmt.Errorf("--advertise-host: %w", err))
	}
	if err := ident.ValidateName(o.Shard); err != nil {
		errs = append(errs, fmt.Errorf("--shard: %w", err))
	}
	if o.Location.Bucket == "" {
		errs = append(errs, errors.New("--bucket: is missing"))
	}
	if o.ID == "" && !o.Validate {
		host, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("--id: is missing, and the host name cannot be read: %w", err))
		}
		o.ID, o.HostID = host, true
	}
	if !o.Validate {
		if err := authority.ValidateServerID(o.ID); err != nil {
			errs = append(errs, fmt.Errorf("--id: %w", err))
		}
	}
	return errors.Join(errs...)
}

// validateHost checks that other machines can reach a host and that a certificate can contain it. "" is valid and means
// that no host was given.
func validateHost(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.IsUnspecified() || addr.Zone() != "" {
			return fmt.Errorf("%q is no address that others can reach", host)
		}
		return nil
	}
	if err := ident.ValidateHostname(host); err != nil {
		return fmt.Errorf("%q is neither an IP address (without brackets) nor a name: it %w", host, err)
	}
	return nil
}

// Logger returns the logger that the options select. It writes one JSON object per line to w.
func (o *Options) Logger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if o.Debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})).With("shard", o.Shard, "server", o.ID)
}

// shift returns the number that is added to the configured ports, so that several servers can run on one machine.
func (o *Options) shift() int { return max(o.Instance-1, 0) * 10 }
