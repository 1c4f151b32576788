package proxmox

import (
	"context"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// watchInterval is the time between two checks of the statuses of all VMs.
const watchInterval = 2 * time.Second

// Watch implements infra.Watcher. The API has no events, so Watch asks every node for the statuses of its VMs.
func (p *Provider) Watch(ctx context.Context, changed func(ident.ID)) {
	seen := map[string]map[int]liveVM{}
	for ctx.Err() == nil {
		p.watchOnce(ctx, seen, changed)
		_ = tasks.Sleep(ctx, watchInterval)
	}
}

// watchOnce reports each VM whose status differs from the status that was last seen on its node.
func (p *Provider) watchOnce(ctx context.Context, seen map[string]map[int]liveVM, changed func(ident.ID)) {
	var nodes []struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Online int    `json:"online"`
	}
	if err := p.client.get(ctx, &nodes, nil, "cluster", "status"); err != nil {
		return // List reports what is wrong
	}
	for _, n := range nodes {
		if n.Online == 0 {
			continue
		}
		now, err := p.readNode(ctx, n.Name)
		if err != nil {
			continue
		}
		before := seen[n.Name]
		seen[n.Name] = now
		for vmid, vm := range now {
			if vm != before[vmid] {
				report(vm, changed)
			}
		}
		for vmid, vm := range before {
			if _, still := now[vmid]; !still {
				report(vm, changed)
			}
		}
	}
}

// report calls changed if the name of a VM is an instance ID.
func report(vm liveVM, changed func(ident.ID)) {
	if id, err := ident.ParseID(vm.Name); err == nil {
		changed(id)
	}
}
