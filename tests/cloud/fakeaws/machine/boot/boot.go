// Package boot owns what the runner hands to a machine's first process.
//
// Invariant: it is handed over once, through a file without a name, so that nothing of it can be read from outside.
package boot

import "github.com/nstance-kit/nstance/tests/cloud/fakeaws/machine/rootfs"

// File descriptors of the first process. Its standard output is the machine's log.
const (
	// Spec is a file with the [Config] in JSON.
	Spec = 3 + iota
	// Ready is closed when init listens.
	Ready
	// Lifeline ends when the runner does.
	Lifeline
)

// Config says what the machine is.
type Config struct {
	Tree       rootfs.Tree
	Host       Host
	InstanceID string
	Userdata   []byte
	// Build runs Userdata in Environment and ends the machine with its exit code.
	Build       bool
	Environment []string
}

// Host is how the machine calls itself.
type Host struct{ Hostname, MachineID string }
