// Package fakepve is a cluster of Proxmox VE for tests: its API over TLS, with a process for each VM that runs.
//
// It refuses what the real API refuses: parameters that are not in the API's schema, calls that the token may not make,
// calls to nodes that are down. Changes run as tasks that can fail after the call was accepted. The statuses in
// cluster/resources are outdated until [Cluster.Broadcast] is called.
package fakepve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Cluster is a fake cluster. Its methods are safe for concurrent use.
type Cluster struct {
	server *httptest.Server
	t      testing.TB

	mu       sync.Mutex
	nodes    map[string]*node
	storages map[string]*storage
	pools    map[string]bool
	tokens   map[string]*token
	vms      map[int]*vm
	tasks    map[string]*task
	running  sync.WaitGroup // tasks and processes
	faults   []*Fault
	inquor   bool
	calls    []string
	guest    Guest
}

type node struct {
	online    bool
	bridges   []string
	memoryMiB int64
}

// storage is a storage that all nodes have. If the storage is not shared, each node has its own volumes on it.
type storage struct {
	shared  bool
	content []string
	full    bool
	volumes map[string][]byte // by node (if not shared) and volume ID
}

type token struct {
	secret string
	acl    map[string][]string // privileges by path
	used   map[string][]string // those that calls needed
}

type vm struct {
	id      int
	node    string
	pool    string
	inHA    bool
	conf    map[string]string
	process *exec.Cmd
	exited  chan struct{} // closed when process has ended
	// The name and status of the VM at the time of the last call of [Cluster.Broadcast].
	seenName, seenStatus string
}

func (v *vm) isRunning() bool {
	if v.process == nil {
		return false
	}
	select {
	case <-v.exited:
		return false
	default:
		return true
	}
}

func (v *vm) status() string {
	if v.isRunning() {
		return "running"
	}
	return "stopped"
}

// TokenID and Secret are the ID and the secret of the API token that a new cluster accepts. The token has the
// privileges in [Role].
const (
	TokenID = "nstance@pve!server"
	Secret  = "5f0c1f0e-9d4b-4a54-9c8c-2f0a4a3f9b11"
)

// Role lists the privileges that nstance-server needs. Its keys are the paths on which nstance-server needs them.
// docs/reference/proxmox.md has the same list.
var Role = map[string][]string{
	"/": {"Sys.Audit"},
	"/vms": {"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk",
		"VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt"},
	"/storage": {"Datastore.AllocateSpace", "Datastore.Audit"},
	"/storage/local": {"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate",
		"Datastore.Audit"},
	"/sdn": {"SDN.Use"},
}

// Start starts a cluster of two nodes, pve1 and pve2, with the bridges vmbr0 and vmbr1. Each node has a template named
// "debian" on its storage local-lvm: VM 9001 on pve1, and VM 9002 on pve2. A template named "shared", VM 9003 on pve1,
// is on the storage ceph. The cluster ends with the test.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t,
		nodes: map[string]*node{},
		storages: map[string]*storage{
			"local":     {content: []string{"iso"}, volumes: map[string][]byte{}},
			"local-lvm": {content: []string{"images"}, volumes: map[string][]byte{}},
			"ceph":      {shared: true, content: []string{"images"}, volumes: map[string][]byte{}},
		},
		pools:  map[string]bool{},
		tokens: map[string]*token{TokenID: {secret: Secret, acl: maps.Clone(Role), used: map[string][]string{}}},
		vms:    map[int]*vm{}, tasks: map[string]*task{},
	}
	for _, name := range []string{"pve1", "pve2"} {
		c.nodes[name] = &node{online: true, bridges: []string{"vmbr0", "vmbr1"}, memoryMiB: 64 << 10}
	}
	c.addTemplate(9001, "pve1", "debian", "local-lvm")
	c.addTemplate(9002, "pve2", "debian", "local-lvm")
	c.addTemplate(9003, "pve1", "shared", "ceph")
	c.server = httptest.NewTLSServer(http.HandlerFunc(c.serve))
	t.Cleanup(func() {
		c.server.Close()
		c.mu.Lock()
		for _, v := range c.vms {
			if v.isRunning() {
				_ = v.process.Process.Kill() // it may end at the same time
			}
		}
		c.mu.Unlock()
		c.running.Wait()
	})
	return c
}

