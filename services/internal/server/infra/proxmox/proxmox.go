// Package proxmox is the provider for clusters of Proxmox VE.
//
// A VM is a clone of a VM template, with its userdata on a CD-ROM in the format of cloud-init's NoCloud. The VM's
// description holds the tags.
//
// Invariant: an instance ID starts at most one VM. The VMID follows from the instance ID, and the file system of the
// cluster keeps VMIDs unique, so only one request to clone the VM of an instance succeeds. Before a request starts the
// VM, it writes the time of the start into the description. That write fails if the configuration has changed since the
// request read it. A deleted VM stays for a day without disks.
package proxmox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Config configures a Provider.
type Config struct {
	Options   contract.Options
	Log       *slog.Logger      // nil: discard
	Throttled func(call string) // as in infra.Env
	Now       func() time.Time  // nil: time.Now
}

// Provider implements infra.Provider and several optional capabilities.
type Provider struct {
	infra.SizedTypes
	options contract.Options
	log     *slog.Logger
	now     func() time.Time
	client  *client
	// cloning bounds the number of concurrent clones, because all clones wait for the same lock.
	cloning chan struct{}
	// changing makes calls that create or delete the same instance run one after the other. The VMID, modulo 64,
	// selects the mutex.
	changing [64]sync.Mutex

	mu    sync.Mutex
	known map[int]metadata // by VMID, as read last
}

var (
	_ infra.Provider        = (*Provider)(nil)
	_ infra.InstanceTypes   = (*Provider)(nil)
	_ infra.UserdataRemover = (*Provider)(nil)
	_ infra.Verifier        = (*Provider)(nil)
	_ infra.Watcher         = (*Provider)(nil)
	_ infra.Sleeper         = (*Provider)(nil)
)

// maxCloning is the number of clones that are made at the same time.
const maxCloning = 4

// New makes a provider. It reads the token and sends no requests.
func New(cfg Config) (*Provider, error) {
	c, err := newClient(cfg.Options, cfg.Throttled)
	if err != nil {
		return nil, infra.Wrap(infra.Invalid, "open the provider", err)
	}
	p := &Provider{options: cfg.Options, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), now: cfg.Now,
		client: c, known: map[int]metadata{}, cloning: make(chan struct{}, maxCloning)}
	if p.now == nil {
		p.now = time.Now
	}
	return p, nil
}

// resource is a VM or container in the list of the cluster's file system.
type resource struct {
	VMID     int    `json:"vmid"`
	Type     string `json:"type"`
	Node     string `json:"node"`
	Name     string `json:"name"`
	Tags     string `json:"tags"`
	Lock     string `json:"lock"`
	Template int    `json:"template"`
}

// inventory says which VMs exist, and where.
type inventory struct {
	guests map[int]resource
	online map[string]bool // by node
}

// readInventory reads which VMs exist. It fails if the answer may be incomplete: the node that answers must belong to
// the majority of the cluster, and the token must be allowed to see the VMs.
//
// Statuses in this answer are up to 10 s old, and those of a node that is down stay "running" for 5 min. So
// readInventory ignores statuses.
func (p *Provider) readInventory(ctx context.Context) (inv inventory, err error) {
	err = p.client.failOver(ctx, func(endpoint *url.URL) (again bool, err error) {
		one := &client{endpoints: []*url.URL{endpoint}, http: p.client.http, token: p.client.token,
			throttled: p.client.throttled}
		inv, err = p.readInventoryOf(ctx, one)
		return true, err
	})
	return inv, err
}

func (p *Provider) readInventoryOf(ctx context.Context, c *client) (inventory, error) {
	inv := inventory{guests: map[int]resource{}}
	var guests []resource
	if err := c.get(ctx, &guests, url.Values{"type": {"vm"}}, "cluster", "resources"); err != nil {
		return inventory{}, err
	}
	for _, r := range guests {
		inv.guests[r.VMID] = r
	}
	var err error
	if inv.online, err = c.readNodes(ctx); err != nil {
		return inventory{}, err
	}
	granted, err := p.privileges(ctx, c, p.guestPath())
	if err != nil {
		return inventory{}, err
	}
	if !granted["VM.Audit"] {
		return inventory{}, &apiError{status: http.StatusForbidden, text: "the token lacks VM.Audit on " +
			p.guestPath()}
	}
	return inv, nil
}

// readNodes reads which nodes the cluster has, and which of them are online.
func (c *client) readNodes(ctx context.Context) (online map[string]bool, err error) {
	var status []struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		Online  int    `json:"online"`
		Quorate int    `json:"quorate"`
	}
	if err := c.get(ctx, &status, nil, "cluster", "status"); err != nil {
		return nil, err
	}
	online = map[string]bool{}
	for _, s := range status {
		if s.Type == "cluster" && s.Quorate == 0 {
			return nil, errNoQuorum
		}
		if s.Type == "node" {
			online[s.Name] = s.Online != 0
		}
	}
	return online, nil
}

