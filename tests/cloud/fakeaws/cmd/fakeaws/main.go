// Fakeaws serves the fake AWS for manual use with the real tools. Its instances are records only. It prints the
// environment that aws, terraform and tofu need, and runs until it is interrupted. With --versitygw (the path that
// scripts/tool.sh prints) it also serves S3.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fakeaws:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	listen := flag.String("listen", "127.0.0.1:0", "address to serve at")
	gateway := flag.String("versitygw", "", "path of a versitygw; empty: no S3")
	flag.Parse()
	cfg := fakeaws.Config{Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if *gateway != "" {
		dir, err := os.MkdirTemp("", "fakeaws-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		backend, end, err := s3.Start(ctx, dir, *gateway)
		if err != nil {
			return err
		}
		defer end()
		cfg.S3 = &backend
	}
	cloud, err := fakeaws.New(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cloud.Close()) }()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	access, secret := cloud.Credentials()
	fmt.Printf(
		"export AWS_ENDPOINT_URL=http://%s AWS_REGION=%s AWS_ACCESS_KEY_ID=%s AWS_SECRET_ACCESS_KEY=%s "+
			"AWS_S3_USE_PATH_STYLE=true AWS_EC2_METADATA_DISABLED=true\n",
		listener.Addr(), cloud.Region(), access, secret)
	server := &http.Server{Handler: cloud, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
