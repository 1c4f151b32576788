// Package libvirtd starts a real libvirtd for tests: in its own directory and its own mount, network and process
// namespaces, so that it touches nothing of the machine. It needs root, libvirtd and QEMU. VMs run without hardware
// support, because a test machine often has none.
package libvirtd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Daemon is a running libvirtd with an empty storage pool "default" and the networks "a" and "b". Its methods end the
// test on failure.
type Daemon struct {
	// Socket is the path of the daemon's socket, and Pool the directory of its storage pool, both on this machine.
	Socket, Pool string

	dir        string
	init       *exec.Cmd // process 1 of the namespaces
	namespaces []string  // names of the namespaces, as options of unshare and nsenter
}

// packages are the Debian packages that the tests need.
const packages = "libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 qemu-utils dnsmasq-base"

// setup prepares the namespaces. The daemon's directories are those of dir. The user of QEMU must exist.
const setup = `set -e
mount --make-rprivate /
for path in etc/libvirt var/lib/libvirt run/libvirt var/cache/libvirt var/log/libvirt; do
	mkdir -p "$1/$path" "/$path"
	mount --bind "$1/$path" "/$path"
done
for file in passwd group; do
	cp "/etc/$file" "$1/$file"
done
echo 'libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin' >>"$1/passwd"
printf 'libvirt-qemu:x:64055:\nkvm:x:64056:\n' >>"$1/group"
for file in passwd group; do
	mount --bind "$1/$file" "/etc/$file"
done
ip link set lo up
touch "$1/ready"
# Process 1 of a namespace must wait for orphaned processes.
while :; do
	sleep 1000000 &
	wait
done
`

// qemuConf runs QEMU as root without cgroups, so that the tests need no systemd.
const qemuConf = `user = "root"
group = "root"
dynamic_ownership = 0
stdio_handler = "file"
security_driver = "none"
namespaces = []
cgroup_controllers = []
`

const libvirtdConf = `auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
`

// network is a network with DHCP. Its bridge forwards immediately, and its DHCP server does not probe addresses.
const network = `<network xmlns:dnsmasq="http://libvirt.org/schemas/network/dnsmasq/1.0">
  <name>%[1]s</name><forward mode="open"/><bridge name="nst-%[1]s" stp="off" delay="0"/>
  <ip address="10.77.%[2]d.1" netmask="255.255.255.0">
    <dhcp><range start="10.77.%[2]d.2" end="10.77.%[2]d.254"/></dhcp>
  </ip>
  <dnsmasq:options><dnsmasq:option value="no-ping"/></dnsmasq:options>
</network>`

const pool = `<pool type="dir"><name>default</name><target><path>%s</path></target></pool>`

// startTimeout bounds the start of the namespaces and of the daemon, on a busy machine.
const startTimeout = time.Minute

// Start starts a daemon, which ends with the test.
func Start(t testing.TB) *Daemon {
	t.Helper()
	return start(t, "--mount", "--pid", "--net")
}

// StartInNetwork starts a daemon in the network namespace of this process, so that programs outside of the VMs reach
// them. The addresses of the hosts in the networks "a" and "b" are [Gateway] and 10.77.2.1.
func StartInNetwork(t testing.TB) *Daemon {
	t.Helper()
	return start(t, "--mount", "--pid")
}

// Gateway is the address of the host in the network "a".
const Gateway = "10.77.1.1"

