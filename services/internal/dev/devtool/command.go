// Package devtool is nstance-dev: it runs a whole Nstance cluster on one machine, from a clone of the repository or
// from the archive of a release. The cluster is a [local.Stack].
package devtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/dev/libvirtd"
	"github.com/nstance-kit/nstance/services/dev/local"
)

const about = `nstance-dev runs a whole Nstance cluster on this machine: an object store (dev-s3),
two servers of one shard, and VMs that are tmux windows with a real nstance-agent in
each. It uses the programs in its own directory and tmux. "demo" also needs tofu or
terraform, and "up" uses one of them if it is on PATH.

  nstance-dev up      start a cluster, apply examples/local, and leave it running;
                      with --provider=libvirt, the VMs are real ones
  nstance-dev down    stop it and remove everything it wrote
  nstance-dev demo    play the life of a shard by itself, and measure it

In a clone, "make up", "make down" and "make demo" build what is missing and run these
commands.`

const aboutUp = `Start a cluster in {root}/temp on the ports 8989 to 9004, apply examples/local with
tofu or terraform, start two servers, wait until every VM is healthy, and serve a page.
If neither tofu nor terraform is on PATH, the command writes the configuration
examples/config-tmux.jsonc to the bucket instead.

The cluster keeps running when the command ends. Run the command again after an edit of
the configuration, or after a process was killed: it applies the configuration again and
starts what is missing. At the end it prints what you can try next.

With --provider=libvirt, the VMs are real ones of a libvirtd in {root}/temp/libvirt, and
each server has a network namespace on their bridge. It needs Linux and root. The servers
get their configuration directly, without tofu. "nstance-dev down" removes all of it.`

const aboutDown = `Stop the servers, the VMs and the object store, and remove {root}/temp, which has all state
of the cluster. What "nstance-dev up" applied with tofu or terraform needs no destroy.`

const aboutDemo = `Play the life of a shard with real programs and print a timeline of measured times:
apply, election, registration, loss and replacement of a VM, scaling, a change of files,
scaling by the length of a queue, a failover, the loss of everything but the bucket, destroy.

The demo has a directory, ports and a tmux server of its own, so it runs beside a cluster
of "nstance-dev up". It exits 0 only if every step did what it should. It leaves nothing
behind, unless you pass --keep.`

// settings are the values that all subcommands of nstance-dev use.
type settings struct {
	root      string // directory with examples/, and with temp/ during the life of a cluster
	bin       string // directory of the programs
	terraform string // path of tofu or terraform; empty if neither is on PATH
	provider  string
	out       io.Writer
}

// Command returns the command line of nstance-dev.
func Command(version string) *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:          "nstance-dev",
		Short:        "Run an Nstance cluster on this machine",
		Long:         about,
		Version:      version,
		SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			s.out = cmd.OutOrStdout()
			return s.check()
		},
	}
	root.SetVersionTemplate("nstance-dev {{.Version}}\n")
	root.PersistentFlags().StringVar(&s.root, "root", "",
		"directory with examples/ (default: that of nstance-dev if it has them, else the current one)")
	root.PersistentFlags().StringVar(&s.terraform, "terraform", "",
		"path of tofu or terraform (default: tofu on PATH, else terraform on PATH)")
	up := &cobra.Command{Use: "up", Short: "Start a cluster, or bring a running one up to date", Long: aboutUp,
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return bringUp(cmd.Context(), s) }}
	up.Flags().StringVar(&s.provider, "provider", providerTmux, "where the VMs are: tmux or libvirt")
	down := &cobra.Command{Use: "down", Short: "Stop the cluster and remove everything it wrote", Long: aboutDown,
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return takeDown(cmd.Context(), s) }}
	keep := false
	demo := &cobra.Command{Use: "demo", Short: "Play the life of a shard and print measured times", Long: aboutDemo,
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), s, keep) }}
	demo.Flags().BoolVar(&keep, "keep", false, "keep the directory with logs, bucket and disks")
	root.AddCommand(up, down, demo)
	return root
}

