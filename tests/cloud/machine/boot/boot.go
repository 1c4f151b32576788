// Package boot defines the data that the runner passes to a machine's first process.
//
// Invariant: the data is passed once, through an unnamed file, so that no other process can read it.
package boot

import (
	"github.com/nstance-kit/nstance/tests/cloud/machine/networkd"
	"github.com/nstance-kit/nstance/tests/cloud/machine/rootfs"
)

// The first process of a machine inherits files with these descriptors. Its standard output is the machine's log.
const (
	// Spec is the descriptor of a file with the [Config] in JSON.
	Spec = 3 + iota
	// Ready is the descriptor of a pipe that init closes when it listens.
	Ready
	// Lifeline is the descriptor for reading from a pipe. The other end of the pipe stays open until the runner process
	// ends.
	Lifeline
)

// Config describes a machine.
type Config struct {
	Tree       rootfs.Tree
	Hostname   string
	InstanceID string
	Userdata   []byte
	// Links are the network interfaces with which the machine starts.
	Links []networkd.Link
	// If Build is set, the machine does not boot. It runs the script in Userdata and ends with the script's exit code.
	Build bool
	// Environment is added to the environment of everything that the machine starts.
	Environment map[string]string
}
