// Cloudtest proves Nstance in a user's own cloud account, and leaves nothing there. `make cloud-test` runs it, and
// docs/evidence/cloud.md is its manual.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gruntwork-io/terratest/modules/logger"
)

const usage = `Usage: make cloud-test CLOUD=aws|gcp REGION=… [ZONE=…] [ARCH=arm64|amd64] [YES=1]
       make cloud-test CLEAN=1        delete what interrupted runs have left

cloud-test runs a small cluster in your own account with the programs of this checkout: it builds machine images,
applies examples/CLOUD/single-shard, ends VMs and servers, changes and rolls the group, stops all servers, and destroys
the cluster. Then it lists what is left in the account, and writes a page with the measured times. It takes about 75
minutes and costs less than a dollar. It shows the account and the expected cost, and asks, before it creates anything.

Everything that it creates has a name that begins with the run's name, such as ct-4x7q2m9a, or the tag
nstance-cloud-test with this name. Nothing else is touched. Ctrl-C cleans up; a second Ctrl-C stops immediately, and
prints the command that cleans up later. The command also works after a crash of this machine.

Credentials come from the environment: for AWS as the AWS CLI reads them, for Google Cloud from
` + "`gcloud auth application-default login`" + `, with the project in GOOGLE_PROJECT.

Flags of the program, which scripts/cloud-test.sh passes on:
`

// options are the flags.
type options struct {
	cloud, region, zone, arch, account, name string
	serverImage, agentImage                  string
	dir, cli, override, steps                string
	yes, clean                               bool
}

func flags(args []string, stderr io.Writer) (o options, err error) {
	set := flag.NewFlagSet("cloud-test", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.Usage = func() {
		fmt.Fprint(stderr, usage)
		set.PrintDefaults()
	}
	set.StringVar(&o.cloud, "cloud", "", "aws or gcp")
	set.StringVar(&o.region, "region", "", "region, such as us-west-2 or us-central1")
	set.StringVar(&o.zone, "zone", "", "zone; empty: the first one of the region that has the machine types")
	set.StringVar(&o.arch, "arch", "", "arm64 (default on AWS) or amd64 (Google Cloud has only this one)")
	set.StringVar(&o.account, "account", "", "refuse any other account (number on AWS, project on Google Cloud)")
	set.StringVar(&o.name, "name", "", "name of the run, ct-… ; with -clean: clean up only this run")
	set.StringVar(&o.serverImage, "server-image", "", "image of the servers; empty: build one from this checkout")
	set.StringVar(&o.agentImage, "agent-image", "", "image of the VMs; empty: build one from this checkout")
	set.StringVar(&o.dir, "dir", "temp/cloud-test", "directory for the records, logs and result pages of runs")
	set.StringVar(&o.cli, "terraform", "", "path of tofu or terraform; empty: that on PATH, else a built tofu")
	set.StringVar(&o.override, "override", "", "file of HCL with further settings of the example, such as a "+
		"permissions boundary (https://opentofu.org/docs/language/files/override)")
	set.StringVar(&o.steps, "steps", "", "comma-separated steps; empty: all. Without destroy, the clean-up deletes "+
		"the cluster")
	set.BoolVar(&o.yes, "yes", false, "do not ask")
	set.BoolVar(&o.clean, "clean", false, "delete what interrupted runs have left")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	if set.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", set.Arg(0))
	}
	if err := checkSteps(o.steps); err != nil {
		return o, err
	}
	if o.name != "" && !namePattern.MatchString(o.name) {
		return o, fmt.Errorf("-name %s: the name of a run is ct- and 4 to 12 lower-case letters or digits", o.name)
	}
	return o, nil
}

// The exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitStop   = 130 // after a second Ctrl-C
)

func main() {
	o, err := flags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err == nil && targets[o.cloud] == nil && (!o.clean || o.cloud != "") {
		err = fmt.Errorf("CLOUD is %q: set CLOUD=aws or CLOUD=gcp (make cloud-test HELP=1 explains it all)", o.cloud)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cloud-test:", err)
		os.Exit(exitUsage)
	}
	logger.Default = logger.Discard // the retries of the library: the log has the output of the CLI
	signal.Ignore(syscall.SIGPIPE)  // of a closed terminal: the clean-up goes on
	p := &program{options: o, in: bufio.NewReader(os.Stdin), out: os.Stdout}
	ctx := p.interruptible(context.Background())
	run := p.test
	if o.clean {
		run = p.cleanAll
	}
	if err := run(ctx); err != nil {
		p.say("cloud-test: %v", err)
		os.Exit(exitFailed)
	}
}

// errInterrupted is why the work of an interrupted run ends.
var errInterrupted = errors.New("interrupted")

// program is one call of the program.
type program struct {
	options

	in  *bufio.Reader
	out io.Writer

	mu      sync.Mutex
	current *record // the run whose resources may exist
}

func (p *program) say(format string, args ...any) {
	fmt.Fprintf(p.out, format+"\n", args...)
}

// interruptible returns a context that the first interrupt cancels. The second one ends the program.
func (p *program) interruptible(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		cancel(errInterrupted)
		if p.running() != nil {
			p.say("\nInterrupted: cleaning up. Interrupt again to stop immediately and leave everything as it is.")
		}
		<-signals
		if r := p.running(); r != nil {
			p.say("\nStopped. Resources of %s may exist and cost money. Delete them with:\n\n  %s\n", r.Name,
				r.cleanCommand())
		}
		os.Exit(exitStop)
	}()
	return ctx
}

func (p *program) running() *record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

func (p *program) setRunning(r *record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = r
}

// cleanCommand returns the command that cleans up a run.
func (r *record) cleanCommand() string {
	command := fmt.Sprintf("make cloud-test CLEAN=1 NAME=%s CLOUD=%s REGION=%s", r.Name, r.Cloud, r.Region)
	if r.Cloud == "gcp" {
		command = "GOOGLE_PROJECT=" + r.Account + " " + command
	}
	return command
}

// confirmed asks whether to continue, unless the flag -yes is set.
func (p *program) confirmed(ctx context.Context, question string) error {
	if p.yes {
		return nil
	}
	fmt.Fprintf(p.out, "%s [yes/no] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := p.in.ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case line := <-answer:
		if line == "yes" || line == "y" {
			return nil
		}
		return errors.New("not confirmed: nothing was created (YES=1 answers yes)")
	}
}

// rounded returns a duration for people.
func rounded(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
