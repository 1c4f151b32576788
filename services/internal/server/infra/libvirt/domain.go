package libvirt

import (
	"crypto/sha256"

	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/uuid"
	"libvirt.org/go/libvirtxml"

	"github.com/nstance-kit/nstance/services/contract/cloud/vmsize"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// namespace is the XML namespace of the metadata. Its last part is the version of the format.
const namespace = "https://nstance.dev/libvirt/1"

// metadata are what the provider stores in a domain, as JSON in one XML element.
type metadata struct {
	Tags     infra.Tags `json:"tags"`
	Digest   string     `json:"digest"` // of the create request
	Hostname string     `json:"hostname"`
	Created  time.Time  `json:"created"` // when the domain was defined, by the server's clock
	// Starting is the time just before the only attempt to start the domain. It is zero if there was no attempt yet.
	Starting time.Time `json:"starting,omitzero"`
}

// encode returns the metadata as the content of the XML element.
func (m metadata) encode() (string, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	if err := xml.EscapeText(&text, raw); err != nil {
		return "", err
	}
	return text.String(), nil
}

// element returns the XML element with the given content, for the metadata of a domain.
func element(content string) string {
	return fmt.Sprintf(`<nstance:vm xmlns:nstance=%q>%s</nstance:vm>`, namespace, content)
}

// decodeMetadata reads the metadata from the text of a domain's metadata elements. They are zero if the domain has none
// of this namespace.
func decodeMetadata(text string) (m metadata, err error) {
	var all struct {
		Text *string `xml:"https://nstance.dev/libvirt/1 vm"`
	}
	if err := xml.Unmarshal([]byte("<metadata>"+text+"</metadata>"), &all); err != nil {
		return metadata{}, fmt.Errorf("metadata: %w", err)
	}
	if all.Text == nil {
		return metadata{}, nil
	}
	if err := json.Unmarshal([]byte(*all.Text), &m); err != nil {
		return metadata{}, fmt.Errorf("metadata: %w", err)
	}
	return m, nil
}

// domainUUID makes the UUID of a request's domain: a UUIDv8 (RFC 9562, section 5.8) from the owner, the instance ID and
// the digest of the request. Different requests for one instance have different UUIDs. So libvirt refuses to define a
// second domain with the same name.
func domainUUID(tags infra.Tags, digest string) libvirt.UUID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %s %s", tags.Cluster, tags.Shard, tags.Instance, digest))
	var id libvirt.UUID
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

func formatUUID(id libvirt.UUID) string { return uuid.UUID(id).String() }

func parseUUID(text string) (libvirt.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return libvirt.UUID{}, fmt.Errorf("%q is not a UUID", text)
	}
	return libvirt.UUID(id), nil
}

// macAddress derives the MAC address of a VM's interface from the domain's UUID. The first byte marks a locally
// administered unicast address. The other 40 bits differ between domains. With the prefix 52:54:00 of QEMU and 24 bits,
// two of 5,000 VMs would have the same address with a probability of one half.
func macAddress(id libvirt.UUID) string {
	return fmt.Sprintf("52:%02x:%02x:%02x:%02x:%02x", id[0], id[1], id[2], id[3], id[4])
}

// machine holds the parameters with which a VM is built.
type machine struct {
	id         libvirt.UUID
	name       string
	metadata   string // encoded
	size       vmsize.Size
	arch       string
	domainType string
	network    string

	disk, seed, console string // paths of volumes
	kernel, initrd      string // paths of volumes, or empty
	cmdline             string
}

// domainXML describes a VM to libvirt. https://libvirt.org/formatdomain.html
func (m machine) domainXML() (string, error) {
	d := libvirtxml.Domain{
		Type: m.domainType, Name: m.name, UUID: formatUUID(m.id),
		Metadata: &libvirtxml.DomainMetadata{XML: element(m.metadata)},
		Memory:   &libvirtxml.DomainMemory{Value: uint(m.size.MemoryMiB), Unit: "MiB"}, //nolint:gosec // checked
		VCPU:     &libvirtxml.DomainVCPU{Value: uint(m.size.CPUs)},                     //nolint:gosec // checked
		OS: &libvirtxml.DomainOS{
			Type:   &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"},
			Kernel: m.kernel, Initrd: m.initrd, Cmdline: m.cmdline,
		},
		Features: &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		// If the VM powers off or crashes, libvirt does not restart it, because the server decides what happens next.
		OnPoweroff: "destroy", OnCrash: "destroy", OnReboot: "restart",
		Devices: m.devices(),
	}
	if m.arch == "arm64" {
		d.OS.Type.Arch, d.OS.Type.Machine, d.OS.Firmware = "aarch64", "virt", "efi"
	}
	if m.domainType == "qemu" {
		// Without this limit QEMU takes a gigabyte of memory for translated code.
		d.Features.TCG = &libvirtxml.DomainFeatureTCG{
			TBCache: &libvirtxml.DomainFeatureTCGTBCache{Size: 48, Unit: "MiB"}}
	} else {
		d.CPU = &libvirtxml.DomainCPU{Mode: "host-passthrough"}
	}
	return d.Marshal()
}

