package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/infra"
)

// needed are the privileges that the token needs on the VMs.
var needed = []string{"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk",
	"VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt"}

// neededOnSeeds are the privileges that the token needs on the storage of the userdata.
var neededOnSeeds = []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"}

// Verify implements infra.Verifier. It checks the token's privileges, and that the nodes, bridges and the storage of
// the configuration exist. It reports all mistakes on the nodes that answer.
func (p *Provider) Verify(ctx context.Context, shard *config.Shard) error {
	const what = "verify the configuration"
	if err := p.verifyToken(ctx, what); err != nil {
		return err
	}
	inv, err := p.readInventory(ctx)
	if err != nil {
		return p.client.classify(what, err)
	}
	bridges := map[string][]string{}
	var mistakes []error
	for pool, subnets := range shard.Server.SubnetPools {
		for _, subnet := range subnets {
			node, bridge, err := contract.ParseSubnet(subnet)
			if _, known := inv.online[node]; err == nil && !known {
				err = fmt.Errorf("the cluster has no node %s: there are %s", node,
					strings.Join(slices.Sorted(maps.Keys(inv.online)), ", "))
			}
			if err != nil {
				mistakes = append(mistakes, fmt.Errorf("server.subnet_pools.%s: %w", pool, err))
			} else if !slices.Contains(bridges[node], bridge) {
				bridges[node] = append(bridges[node], bridge)
			}
		}
	}
	var unknown error
	for _, node := range slices.Sorted(maps.Keys(bridges)) {
		found, err := p.verifyNode(ctx, node, bridges[node])
		mistakes = append(mistakes, found...)
		if err != nil {
			unknown = p.client.classify(what, err)
		}
	}
	if len(mistakes) > 0 {
		return infra.Wrap(infra.Invalid, what, errors.Join(mistakes...))
	}
	return unknown
}

func (p *Provider) verifyToken(ctx context.Context, what string) error {
	var missing []string
	for path, privileges := range map[string][]string{p.guestPath(): needed,
		"/storage/" + p.options.SeedStorage: neededOnSeeds} {
		granted, err := p.privileges(ctx, p.client, path)
		if err != nil {
			return p.client.classify(what, err)
		}
		for _, privilege := range privileges {
			if !granted[privilege] {
				missing = append(missing, privilege+" on "+path)
			}
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return infra.Errorf(infra.Denied, what, "the token lacks %s", strings.Join(missing, ", "))
	}
	return nil
}

func (p *Provider) verifyNode(ctx context.Context, node string, bridges []string) (mistakes []error, err error) {
	var networks []struct {
		Interface string `json:"iface"`
	}
	err = p.client.get(ctx, &networks, url.Values{"type": {"any_bridge"}}, "nodes", node, "network")
	if err != nil {
		return nil, err
	}
	for _, bridge := range bridges {
		if !slices.ContainsFunc(networks, func(n struct {
			Interface string `json:"iface"`
		}) bool {
			return n.Interface == bridge
		}) {
			mistakes = append(mistakes, fmt.Errorf("node %s has no bridge %s that the token may use (SDN.Use)", node,
				bridge))
		}
	}
	var storages []struct {
		Storage string `json:"storage"`
	}
	query := url.Values{"content": {"iso"}, "enabled": {"1"}}
	if err := p.client.get(ctx, &storages, query, "nodes", node, "storage"); err != nil {
		return mistakes, err
	}
	if !slices.ContainsFunc(storages, func(s struct {
		Storage string `json:"storage"`
	}) bool {
		return s.Storage == p.options.SeedStorage
	}) {
		mistakes = append(mistakes, fmt.Errorf("node %s has no storage %s for ISO images: set the option seed_storage",
			node, p.options.SeedStorage))
	}
	return mistakes, nil
}
