package proxmox

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/nocloud"
)

// order is a create request whose fields were parsed.
type order struct {
	infra.Order[contract.Args]
	vmid         int
	node, bridge string
}

func parseRequest(ctx context.Context, req infra.CreateRequest) (o order, err error) {
	if o.Order, err = infra.ParseOrder(ctx, req, contract.ParseArgs); err != nil {
		return o, err
	}
	o.vmid = vmidOf(req.Tags.Instance)
	o.node, o.bridge, err = contract.ParseSubnet(req.Subnet)
	if err == nil && o.Args.Template == "" {
		err = errors.New("args: template is missing")
	}
	return o, infra.Wrap(infra.Invalid, o.What, err)
}

// Create implements infra.Provider. The VM is running when Create returns without an error. A repeated request
// continues after the last step of the earlier request. A VM is started only once: by the request that writes the time
// of the start into the VM's description.
func (p *Provider) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	o, err := parseRequest(ctx, req)
	if err != nil {
		return infra.VM{}, err
	}
	defer p.lock(o.vmid)()
	vm, err := p.create(ctx, o)
	return vm, p.client.classifyOnNode(o.What, err)
}

// lock waits until no other call changes the same VM, and then locks the VM. It returns the function that unlocks it.
func (p *Provider) lock(vmid int) func() {
	lock := &p.changing[vmid%len(p.changing)]
	lock.Lock()
	return lock.Unlock
}

// errChanged means that another request changed the VM.
var errChanged = errors.New("another request changed the VM at the same time")

func (p *Provider) create(ctx context.Context, o order) (vm infra.VM, err error) {
	for range 3 {
		inv, err := p.readInventory(ctx)
		if err != nil {
			return infra.VM{}, err
		}
		r, exists := inv.guests[o.vmid]
		if !exists {
			if r, err = p.clone(ctx, inv, o); errors.Is(err, errChanged) {
				continue
			} else if err != nil {
				return infra.VM{}, err
			}
		}
		if vm, err = p.finish(ctx, r, o); !errors.Is(err, errChanged) {
			return vm, err
		}
	}
	return infra.VM{}, errChanged
}

// findTemplate returns the VM template of a request. A template on the VM's node has precedence over a template on
// another node.
func findTemplate(inv inventory, o order) (resource, error) {
	var found []resource
	for _, own := range []bool{true, false} {
		for _, r := range inv.guests {
			if r.Template != 0 && r.Name == o.Args.Template && (r.Node == o.node) == own && inv.online[r.Node] {
				found = append(found, r)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	switch len(found) {
	case 0:
		return resource{}, infra.Errorf(infra.Invalid, o.What,
			"there is no VM template %q that the token may see on a node that is online", o.Args.Template)
	case 1:
		return found[0], nil
	}
	return resource{}, infra.Errorf(infra.Invalid, o.What, "VMs %d and %d are both templates with the name %q",
		found[0].VMID, found[1].VMID, o.Args.Template)
}

// clone makes the VM from its template, without userdata, and returns the VM with its node. It fails with errChanged if
// another request made the VM.
func (p *Provider) clone(ctx context.Context, inv inventory, o order) (resource, error) {
	if online, known := inv.online[o.node]; !known {
		return resource{}, infra.Errorf(infra.Invalid, o.What, "the cluster has no node %s", o.node)
	} else if !online {
		return resource{}, infra.Errorf(infra.Capacity, o.What, "node %s is offline", o.node)
	}
	template, err := findTemplate(inv, o)
	if err != nil {
		return resource{}, err
	}
	description, err := metadata{Tags: o.Tags, Digest: o.Digest, Hostname: o.Hostname, Created: p.now().UTC()}.encode()
	if err != nil {
		return resource{}, infra.Wrap(infra.Invalid, o.What, err)
	}
	form := url.Values{"newid": {strconv.Itoa(o.vmid)}, "name": {o.Tags.Instance.String()},
		"description": {description}}
	if p.options.Pool != "" {
		form.Set("pool", p.options.Pool)
	}
	if o.Args.Storage != "" {
		form.Set("full", "1")
		form.Set("storage", o.Args.Storage)
	}
	if template.Node != o.node {
		form.Set("target", o.node)
	}
	select {
	case p.cloning <- struct{}{}:
		defer func() { <-p.cloning }()
	case <-ctx.Done():
		return resource{}, ctx.Err()
	}
	err = p.client.run(ctx, http.MethodPost, form, "nodes", template.Node, "qemu", template.VMID, "clone")
	if has(err, "config file already exists", "failed: File exists") {
		return resource{}, errChanged
	}
	if err != nil {
		return resource{}, fmt.Errorf("clone template %d on node %s: %w", template.VMID, template.Node, err)
	}
	return resource{VMID: o.vmid, Type: "qemu", Node: o.node}, nil
}

// finish configures and starts a VM that was cloned, unless another request has done so.
func (p *Provider) finish(ctx context.Context, r resource, o order) (infra.VM, error) {
	conflict := func(format string, args ...any) (infra.VM, error) {
		return infra.VM{}, infra.Errorf(infra.Conflict, o.What, "VM %d %s", o.vmid, fmt.Sprintf(format, args...))
	}
	if r.Type != "qemu" {
		return conflict("is a container")
	}
	config, err := p.readConfig(ctx, r.Node, o.vmid)
	m := config.metadata
	switch {
	case err != nil:
		return infra.VM{}, err
	case !config.ok && config.settings["lock"] != "":
		return infra.VM{}, errBeingCloned
	case !config.ok:
		return conflict("is not an instance: the VMID is used")
	case m.Tags.Instance != o.Tags.Instance || m.Digest != o.Digest:
		return conflict("was made by another request")
	case !m.Deleted.IsZero():
		return conflict("of this request was deleted")
	case !m.Starting.IsZero():
		live, err := p.readLive(ctx, r.Node, o.vmid)
		if err != nil {
			return infra.VM{}, err
		}
		if vm := p.describe(o.vmid, live, m); vm.State.Alive() || live.asleep() || vm.State == infra.Stopping {
			return vm, nil
		}
		return conflict("of this request is %s", live.Status)
	}
	vm, err := p.start(ctx, r.Node, o, config)
	if err != nil && infra.ClassOf(p.client.classifyOnNode(o.What, err)) != infra.Indeterminate {
		if deleteErr := p.deleteVM(ctx, r.Node, o.vmid, o.Tags); deleteErr != nil {
			p.log.Warn("a VM that could not be started stays", "vmid", o.vmid, "error", deleteErr)
		}
	}
	return vm, err
}

// start configures a VM and starts it.
func (p *Provider) start(ctx context.Context, node string, o order, config vmConfig) (infra.VM, error) {
	if drive := config.cloudInitDrive(); drive != "" {
		return infra.VM{}, infra.Errorf(infra.Invalid, o.What, "the template %q has a cloud-init drive, which hides "+
			"the userdata: remove it from the template with qm set VMID --delete %s", o.Args.Template, drive)
	}
	iso, err := nocloud.ISO(o.Tags.Instance, o.Hostname, o.Userdata)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, o.What, err)
	}
	if err := p.client.upload(ctx, node, p.options.SeedStorage, seedName(o.Tags.Instance), iso); err != nil {
		return infra.VM{}, fmt.Errorf("upload the userdata to storage %s: %w", p.options.SeedStorage, err)
	}
	m := config.metadata
	m.Starting = p.now().UTC()
	form, err := p.settings(o, m)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, o.What, err)
	}
	if err := p.writeConfig(ctx, node, o.vmid, config.digest, form); err != nil {
		return infra.VM{}, err
	}
	for tries := 1; ; tries++ {
		err := p.client.run(ctx, http.MethodPost, nil, "nodes", node, "qemu", o.vmid, "status", "start")
		if err == nil || has(err, "already running") {
			break
		}
		if infra.ClassOf(p.client.classify(o.What, err)) != infra.Throttled {
			return infra.VM{}, err
		}
		_ = tasks.Sleep(ctx, reconnect.Backoff(250*time.Millisecond, 10*time.Second, tries))
	}
	// Read the configuration again after the start, because another server may have marked the VM as deleted just
	// before.
	if config, err = p.readConfig(ctx, node, o.vmid); err != nil {
		return infra.VM{}, &lostError{err}
	}
	if !config.metadata.Deleted.IsZero() {
		if err := p.deleteVM(ctx, node, o.vmid, o.Tags); err != nil {
			return infra.VM{}, err
		}
		return infra.VM{}, infra.Errorf(infra.Conflict, o.What, "VM %d was deleted while it was started", o.vmid)
	}
	config.metadata.Started = true
	if err := p.writeMetadata(ctx, node, o.vmid, config); err != nil {
		p.log.Info("that a VM was started is not written down: its end is noticed late", "vmid", o.vmid, "error", err)
	}
	return p.describe(o.vmid, liveVM{Status: "running"}, config.metadata), nil
}

