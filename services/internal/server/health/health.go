// Package health serves a daemon's health endpoint. It answers 503 with the reason until the daemon is ready, then 200.
// The same endpoint serves the daemon's metrics.
//
// Invariant: the status is 503 only while a new process or machine could help. So an outage of something that all
// servers need never makes a load balancer or a scaling group replace them.
package health

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Probe holds the answer of the endpoint. The zero value is not ready. It is safe for concurrent use.
type Probe struct {
	// Says, if set, describes a ready daemon in words, such as "ok". Set it before the endpoint is served.
	Says func() string
	// Details, if set, adds members to the answer in JSON. Set it before the endpoint is served.
	Details func() any

	reason atomic.Pointer[string]
	ready  atomic.Bool
}

// NotReady marks the daemon as not ready and sets the reason.
func (p *Probe) NotReady(reason string) {
	p.reason.Store(&reason)
	p.ready.Store(false)
}

// Ready marks the daemon as ready.
func (p *Probe) Ready() { p.ready.Store(true) }

// IsReady reports whether the daemon is ready.
func (p *Probe) IsReady() bool { return p.ready.Load() }

// text returns what the endpoint says, and whether the daemon is ready.
func (p *Probe) text() (says string, ready bool) {
	switch r := p.reason.Load(); {
	case p.ready.Load() && p.Says != nil:
		return p.Says(), true
	case p.ready.Load():
		return "ok", true
	case r != nil:
		return *r, false
	}
	return "starting", false
}

// answer is the answer of the endpoint in JSON.
type answer struct {
	Ready   bool   `json:"ready"`
	Says    string `json:"says"`
	Details any    `json:"details,omitempty"`
}

// ServeHTTP answers 200 when the daemon is ready, otherwise 503, with a text that says why. A client that accepts
// application/json gets the answer as JSON.
func (p *Probe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	says, ready := p.text()
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Cache-Control", "no-store")
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		a := answer{Ready: ready, Says: says}
		if p.Details != nil {
			a.Details = p.Details()
		}
		_ = json.NewEncoder(w).Encode(a) // the client is gone
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, says)
}

// maxVisitors is the maximum number of open connections of all clients together: probes, scrapers and people. A
// connection beyond the maximum closes the oldest one, so that idle connections never block a probe.
const maxVisitors = 256

// visitors tracks the open connections.
type visitors struct {
	mu     sync.Mutex
	places *list.List // of net.Conn, oldest first
	at     map[net.Conn]*list.Element
}

// state implements http.Server.ConnState.
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

// Serve serves `/` and `/health` from the probe, and the pages at the paths of their keys, until ctx ends. All of them
// are only for GET.
func Serve(ctx context.Context, listener net.Listener, probe *Probe, pages map[string]http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", probe)
	mux.Handle("GET /health", probe)
	for path, page := range pages {
		mux.Handle("GET "+path, page)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second,
		IdleTimeout:  time.Minute, MaxHeaderBytes: 16 << 10, ConnState: (&visitors{places: list.New(),
			at: map[net.Conn]*list.Element{}}).state}
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // Close cuts the connections that remain after this
		_ = server.Close()
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health on %s: %w", listener.Addr(), err)
	}
	return nil
}
