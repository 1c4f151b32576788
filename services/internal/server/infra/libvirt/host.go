package libvirt

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// host is one of the provider's hosts, with the connection to it. Its methods are safe for concurrent use.
type host struct {
	name string
	uri  *url.URL

	mu       sync.Mutex
	conn     *libvirt.Libvirt // nil: not connected
	creating map[string]int64 // memory in MiB of VMs that are being created or woken

	// changing serializes the calls that create or delete the same instance. A hash of the instance's name selects one
	// of the mutexes.
	changing [64]sync.Mutex
}

// connect returns the connection to the host, and makes it if there is none.
func (h *host) connect() (*libvirt.Libvirt, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil {
		select {
		case <-h.conn.Disconnected():
			h.conn = nil
		default:
			return h.conn, nil
		}
	}
	conn, err := libvirt.ConnectToURI(h.uri)
	if err != nil {
		return nil, err
	}
	h.conn = conn
	return conn, nil
}

// drop closes a connection, which ends all calls on it.
func (h *host) drop(conn *libvirt.Libvirt) {
	h.mu.Lock()
	if h.conn == conn {
		h.conn = nil
	}
	h.mu.Unlock()
	go func() { _ = conn.Disconnect() }() // it waits for the other end
}

func (h *host) close() {
	h.mu.Lock()
	conn := h.conn
	h.conn = nil
	h.mu.Unlock()
	if conn != nil {
		_ = conn.Disconnect() // the connection is not needed any more
	}
}

// call runs f with a connection to the host and adds a class to the error of f. libvirt's calls take no context. When
// ctx ends, call closes the connection to make f return. call then returns an Indeterminate error.
func call[T any](ctx context.Context, h *host, what string, f func(*libvirt.Libvirt) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, infra.Wrap(infra.Indeterminate, what, err)
	}
	var mu sync.Mutex
	var conn *libvirt.Libvirt
	done := make(chan result, 1)
	go func() {
		c, err := h.connect()
		if err != nil {
			done <- result{err: infra.Errorf(infra.Indeterminate, what, "connect to host %s: %w", h.name, err)}
			return
		}
		mu.Lock()
		conn = c
		mu.Unlock()
		if ctx.Err() != nil {
			done <- result{err: ctx.Err()}
			return
		}
		value, err := f(c)
		done <- result{value, classify(what, err)}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		mu.Lock()
		defer mu.Unlock()
		if conn != nil {
			h.drop(conn)
		}
		return none, infra.Wrap(infra.Indeterminate, what, ctx.Err())
	}
}

// classes maps codes of libvirt's errors to classes. https://libvirt.org/html/libvirt-virterror.html
var classes = map[libvirt.ErrorNumber]infra.Class{
	libvirt.ErrNoDomain:          infra.NotFound,
	libvirt.ErrNoNetwork:         infra.Invalid,
	libvirt.ErrNoStoragePool:     infra.Invalid,
	libvirt.ErrNoStorageVol:      infra.Invalid,
	libvirt.ErrXMLError:          infra.Invalid,
	libvirt.ErrXMLDetail:         infra.Invalid,
	libvirt.ErrXMLInvalidSchema:  infra.Invalid,
	libvirt.ErrInvalidArg:        infra.Invalid,
	libvirt.ErrConfigUnsupported: infra.Invalid,
	libvirt.ErrNoMemory:          infra.Capacity,
	libvirt.ErrAccessDenied:      infra.Denied,
	libvirt.ErrAuthFailed:        infra.Denied,
	libvirt.ErrAuthUnavailable:   infra.Denied,
	libvirt.ErrOperationDenied:   infra.Denied,
}

// classify gives an error its class. An error without a code comes from the connection, so the call may still take
// effect.
func classify(what string, err error) error {
	if err == nil {
		return nil
	}
	if classed, ok := errors.AsType[*infra.Error](err); ok {
		return classed
	}
	e, _ := errors.AsType[libvirt.Error](err)
	return infra.Wrap(cmp.Or(classes[libvirt.ErrorNumber(e.Code)], infra.Indeterminate), what, err)
}

// isCode reports whether an error of libvirt has a code.
func isCode(err error, code libvirt.ErrorNumber) bool {
	e, ok := errors.AsType[libvirt.Error](err)
	return ok && libvirt.ErrorNumber(e.Code) == code
}

// The pause between two attempts to connect to a host for its events. It doubles from watchSoonest up to watchLatest.
const (
	watchSoonest = 100 * time.Millisecond
	watchLatest  = 10 * time.Second
)

// Watch implements infra.Watcher with libvirt's lifecycle events. It misses the events of a host while it has no
// connection to that host. So after each new connection, it reports every VM of the host.
func (p *Provider) Watch(ctx context.Context, changed func(ident.ID)) {
	var wg sync.WaitGroup
	for _, h := range p.hosts {
		wg.Go(func() { p.watchHost(ctx, h, changed) })
	}
	wg.Wait()
}

func (p *Provider) watchHost(ctx context.Context, h *host, changed func(ident.ID)) {
	for tries := 1; ctx.Err() == nil; tries++ {
		pause, began := reconnect.Backoff(watchSoonest, watchLatest, tries), p.now()
		if err := followHost(ctx, h, changed); err != nil && ctx.Err() == nil {
			p.log.Warn("the events of a host are not followed, next try later", "host", h.name, "error", err,
				"in", pause)
		}
		if p.now().Sub(began) > watchLatest {
			tries, pause = 1, watchSoonest
		}
		_ = tasks.Sleep(ctx, pause) // the loop ends with ctx
	}
}

// followHost reports every VM of a host. Then it reports each VM for which libvirt sends an event, until the connection
// ends.
func followHost(ctx context.Context, h *host, changed func(ident.ID)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := call(ctx, h, "follow the events of host "+h.name,
		func(c *libvirt.Libvirt) (<-chan libvirt.DomainEventLifecycleMsg, error) {
			events, err := c.LifecycleEvents(ctx)
			if err != nil {
				return nil, err
			}
			domains, _, err := c.ConnectListAllDomains(1, 0)
			for _, dom := range domains {
				report(dom, changed)
			}
			return events, err
		})
	if err != nil {
		return err
	}
	// Read all remaining events, because the goroutine of the libvirt library ends only after that.
	defer func() {
		cancel()
		for range events {
		}
	}()
	for {
		select {
		case event, open := <-events:
			if !open {
				return nil
			}
			report(event.Dom, changed)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// report calls changed if the name of a domain is an instance ID.
func report(dom libvirt.Domain, changed func(ident.ID)) {
	if id, err := ident.ParseID(dom.Name); err == nil {
		changed(id)
	}
}
