// Package libvirtd starts a real libvirtd for development and tests. The daemon has its own directory, mount namespace
// and process namespace, so that it uses no files of the machine's libvirtd. The package needs Linux, root, libvirtd
// and QEMU. QEMU emulates the CPU of the VMs, because the machine may lack hardware virtualization.
package libvirtd

import (
	"os"
	"path/filepath"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// Options are the options of [Start].
type Options struct {
	// Dir is the directory of everything that the daemon writes. Its path must be short, because a socket address has
	// at most 108 bytes.
	Dir string
	// OwnNetwork gives the daemon a network namespace too. Without it, programs on this machine can reach the VMs.
	OwnNetwork bool
	// Detached lets the daemon outlive this process.
	Detached bool
}

// The network "a": its bridge, the address of the host, and the prefix of all addresses. DHCP does not assign addresses
// from .200 on.
const (
	Bridge  = "nst-a"
	Gateway = Free + "1"
	Free    = "10.77.1."
)

// Guest is the system that VMs boot from a storage pool: the kernel and the initrd that images/local/guest.sh builds.
type Guest struct {
	// URI is the address of the daemon.
	URI string
	// Version is the version of the guest. It is part of the names of the guest's files.
	Version string
	// Leader is the IP address that the leader announces by ARP.
	Leader string
}

// Configure edits the shard's configuration, so that the VMs of the given template boot the guest in the network "a".
func (g Guest) Configure(c *config.Shard, template string) {
	c.Server.LeaderNetwork = &config.LeaderNetwork{Kind: "arp", IPv4: g.Leader}
	c.Server.Provider.Kind = "libvirt"
	c.Server.Provider.Options = map[string]string{"hosts": "local=" + g.URI, "domain_type": "qemu"}
	c.Server.SubnetPools = map[string][]string{"local": {"local/a"}}
	t := c.Templates[template]
	t.InstanceType = "1x160"
	t.Args = map[string]any{"kernel": "vmlinuz-" + g.Version, "initrd": "initrd-" + g.Version,
		"cmdline": "console=ttyS0 quiet panic=1"}
	c.Templates[template] = t
}

// Socket returns the path of the socket of the daemon whose directory is dir.
func Socket(dir string) string { return filepath.Join(dir, "run/libvirt/libvirt-sock") }

// poolPath returns the directory of the storage pool of the daemon whose directory is dir.
func poolPath(dir string) string { return filepath.Join(dir, "var/lib/libvirt/images") }

// URI returns the libvirt URI of the daemon whose directory is dir. Clients on this machine can use it.
func URI(dir string) string { return "qemu:///system?socket=" + Socket(dir) }

// AddGuest copies a guest from the directory `guest` to the storage pool of the daemon whose directory is `dir`.
func AddGuest(dir, guest, version string) error {
	for _, name := range []string{"vmlinuz", "initrd"} {
		content, err := os.ReadFile(filepath.Join(guest, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(poolPath(dir), name+"-"+version), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// packages are the Debian packages that a daemon needs.
const packages = "libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 qemu-utils dnsmasq-base " +
	"iproute2"

// setup is the script that prepares the daemon's namespaces. It mounts directories in $1 over those of the machine. It
// also mounts copies of the passwd and group files with the users and groups that libvirtd needs.
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

// qemuConf runs QEMU as root without cgroups, so that systemd is not needed.
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

// network defines a network with DHCP. Its bridge forwards packets without the usual delay. Its DHCP server does not
// probe addresses before it assigns them.
const network = `<network xmlns:dnsmasq="http://libvirt.org/schemas/network/dnsmasq/1.0">
  <name>%[1]s</name><forward mode="open"/><bridge name="nst-%[1]s" stp="off" delay="0"/>
  <ip address="10.77.%[2]d.1" netmask="255.255.255.0">
    <dhcp><range start="10.77.%[2]d.2" end="10.77.%[2]d.199"/></dhcp>
  </ip>
  <dnsmasq:options><dnsmasq:option value="no-ping"/></dnsmasq:options>
</network>`

const pool = `<pool type="dir"><name>default</name><target><path>%s</path></target></pool>`
