// Package libvirt is the provider for hosts with libvirt and QEMU.
//
// A VM is a domain with two volumes, the disk and the seed. The disk is an overlay of an image. The seed is a CD-ROM
// with the userdata in the format of cloud-init's NoCloud. The domain's name is the instance ID. The domain's metadata
// hold the tags.
//
// Invariant: an instance ID starts at most one VM. Before anything else, a create request makes an empty volume, the
// claim. libvirt makes only one volume of each name, so only one request succeeds. The claim stays for a day after the
// VM is deleted. A create request that was interrupted after its claim is not continued.
package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/libvirt"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Config configures a Provider.
type Config struct {
	Options contract.Options
	Log     *slog.Logger     // nil: discard
	Now     func() time.Time // nil: time.Now
}

// Provider implements infra.Provider and several optional capabilities.
type Provider struct {
	infra.SizedTypes
	options contract.Options
	log     *slog.Logger
	now     func() time.Time
	hosts   map[string]*host
}

var (
	_ infra.Provider        = (*Provider)(nil)
	_ infra.MachineEvidence = (*Provider)(nil)
	_ infra.SubnetCapacity  = (*Provider)(nil)
	_ infra.InstanceTypes   = (*Provider)(nil)
	_ infra.Verifier        = (*Provider)(nil)
	_ infra.Watcher         = (*Provider)(nil)
	_ infra.Sleeper         = (*Provider)(nil)
)

// New makes a provider. It connects to the hosts when it needs them.
func New(cfg Config) *Provider {
	p := &Provider{options: cfg.Options, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), now: cfg.Now,
		hosts: map[string]*host{}}
	if p.now == nil {
		p.now = time.Now
	}
	for name, uri := range cfg.Options.Hosts {
		p.hosts[name] = &host{name: name, uri: uri, creating: map[string]int64{}}
	}
	return p
}

// Close ends the connections to the hosts.
func (p *Provider) Close() {
	for _, h := range p.hosts {
		h.close()
	}
}

// providerID is the ID of a VM: its host and the UUID of its domain.
func providerID(h *host, id libvirt.UUID) string { return h.name + "/" + formatUUID(id) }

// find splits a provider ID into the host and the UUID of the domain.
func (p *Provider) find(what, providerID string) (*host, libvirt.UUID, error) {
	name, text, _ := strings.Cut(providerID, "/")
	id, err := parseUUID(text)
	if err != nil {
		return nil, id, infra.Errorf(infra.Invalid, what, "%q is not HOST/UUID: %w", providerID, err)
	}
	h, err := p.host(name)
	return h, id, infra.Wrap(infra.Invalid, what, err)
}

func (p *Provider) host(name string) (*host, error) {
	if h := p.hosts[name]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("there is no host %s in server.provider.options.hosts", name)
}

// splitSubnet splits a subnet into the host and the network.
func (p *Provider) splitSubnet(subnet string) (h *host, network string, err error) {
	name, network, err := contract.ParseSubnet(subnet)
	if err != nil {
		return nil, "", err
	}
	if h, err = p.host(name); err != nil {
		err = fmt.Errorf("subnet %s: %w", subnet, err)
	}
	return h, network, err
}

// Get implements infra.Provider.
func (p *Provider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	what := "get " + providerID
	h, id, err := p.find(what, providerID)
	if err != nil {
		return infra.VM{}, err
	}
	return call(ctx, h, what, func(c *libvirt.Libvirt) (infra.VM, error) {
		domain, err := c.DomainLookupByUUID(id)
		if err != nil {
			return infra.VM{}, err
		}
		d, err := readDomain(c, h, domain)
		if err != nil {
			return infra.VM{}, err
		}
		return p.describe(d, readLeases(c, d)), nil
	})
}

// FindByInstance implements infra.Provider. It asks all hosts. If a host fails, FindByInstance can still find the VM on
// another host, but cannot return NotFound.
func (p *Provider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	what := "find " + id.String()
	found, err := onAllHosts(p, func(h *host) ([]infra.VM, error) {
		vm, err := call(ctx, h, what, func(c *libvirt.Libvirt) (infra.VM, error) {
			domain, err := c.DomainLookupByName(id.String())
			if err != nil {
				return infra.VM{}, err
			}
			d, err := readDomain(c, h, domain)
			if err != nil {
				return infra.VM{}, err
			}
			return p.describe(d, readLeases(c, d)), nil
		})
		switch {
		case infra.ClassOf(err) == infra.NotFound:
			return nil, nil
		case err != nil:
			return nil, err
		case vm.Tags.Owner != owner:
			return nil, nil
		}
		return []infra.VM{vm}, nil
	})
	switch {
	case len(found) > 0:
		return found[0], nil
	case err != nil:
		return infra.VM{}, err
	}
	return infra.VM{}, infra.Errorf(infra.NotFound, what, "no host has this VM")
}

