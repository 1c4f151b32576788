package fakepve

import (
	"crypto/sha1" //nolint:gosec // the digest of a configuration is a SHA-1 hash
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// load returns the VM of a request, which must be on the request's node.
func (c *Cluster) load(in request) (*vm, *apiError) {
	id, _ := strconv.Atoi(in.Get("vmid")) // checked
	v := c.vms[id]
	if v == nil || v.node != in.Get("node") {
		return nil, die("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", in.Get("node"), id)
	}
	return v, nil
}

func (v *vm) checkLock() *apiError {
	if lock := v.conf["lock"]; lock != "" {
		return die("VM is locked (%s)", lock)
	}
	return nil
}

func (v *vm) digest() string {
	hash := sha1.New() //nolint:gosec // see above
	for _, setting := range slices.Sorted(maps.Keys(v.conf)) {
		fmt.Fprintf(hash, "%s: %s\n", setting, v.conf[setting])
	}
	return hex.EncodeToString(hash.Sum(nil))
}

var drive = regexp.MustCompile(`^((ide|sata|scsi|virtio)[0-9]+|efidisk0|tpmstate0|unused[0-9]+)$`)

// drives maps the settings of the VM's drives to their volumes. It leaves out CD-ROMs, because they do not belong to
// the VM.
func (v *vm) drives() map[string]string {
	all := map[string]string{}
	for setting, value := range v.conf {
		volume, _, _ := strings.Cut(value, ",")
		if drive.MatchString(setting) && !strings.Contains(value, "media=cdrom") {
			all[setting] = volume
		}
	}
	return all
}

// free removes a volume of a VM.
func (c *Cluster) free(v *vm, volume string) {
	on, _, _ := strings.Cut(volume, ":")
	delete(c.storages[on].volumes, c.volumeKey(v.node, on, volume))
}

func (c *Cluster) clone(in request) (any, *apiError) {
	source, failed := c.checkClone(in)
	if failed != nil {
		return nil, failed
	}
	newID, _ := strconv.Atoi(in.Get("newid")) // checked
	node := in.Get("node")
	if old := c.vms[newID]; old != nil && old.node == node {
		return nil, die("unable to create VM %d: config file already exists", newID)
	}
	conf := maps.Clone(source.conf)
	return c.startTask(in, node, "qmclone", source.id, func() string {
		made := &vm{id: newID, node: node, conf: map[string]string{"lock": "clone"}}
		c.mu.Lock()
		old := c.vms[newID]
		if old == nil {
			c.vms[newID] = made
		}
		c.mu.Unlock()
		if old != nil && old.node == node {
			return fmt.Sprintf("unable to create VM %d: config file already exists", newID)
		}
		if old != nil { // the file system of the cluster keeps IDs unique
			return fmt.Sprintf("close (rename) atomic file '/etc/pve/nodes/%s/qemu-server/%d.conf' failed: File exists",
				node, newID)
		}
		time.Sleep(taskTime)
		return c.fillClone(in, source, made, conf)
	}), nil
}

// checkClone makes the same checks as clone_vm in PVE/API2/Qemu.pm, in the same order.
func (c *Cluster) checkClone(in request) (*vm, *apiError) {
	pool, target, on := in.Get("pool"), in.Get("target"), in.Get("storage")
	if in.Has("pool") && !c.pools[pool] {
		return nil, die("pool '%s' does not exist", pool)
	}
	if in.Has("target") && c.nodes[target] == nil {
		return nil, die("no such cluster node '%s'", target)
	}
	if s := c.storages[on]; in.Has("storage") && s == nil {
		return nil, die("storage '%s' does not exist", on)
	} else if in.Has("storage") && !slices.Contains(s.content, "images") {
		return nil, &apiError{400, "Parameter verification failed.", map[string]string{
			"storage": "storage '" + on + "' does not support vm images"}}
	}
	if c.inquor {
		return nil, die("cluster not ready - no quorum?")
	}
	source, failed := c.load(in)
	if failed != nil {
		return nil, failed
	}
	if failed := source.checkLock(); failed != nil {
		return nil, failed
	}
	full := in.Get("full") == "1" || !in.Has("full") && source.conf["template"] == ""
	if in.Has("storage") && !full {
		return nil, die("parameter 'storage' not allowed for linked clones")
	}
	shared := true
	for _, volume := range source.drives() {
		from, _, _ := strings.Cut(volume, ":")
		to := from
		if full && on != "" {
			to = on
		}
		if failed := c.need(in, "/storage/"+to, "Datastore.AllocateSpace"); failed != nil {
			return nil, failed
		}
		shared = shared && c.storages[from].shared && c.storages[to].shared
	}
	_, bridge, _ := strings.Cut(source.conf["net0"], "bridge=")
	bridge, _, _ = strings.Cut(bridge, ",")
	if failed := c.need(in, "/sdn/zones/localnetwork/"+bridge, "SDN.Use"); failed != nil {
		return nil, failed
	}
	if target != "" && target != source.node && !shared {
		return nil, die("can't clone VM to node '%s' (VM uses local storage)", target)
	}
	return source, nil
}

// fillClone copies the disks and the configuration of a VM to its clone. It removes the clone if the copy fails.
func (c *Cluster) fillClone(in request, source, made *vm, conf map[string]string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	made.node = in.Get("node")
	if target := in.Get("target"); target != "" {
		made.node = target
	}
	delete(conf, "template")
	conf["net0"] = fmt.Sprintf("virtio=BC:24:11:%02X:%02X:%02X,bridge=vmbr0", made.id>>16&255, made.id>>8&255,
		made.id&255)
	conf["smbios1"] = fmt.Sprintf("uuid=00000000-0000-4000-8000-%012x", made.id)
	if conf["name"] = "Copy-of-VM-" + conf["name"]; in.Has("name") {
		conf["name"] = in.Get("name")
	}
	if in.Has("description") {
		conf["description"] = in.Get("description")
	}
	made.conf = conf
	for setting, volume := range made.drives() {
		on, name, _ := strings.Cut(volume, ":")
		linked := fmt.Sprintf("%s:%s/vm-%d-disk-0", on, name, made.id)
		if in.Get("full") == "1" {
			if in.Has("storage") {
				on = in.Get("storage")
			}
			linked = fmt.Sprintf("%s:vm-%d-disk-0", on, made.id)
		}
		if c.storages[on].full {
			delete(c.vms, made.id)
			return fmt.Sprintf("clone failed: lvcreate 'pve/vm-%d-disk-0' error:   Cannot create new thin volume, "+
				"free space in thin pool pve/data reached threshold.", made.id)
		}
		c.storages[on].volumes[c.volumeKey(made.node, on, linked)] = nil
		conf[setting] = linked + ",size=2G"
	}
	made.pool = in.Get("pool")
	return ""
}

func (c *Cluster) readConfig(in request) (any, *apiError) {
	v, failed := c.load(in)
	if failed != nil {
		return nil, failed
	}
	conf := map[string]any{"digest": v.digest()}
	for setting, value := range v.conf {
		conf[setting] = value
		switch setting {
		case "description":
			conf[setting] = value + "\n" // comments of the configuration file are read by line
		case "cores", "sockets", "onboot", "protection":
			conf[setting] = json.Number(value)
		}
	}
	return conf, nil
}

// configPrivileges maps each setting of a VM to the privilege that a caller needs to change it. The map is from
// check_vm_modify_config_perm of Proxmox VE.
var configPrivileges = map[string]string{"cores": "VM.Config.CPU", "sockets": "VM.Config.CPU",
	"memory": "VM.Config.Memory", "balloon": "VM.Config.Memory", "smbios1": "VM.Config.HWType",
	"net0": "VM.Config.Network", "ide2": "VM.Config.CDROM"}

func (c *Cluster) checkSetting(in request, v *vm, setting string) *apiError {
	privilege := configPrivileges[setting]
	switch {
	case setting == "vmstate":
		if failed := c.need(in, "/vms/"+in.Get("vmid"), "VM.Config.Disk"); failed != nil {
			return failed
		}
		privilege = "VM.PowerMgmt"
	case drive.MatchString(setting) && !strings.Contains(v.conf[setting]+in.Get(setting), "media=cdrom"):
		privilege = "VM.Config.Disk"
	case privilege == "":
		privilege = "VM.Config.Options"
	}
	return c.need(in, "/vms/"+in.Get("vmid"), privilege)
}

func (c *Cluster) writeConfig(in request) (any, *apiError) {
	v, failed := c.load(in)
	if failed != nil {
		return nil, failed
	}
	removed := strings.FieldsFunc(in.Get("delete"), func(r rune) bool { return r == ',' })
	for setting := range in.Values {
		if slices.Contains([]string{"node", "vmid", "delete", "force", "digest"}, setting) {
			continue
		}
		if failed := c.checkSetting(in, v, setting); failed != nil {
			return nil, failed
		}
	}
	for _, setting := range removed {
		if failed := c.checkSetting(in, v, setting); failed != nil {
			return nil, failed
		}
	}
	if bridge := bridgeOf(in.Get("net0")); bridge != "" {
		if failed := c.need(in, "/sdn/zones/localnetwork/"+bridge, "SDN.Use"); failed != nil {
			return nil, failed
		}
	}
	if on, _, ok := strings.Cut(in.Get("ide2"), ":"); ok && // check_volume_access of PVE::Storage
		!c.allowed(in.tokenID, "/storage/"+on, "Datastore.AllocateSpace") {
		if failed := c.need(in, "/storage/"+on, "Datastore.Audit"); failed != nil {
			return nil, failed
		}
	}
	wakes := v.conf["lock"] == "suspended" && slices.Contains(removed, "vmstate")
	if failed := v.checkLock(); failed != nil && !wakes {
		return nil, failed
	}
	if in.Has("digest") && in.Get("digest") != v.digest() {
		return nil, die("detected modified configuration - file changed by other user? Try again.")
	}
	if wakes {
		delete(v.conf, "lock")
	}
	for _, setting := range removed {
		if setting == "vmstate" && v.conf[setting] != "" {
			on, _, _ := strings.Cut(v.conf[setting], ":")
			if failed := c.need(in, "/storage/"+on, "Datastore.AllocateSpace"); failed != nil {
				return nil, failed
			}
			c.forget(v)
		}
		if volume, own := v.drives()[setting]; own {
			if v.conf["protection"] == "1" && in.Get("protection") != "0" {
				return nil, die("can't remove drive '%s' - protection mode enabled", setting)
			}
			if v.isRunning() {
				return nil, &apiError{400, "Parameter verification failed.", map[string]string{
					setting: "hotplug problem - error on hot-unplugging device '" + setting + "'"}}
			}
			if in.Get("force") != "1" {
				v.conf["unused0"] = volume
			} else {
				c.free(v, volume)
			}
		}
		delete(v.conf, setting)
	}
	for setting := range in.Values {
		if !slices.Contains([]string{"node", "vmid", "delete", "force", "digest"}, setting) {
			v.conf[setting] = in.Get(setting)
		}
	}
	return nil, nil
}

// bridgeOf returns the bridge of a network device.
func bridgeOf(device string) string {
	_, bridge, _ := strings.Cut(device, "bridge=")
	bridge, _, _ = strings.Cut(bridge, ",")
	return bridge
}

func (c *Cluster) describe(v *vm) map[string]any {
	status := map[string]any{"vmid": v.id, "status": v.status(), "name": v.conf["name"]}
	if v.conf["name"] == "" {
		status["name"] = fmt.Sprintf("VM %d", v.id)
	}
	for _, setting := range []string{"tags", "lock"} {
		if value := v.conf[setting]; value != "" {
			status[setting] = value
		}
	}
	if v.conf["template"] != "" {
		status["template"] = 1
	}
	return status
}

func (c *Cluster) vmStatus(in request) (any, *apiError) {
	v, failed := c.load(in)
	if failed != nil {
		return nil, failed
	}
	return c.describe(v), nil
}

func (c *Cluster) listVMs(in request) (any, *apiError) {
	all := []map[string]any{}
	for id, v := range c.vms {
		if v.node == in.Get("node") && c.allowed(in.tokenID, fmt.Sprintf("/vms/%d", id), "VM.Audit") {
			all = append(all, c.describe(v))
		}
	}
	return all, nil
}

func (c *Cluster) start(in request) (any, *apiError) {
	if c.inquor {
		return nil, die("cluster not ready - no quorum?")
	}
	id, _ := strconv.Atoi(in.Get("vmid")) // checked
	return c.startTask(in, in.Get("node"), "qmstart", id, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		v, failed := c.load(in)
		if failed != nil {
			return failed.text
		}
		suspended := v.conf["lock"] == "suspended"
		if failed := v.checkLock(); failed != nil && !suspended {
			return failed.text
		}
		if v.isRunning() {
			return fmt.Sprintf("VM %d already running", id)
		}
		volume, _, _ := strings.Cut(v.conf["ide2"], ",")
		on, _, isVolume := strings.Cut(volume, ":")
		if s := c.storages[on]; isVolume && (s == nil || s.volumes[c.volumeKey(v.node, on, volume)] == nil) {
			return fmt.Sprintf("volume '%s' does not exist", volume)
		}
		memory, _ := strconv.ParseInt(v.conf["memory"], 10, 64) // checked
		n := c.nodes[v.node]
		if !slices.Contains(n.bridges, bridgeOf(v.conf["net0"])) || memory > n.memoryMiB {
			return "start failed: QEMU exited with code 1"
		}
		failure := c.runVM(v)
		if failure == "" && suspended {
			c.forget(v)
			delete(v.conf, "lock")
		}
		return failure
	}), nil
}

