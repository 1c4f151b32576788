// Command dev-k8s is a Kubernetes API server for development. It stores the objects in a directory.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-kit/nstance/services/internal/dev/k8s"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := k8s.Command().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}
