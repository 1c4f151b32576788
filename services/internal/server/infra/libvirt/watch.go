package libvirt

import (
	"context"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

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