// suspend saves the memory of a VM, and ends its process, as in vm_suspend of PVE/API2/Qemu.pm and in
// PVE/QemuServer/RunState.pm.
func (c *Cluster) suspend(in request) (any, *apiError) {
	v, failed := c.load(in)
	if failed != nil {
		return nil, failed
	}
	if !v.isRunning() {
		return nil, die("VM %d not running", v.id)
	}
	if in.Get("todisk") != "1" {
		return nil, die("fakepve only suspends to disk")
	}
	if v.inHA {
		return nil, die("Cannot suspend HA managed VM to disk")
	}
	if failed := c.need(in, "/vms/"+in.Get("vmid"), "VM.Config.Disk"); failed != nil {
		return nil, failed
	}
	on := c.stateStorage(v)
	if failed := c.need(in, "/storage/"+on, "Datastore.AllocateSpace"); failed != nil {
		return nil, failed
	}
	return c.startTask(in, v.node, "qmsuspend", v.id, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if failed := v.checkLock(); failed != nil {
			return failed.text
		}
		if c.storages[on].full {
			return fmt.Sprintf("lvcreate 'pve/vm-%d-state-suspend-2026-01-01' error:   Cannot create new thin volume, "+
				"free space in thin pool pve/data reached threshold.", v.id)
		}
		volume := fmt.Sprintf("%s:vm-%d-state-suspend-2026-01-01", on, v.id)
		c.storages[on].volumes[c.volumeKey(v.node, on, volume)] = nil
		v.conf["lock"], v.conf["vmstate"], v.conf["runningmachine"] = "suspending", volume, "pc-q35-10.0+pve0"
		c.mu.Unlock()
		time.Sleep(taskTime)
		err := c.saveMemory(v)
		c.mu.Lock()
		if err != nil { // the VM runs on, and its lock stays
			c.forget(v)
			return fmt.Sprintf("query-savevm failed with error '%v'", err)
		}
		v.conf["lock"] = "suspended"
		return ""
	}), nil
}

