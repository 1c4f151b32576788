// Command nstance-admin manages Nstance clusters. See docs/reference/admin.md or --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-kit/nstance/services/internal/admin"
)

var version = "dev" // set by the linker

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	env := admin.System()
	env.Clouds = clouds
	return admin.Run(ctx, os.Args[1:], version, env)
}
