package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// keepDeleted is the time for which a deleted VM stays, without disks, to mark its instance ID as used. It stays longer
// than any server repeats a create request with that ID.
const keepDeleted = 24 * time.Hour

// Delete implements infra.Provider. The VM is off and has no disks when Delete returns without an error.
func (p *Provider) Delete(ctx context.Context, vm infra.VM) error {
	providerID, what := vm.ProviderID, "delete "+vm.ProviderID
	vmid, err := parseProviderID(providerID)
	if err != nil {
		return infra.Wrap(infra.Invalid, what, err)
	}
	defer p.lock(vmid)()
	inv, err := p.readInventory(ctx)
	if err != nil {
		return p.client.classify(what, err)
	}
	r, exists := inv.guests[vmid]
	switch {
	case !exists:
		return nil
	case r.Type != "qemu":
		return infra.Errorf(infra.Invalid, what, "it is a container")
	case !inv.online[r.Node]:
		return infra.Errorf(infra.Indeterminate, what, "node %s is offline: the VM may run there", r.Node)
	}
	if err := p.deleteVM(ctx, r.Node, vmid, vm.Tags); err != nil {
		return p.client.classifyOnNode(what, err)
	}
	p.collect(ctx, inv)
	return nil
}

// deleteVM writes into the description that the VM is deleted, stops it, and removes its disks and its userdata. The
// VM itself stays, so that its VMID is not used again. It refuses a VM that does not have the owner and the instance of
// want.
func (p *Provider) deleteVM(ctx context.Context, node string, vmid int, want infra.Tags) error {
	if err := p.markDeleted(ctx, node, vmid, want); err != nil {
		return err
	}
	if err := p.stop(ctx, node, vmid); err != nil {
		return err
	}
	config, err := p.readConfig(ctx, node, vmid)
	if err != nil {
		return err
	}
	var drives []string
	for _, setting := range slices.Sorted(maps.Keys(config.settings)) {
		if driveSetting.MatchString(setting) {
			drives = append(drives, setting)
		}
	}
	if len(drives) > 0 {
		form := url.Values{"delete": {strings.Join(drives, ",")}, "force": {"1"}}
		if err := p.writeConfig(ctx, node, vmid, config.digest, form); err != nil {
			return err
		}
	}
	return p.deleteSeed(ctx, node, config.metadata.Tags.Instance)
}

func (p *Provider) markDeleted(ctx context.Context, node string, vmid int, want infra.Tags) error {
	what := fmt.Sprintf("delete %d", vmid)
	for range 3 {
		config, err := p.readConfig(ctx, node, vmid)
		switch {
		case err != nil:
			return err
		case !config.ok && config.settings["lock"] != "":
			return errBeingCloned
		case !config.ok:
			return infra.Errorf(infra.Invalid, what, "it is not an instance")
		}
		if err := infra.CheckOwned(what, config.metadata.Tags, want); err != nil {
			return err
		}
		if !config.metadata.Deleted.IsZero() {
			return nil
		}
		config.metadata.Deleted = p.now().UTC()
		description, err := config.metadata.encode()
		if err != nil {
			return err
		}
		// If the VM was not configured after it was cloned, it still has the settings of its template. With these
		// settings, the node may start the VM at boot, or refuse to delete the VM.
		form := url.Values{"description": {description}, "onboot": {"0"}, "protection": {"0"},
			"tags": {ownerTag(config.metadata.Tags.Owner) + ";" + config.metadata.Tags.Instance.String()}}
		if config.settings["lock"] == lockSuspended || config.settings["vmstate"] != "" {
			form.Set("delete", "vmstate") // also removes the lock of a suspended VM
		}
		if err = p.writeConfig(ctx, node, vmid, config.digest, form); !errors.Is(err, errChanged) {
			return err
		}
	}
	return errChanged
}

// stop turns a VM off, and waits until it is off. It does not suffice to wait for the API's task: if the cluster's high
// availability manages the VM, the task only requests the stop.
func (p *Provider) stop(ctx context.Context, node string, vmid int) error {
	if err := p.client.run(ctx, http.MethodPost, nil, "nodes", node, "qemu", vmid, "status", "stop"); err != nil {
		return err
	}
	for {
		live, err := p.readLive(ctx, node, vmid)
		if err != nil {
			return err
		}
		if live.Status == "stopped" {
			return nil
		}
		_ = tasks.Sleep(ctx, taskLatest)
	}
}

// collect removes each VM that was deleted more than a day ago, if this process has read the VM's metadata.
func (p *Provider) collect(ctx context.Context, inv inventory) {
	p.mu.Lock()
	var old []int
	for vmid, m := range p.known {
		if _, exists := inv.guests[vmid]; !exists {
			delete(p.known, vmid)
		} else if !m.Deleted.IsZero() && p.now().Sub(m.Deleted) > keepDeleted {
			old = append(old, vmid)
		}
	}
	p.mu.Unlock()
	for _, vmid := range old {
		node := inv.guests[vmid].Node
		config, err := p.readConfig(ctx, node, vmid)
		if err == nil && !config.metadata.Deleted.IsZero() {
			err = p.client.run(ctx, http.MethodDelete, url.Values{"purge": {"1"}}, "nodes", node, "qemu", vmid)
		}
		if err != nil {
			p.log.Warn("a VM that was deleted a day ago stays", "vmid", vmid, "node", node, "error", err)
		}
	}
}

// RemoveUserdata implements infra.UserdataRemover.
func (p *Provider) RemoveUserdata(ctx context.Context, owner infra.Owner, id ident.ID) error {
	what := "remove the userdata of " + id.String()
	vmid := vmidOf(id)
	defer p.lock(vmid)()
	inv, err := p.readInventory(ctx)
	if err != nil {
		return p.client.classify(what, err)
	}
	r, exists := inv.guests[vmid]
	if !exists {
		return nil
	}
	config, err := p.readConfig(ctx, r.Node, vmid)
	if err != nil {
		return p.client.classifyOnNode(what, err)
	}
	if config.metadata.Tags.Owner != owner || config.metadata.Tags.Instance != id {
		return nil
	}
	if strings.Contains(config.settings["ide2"], p.seedVolume(id)) {
		err := p.writeConfig(ctx, r.Node, vmid, config.digest, url.Values{"ide2": {"none,media=cdrom"}})
		if err != nil {
			return p.client.classifyOnNode(what, err)
		}
	}
	return p.client.classify(what, p.deleteSeed(ctx, r.Node, id))
}