// stateStorage returns the storage for the memory of a VM: a shared storage of its disks, or else another one.
func (c *Cluster) stateStorage(v *vm) string {
	found := "local"
	for _, volume := range v.drives() {
		on, _, _ := strings.Cut(volume, ":")
		if found == "local" || c.storages[on].shared {
			found = on
		}
	}
	return found
}

// forget removes the saved memory of a VM.
func (c *Cluster) forget(v *vm) {
	if volume := v.conf["vmstate"]; volume != "" {
		c.free(v, volume)
	}
	delete(v.conf, "vmstate")
	delete(v.conf, "runningmachine")
}

// saveMemory saves the memory of a VM if it has a guest, and ends its process.
func (c *Cluster) saveMemory(v *vm) error {
	if c.guest.Kernel != "" {
		base := filepath.Join(c.guest.Dir, strconv.Itoa(v.id))
		monitor, err := net.Dial("unix", base+".monitor") //nolint:noctx // it exists
		if err != nil {
			return err
		}
		defer monitor.Close()
		_, err = fmt.Fprintf(monitor, "migrate \"exec:cat >%s.new && mv %[1]s.new %[1]s\"\nquit\n", base+".state")
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, monitor); err != nil { // until QEMU ends
			return err
		}
		if _, err := os.Stat(base + ".state"); err != nil {
			return err
		}
	} else {
		_ = v.process.Process.Kill() // it may end at the same time
	}
	<-v.exited
	return nil
}