// Providers of "nstance-dev up".
const (
	providerTmux    = "tmux"
	providerLibvirt = "libvirt"
)

// check completes the settings. It returns an error if they are wrong or a needed program is missing.
func (s *settings) check() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the directory of nstance-dev: %w", err)
	}
	s.bin = filepath.Dir(program)
	if s.root == "" {
		s.root = "."
		if _, err := os.Stat(filepath.Join(s.bin, "examples")); err == nil {
			s.root = s.bin
		}
	}
	if s.root, err = filepath.Abs(s.root); err != nil {
		return err
	}
	if s.provider != "" && s.provider != providerTmux && s.provider != providerLibvirt {
		return fmt.Errorf("--provider: %q is neither %s nor %s", s.provider, providerTmux, providerLibvirt)
	}
	for _, name := range []string{"dev-s3", "nstance-admin", "nstance-server", "nstance-agent",
		"terraform-provider-nstance"} {
		if _, err := os.Stat(filepath.Join(s.bin, name)); err != nil {
			return fmt.Errorf("%s is not beside nstance-dev in %s: unpack the whole archive, or run \"make up\" in a "+
				"clone of the repository", name, s.bin)
		}
	}
	if _, err := os.Stat(libvirtDir(*s)); s.libvirt() || s.provider == "" && err == nil {
		return nil // neither tmux nor tofu is needed
	}
	if _, err := exec.LookPath("tmux"); err != nil {
		return fmt.Errorf("tmux is needed, because every VM is a tmux window (Debian: apt-get install tmux; macOS: "+
			"brew install tmux): %w", err)
	}
	if s.terraform != "" {
		return nil
	}
	for _, name := range []string{"tofu", "terraform"} {
		if path, err := exec.LookPath(name); err == nil {
			s.terraform = path
			return nil
		}
	}
	return nil
}

var errNoTerraform = errors.New("neither tofu nor terraform is on PATH: install one (https://opentofu.org/docs/intro/" +
	"install), or name it with --terraform")

// command returns the command line for a subcommand of nstance-dev, as the user types it in the root directory.
func (s settings) command(name string) string {
	if _, err := os.Stat(filepath.Join(s.root, "Makefile")); err == nil {
		return "make " + name
	}
	return "./nstance-dev " + name
}

// libvirt reports whether the VMs are real ones.
func (s settings) libvirt() bool { return s.provider == providerLibvirt }

// openStack returns the stack of "nstance-dev up", in {root}/temp. machines are those of the servers if the VMs are
// real ones.
func openStack(s settings, machines *libvirtd.Machines) (*local.Stack, error) {
	options := local.Options{Root: s.root, Bin: s.bin, Dir: filepath.Join(s.root, "temp"), Ports: local.DefaultPorts(),
		SharedTmux: !s.libvirt()}
	if s.libvirt() {
		options.Network = machines
	}
	return local.New(options)
}

// runStep prints the name of a step, runs it, and prints how long it took and its note.
func runStep(out io.Writer, name string, run func() (note string, err error)) error {
	fmt.Fprintf(out, "  %-42s", name)
	began := time.Now()
	note, err := run()
	if err != nil {
		fmt.Fprintln(out, "failed")
		return err
	}
	fmt.Fprintf(out, "%5.1f s  %s\n", time.Since(began).Seconds(), note)
	return nil
}

// runDemo plays the demo on a stack in a temporary directory. Afterwards it kills the stack's processes, and
// removes the directory unless keep is true.
func runDemo(ctx context.Context, s settings, keep bool) error {
	if s.terraform == "" {
		return errNoTerraform
	}
	return local.WithStack(ctx, local.Trial{Name: "demo", Root: s.root, Bin: s.bin, Servers: servers, Keep: keep},
		func(stack *local.Stack) error {
			d := &demo{stack: stack, out: s.out}
			var err error
			if d.terraform, err = stack.Terraform(s.terraform); err != nil {
				return err
			}
			if err := d.play(ctx); err != nil {
				return err
			}
			d.timeline.print(s.out)
			return nil
		})
}
