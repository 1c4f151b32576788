// Package contract defines the interfaces between a fake cloud and the machines of the cloud's instances.
package contract

import (
	"net/http"
	"net/netip"
)

// Machines runs instances as real machines. A cloud without Machines keeps instances as records only.
type Machines interface {
	// Start boots a machine and returns immediately. spec.Exited is called once if the machine ends before Stop is
	// called. It is never called after Stop.
	Start(spec Spec) (Machine, error)
}

// Machine is one running machine. A cloud may call its methods while the cloud's lock is held. The methods must not
// call functions of the cloud that take this lock.
type Machine interface {
	// Stop powers the machine off. It is idempotent and returns when no process of the machine is left.
	Stop()
	// Sleep shuts the machine down, so that all its processes end. With memory, the processes freeze instead. Sleep
	// returns when no process runs any more. The machine keeps its disk, and cannot be reached until Wake.
	Sleep(memory bool) error
	// Wake boots a machine that sleeps, or lets its frozen processes run on. The boot script does not run again.
	Wake() error
	// Plug hot-plugs a network interface. Unplug removes an interface.
	Plug(nic NIC) error
	Unplug(mac string) error
	// Console returns everything that the machine has written to its console, also after the machine has stopped.
	Console() []byte
}

// Spec describes a machine to boot.
type Spec struct {
	ID       string
	Hostname string // "": the ID
	Userdata []byte
	Image    string // the cloud's ID of the image
	// Hosts maps names to addresses. The machine's /etc/hosts contains these names and the machine's own name.
	Hosts   map[string]netip.Addr
	Primary NIC
	// DMI has the files of /sys/class/dmi/id that tell programs which cloud they run on.
	DMI map[string]string
	// Metadata serves http://169.254.169.254 inside the machine. The handler takes the cloud's lock itself, so the
	// caller must not hold it. If Metadata is nil, nothing listens at that address.
	Metadata http.Handler
	Exited   func()
}

// NIC is a machine's view of a network interface.
type NIC struct {
	MAC, VPC string
	// Addresses have the prefix length of the subnet.
	Addresses []netip.Prefix
	Index     int
	// SourceDestCheck is true if the network drops packets from the machine unless their source is in Addresses.
	SourceDestCheck bool
}
