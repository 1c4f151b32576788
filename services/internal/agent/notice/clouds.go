package notice

import (
	"context"
	"io/fs"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// NoCloud is the name for a machine that is not a VM of any of the [Clouds].
const NoCloud = "none"

// Clouds returns the clouds that the agent recognizes, in the order of their detection. To add a cloud, add it here.
func Clouds() []Cloud { return []Cloud{aws, gcp, proxmox} }

// Cloud describes the VMs of a cloud to the agent.
type Cloud struct {
	// Name is the cloud's name in the shard configuration.
	Name string
	// Detect reports whether this machine is a VM of the cloud.
	Detect func(Firmware) bool
	// NewSource returns the source of the cloud's notices. The field is nil if the cloud gives no notices.
	NewSource func(Options) Source
	// Attest returns a proof that identifies the VM. The agent sends the proof when it registers its instance. The
	// field is nil if the cloud gives no proofs.
	Attest func(ctx context.Context, o Options, instance string) ([]byte, error)
	// Member returns the instance of a batch whose VM this machine is. The field is nil if the cloud creates no
	// batches.
	Member func(ctx context.Context, o Options, batch ident.Batch) (ident.ID, error)
}

// Source watches for the cloud's notices about the VM.
type Source interface {
	// Watch calls the function `notice` whenever the cloud's notices change, one call after the other. Watch returns
	// when ctx ends, or with an error if there is nothing to watch. Watch must not run concurrently with itself.
	Watch(ctx context.Context, notice func(Notices)) error
}

// Firmware reads the tables of a machine's firmware from /sys/class/dmi/id.
type Firmware struct{ fs.FS }

// Value returns the value with the given name, or "" if the firmware does not have it.
func (f Firmware) Value(name string) string {
	text, err := fs.ReadFile(f, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Names returns the names of the clouds and [NoCloud].
func Names() []string {
	var names []string
	for _, cloud := range Clouds() {
		names = append(names, cloud.Name)
	}
	return append(names, NoCloud)
}

// Find returns the cloud with the given name, or the detected cloud if name is empty. If there is no such cloud, it
// returns one with the name [NoCloud].
func Find(name string, firmware Firmware) Cloud {
	for _, cloud := range Clouds() {
		if cloud.Name == name || name == "" && cloud.Detect(firmware) {
			return cloud
		}
	}
	return Cloud{Name: NoCloud}
}
