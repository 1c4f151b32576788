// Command nstance-agent runs on every VM of a cluster and reads its configuration from the environment. See
// docs/reference/agent.md or --help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/nstance-kit/nstance/services/internal/agent"
)

var version = "dev" // set by the linker

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

func run(args, environ []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("nstance-agent", flag.ContinueOnError)
	flags.SetOutput(stderr)
	debug := flags.Bool("debug", false, "log more")
	showVersion := flags.Bool("version", false, "print the version and exit")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "nstance-agent keeps a VM in touch with its Nstance server.\n\nFlags:\n")
		flags.PrintDefaults()
		fmt.Fprint(flags.Output(), "\nEnvironment:\n")
		_ = agent.WriteHelp(flags.Output()) // to a terminal
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "nstance-agent takes no arguments, have %q; --help tells more\n", flags.Args())
		return 2
	case *showVersion:
		fmt.Fprintln(stdout, version)
		return 0
	}
	settings, unknown, err := agent.ParseSettings(environ)
	if err != nil {
		fmt.Fprintf(stderr, "The environment is not right (nstance-agent --help lists the variables):\n%v\n", err)
		return 2
	}
	level := slog.LevelInfo
	if *debug || settings.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	for _, name := range unknown {
		log.Warn("The agent does not know this variable", "name", name)
	}
	if err := agent.Run(context.Background(), settings, version, log); err != nil {
		log.Error("The agent cannot run", "error", err)
		return 1
	}
	return 0
}
