// Package health owns a daemon's probe endpoint: 503 with the reason until it is ready, then 200, and its metrics
// beside it.
package health

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Probe is what the endpoint answers. The zero value is not ready. Safe for concurrent use.
type Probe struct {
	reason atomic.Pointer[string]
	ready  atomic.Bool
}

// NotReady says why the daemon is not ready (again).
func (p *Probe) NotReady(reason string) {
	p.reason.Store(&reason)
	p.ready.Store(false)
}

// Ready says that the daemon is ready.
func (p *Probe) Ready() { p.ready.Store(true) }

// IsReady reports whether the daemon is ready.
func (p *Probe) IsReady() bool { return p.ready.Load() }

// ServeHTTP answers 200 "ok" when ready, else 503 and the reason.
func (p *Probe) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if p.ready.Load() {
		fmt.Fprintln(w, "ok")
		return
	}
	reason := "starting"
	if r := p.reason.Load(); r != nil {
		reason = *r
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintln(w, reason)
}

// maxVisitors is how many connections there may be: a probe's, a scraper's and a person's. One more costs the oldest,
// so that whoever only holds connections keeps no probe out.
const maxVisitors = 256

// visitors are the open connections.
type visitors struct {
	mu     sync.Mutex
	places *list.List // of net.Conn, oldest first
	at     map[net.Conn]*list.Element
}

// state is http.Server.ConnState.
func (v *visitors) state(conn net.Conn, state http.ConnState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch state {
	case http.StateNew:
		if v.places.Len() >= maxVisitors {
			oldest := v.places.Remove(v.places.Front()).(net.Conn)
			delete(v.at, oldest)
			_ = oldest.Close()
		}
		v.at[conn] = v.places.PushBack(conn)
	case http.StateClosed, http.StateHijacked:
		if place, ok := v.at[conn]; ok {
			v.places.Remove(place)
			delete(v.at, conn)
		}
	}
}

// Page is one more thing that the endpoint answers to GET.
type Page struct {
	Path    string
	Handler http.Handler
}

// Serve answers `/` and `/health` from the probe, `/metrics` from metrics (may be nil) and whatever pages there are
// until ctx ends.
func Serve(ctx context.Context, listener net.Listener, probe *Probe, metrics http.Handler, pages ...Page) error {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", probe)
	mux.Handle("GET /health", probe)
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	for _, page := range pages {
		mux.Handle("GET "+page.Path, page.Handler)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second,
		IdleTimeout:  time.Minute, MaxHeaderBytes: 16 << 10, ConnState: (&visitors{places: list.New(),
			at: map[net.Conn]*list.Element{}}).state}
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // what has not ended by then is cut below
		_ = server.Close()
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health on %s: %w", listener.Addr(), err)
	}
	return nil
}
