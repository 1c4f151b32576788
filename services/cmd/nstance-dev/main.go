// Command nstance-dev runs a whole Nstance cluster on one machine, for development and demonstration.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-kit/nstance/services/internal/dev/devtool"
)

var version = "dev" // set by the linker

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := devtool.Command(version).ExecuteContext(ctx); err != nil {
		os.Exit(1) // cobra has printed the error
	}
}
