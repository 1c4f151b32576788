package libvirt

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"time"

	"github.com/digitalocean/go-libvirt"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/libvirt"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/nocloud"
)

// Names of a VM's volumes begin with its instance ID.
const (
	claimSuffix   = ".claim"
	diskSuffix    = ".qcow2"
	seedSuffix    = "-seed.iso"
	consoleSuffix = "-console.log"
)

// keepClaim is how long a claim stays after its VM was deleted. The claim is the empty volume that marks an instance ID
// as used. It stays longer than any server repeats a create request with that ID.
const keepClaim = 24 * time.Hour

// order is a create request whose fields were parsed.
type order struct {
	infra.Order[contract.Args]
	host    *host
	network string
	id      libvirt.UUID
}

func (p *Provider) parseRequest(ctx context.Context, req infra.CreateRequest) (o order, err error) {
	if o.Order, err = infra.ParseOrder(ctx, req, contract.ParseArgs); err != nil {
		return o, err
	}
	o.id = domainUUID(req.Tags, o.Digest)
	o.host, o.network, err = p.splitSubnet(req.Subnet)
	if err == nil && o.Args.Image+o.Args.Kernel == "" {
		err = errors.New("args: neither image nor kernel is given")
	}
	return o, infra.Wrap(infra.Invalid, o.What, err)
}

// Create implements infra.Provider. The VM is running when Create returns without an error.
func (p *Provider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	o, err := p.parseRequest(ctx, req)
	if err != nil {
		return infra.VM{}, err
	}
	return call(ctx, o.host, o.What, func(c *libvirt.Libvirt) (infra.VM, error) {
		defer o.host.lock(o.Tags.Instance)()
		vm, found, err := p.findExisting(c, o)
		if found || err != nil {
			return vm, err
		}
		return p.createNew(ctx, c, o)
	})
}

// lock waits until no other call changes the same instance, and then locks the instance. It returns the function that
// unlocks it.
func (h *host) lock(instance ident.ID) func() {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(instance.String())) // it never fails
	lock := &h.changing[hash.Sum32()%uint32(len(h.changing))]
	lock.Lock()
	return lock.Unlock
}

// findExisting answers a repeated request. found is false if this is the first request with its instance ID.
func (p *Provider) findExisting(c *libvirt.Libvirt, o order) (vm infra.VM, found bool, err error) {
	dom, err := c.DomainLookupByName(o.Tags.Instance.String())
	switch {
	case isCode(err, libvirt.ErrNoDomain):
		return infra.VM{}, false, nil
	case err != nil:
		return infra.VM{}, false, err
	case dom.UUID != o.id:
		return infra.VM{}, true, infra.Errorf(infra.Conflict, o.What, "domain %s was made by another request",
			formatUUID(dom.UUID))
	}
	d, err := readDomain(c, o.host, dom)
	if err != nil {
		return infra.VM{}, false, err
	}
	vm = p.describe(d, readLeases(c, d))
	if !vm.State.Alive() && !d.saved {
		return infra.VM{}, true, infra.Errorf(infra.Conflict, o.What, "domain %s of this request is %s", dom.Name,
			vm.State)
	}
	return vm, true, nil
}

// createNew makes a VM. First it performs checks that change nothing. Then it makes the claim (an empty volume that
// marks the instance ID as used), the domain and the other volumes, and starts the domain. If an error means that no VM
// was made, createNew removes everything except the claim.
func (p *Provider) createNew(ctx context.Context, c *libvirt.Libvirt, o order) (infra.VM, error) {
	defer o.host.reserve(o.Tags.Instance.String(), o.Size.MemoryMiB)()
	if err := p.checkMemory(c, o.What, o.host); err != nil {
		return infra.VM{}, err
	}
	if _, err := c.NetworkLookupByName(o.network); err != nil {
		return infra.VM{}, err
	}
	v, err := openVolumes(c, p.options.Pool)
	if err != nil {
		return infra.VM{}, err
	}
	build := machine{id: o.id, name: o.Tags.Instance.String(), size: o.Size, arch: o.Arch,
		domainType: p.options.DomainType, network: o.network, cmdline: o.Args.Cmdline}
	var image libvirt.StorageVol
	for name, path := range map[string]*string{o.Args.Kernel: &build.kernel, o.Args.Initrd: &build.initrd} {
		if name == "" {
			continue
		}
		if _, *path, err = v.find(name); err != nil {
			return infra.VM{}, err
		}
	}
	if o.Args.Image != "" {
		if image, _, err = v.find(o.Args.Image); err != nil {
			return infra.VM{}, err
		}
	}
	if err := v.createEmpty(build.name + claimSuffix); isCode(err, libvirt.ErrStorageVolExist) {
		return infra.VM{}, infra.Errorf(infra.Conflict, o.What, "the instance ID was used before")
	} else if err != nil {
		return infra.VM{}, err
	}
	vm, err := p.build(c, v, o, build, image)
	if class := infra.ClassOf(classify(o.What, err)); err != nil && class != infra.Indeterminate && ctx.Err() == nil {
		if dom, lookupErr := c.DomainLookupByUUID(o.id); lookupErr == nil {
			_ = c.DomainUndefineFlags(dom, undefineAll) // the error that is returned is the important one
		}
		_ = v.deleteOf(build.name)
	}
	return vm, err
}