func (m machine) devices() *libvirtxml.DomainDeviceList {
	devices := &libvirtxml.DomainDeviceList{
		Disks: []libvirtxml.DomainDisk{{
			Device:   "cdrom",
			Driver:   &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
			Source:   &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: m.seed}},
			Target:   &libvirtxml.DomainDiskTarget{Dev: "sda", Bus: "scsi"},
			ReadOnly: &libvirtxml.DomainDiskReadOnly{},
		}},
		Controllers: []libvirtxml.DomainController{{Type: "scsi", Model: "virtio-scsi"}},
		Interfaces: []libvirtxml.DomainInterface{{
			MAC: &libvirtxml.DomainInterfaceMAC{Address: macAddress(m.id)},
			Source: &libvirtxml.DomainInterfaceSource{
				Network: &libvirtxml.DomainInterfaceSourceNetwork{Network: m.network}},
			Model: &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		}},
		Serials: []libvirtxml.DomainSerial{{
			Source: &libvirtxml.DomainChardevSource{
				File: &libvirtxml.DomainChardevSourceFile{Path: m.console, Append: "on"}},
		}},
		RNGs: []libvirtxml.DomainRNG{{
			Model: "virtio",
			Backend: &libvirtxml.DomainRNGBackend{
				Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
		}},
	}
	if m.disk != "" {
		devices.Disks = slices.Insert(devices.Disks, 0, libvirtxml.DomainDisk{
			Device: "disk",
			Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "qcow2", Discard: "unmap"},
			Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: m.disk}},
			Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		})
	}
	return devices
}

// domain is a domain with its metadata and the state that its host reported.
type domain struct {
	host      *host
	dom       libvirt.Domain
	metadata  metadata
	tags      infra.Tags
	network   string
	mac       string
	state     infra.State
	reason    string
	saved     bool // its memory is saved in a file: it sleeps
	undecoded error
}

// readDomain reads a domain. A domain that the provider did not make has no tags.
func readDomain(c *libvirt.Libvirt, h *host, dom libvirt.Domain) (domain, error) {
	text, err := c.DomainGetXMLDesc(dom, 0)
	if err != nil {
		return domain{}, err
	}
	var parsed libvirtxml.Domain
	if err := parsed.Unmarshal(text); err != nil {
		return domain{}, fmt.Errorf("domain %s: %w", dom.Name, err)
	}
	state, reason, err := c.DomainGetState(dom, 0)
	if err != nil {
		return domain{}, err
	}
	d := domain{host: h, dom: dom}
	d.state, d.reason = stateOf(libvirt.DomainState(state), reason)
	if libvirt.DomainState(state) == libvirt.DomainShutoff {
		saved, err := c.DomainHasManagedSaveImage(dom, 0)
		if err != nil {
			return domain{}, err
		}
		d.saved = saved != 0
	}
	if d.saved {
		d.state, d.reason = infra.Stopped, ""
	}
	if parsed.Metadata != nil {
		d.metadata, d.undecoded = decodeMetadata(parsed.Metadata.XML)
		d.tags = d.metadata.Tags
	}
	if parsed.Devices != nil && len(parsed.Devices.Interfaces) > 0 {
		nic := parsed.Devices.Interfaces[0]
		if nic.Source != nil && nic.Source.Network != nil {
			d.network = nic.Source.Network.Network
		}
		if nic.MAC != nil {
			d.mac = nic.MAC.Address
		}
	}
	return d, nil
}

