package libvirt

import (
	"context"
	"errors"
	"net/url"
	"sync"

	"github.com/digitalocean/go-libvirt"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// host is one of the provider's hosts, with the connection to it. Its methods are safe for concurrent use.
type host struct {
	name string
	uri  *url.URL

	mu       sync.Mutex
	conn     *libvirt.Libvirt // nil: not connected
	creating map[string]int64 // memory in MiB of VMs that are being created and not defined yet

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
	class := infra.Indeterminate
	if e, ok := errors.AsType[libvirt.Error](err); ok {
		if class, ok = classes[libvirt.ErrorNumber(e.Code)]; !ok {
			class = infra.Indeterminate
		}
	}
	return infra.Wrap(class, what, err)
}

// isCode reports whether an error of libvirt has one of the codes.
func isCode(err error, codes ...libvirt.ErrorNumber) bool {
	e, ok := errors.AsType[libvirt.Error](err)
	if !ok {
		return false
	}
	for _, code := range codes {
		if libvirt.ErrorNumber(e.Code) == code {
			return true
		}
	}
	return false
}
