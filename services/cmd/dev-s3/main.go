// Command dev-s3 is an S3 server for development. It keeps one bucket in a directory.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nstance-kit/nstance/services/internal/dev/s3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s3.Command().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}
