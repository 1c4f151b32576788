// Command nstance-server leads a shard or stands by. The leader keeps the shard's VMs running.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/internal/server"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/libvirt"
	"github.com/nstance-kit/nstance/services/internal/server/infra/tmux"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// version is set at link time by a release build.
var version = "dev"

// heir contains three durations, such as "9s 3s 1s". Only scripts/chaos.sh sets it, at link time, so that takeovers
// take a few seconds instead of about 90 s. The first duration is the lease of a lock with an heir. The second is the
// interval at which the leader renews the lock. The third is how long a standby must answer the leader's heartbeats
// before it becomes the heir.
var heir string

func main() { os.Exit(run()) }

func run() int {
	options, err := server.ParseOptions(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "nstance-server: %v\nTry nstance-server --help.\n", err)
		return 2
	case options.Version:
		fmt.Println("nstance-server", version)
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if options.Validate {
		return server.Validate(ctx, options, os.Stdout, os.Stderr)
	}
	log := options.Logger(os.Stderr)
	if options.ReportHealth {
		if err := server.ReportHealth(ctx, options, clouds(), log); err != nil {
			log.Error("cannot report the server's health", "error", err)
			return 1
		}
		return 0
	}
	times, err := heirTimes(heir)
	if err != nil {
		log.Error("linked wrongly", "error", err)
		return 2
	}
	confirm := make(chan os.Signal, 1)
	signal.Notify(confirm, syscall.SIGUSR1)
	defer signal.Stop(confirm)
	err = server.Run(ctx, server.Config{Options: options, ConfirmOrphans: confirm, Version: version, Log: log,
		Supervised: os.Getenv("INVOCATION_ID") != "",
		Clouds:     clouds(), Heir: times})
	switch {
	case errors.Is(err, server.ErrRestart):
		log.Info("restarting with the new configuration")
		if err := syscall.Exec(self(), os.Args, os.Environ()); err != nil {
			log.Error("restart failed", "error", err)
		}
		return 1
	case err != nil:
		return 1 // Run has logged it
	}
	log.Info("server stopped")
	return 0
}

// heirTimes parses the value that the linker set. For an empty text it returns zero options, which select the defaults.
func heirTimes(text string) (election.Options, error) {
	var o election.Options
	if text == "" {
		return o, nil
	}
	fields := strings.Fields(text)
	into := []*time.Duration{&o.HeirLease, &o.HeirRenew, &o.HeirProbation}
	if len(fields) != len(into) {
		return election.Options{}, fmt.Errorf("times of an heir: %q has %d fields, want %d", text, len(fields),
			len(into))
	}
	for i, field := range fields {
		d, err := time.ParseDuration(field)
		if err != nil {
			return election.Options{}, fmt.Errorf("times of an heir: %w", err)
		}
		*into[i] = d
	}
	return o, nil
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// clouds returns the clouds that this server can make VMs in.
func clouds() []infra.Cloud { return append(remote, libvirt.Cloud(), tmux.Cloud()) }