// build defines the domain, makes its volumes, and starts it.
func (p *Provider) build(c *libvirt.Libvirt, v *volumes, o order, m machine,
	image libvirt.StorageVol) (infra.VM, error) {
	meta := metadata{Tags: o.Tags, Digest: o.Digest, Hostname: o.Hostname, Created: p.now().UTC()}
	var err error
	if m.metadata, err = meta.encode(); err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, o.What, err)
	}
	iso, err := nocloud.ISO(o.Tags.Instance, o.Hostname, o.Userdata)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, o.What, err)
	}
	m.seed, m.console = v.path(m.name+seedSuffix), v.path(m.name+consoleSuffix)
	if o.Args.Image != "" {
		m.disk = v.path(m.name + diskSuffix)
	}
	text, err := m.domainXML()
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, o.What, err)
	}
	dom, err := c.DomainDefineXMLFlags(text, 0)
	if isCode(err, libvirt.ErrOperationFailed) {
		return infra.VM{}, infra.Wrap(infra.Conflict, o.What, err) // another UUID under this name
	}
	if err != nil {
		return infra.VM{}, err
	}
	if o.Args.Image != "" {
		if err := v.overlay(m.name+diskSuffix, image, o.Args.DiskGiB); err != nil {
			return infra.VM{}, err
		}
	}
	if err := v.upload(m.name+seedSuffix, iso); err != nil {
		return infra.VM{}, err
	}
	if err := v.createEmpty(m.name + consoleSuffix); err != nil {
		return infra.VM{}, err
	}
	meta.Starting = p.now().UTC()
	content, err := meta.encode()
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, o.What, err)
	}
	err = c.DomainSetMetadata(dom, int32(libvirt.DomainMetadataElement), libvirt.OptString{"<vm>" + content + "</vm>"},
		libvirt.OptString{"nstance"}, libvirt.OptString{namespace}, libvirt.DomainAffectConfig)
	if err != nil {
		return infra.VM{}, err
	}
	if _, err := c.DomainCreateWithFlags(dom, 0); err != nil {
		return infra.VM{}, o.host.startError(o.What, err)
	}
	d, err := readDomain(c, o.host, dom)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Indeterminate, o.What, err)
	}
	return p.describe(d, nil), nil
}

// startError gives the error of a domain's start its class. If QEMU does not start, it may start on another host.
func (h *host) startError(what string, err error) error {
	if _, coded := errors.AsType[libvirt.Error](err); coded && !isCode(err, libvirt.ErrNoDomain) {
		return infra.Wrap(infra.Capacity, what, fmt.Errorf("host %s cannot start it: %w", h.name, err))
	}
	return err
}

// undefineAll makes libvirt also remove a domain's saved memory, snapshots and other data. Otherwise libvirt would
// refuse to undefine a domain that has such data.
const undefineAll = libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata |
	libvirt.DomainUndefineNvram | libvirt.DomainUndefineCheckpointsMetadata

// Delete implements infra.Provider. The VM is gone when Delete returns without an error.
//
// Delete undefines the domain last. Until then, List returns the VM. So if Delete is interrupted, the caller deletes
// the VM again.
func (p *Provider) Delete(ctx context.Context, vm infra.VM) error {
	err := p.onDomain(ctx, "delete "+vm.ProviderID, vm, p.deleteDomain)
	if infra.ClassOf(err) == infra.NotFound {
		return nil
	}
	return err
}

func (p *Provider) deleteDomain(c *libvirt.Libvirt, d domain) error {
	v, err := openVolumes(c, p.options.Pool)
	if err != nil {
		return err
	}
	if err := v.createEmpty(d.dom.Name + claimSuffix); err != nil && !isCode(err, libvirt.ErrStorageVolExist) {
		return err
	}
	if err := c.DomainDestroyFlags(d.dom, 0); err != nil && !isCode(err, libvirt.ErrOperationInvalid) {
		return err
	}
	if err := v.deleteOf(d.dom.Name); err != nil {
		return err
	}
	if err := c.DomainUndefineFlags(d.dom, undefineAll); err != nil {
		return err
	}
	if err := v.collectClaims(p.now()); err != nil {
		p.log.Warn("old claims stay in the storage pool", "host", d.host.name, "pool", p.options.Pool, "error", err)
	}
	return nil
}

// reserve reserves memory of the host for a VM whose domain does not run yet. It returns the function that ends the
// reservation.
func (h *host) reserve(name string, mib int64) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.creating[name] = mib
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.creating, name)
	}
}

// checkMemory fails as Capacity if the host lacks memory for all its domains and reservations.
func (p *Provider) checkMemory(c *libvirt.Libvirt, what string, h *host) error {
	free, err := p.freeMemory(c, h)
	if err == nil && free < 0 {
		return infra.Errorf(infra.Capacity, what, "host %s lacks %d MiB of memory", h.name, -free)
	}
	return err
}

// freeMemory returns the memory of a host in MiB that is neither promised to a domain nor reserved. The result can be
// negative.
func (p *Provider) freeMemory(c *libvirt.Libvirt, h *host) (int64, error) {
	_, totalKiB, _, _, _, _, _, _, err := c.NodeGetInfo()
	if err != nil {
		return 0, err
	}
	domains, _, err := c.ConnectListAllDomains(1, libvirt.ConnectListDomainsActive)
	if err != nil {
		return 0, err
	}
	h.mu.Lock()
	promised := map[string]int64{}
	maps.Copy(promised, h.creating)
	h.mu.Unlock()
	for _, dom := range domains {
		_, maxKiB, _, _, _, err := c.DomainGetInfo(dom)
		if isCode(err, libvirt.ErrNoDomain) {
			continue
		}
		if err != nil {
			return 0, err
		}
		promised[dom.Name] = int64(maxKiB / 1024) //nolint:gosec // a size in KiB is below 2^63
	}
	free := int64(totalKiB/1024) - p.options.ReservedMiB //nolint:gosec // as above
	for _, mib := range promised {
		free -= mib
	}
	return free, nil
}
