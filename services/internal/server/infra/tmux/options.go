package tmux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/tmux"
)

// resolve makes paths absolute and locates the agent.
func resolve(o *contract.Options) error {
	for _, path := range []*string{&o.Dir, &o.NodesDir, &o.Socket} {
		if *path == "" || path == &o.Socket && !strings.Contains(o.Socket, "/") {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("tmux provider: %w", err)
		}
		*path = abs
	}
	if o.Command != "" {
		return nil
	}
	candidates := []string{o.Agent}
	if o.Agent == "" {
		candidates = []string{filepath.Join("bin", "nstance-agent"), "nstance-agent"}
		if self, err := os.Executable(); err == nil {
			candidates = slices.Insert(candidates, 0, filepath.Join(filepath.Dir(self), "nstance-agent"))
		}
	}
	for _, path := range candidates {
		found, err := exec.LookPath(path)
		if err != nil {
			continue
		}
		if found, err = filepath.Abs(found); err == nil {
			o.Agent = found
			return nil
		}
	}
	return fmt.Errorf("tmux provider: no nstance-agent at %s: build it, or set the option \"agent\"",
		strings.Join(candidates, ", "))
}
