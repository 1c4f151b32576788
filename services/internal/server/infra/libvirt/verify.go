package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/digitalocean/go-libvirt"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/libvirt"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Verify implements infra.Verifier. It checks that every host has the storage pool and the networks of the subnet
// pools. It reports the mistakes of all hosts that answer.
func (p *Provider) Verify(ctx context.Context, shard *config.Shard) error {
	const what = "verify the configuration"
	networks := map[string][]string{}
	var mistakes []error
	for pool, subnets := range shard.Server.SubnetPools {
		for _, subnet := range subnets {
			name, network, err := contract.ParseSubnet(subnet)
			if err == nil && p.hosts[name] == nil {
				err = fmt.Errorf("there is no host %s in server.provider.options.hosts", name)
			}
			if err != nil {
				mistakes = append(mistakes, fmt.Errorf("server.subnet_pools.%s: %w", pool, err))
				continue
			}
			if !slices.Contains(networks[name], network) {
				networks[name] = append(networks[name], network)
			}
		}
	}
	found, unknown := onAllHosts(p, func(h *host) ([]error, error) {
		return call(ctx, h, what, func(c *libvirt.Libvirt) ([]error, error) {
			return p.verifyHost(c, h, networks[h.name])
		})
	})
	if mistakes = append(mistakes, found...); len(mistakes) > 0 {
		return infra.Wrap(infra.Invalid, what, errors.Join(mistakes...))
	}
	return unknown
}

func (p *Provider) verifyHost(c *libvirt.Libvirt, h *host, networks []string) (mistakes []error, err error) {
	if _, err := openVolumes(c, p.options.Pool); isCode(err, libvirt.ErrNoStoragePool) {
		mistakes = append(mistakes, fmt.Errorf("host %s has no storage pool %s: make it with virsh pool-define-as",
			h.name, p.options.Pool))
	} else if err != nil {
		return nil, err
	}
	for _, network := range networks {
		n, err := c.NetworkLookupByName(network)
		if isCode(err, libvirt.ErrNoNetwork) {
			mistakes = append(mistakes, fmt.Errorf("host %s has no network %s: virsh net-list --all lists its networks",
				h.name, network))
			continue
		}
		if err != nil {
			return nil, err
		}
		if active, err := c.NetworkIsActive(n); err != nil {
			return nil, err
		} else if active == 0 {
			mistakes = append(mistakes, fmt.Errorf("host %s: network %s is not active: start it with virsh net-start",
				h.name, network))
		}
	}
	return mistakes, nil
}