// guestPath returns the path on which the token needs its privileges for VMs. With the option pool, this is the path of
// the pool. Otherwise it is the path of all VMs.
func (p *Provider) guestPath() string {
	if p.options.Pool != "" {
		return "/pool/" + p.options.Pool
	}
	return "/vms"
}

// privileges returns the privileges of the token on a path.
func (p *Provider) privileges(ctx context.Context, c *client, path string) (map[string]bool, error) {
	var found map[string]map[string]int
	if err := c.get(ctx, &found, url.Values{"path": {path}}, "access", "permissions"); err != nil {
		return nil, err
	}
	granted := map[string]bool{}
	for privilege := range found[path] {
		granted[privilege] = true
	}
	return granted, nil
}

// liveVM is what a node answers about one of its VMs.
type liveVM struct {
	VMID   int    `json:"vmid"`
	Name   string `json:"name"`
	Status string `json:"status"` // running or stopped; "" if the node does not answer or no longer has the VM
	Lock   string `json:"lock"`
}

// asleep reports whether the VM is off and its memory is saved.
func (vm liveVM) asleep() bool { return vm.Status == "stopped" && vm.Lock == lockSuspended }

// readLive asks a node about one of its VMs.
func (p *Provider) readLive(ctx context.Context, node string, vmid int) (vm liveVM, err error) {
	err = p.client.get(ctx, &vm, nil, "nodes", node, "qemu", vmid, "status", "current")
	return vm, err
}

// readNode returns the statuses of the VMs on a node by VMID.
func (p *Provider) readNode(ctx context.Context, node string) (map[int]liveVM, error) {
	var vms []liveVM
	if err := p.client.get(ctx, &vms, nil, "nodes", node, "qemu"); err != nil {
		return nil, err
	}
	all := map[int]liveVM{}
	for _, vm := range vms {
		all[vm.VMID] = vm
	}
	return all, nil
}

const (
	// prepareGrace is the time after the request to clone the VM during which the create request may still start the
	// VM.
	prepareGrace = 10 * time.Minute
	// startGrace is the time after metadata.Starting during which the VM may still start. It applies instead of
	// prepareGrace as soon as Starting is set.
	startGrace = 30 * time.Second
)

// describe converts a VM to an infra.VM.
func (p *Provider) describe(vmid int, live liveVM, m metadata) infra.VM {
	vm := infra.VM{ProviderID: strconv.Itoa(vmid), State: infra.Unknown, Tags: m.Tags, Hostname: m.Hostname,
		LaunchedAt: m.Created}
	until := m.Created.Add(prepareGrace)
	if !m.Starting.IsZero() {
		until = m.Starting.Add(startGrace)
	}
	switch {
	case live.Status == "running" && !m.Deleted.IsZero():
		vm.State = infra.Deleting
	case live.Status == "running" && live.Lock == lockSuspending:
		vm.State = infra.Stopping
	case live.Status == "running":
		vm.State = infra.Running
	case live.Status == "stopped" && !m.Deleted.IsZero():
		vm.State = infra.Deleted
	case live.Status == "stopped" && !live.asleep() && !m.Started && p.now().Before(until):
		vm.State = infra.Pending
	case live.Status == "stopped":
		vm.State = infra.Stopped
	}
	return vm
}

// errBeingCloned means that the VM exists but has no description yet.
var errBeingCloned = errors.New("the VM is being cloned; if it stays locked, unlock and delete it by hand (qm unlock)")

// lookUp describes a VM of an inventory.
func (p *Provider) lookUp(ctx context.Context, inv inventory, vmid int) (infra.VM, error) {
	r, exists := inv.guests[vmid]
	if !exists {
		return infra.VM{}, infra.NotFound
	}
	if !inv.online[r.Node] {
		if m, ok := p.recall(r); ok {
			return p.describe(vmid, liveVM{}, m), nil
		}
		return infra.VM{}, &apiError{status: 595, text: "node " + r.Node + " is offline"}
	}
	config, err := p.readConfig(ctx, r.Node, vmid)
	switch {
	case err != nil:
		return infra.VM{}, err
	case !config.ok && config.settings["lock"] != "":
		return infra.VM{}, errBeingCloned
	case !config.ok:
		return infra.VM{}, infra.Errorf(infra.NotFound, "look up", "VM %d is not an instance", vmid)
	}
	live, err := p.readLive(ctx, r.Node, vmid)
	if err != nil {
		return infra.VM{}, err
	}
	return p.describe(vmid, live, config.metadata), nil
}

func parseProviderID(providerID string) (int, error) {
	vmid, _ := strconv.Atoi(providerID) // out of range if it is not a number
	if vmid < minVMID || vmid > maxVMID {
		return 0, errors.New("this is not the VMID of an instance")
	}
	return vmid, nil
}