// shutoffReasons are the reasons that libvirt gives for the end of a domain. After a restart, libvirtd no longer knows
// the reason.
var shutoffReasons = map[libvirt.DomainShutoffReason]string{
	libvirt.DomainShutoffShutdown:  "shut down by its guest",
	libvirt.DomainShutoffDestroyed: "destroyed by an administrator",
	libvirt.DomainShutoffCrashed:   "QEMU ended unexpectedly",
	libvirt.DomainShutoffFailed:    "QEMU failed to start or was killed",
	libvirt.DomainShutoffMigrated:  "migrated away",
	libvirt.DomainShutoffSaved:     "put to sleep, and its saved memory was removed",
}

// stateOf converts the state of a domain to an infra.State. A domain that was never started is Stopped.
// https://libvirt.org/html/libvirt-libvirt-domain.html#virDomainState
func stateOf(state libvirt.DomainState, reason int32) (infra.State, string) {
	switch state {
	case libvirt.DomainRunning, libvirt.DomainBlocked:
		return infra.Running, ""
	case libvirt.DomainShutdown:
		return infra.Stopping, ""
	case libvirt.DomainShutoff:
		why := libvirt.DomainShutoffReason(reason)
		if why == libvirt.DomainShutoffCrashed || why == libvirt.DomainShutoffFailed {
			return infra.Failed, shutoffReasons[why]
		}
		return infra.Stopped, shutoffReasons[why]
	case libvirt.DomainCrashed:
		return infra.Failed, "the guest crashed"
	case libvirt.DomainPaused:
		switch libvirt.DomainPausedReason(reason) {
		case libvirt.DomainPausedSave:
			return infra.Stopping, ""
		case libvirt.DomainPausedStartingUp:
			return infra.Pending, ""
		}
		return infra.Unknown, "" // an administrator or an I/O error stopped the CPUs
	default:
		return infra.Unknown, ""
	}
}

const (
	// prepareGrace is the time after the definition of a domain during which the create request may still start the
	// domain.
	prepareGrace = 2 * time.Minute
	// startGrace is the time after metadata.Starting during which the domain may still start. It applies instead of
	// prepareGrace as soon as Starting is set.
	startGrace = 10 * time.Second
)

// describe converts a domain to an infra.VM. leases holds the IP addresses of the VM's network by MAC address.
func (p *Provider) describe(d domain, leases map[string][]string) infra.VM {
	vm := infra.VM{ProviderID: providerID(d.host, d.dom.UUID), State: d.state, Tags: d.tags, EndReason: d.reason,
		Hostname: d.metadata.Hostname, LaunchedAt: d.metadata.Created, Addresses: leases[d.mac]}
	if d.undecoded != nil {
		vm.Warning = d.undecoded.Error()
	}
	// If libvirt gives no reason, the domain was never started, or it ended while libvirtd did not run. In this case,
	// the VM is Pending while its create request may still start the domain.
	until := d.metadata.Created.Add(prepareGrace)
	if !d.metadata.Starting.IsZero() {
		until = d.metadata.Starting.Add(startGrace)
	}
	if d.state == infra.Stopped && d.reason == "" && !d.saved && p.now().Before(until) {
		vm.State = infra.Pending
	}
	for _, text := range vm.Addresses {
		switch addr, err := netip.ParseAddr(text); {
		case err != nil:
		case addr.Is4() && vm.IPv4 == "":
			vm.IPv4 = text
		case addr.Is6() && vm.IPv6 == "":
			vm.IPv6 = text
		}
	}
	return vm
}

// readLeases returns the addresses of a domain's network by MAC address.
func readLeases(c *libvirt.Libvirt, d domain) map[string][]string {
	leases := map[string][]string{}
	addLeases(c, d.network, leases)
	return leases
}

// addLeases adds the addresses that libvirt's DHCP server has assigned in a network to the map leases. The keys of the
// map are MAC addresses. If the network has no DHCP server of libvirt, addLeases adds nothing.
func addLeases(c *libvirt.Libvirt, network string, leases map[string][]string) {
	n, err := c.NetworkLookupByName(network)
	if err != nil {
		return
	}
	found, _, err := c.NetworkGetDhcpLeases(n, nil, 1, 0)
	if err != nil {
		return
	}
	for _, lease := range found {
		addr, err := netip.ParseAddr(lease.Ipaddr)
		if err != nil || len(lease.Mac) == 0 {
			continue
		}
		mac := strings.ToLower(lease.Mac[0])
		if !slices.Contains(leases[mac], addr.String()) {
			leases[mac] = append(leases[mac], addr.String())
		}
	}
	for _, addresses := range leases {
		slices.Sort(addresses)
	}
}
