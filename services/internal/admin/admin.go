// Package admin implements nstance-admin, the command line and the HTTP API to operate a cluster. The `cluster`
// commands and `config push` access the bucket. All other commands call the operator API of the shards' leaders
// (package fleet).
//
// Invariant: only the commands `secret get`, `nonce` and `register-operator` write a secret to standard output or a
// file. Every command exits with 0 if it succeeded completely, 1 if it failed, and 2 if the command line is wrong.
package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

//go:generate go test -run ^TestGenerated$ . -update

// Environment is the program's connection to the system: standard streams, variables, clock and randomness. It does not
// include buckets, servers, or the files in the arguments. [System] returns the environment of this process.
type Environment struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	Now    func() time.Time
	Rand   io.Reader // used concurrently
	Clouds []infra.Cloud
}

// System returns the environment of this process.
func System() Environment {
	return Environment{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now,
		Rand: rand.Reader}
}

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// Run runs one command line until the command or ctx ends, and returns the exit code. args does not include the
// program's name.
func Run(ctx context.Context, args []string, version string, env Environment) int {
	a := newApp(version, env)
	root := a.command()
	root.SetArgs(numbersLast(nounFirst(root, args)))
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	_, usage := errors.AsType[*usageError](err)
	if !a.started && !usage {
		err, usage = ownWords(err), true // an error of cobra itself: no command was started
	}
	a.report(err)
	if usage {
		return exitUsage
	}
	return exitFailure
}

// nounFirst puts the words of a command line into the order of the commands: "get instances" becomes "instances list",
// "get instance ID" becomes "instance describe ID", and "describe instance ID" becomes "instance describe ID".
func nounFirst(root *cobra.Command, args []string) []string {
	find := func(in *cobra.Command, name string) *cobra.Command {
		for _, c := range in.Commands() {
			if c.Name() == name || c.HasAlias(name) {
				return c
			}
		}
		return nil
	}
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return args
	}
	args = slices.Clone(args)
	if noun := find(root, args[1]); noun != nil && find(root, args[0]) == nil &&
		(args[0] == "get" || find(noun, args[0]) != nil) {
		args[0], args[1] = args[1], args[0]
	}
	if noun := find(root, args[0]); args[1] == "get" && noun != nil {
		name := "list"
		if len(args) > 2 && !strings.HasPrefix(args[2], "-") {
			name = "describe"
		}
		if find(noun, name) != nil {
			args[1] = name
		}
	}
	return args
}

// numbersLast moves a negative number, such as the -2 of "group scale workers -2", behind "--", so that it is no flag.
// No flag of the program is a digit. Values of flags stay.
func numbersLast(args []string) []string {
	for n, arg := range args {
		number := len(arg) > 1 && arg[0] == '-' && strings.Trim(arg[1:], "0123456789") == ""
		if number && n > 0 && !strings.HasPrefix(args[n-1], "-") && !slices.Contains(args, "--") {
			return slices.Concat(args[:n], args[n+1:], []string{"--", arg})
		}
	}
	return args
}

// app is one run of the program.
type app struct {
	Environment
	version string
	style   style
	// started is set when a command begins to run. An error before that is an error of the command line (exit code 2).
	started bool
	// running is the command that runs, or nil if none was started.
	running *cobra.Command
	// severalShards is set if the command asks more than one shard.
	severalShards bool
	// freeSpace returns the free space in bytes on the disk of a directory.
	freeSpace func(dir string) (uint64, error)
	// sleep waits for d, or until ctx ends.
	sleep func(ctx context.Context, d time.Duration) error
}

func newApp(version string, env Environment) *app {
	getenv := env.Getenv
	env.Getenv = func(name string) string { return pasted.Clean(getenv(name)) }
	return &app{Environment: env, version: version, style: newStyle(env), freeSpace: freeSpace,
		sleep: tasks.Sleep}
}