// settings returns the settings of a VM that do not come from its template.
func (p *Provider) settings(o order, m metadata) (url.Values, error) {
	description, err := m.encode()
	if err != nil {
		return nil, err
	}
	network := "virtio,bridge=" + o.bridge
	if o.Args.VLAN != 0 {
		network += ",tag=" + strconv.Itoa(o.Args.VLAN)
	}
	// The agent learns where it runs from two values of the firmware: sys_vendor and product_serial.
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	smbios := fmt.Sprintf("uuid=%s,manufacturer=%s,serial=%s,base64=1", uuidOf(o.Digest), encode("Proxmox"),
		encode(o.Tags.Instance.String()))
	return url.Values{
		"description": {description},
		"tags":        {strings.Join([]string{ownerTag(o.Tags.Owner), o.Tags.Instance.String()}, ";")},
		"cores":       {strconv.Itoa(o.Size.CPUs)},
		"sockets":     {"1"},
		"memory":      {strconv.FormatInt(o.Size.MemoryMiB, 10)},
		"balloon":     {"0"},
		"net0":        {network},
		"ide2":        {p.seedVolume(o.Tags.Instance) + ",media=cdrom"},
		"smbios1":     {smbios},
		// Proxmox VE must not start the VM when its node boots, because the server decides what happens to a VM that
		// ended.
		"onboot":     {"0"},
		"protection": {"0"},
	}, nil
}

// uuidOf makes the UUID of a VM (RFC 9562, version 8) from digest, the hash of its create request in hexadecimal.
func uuidOf(digest string) string {
	return digest[:8] + "-" + digest[8:12] + "-8" + digest[13:16] + "-8" + digest[17:20] + "-" + digest[20:32]
}

// writeMetadata writes the metadata of a VM. It fails as errChanged if the VM's configuration has changed since the
// caller read it.
func (p *Provider) writeMetadata(ctx context.Context, node string, vmid int, config vmConfig) error {
	description, err := config.metadata.encode()
	if err != nil {
		return err
	}
	return p.writeConfig(ctx, node, vmid, config.digest, url.Values{"description": {description}})
}

// writeConfig changes settings of a VM. It fails as errChanged if the VM's configuration no longer has the given
// digest.
func (p *Provider) writeConfig(ctx context.Context, node string, vmid int, digest string, form url.Values) error {
	form.Set("digest", digest)
	err := p.client.change(ctx, http.MethodPut, nil, form, "nodes", node, "qemu", vmid, "config")
	if has(err, "file changed by other user") {
		return errChanged
	}
	return err
}
