// Package contract defines what a fake cloud and the machines of its instances know of each other.
package contract

import (
	"net/http"
	"net/netip"
)

// Machines runs instances as real machines. A cloud without Machines keeps instances as records only.
type Machines interface {
	// Start boots a machine and returns immediately. The machine calls spec.Exited once if its init exits without Stop
	// (a power-off), and never after Stop.
	Start(spec Spec) (Machine, error)
}

// Machine is one running machine. Its methods may be called with the cloud's lock held, so they must not call back into
// the cloud.
type Machine interface {
	// Stop powers the machine off. It is idempotent and returns when no process of the machine is left.
	Stop()
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
	// Hosts are names in the machine's /etc/hosts besides its own, with their addresses.
	Hosts   map[string]netip.Addr
	Primary NIC
	// DMI has the files of /sys/class/dmi/id that tell programs which cloud they run on.
	DMI map[string]string
	// Metadata serves http://169.254.169.254 inside the machine. It takes the cloud's lock itself. Nil: nothing
	// listens.
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
