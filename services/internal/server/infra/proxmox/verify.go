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
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// needed are the privileges that the token needs on the VMs.
var needed = []string{"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk",
	"VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt"}

// neededOnSeeds are the privileges that the token needs on the storage of the userdata.
var neededOnSeeds = []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"}

// Verify implements infra.Verifier. It checks the token's privileges, and that the nodes, bridges, storages and VM
// templates of the configuration exist. It reports all mistakes on the nodes that answer.
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
	storages := map[string]string{p.options.SeedStorage: "iso"}
	mistakes = append(mistakes, verifyArgs(shard, inv, storages)...)
	var unknown error
	for _, node := range slices.Sorted(maps.Keys(bridges)) {
		found, err := p.verifyNode(ctx, node, bridges[node], storages)
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

// verifyNode checks that a node has the given bridges and storages. storages maps each storage to the kind of content
// that it must support.
func (p *Provider) verifyNode(ctx context.Context, node string, bridges []string,
	storages map[string]string) (mistakes []error, err error) {
	var networks []struct {
		Interface string `json:"iface"`
	}
	err = p.client.get(ctx, &networks, url.Values{"type": {"any_bridge"}}, "nodes", node, "network")
	if err != nil {
		return nil, err
	}
	usable := map[string]bool{}
	for _, n := range networks {
		usable[n.Interface] = true
	}
	for _, bridge := range bridges {
		if !usable[bridge] {
			mistakes = append(mistakes, fmt.Errorf("node %s has no bridge %s that the token may use (SDN.Use)", node,
				bridge))
		}
	}
	var found []struct {
		Storage string `json:"storage"`
		Content string `json:"content"`
	}
	if err := p.client.get(ctx, &found, url.Values{"enabled": {"1"}}, "nodes", node, "storage"); err != nil {
		return mistakes, err
	}
	content := map[string][]string{}
	for _, f := range found {
		content[f.Storage] = strings.Split(f.Content, ",")
	}
	for _, storage := range slices.Sorted(maps.Keys(storages)) {
		if kind := storages[storage]; !slices.Contains(content[storage], kind) {
			mistakes = append(mistakes, fmt.Errorf("node %s has no storage %s for %s", node, storage,
				map[string]string{"iso": "ISO images: set the option seed_storage", "images": "disks"}[kind]))
		}
	}
	return mistakes, nil
}

// verifyArgs checks that the VM templates in the configuration's args exist. It adds each storage in the args to the
// map storages. It skips values with a template expression, because the final value is known only when a VM is made.
func verifyArgs(shard *config.Shard, inv inventory, storages map[string]string) (mistakes []error) {
	check := func(path string, raw map[string]any) {
		args, _ := contract.ParseArgs(raw) // the configuration was checked
		isTemplate := func(r resource) bool { return r.Template != 0 && r.Name == args.Template }
		if args.Template != "" && !strings.Contains(args.Template, "{{") &&
			!slices.ContainsFunc(slices.Collect(maps.Values(inv.guests)), isTemplate) {
			mistakes = append(mistakes, fmt.Errorf("%s: there is no VM template %q that the token may see", path,
				args.Template))
		}
		if args.Storage != "" && !strings.Contains(args.Storage, "{{") {
			storages[args.Storage] = "images"
		}
	}
	check("defaults.args", shard.Defaults.Args)
	for name, template := range shard.Templates {
		check("templates."+name+".args", template.Args)
	}
	return mistakes
}