// runVM starts the process of a VM.
func (c *Cluster) runVM(v *vm) string {
	command := exec.CommandContext(c.t.Context(), "sleep", "infinity")
	if c.guest.Kernel != "" {
		var err error
		if command, err = c.qemu(v); err != nil {
			return "start failed: " + err.Error()
		}
	}
	if err := command.Start(); err != nil {
		return "start failed: " + err.Error()
	}
	exited := make(chan struct{})
	v.process, v.exited = command, exited
	c.running.Go(func() {
		_ = command.Wait() // it is killed
		close(exited)
	})
	return ""
}

// qemu returns the command that boots the guest of a VM. QEMU emulates the processor, so it does not need KVM.
func (c *Cluster) qemu(v *vm) (*exec.Cmd, error) {
	base := filepath.Join(c.guest.Dir, strconv.Itoa(v.id))
	volume, _, _ := strings.Cut(v.conf["ide2"], ",")
	if on, _, isVolume := strings.Cut(volume, ":"); isVolume {
		iso := c.storages[on].volumes[c.volumeKey(v.node, on, volume)]
		if err := os.WriteFile(base+".iso", iso, 0o600); err != nil {
			return nil, err
		}
	}
	smbios := "type=1"
	for field := range strings.SplitSeq(v.conf["smbios1"], ",") {
		name, value, _ := strings.Cut(field, "=")
		if text, err := base64.StdEncoding.DecodeString(value); err == nil && name != "uuid" && name != "base64" {
			value = string(text)
		}
		if name != "base64" {
			smbios += "," + name + "=" + value
		}
	}
	args := []string{"-name", v.conf["name"], "-nodefaults",
		"-display", "none", "-no-reboot", "-machine", "q35", "-accel", "tcg,tb-size=48", "-cpu", "max",
		"-m", v.conf["memory"], "-smp", v.conf["cores"], "-kernel", c.guest.Kernel, "-initrd", c.guest.Initrd,
		"-append", "console=ttyS0 quiet panic=1", "-smbios", smbios,
		"-chardev", "file,id=log,append=on,path=" + base + ".log", "-serial", "chardev:log",
		"-device", "virtio-scsi-pci",
		"-drive", "if=none,id=seed,media=cdrom,readonly=on,format=raw,file=" + base + ".iso",
		"-device", "scsi-cd,drive=seed", "-netdev", "user,id=net0", "-device", "virtio-net-pci,netdev=net0",
		"-monitor", "unix:" + base + ".monitor,server=on,wait=off"}
	if v.conf["lock"] == "suspended" {
		args = append(args, "-incoming", "exec:cat "+base+".state && rm "+base+".state")
	}
	return exec.CommandContext(c.t.Context(), "qemu-system-x86_64", args...), nil
}