// Get implements infra.Provider.
func (p *Provider) Get(ctx context.Context, providerID string) (infra.VM, error) {
	what := "get " + providerID
	vmid, err := parseProviderID(providerID)
	if err != nil {
		return infra.VM{}, infra.Wrap(infra.Invalid, what, err)
	}
	inv, err := p.readInventory(ctx)
	if err != nil {
		return infra.VM{}, p.client.classify(what, err)
	}
	vm, err := p.lookUp(ctx, inv, vmid)
	return vm, p.classifyLookUp(what, err)
}

// FindByInstance implements infra.Provider.
func (p *Provider) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	what := "find " + id.String()
	inv, err := p.readInventory(ctx)
	if err != nil {
		return infra.VM{}, p.client.classify(what, err)
	}
	vm, err := p.lookUp(ctx, inv, vmidOf(id))
	if err != nil {
		return infra.VM{}, p.classifyLookUp(what, err)
	}
	if vm.Tags.Owner != owner || vm.Tags.Instance != id {
		return infra.VM{}, infra.Errorf(infra.NotFound, what, "VM %s belongs to another instance", vm.ProviderID)
	}
	return vm, nil
}

func (p *Provider) classifyLookUp(what string, err error) error {
	if errors.Is(err, infra.NotFound) {
		return infra.Wrap(infra.NotFound, what, err)
	}
	return p.client.classifyOnNode(what, err)
}

// List implements infra.Provider. The list is complete even if a node is down: the other nodes know which VMs that node
// has. The state of those VMs is then Unknown.
func (p *Provider) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	what := "list the VMs of " + owner.Cluster + "/" + owner.Shard
	inv, err := p.readInventory(ctx)
	if err != nil {
		return nil, p.client.classify(what, err)
	}
	byNode := map[string][]resource{}
	for vmid, r := range inv.guests {
		if vmid < minVMID {
			continue
		}
		// A VM without an owner's tag was cloned and not configured yet, so it may belong to this owner.
		if slices.Contains(splitTags(r.Tags), ownerTag(owner)) || !hasOwner(r.Tags) {
			byNode[r.Node] = append(byNode[r.Node], r)
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var vms []infra.VM
	var errs []error
	for node, guests := range byNode {
		wg.Go(func() {
			some, err := p.listNode(ctx, owner, node, inv.online[node], guests)
			mu.Lock()
			defer mu.Unlock()
			vms = append(vms, some...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return nil, p.client.classify(what, errs[0])
	}
	return infra.SortVMs(vms), nil
}

// listNode describes the VMs on one node that belong to an owner.
func (p *Provider) listNode(ctx context.Context, owner infra.Owner, node string, online bool,
	guests []resource) (vms []infra.VM, err error) {
	var live map[int]liveVM
	if online {
		if live, err = p.readNode(ctx, node); err != nil && !isUnreachable(err) {
			return nil, err
		}
	}
	for _, r := range guests {
		vm := live[r.VMID]
		m, ok := p.recall(r)
		// If a VM was started and runs, its metadata no longer change, so the remembered metadata are up to date.
		// Another server may have started or deleted any other VM, so read its metadata.
		if vm.Status == "stopped" || vm.Status == "running" && !m.Started {
			config, err := p.readConfig(ctx, node, r.VMID)
			switch class := infra.ClassOf(p.client.classify("", err)); {
			case isUnreachable(err) || class == infra.NotFound:
				vm = liveVM{} // it has just left the node
			case err != nil:
				return nil, err
			default:
				m, ok = config.metadata, config.ok
			}
		}
		if ok && m.Tags.Owner == owner {
			vms = append(vms, p.describe(r.VMID, vm, m))
		}
	}
	return vms, nil
}

// isUnreachable reports whether err means that the node which received the call got no answer from another node of the
// cluster.
func isUnreachable(err error) bool {
	answer, ok := errors.AsType[*apiError](err)
	return ok && answer.status >= 595
}

// seedName is the name of the ISO image with an instance's userdata.
func seedName(instance ident.ID) string { return "nstance-" + instance.String() + ".iso" }

// seedVolume returns the volume of the ISO image with an instance's userdata.
func (p *Provider) seedVolume(instance ident.ID) string {
	return p.options.SeedStorage + ":iso/" + seedName(instance)
}

// deleteSeed deletes the userdata of an instance. It is not an error if there is none.
func (p *Provider) deleteSeed(ctx context.Context, node string, instance ident.ID) error {
	err := p.client.run(ctx, http.MethodDelete, nil, "nodes", node, "storage", p.options.SeedStorage, "content",
		p.seedVolume(instance))
	if has(err, "No such file", "does not exist") && !strings.Contains(err.Error(), "storage '") {
		return nil
	}
	return err
}

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
	nodes, err := p.client.readNodes(ctx)
	if err != nil {
		return // List reports what is wrong
	}
	for name, online := range nodes {
		if !online {
			continue
		}
		now, err := p.readNode(ctx, name)
		if err != nil {
			continue
		}
		before := seen[name]
		seen[name] = now
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