// AddTemplate adds a VM template on the storage local-lvm of a node.
func (c *Cluster) AddTemplate(id int, node, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addTemplate(id, node, name, "local-lvm")
}

func (c *Cluster) addTemplate(id int, node, name, on string) {
	volume := on + ":base-" + strconv.Itoa(id) + "-disk-0"
	c.storages[on].volumes[c.volumeKey(node, on, volume)] = nil
	c.vms[id] = &vm{id: id, node: node, seenName: name, seenStatus: "stopped", conf: map[string]string{
		"name": name, "template": "1", "tags": "golden", "onboot": "1", "protection": "1", "cores": "1",
		"memory": "2048", "scsi0": volume + ",size=2G", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		"boot":    "order=scsi0",
		"smbios1": "uuid=11111111-1111-4111-8111-111111111111", "serial0": "socket"}}
}

// URL returns the URL of the API.
func (c *Cluster) URL() string { return c.server.URL }

// Fingerprint returns the SHA-256 hash of the nodes' certificate.
func (c *Cluster) Fingerprint() string {
	sum := sha256.Sum256(c.server.Certificate().Raw)
	return hex.EncodeToString(sum[:])
}

// CAFile writes the certificate of the authority that signed the nodes' certificate, and returns the file.
func (c *Cluster) CAFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pve-root-ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
	if err := os.WriteFile(file, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Guest is what VMs boot.
type Guest struct {
	Kernel, Initrd string // files of images/local/guest.sh
	// Dir is a directory for two files of each VM: the CD-ROM image with its userdata (VMID.iso) and the output of its
	// console (VMID.log). The directory must exist.
	Dir string
}

// Boot gives VMs a guest. QEMU boots it in every VM that is started after this call, with the userdata on a CD-ROM. VMs
// can connect to the machine that runs the test, but not to each other. Without Boot, a VM is a process that does
// nothing.
func (c *Cluster) Boot(guest Guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guest = guest
}

// SetOnline sets whether the API reaches a node. The VMs of a node that is offline keep running, but calls to the node
// fail, and [Cluster.Broadcast] does not update the VMs' statuses.
func (c *Cluster) SetOnline(name string, online bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[name].online = online
}

// SetQuorate sets whether the nodes of the cluster have a quorum.
func (c *Cluster) SetQuorate(quorate bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inquor = !quorate
}

// SetFull sets whether a storage is full.
func (c *Cluster) SetFull(name string, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storages[name].full = full
}

// AddPool adds a resource pool.
func (c *Cluster) AddPool(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pools[name] = true
}

// GrantPool gives the API token the privileges that [Role] lists for VMs, but only on VMs that are members of a pool.
func (c *Cluster) GrantPool(name string) { c.grant("/pool/"+name, Role["/vms"]) }

// GrantStorage gives the API token privileges on a storage. They are those that [Role] lists for the storage local.
func (c *Cluster) GrantStorage(name string) { c.grant("/storage/"+name, Role["/storage/local"]) }

func (c *Cluster) grant(path string, privileges []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[TokenID].acl[path] = privileges
}

// Revoke takes a privilege from the token, on all paths.
func (c *Cluster) Revoke(privilege string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	acl := map[string][]string{}
	for path, privileges := range c.tokens[TokenID].acl {
		acl[path] = slices.DeleteFunc(slices.Clone(privileges), func(p string) bool { return p == privilege })
	}
	c.tokens[TokenID].acl = acl
}

// Used returns the privileges of the API token that calls have needed so far, sorted, by the path on which they were
// granted. If one of several privileges is enough for a call, Used has the one in Proxmox VE's list that comes first.
func (c *Cluster) Used() map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := map[string][]string{}
	for path, privileges := range c.tokens[TokenID].used {
		used[path] = slices.Compact(slices.Sorted(slices.Values(privileges)))
	}
	return used
}

