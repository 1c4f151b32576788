// Package httpserver serves HTTP for the development servers. It stops gracefully and refuses requests from web pages.
//
// Invariant: when [Serve] returns, no request is running.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

// Command completes the command line of a development server: it gets the flag --verbose and runs serve until its
// context ends.
func Command(cmd *cobra.Command, serve func(context.Context, *slog.Logger, io.Writer) error) *cobra.Command {
	verbose := cmd.Flags().Bool("verbose", false, "log every request to standard error")
	cmd.Args, cmd.SilenceUsage = cobra.NoArgs, true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		level := slog.LevelInfo
		if *verbose {
			level = slog.LevelDebug
		}
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
		return serve(cmd.Context(), log, cmd.OutOrStdout())
	}
	return cmd
}

// Serve answers requests until ctx ends, and then waits up to timeout for running requests. It returns nil if it stops
// because ctx ended. If endless is true, the contexts of requests end with ctx. Set endless if some requests never end
// by themselves, such as watches.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger, timeout time.Duration,
	endless bool) error {
	unused := unusedConns{}
	server := &http.Server{
		Handler:           refuseWebPages(handler),
		ConnState:         unused.note,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if endless {
		server.BaseContext = func(net.Listener) context.Context { return ctx }
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	server.RegisterOnShutdown(unused.close)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return errors.Join(fmt.Errorf("shut down: %w", err), server.Close(), ignoreClosed(<-ended))
	}
	return ignoreClosed(<-ended)
}

// unusedConns has the connections without a request, which the pools of clients keep open. [http.Server.Shutdown] would
// wait for these connections too, until its timeout.
type unusedConns struct {
	conns  sync.Map
	ending atomic.Bool
}

func (u *unusedConns) note(c net.Conn, state http.ConnState) {
	if state != http.StateNew {
		u.conns.Delete(c)
		return
	}
	u.conns.Store(c, nil)
	if u.ending.Load() {
		_ = c.Close()
	}
}

func (u *unusedConns) close() {
	u.ending.Store(true)
	u.conns.Range(func(c, _ any) bool {
		_ = c.(net.Conn).Close()
		return true
	})
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// refuseWebPages refuses requests that a browser sends for a web page. Some of them have an Origin header, or a
// Sec-Fetch-Site header that marks them as sent by a page (https://www.w3.org/TR/fetch-metadata). Others name a host
// that an attacker's DNS server can resolve to this machine. Programs other than browsers use an IP address or
// localhost, or name no host, as HTTP/1.0 permits.
func refuseWebPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case r.Header.Get("Origin") != "" || site != "" && site != "none":
			http.Error(w, "requests of web pages are refused", http.StatusForbidden)
		case r.Host != "" && !isLocalName(r.Host):
			http.Error(w, "host "+r.Host+" is refused: use an IP address or localhost", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLocalName reports whether hostport names an IP address, localhost or a name below localhost (RFC 6761, 6.3). The
// port is optional.
func isLocalName(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