// about is the help text of the program. Its %s is replaced by the environment variables for object stores.
const about = `nstance-admin looks after Nstance clusters: their keys and registrations, their
configuration, groups and instances.

Commands under "cluster", and "config push", work on the bucket: they need access to
it and mostly the cluster's encryption key (NSTANCE_ENCRYPTION_KEY unless
--key-provider and --key-source say otherwise). Access comes from the environment:

%s
All other commands talk to the leaders of shards over mutual TLS. Terraform's output says
where they are and which bucket they use. Make your identity once, with access to it:

  tofu output -raw admin_context | nstance-admin context import -
  nstance-admin cluster register-operator

Without Terraform, write a context ("nstance-admin context --help" shows its form), or set
variables:

  export NSTANCE_ADMIN_SERVERS=us-west-2a=10.0.0.100:8993,us-west-2b=10.0.1.100:8993
  export NSTANCE_ADMIN_IDENTITY_DIR=$HOME/.nstance
  export NSTANCE_ADMIN_STORAGE_BUCKET=my-bucket

The words may also be in the order of kubectl: "get instances", "describe group workers".

Exit status: 0 done, 1 failed (with --all-shards: in one shard or more), 2 the command
line is wrong.`

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "nstance-admin",
		Short:         "Operate Nstance clusters",
		Long:          fmt.Sprintf(about, open.Environment("  %[2]s: %[1]s\n")),
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       a.version,
	}
	root.SetVersionTemplate("nstance-admin {{.Version}}\n")
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(a.clusterCommand(), a.configCommand(), a.groupCommand(), a.instanceCommand(), a.explainCommand(),
		a.statusCommand(), a.topCommand(), a.eventsCommand(), a.serverCommand(), a.uiCommand(),
		a.orphansCommand(), a.doctorCommand(), a.supportCommand(), a.serveCommand(), a.contextCommand(),
		a.versionCommand())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	a.prepare(root)
	a.complete(root)
	return root
}

// prepare changes a command and its subcommands. They then return a usage error for a wrong command line, and record
// which command runs.
func (a *app) prepare(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.prepare(sub)
	}
	switch cmd.Name() {
	case "list":
		cmd.Aliases = append(cmd.Aliases, "ls")
	case "group", "instance", "server", "context":
		cmd.Aliases = append(cmd.Aliases, cmd.Name()+"s")
	}
	cmd.SetFlagErrorFunc(flagError)
	cmd.Flags().SortFlags, cmd.PersistentFlags().SortFlags = false, false
	describeSettings(cmd.Flags())
	describeSettings(cmd.PersistentFlags())
	if cmd.Name() == "help" || cmd.Name() == "completion" || cmd.HasParent() && cmd.Parent().Name() == "completion" {
		return
	}
	if firstArgument(cmd) == "INSTANCE" {
		cmd.Long += "\n\n" + instanceHelp
	}
	if args := cmd.Args; args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				_, want, _ := strings.Cut(cmd.Use, " ")
				text := fmt.Sprintf("want the arguments %q, have %q", want, strings.Join(given, " "))
				if want == "" {
					text = fmt.Sprintf("%s takes no arguments, have %q", cmd.CommandPath(), strings.Join(given, " "))
				}
				return &usageError{err: errors.New(text), hint: "usage: " + cmd.UseLine()}
			}
			return nil
		}
	}
	if cmd.RunE == nil && cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return nil
			}
			err := &usageError{err: errors.New("unknown command \"" + cmd.CommandPath() + " " + given[0] + "\""),
				hint: cmd.CommandPath() + " --help lists the commands"}
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(given[0]); len(near) > 0 {
				err.hint = "did you mean: " + strings.Join(near, ", ")
			} else if cmd.HasParent() {
				var names []string
				for _, sub := range cmd.Commands() {
					names = append(names, sub.Name())
				}
				err.hint = "there are: " + list(names) + ", such as \"" + cmd.Commands()[0].UseLine() + "\""
			}
			return err
		}
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		return
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started, a.running = true, cmd
			if err := a.settle(cmd); err != nil {
				return err
			}
			if err := a.resolve(cmd, args); err != nil {
				return err
			}
			return run(cmd, args)
		}
	}
}