func (c *Cluster) stop(in request) (any, *apiError) {
	id, _ := strconv.Atoi(in.Get("vmid")) // checked
	return c.startTask(in, in.Get("node"), "qmstop", id, func() string {
		c.mu.Lock()
		v, failed := c.load(in)
		var exited chan struct{}
		if failed == nil && v.isRunning() {
			failed = v.checkLock()
		}
		if failed == nil && v.isRunning() {
			kill := func() { _ = v.process.Process.Kill() } // it may end at the same time
			if v.inHA {
				time.AfterFunc(50*taskTime, kill)
			} else {
				kill()
				exited = v.exited
			}
		}
		c.mu.Unlock()
		if failed != nil {
			return failed.text
		}
		if exited != nil {
			<-exited
		}
		return ""
	}), nil
}

func (c *Cluster) destroy(in request) (any, *apiError) {
	v, failed := c.load(in)
	switch {
	case failed != nil:
		return nil, failed
	case v.conf["protection"] == "1":
		return nil, die("can't remove VM %d - protection mode enabled", v.id)
	case v.inHA && in.Get("purge") != "1":
		return nil, die("unable to remove VM %d - used in HA resources and purge parameter not set.", v.id)
	case v.isRunning():
		return nil, die("VM %d is running - destroy failed", v.id)
	}
	return c.startTask(in, v.node, "qmdestroy", v.id, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if failed := v.checkLock(); failed != nil && v.conf["lock"] != "suspended" {
			return failed.text
		}
		c.forget(v)
		for _, volume := range v.drives() {
			c.free(v, volume)
		}
		delete(c.vms, v.id)
		return ""
	}), nil
}
