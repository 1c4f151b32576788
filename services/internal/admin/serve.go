package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/web"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// routesText lists the calls of the API.
func routesText() string {
	var text strings.Builder
	for _, route := range httpapi.Routes() {
		text.WriteString("  " + route + "\n")
	}
	return text.String()
}

type serveOptions struct {
	bind, tokenFile, certFile, keyFile string
	insecure                           bool
	bucket                             bucketFlags
	// opened is called with the page's URL as soon as the HTTP server listens.
	opened func(url string)
}

func (a *app) serveCommand() *cobra.Command {
	var o serveOptions
	s := new(scope)
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the web page and the HTTP API", Args: cobra.NoArgs,
		Long: `Serves a web page at /ui/ and a JSON API over HTTP, for the shards in --servers. Most
calls of the API take ?shard=S or ?all_shards=true:

` + routesText() + `
"POST /group" creates or changes a group: its body is a JSON merge patch of the group, such
as {"size": 5}. GET /openapi.json describes every call, with its parameters.

With --token-file, clients of "nstance-admin serve" need a token from this file. They send
it in the header "Authorization: Bearer TOKEN". To see the web page, a person logs in with
a token. For each change, "serve" logs the name that the token file gives for the token.

A line of a token file has one of the forms TOKEN, NAME TOKEN, or NAME TOKEN ROLE. A
token has at least 16 characters. The role is viewer, operator or admin. Viewers only
read. A token without a role has the role operator in the API, and viewer on the web
page.

Without --token-file, "nstance-admin serve" needs no login, but only this machine can
connect: it listens on 127.0.0.1:8080, or on the loopback address in --bind.

With --storage-bucket, the web page of "nstance-admin serve" also shows what only the
bucket has: the lock of a shard that has no leader, and the effects of a configuration that
no leader has applied yet. Every user of the page sees both. The command needs credentials
that may read the bucket.

If "nstance-admin serve" listens on an address that other machines can reach, it needs
TLS: give --tls-cert-file and --tls-key-file. Behind a proxy that serves TLS, give
--insecure instead. Tokens and answers are then sent in plain text.`,
		Example: `  nstance-admin serve
  curl -s 'http://127.0.0.1:8080/groups?all_shards=true'

  (umask 077; echo "ci $(openssl rand -hex 24) operator" > tokens)
  nstance-admin serve --bind :8080 --token-file tokens --tls-cert-file tls.crt --tls-key-file tls.key`,
	}
	cmd.Flags().StringVar(&o.bind, "bind", ":8080", "address to listen on; without --token-file 127.0.0.1:8080")
	cmd.Flags().StringVar(&o.tokenFile, "token-file", "", "file with the tokens of the clients")
	cmd.Flags().StringVar(&o.certFile, "tls-cert-file", "", "certificate chain (PEM), to serve HTTPS")
	cmd.Flags().StringVar(&o.keyFile, "tls-key-file", "", "private key of the certificate (PEM)")
	cmd.Flags().BoolVar(&o.insecure, "insecure", false,
		"serve plain HTTP on other addresses than this machine's")
	cmd.MarkFlagsRequiredTogether("tls-cert-file", "tls-key-file")
	o.bucket.add(cmd)
	cmd.Flags().Lookup("storage-bucket").Usage = "the bucket, for more on the web page; for file, the directory"
	cmd.Flags().Lookup("storage-timeout").Usage = "how long the bucket may take to show one shard"
	s.reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.tokenFile == "" && !cmd.Flags().Changed("bind") {
			o.bind = "127.0.0.1:8080"
		}
		return a.serve(cmd.Context(), s, o)
	}
	return cmd
}

// shutdownTime is the time that requests in progress get when the server stops.
const shutdownTime = 5 * time.Second

func (a *app) serve(ctx context.Context, s *scope, o serveOptions) error {
	host, _, err := net.SplitHostPort(o.bind)
	if err != nil {
		return usagef("--bind: want host:port: %w", err)
	}
	var tokens httpapi.Tokens
	if o.tokenFile != "" {
		text, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return fmt.Errorf("read tokens: %w", err)
		}
		if tokens, err = httpapi.ParseTokens(string(text)); err != nil {
			return withHint(fmt.Errorf("read tokens: %s: %w", o.tokenFile, err), "openssl rand -hex 24 makes a token")
		}
	} else if !httpapi.Loopback(host) {
		return &usageError{err: fmt.Errorf("--bind %s: other machines could call without a token", o.bind),
			hint: "give --token-file, or bind to a loopback address such as 127.0.0.1:8080"}
	}
	if o.certFile == "" && !o.insecure && !httpapi.Loopback(host) {
		return &usageError{err: fmt.Errorf("--bind %s: tokens would cross the network in plain text", o.bind),
			hint: "give --tls-cert-file and --tls-key-file, or --insecure behind a proxy that serves TLS"}
	}
	bucket, err := a.openPageBucket(ctx, &o.bucket)
	if err != nil {
		return err
	}
	f, err := a.fleet(s)
	if err != nil {
		return err
	}
	defer f.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.bind)
	if err != nil {
		return withHint(fmt.Errorf("listen: %w", err), "choose another address with --bind")
	}
	log := slog.New(slog.NewTextHandler(a.Stderr, nil))
	request := 2 * s.timeout // to read a group and to change it
	page := web.New(web.Options{Fleet: f, Bucket: bucket, Tokens: tokens, Version: a.version, Timeout: request,
		Now: a.Now, Log: log})
	mux := http.NewServeMux()
	mux.Handle(web.Path, page)
	mux.Handle("GET /{$}", http.RedirectHandler(web.Path, http.StatusFound))
	ended := make(chan struct{})
	mux.Handle("/", httpapi.New(httpapi.Options{Fleet: f, Tokens: tokens, Version: a.version, Timeout: request,
		Ended: ended, Log: log}))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      request + 15*time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	server.RegisterOnShutdown(func() { close(ended) }) // Shutdown is called once
	scheme, who := "http", "callers need a token"
	if o.certFile != "" {
		scheme = "https"
	}
	if o.tokenFile == "" {
		who = "without a token, for this machine only; --token-file opens it to others"
	}
	a.note("nstance-admin serves %s://%s %s.", scheme, listener.Addr(), who)
	if o.opened != nil {
		o.opened(fmt.Sprintf("%s://%s%s", scheme, listener.Addr(), web.Path))
	}
	return tasks.Run(ctx, func(context.Context) error {
		if o.certFile != "" {
			return ignoreClosed(server.ServeTLS(listener, o.certFile, o.keyFile))
		}
		return ignoreClosed(server.Serve(listener))
	}, page.Run, func(ctx context.Context) error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return errors.Join(fmt.Errorf("shut down: %w", err), server.Close())
		}
		return nil
	})
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