// Migrate moves a VM to another node.
func (c *Cluster) Migrate(id int, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vms[id].node = node
}

// ManageByHA adds a VM to the resources that the cluster's high availability manages. From then on, a task that stops
// the VM ends before the VM is off.
func (c *Cluster) ManageByHA(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vms[id].inHA = true
}

// SetConfig changes a setting of a VM, as an administrator would. An empty value removes it.
func (c *Cluster) SetConfig(id int, setting, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vms[id].conf[setting] = value; value == "" {
		delete(c.vms[id].conf, setting)
	}
}

// AddVM adds a VM without disks, as an administrator would.
func (c *Cluster) AddVM(id int, node, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vms[id] = &vm{id: id, node: node, conf: map[string]string{"name": name}}
}

// RemoveVM removes a VM, as an administrator would.
func (c *Cluster) RemoveVM(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vms, id)
}

// Kill kills the QEMU process of a VM, and returns when it has ended.
func (c *Cluster) Kill(id int) {
	c.t.Helper()
	c.mu.Lock()
	v := c.vms[id]
	c.mu.Unlock()
	if v == nil || v.process == nil {
		c.t.Fatalf("VM %d has no process", id)
	}
	if err := v.process.Process.Kill(); err != nil {
		c.t.Fatalf("kill VM %d: %v", id, err)
	}
	<-v.exited
}

// Broadcast makes cluster/resources show the present statuses. Real nodes broadcast their statuses every 10 s.
func (c *Cluster) Broadcast() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.vms {
		if c.nodes[v.node].online {
			v.seenName, v.seenStatus = v.conf["name"], v.status()
		}
	}
}

// Config returns the configuration of a VM, or nil if there is none.
func (c *Cluster) Config(id int) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.vms[id]; v != nil {
		return maps.Clone(v.conf)
	}
	return nil
}

// Pool returns the pool that a VM is a member of.
func (c *Cluster) Pool(id int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.vms[id].pool
}

// Node returns the node of a VM.
func (c *Cluster) Node(id int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.vms[id].node
}

// VMs returns the IDs of all VMs except templates.
func (c *Cluster) VMs() (ids []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(c.vms)) {
		if c.vms[id].conf["template"] == "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// Volumes returns the volumes of all storages, with their contents. It leaves out the volumes of templates.
func (c *Cluster) Volumes() map[string][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]byte{}
	for _, s := range c.storages {
		maps.Copy(all, s.volumes)
	}
	maps.DeleteFunc(all, func(key string, _ []byte) bool { return templateVolume.MatchString(key) })
	return all
}

// Calls returns the calls that were made so far, as METHOD PATH. A path contains the names of its parameters, such as
// {vmid}, instead of their values.
func (c *Cluster) Calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// Fault is a failure of one call.
type Fault struct {
	// Call is the call as in [Cluster.Calls], for example POST /nodes/{node}/qemu/{vmid}/clone.
	Call string
	// Status and Text are the answer to the call, for example 500 and "no quorum". If they are set, the call has no
	// effect.
	Status int
	Text   string
	// TaskFails is the text with which the call's task fails. The task has no effect.
	TaskFails string
	// If AnswerLost is true, the connection breaks after the call has taken effect. If RequestLost is true, it breaks
	// before the call, so that the call has no effect.
	AnswerLost, RequestLost bool
	// The function in Then, if any, is called after the call has taken effect and before the answer is sent.
	Then func()
	// The function in Before, if any, is called before the API handles the call.
	Before func()
}

// Inject adds a fault. The fault applies once, to the next call that matches [Fault.Call].
func (c *Cluster) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, &f)
}

// takeFault returns the first fault for a call, and removes it.
func (c *Cluster) takeFault(call string) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.faults {
		if f.Call == call {
			c.faults = slices.Delete(c.faults, i, i+1)
			return *f
		}
	}
	return Fault{}
}

// AwaitTasks waits until no task runs.
func (c *Cluster) AwaitTasks(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		done := !slices.ContainsFunc(slices.Collect(maps.Values(c.tasks)), func(t *task) bool { return t.exit == "" })
		c.mu.Unlock()
		if done {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