func start(t testing.TB, namespaces ...string) *Daemon {
	t.Helper()
	for _, program := range []string{"libvirtd", "qemu-system-x86_64", "qemu-img", "virsh", "dnsmasq", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: on Debian, apt-get install --no-install-recommends %s", err, packages)
		}
	}
	// The path of the socket must be short: a socket address has 108 bytes.
	dir, err := os.MkdirTemp("", "libvirt") //nolint:usetesting // t.TempDir is longer
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &Daemon{dir: dir, namespaces: namespaces, Socket: filepath.Join(dir, "run/libvirt/libvirt-sock"),
		Pool: filepath.Join(dir, "var/lib/libvirt/images")}
	d.init = exec.CommandContext(context.WithoutCancel(t.Context()), "unshare", "--mount", "--net", "--pid", "--fork",
		"--kill-child", "--mount-proc",
		"sh", "-c", setup, "sh", dir)
	var output bytes.Buffer
	d.init.Stdout, d.init.Stderr = &output, &output
	d.init.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := d.init.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-d.init.Process.Pid, syscall.SIGKILL)
		_ = d.init.Wait() // it was killed
		if t.Failed() {
			t.Logf("namespaces: %s", output.String())
			log, _ := os.ReadFile(filepath.Join(dir, "libvirtd.log")) //nolint:gosec // our own file
			t.Logf("libvirtd: %s", log)
		}
	})
	await(t, "the namespaces", func() error { _, err := os.Stat(filepath.Join(dir, "ready")); return err })
	for name, text := range map[string]string{"qemu.conf": qemuConf, "libvirtd.conf": libvirtdConf} {
		if err := os.WriteFile(filepath.Join(dir, "etc/libvirt", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(d.Pool, 0o711); err != nil { //nolint:gosec // as libvirt's own directory
		t.Fatal(err)
	}
	d.StartDaemon(t)
	d.define(t, "pool", fmt.Sprintf(pool, "/var/lib/libvirt/images"), "default")
	d.define(t, "net", fmt.Sprintf(network, "a", 1), "a")
	d.define(t, "net", fmt.Sprintf(network, "b", 2), "b")
	return d
}

func (d *Daemon) define(t testing.TB, kind, text, name string) {
	t.Helper()
	file := filepath.Join(d.dir, name+".xml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{kind + "-define", file}, {kind + "-start", name}, {kind + "-autostart", name}} {
		d.Virsh(t, args...)
	}
}

// URI returns the address of the daemon for a client on this machine.
func (d *Daemon) URI() string { return "qemu:///system?socket=" + d.Socket }

// Virsh runs a command of virsh and returns its output.
func (d *Daemon) Virsh(t testing.TB, args ...string) string {
	t.Helper()
	out, err := d.Enter(t.Context(), append([]string{"virsh", "-c", "qemu:///system"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("virsh %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Enter returns a command that runs in the namespaces of the daemon.
func (d *Daemon) Enter(ctx context.Context, args ...string) *exec.Cmd {
	target := strconv.Itoa(d.firstProcess())
	return exec.CommandContext(ctx, "nsenter", slices.Concat([]string{"--target", target}, d.namespaces, []string{"--"},
		args)...)
}

// firstProcess returns the process ID, on this machine, of process 1 of the namespaces.
func (d *Daemon) firstProcess() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", d.init.Process.Pid))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text))) // 0: nsenter fails
	return pid
}

// StartDaemon starts libvirtd, also after [Daemon.KillDaemon].
func (d *Daemon) StartDaemon(t testing.TB) {
	t.Helper()
	const start = `setsid libvirtd >>"$1/libvirtd.log" 2>&1 </dev/null & echo $! >"$1/libvirtd.pid"`
	out, err := d.Enter(t.Context(), "sh", "-c", start, "sh", d.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("start libvirtd: %v: %s", err, out)
	}
	await(t, "libvirtd", func() error {
		out, err := d.Enter(t.Context(), "virsh", "-c", "qemu:///system", "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// KillDaemon kills libvirtd. VMs go on.
func (d *Daemon) KillDaemon(t testing.TB) { d.signal(t, "KILL") }

// StopDaemon stops libvirtd, so that it does not answer, until [Daemon.ContinueDaemon].
func (d *Daemon) StopDaemon(t testing.TB) { d.signal(t, "STOP") }

// ContinueDaemon ends what [Daemon.StopDaemon] began.
func (d *Daemon) ContinueDaemon(t testing.TB) { d.signal(t, "CONT") }

func (d *Daemon) signal(t testing.TB, signal string) {
	t.Helper()
	out, err := d.Enter(t.Context(), "sh", "-c", `kill -"$2" "$(cat "$1/libvirtd.pid")"`, "sh", d.dir,
		signal).CombinedOutput()
	if err != nil {
		t.Fatalf("send SIG%s to libvirtd: %v: %s", signal, err, out)
	}
}

// KillVM kills the QEMU process of a domain, and returns when it has ended.
func (d *Daemon) KillVM(t testing.TB, name string) {
	t.Helper()
	const script = `set -e
		pid=$(cat "/run/libvirt/qemu/$1.pid")
		kill -9 "$pid"
		while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done`
	if out, err := d.Enter(t.Context(), "sh", "-c", script, "sh", name).CombinedOutput(); err != nil {
		t.Fatalf("kill the VM %s: %v: %s", name, err, out)
	}
}

func await(t testing.TB, what string, ready func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not ready within %s: %v", what, startTimeout, err)
		case <-tick.C:
		}
	}
}