// listPatience bounds the wait for one host. A list of a thousand VMs takes a tenth of a second.
const listPatience = 5 * time.Second

// List implements infra.Provider. If a host does not answer, List returns the VMs of the other hosts and a
// PartialError.
func (p *Provider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	limited, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	var mu sync.Mutex
	var unlisted []string
	vms, err := onAllHosts(p, func(h *host) ([]infra.VM, error) {
		vms, err := call(limited, h, "list the VMs of host "+h.name, func(c *libvirt.Libvirt) ([]infra.VM, error) {
			return p.listHost(c, h, owner)
		})
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			unlisted = append(unlisted, h.name+"/")
		}
		return vms, err
	})
	if len(unlisted) == len(p.hosts) {
		return nil, err
	}
	vms = infra.SortVMs(vms)
	if len(unlisted) > 0 {
		slices.Sort(unlisted)
		return vms, &infra.PartialError{Unlisted: unlisted, Err: err}
	}
	return vms, nil
}

func (p *Provider) listHost(c *libvirt.Libvirt, h *host, owner infra.Owner) ([]infra.VM, error) {
	domains, _, err := c.ConnectListAllDomains(1, 0)
	if err != nil {
		return nil, err
	}
	var own []domain
	networks := map[string]bool{}
	for _, dom := range domains {
		if _, err := ident.ParseID(dom.Name); err != nil {
			continue
		}
		d, err := readDomain(c, h, dom)
		if isCode(err, libvirt.ErrNoDomain) {
			continue // it was deleted since the list
		}
		if err != nil {
			return nil, err
		}
		if d.tags.Owner == owner {
			own = append(own, d)
			networks[d.network] = true
		}
	}
	leases := map[string][]string{}
	for network := range networks {
		addLeases(c, network, leases)
	}
	vms := make([]infra.VM, 0, len(own))
	for _, d := range own {
		vms = append(vms, p.describe(d, leases))
	}
	return vms, nil
}

// onAllHosts calls f for all hosts at the same time. It returns the results of all hosts that answered, and the joined
// errors of the others.
func onAllHosts[T any](p *Provider, f func(*host) ([]T, error)) ([]T, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var all []T
	var errs []error
	for _, h := range p.hosts {
		wg.Go(func() {
			some, err := f(h)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	if len(errs) == 1 {
		return all, errs[0] // keeps its class
	}
	return all, errors.Join(errs...)
}

// MachineState implements infra.MachineEvidence. A machine that is not a VM on one of the hosts is NotFound.
func (p *Provider) MachineState(ctx context.Context, machineID string) (infra.State, error) {
	what := "look up machine " + machineID
	id, err := parseUUID(machineID)
	if err != nil {
		return "", infra.Errorf(infra.Invalid, what, "%w", err)
	}
	states, err := onAllHosts(p, func(h *host) ([]infra.State, error) {
		state, err := call(ctx, h, what, func(c *libvirt.Libvirt) (infra.State, error) {
			domain, err := c.DomainLookupByUUID(id)
			if err != nil {
				return "", err
			}
			state, reason, err := c.DomainGetState(domain, 0)
			if err != nil {
				return "", err
			}
			result, _ := stateOf(libvirt.DomainState(state), reason)
			return result, nil
		})
		if infra.ClassOf(err) == infra.NotFound {
			return nil, nil
		}
		return []infra.State{state}, err
	})
	switch {
	case err != nil:
		return "", err
	case len(states) == 0:
		return "", infra.Errorf(infra.NotFound, what, "no host has this machine")
	}
	return states[0], nil
}

// HasRoom implements infra.SubnetCapacity. A host has room if some of its memory is not promised to a VM.
func (p *Provider) HasRoom(ctx context.Context, subnets []string) (map[string]bool, error) {
	room := map[string]bool{}
	for _, subnet := range subnets {
		what := "ask for the free memory of " + subnet
		h, _, err := p.splitSubnet(subnet)
		if err != nil {
			return nil, infra.Wrap(infra.Invalid, what, err)
		}
		free, err := call(ctx, h, what, func(c *libvirt.Libvirt) (int64, error) { return p.freeMemory(c, h) })
		if err != nil {
			return nil, err
		}
		room[subnet] = free > 0
	}
	return room, nil
}

// Verify implements infra.Verifier. It checks that every host has the storage pool and the networks of the subnet
// pools. It reports the mistakes of all hosts that answer.
func (p *Provider) Verify(ctx context.Context, shard *config.Shard) error {
	const what = "verify the configuration"
	networks := map[string][]string{}
	var mistakes []error
	for pool, subnets := range shard.Server.SubnetPools {
		for _, subnet := range subnets {
			h, network, err := p.splitSubnet(subnet)
			if err != nil {
				mistakes = append(mistakes, fmt.Errorf("server.subnet_pools.%s: %w", pool, err))
			} else if !slices.Contains(networks[h.name], network) {
				networks[h.name] = append(networks[h.name], network)
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
