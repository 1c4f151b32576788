package proxmox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// minVMID and maxVMID are the smallest and the largest VMID of an instance. For other VMs, Proxmox VE proposes the
// lowest free VMID above 99, so its proposals do not reach this range.
const minVMID, maxVMID = 1_000_001, 999_999_999

// vmidOf returns the VMID of an instance. The VMID depends only on the instance ID, so an instance ID has at most one
// VM.
func vmidOf(id ident.ID) int {
	sum := sha256.Sum256([]byte(id.String()))
	return minVMID + int(binary.BigEndian.Uint64(sum[:])%(maxVMID-minVMID+1)) //nolint:gosec // below 10^9
}

// metadata are what the provider stores in a VM's description, as JSON.
type metadata struct {
	Tags     infra.Tags `json:"tags"`
	Digest   string     `json:"digest"` // of the create request
	Hostname string     `json:"hostname"`
	Created  time.Time  `json:"created"` // when the clone was asked for, by the server's clock
	// Starting is the time just before the only attempt to start the VM. It is zero if there was no attempt yet.
	Starting time.Time `json:"starting,omitzero"`
	// Started reports that the start succeeded. If a VM with Started is off, the VM has ended.
	Started bool `json:"started,omitzero"`
	// Deleted is when the VM's deletion was requested; zero: not requested. The VM stays for a day without disks, so
	// that its ID is not used again.
	Deleted time.Time `json:"deleted,omitzero"`
}

// marker precedes the metadata in a description. The number in it is the version of the format.
const marker = "nstance/1 "

// encode returns the description of a VM.
func (m metadata) encode() (string, error) {
	raw, err := json.Marshal(m)
	return "Nstance made this VM and deletes it. Do not change this text.\n\n" + marker + string(raw), err
}

// decodeMetadata reads the metadata from a VM's description. ok is false if the description has no metadata.
func decodeMetadata(description string) (m metadata, ok bool, err error) {
	_, text, ok := strings.Cut(description, marker)
	if !ok {
		return metadata{}, false, nil
	}
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&m); err != nil {
		return metadata{}, true, fmt.Errorf("description: %w", err)
	}
	return m, true, nil
}

// ownerTag returns the tag for an owner's VMs. The VMs also have the instance ID as a tag.
func ownerTag(o infra.Owner) string { return tagPrefix + o.Cluster + "." + o.Shard }

const tagPrefix = "nstance."

// splitTags splits the tags of a VM.
func splitTags(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}

// hasOwner reports whether the tags of a VM include the tag of an owner.
func hasOwner(tags string) bool {
	return slices.ContainsFunc(splitTags(tags), func(tag string) bool { return strings.HasPrefix(tag, tagPrefix) })
}

// vmConfig is the configuration of a VM.
type vmConfig struct {
	settings map[string]string
	digest   string
	metadata metadata
	ok       bool // it has metadata
}

// readConfig reads the configuration of a VM on a node.
func (p *Provider) readConfig(ctx context.Context, node string, vmid int) (vmConfig, error) {
	var raw map[string]any
	if err := p.client.get(ctx, &raw, nil, "nodes", node, "qemu", vmid, "config"); err != nil {
		return vmConfig{}, err
	}
	c := vmConfig{settings: map[string]string{}}
	for setting, value := range raw {
		c.settings[setting], _ = value.(string) // nothing needs those that are numbers
	}
	c.digest = c.settings["digest"]
	var err error
	if c.metadata, c.ok, err = decodeMetadata(c.settings["description"]); err != nil {
		return vmConfig{}, fmt.Errorf("VM %d: %w", vmid, err)
	}
	p.remember(vmid, c)
	return c, nil
}

// remember keeps the metadata of a VM. They are needed when the VM's node does not answer.
func (p *Provider) remember(vmid int, c vmConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.ok {
		p.known[vmid] = c.metadata
	} else {
		delete(p.known, vmid)
	}
}

// recall returns the VM's metadata as this process last read them. If this process has not read them, recall returns
// only the part of the metadata that the VM's tags contain.
func (p *Provider) recall(r resource) (metadata, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, ok := p.known[r.VMID]; ok {
		return m, true
	}
	var m metadata
	for _, tag := range splitTags(r.Tags) {
		if owner, ok := strings.CutPrefix(tag, tagPrefix); ok {
			m.Tags.Cluster, m.Tags.Shard, _ = strings.Cut(owner, ".")
		} else if id, err := ident.ParseID(tag); err == nil && vmidOf(id) == r.VMID {
			m.Tags.Instance = id
		}
	}
	return m, m.Tags.Cluster != "" && !m.Tags.Instance.IsZero()
}

var driveSetting = regexp.MustCompile(`^((ide|sata|scsi|virtio|unused)[0-9]+|efidisk0|tpmstate0)$`)

// cloudInitDrive returns the name of the drive that Proxmox VE itself fills with user data, or "".
func (c vmConfig) cloudInitDrive() string {
	for setting, value := range c.settings {
		if driveSetting.MatchString(setting) && strings.Contains(value, "cloudinit") {
			return setting
		}
	}
	return ""
}
