package config

import (
	"fmt"
	"hash/fnv"
)

// ID identifies where a number is read: the port, the path, and the metric or the pointer. Agents report numbers by
// their IDs, so that a changed target changes nothing for them.
func (v *ScalingVM) ID() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %q %q %q", v.Port, v.Path, v.Metric, v.JSON)
	return h.Sum64()
}

// VMNumbers returns the numbers that the agents of the group must read, each once.
func (g *Group) VMNumbers() (numbers []*ScalingVM) {
	if g.Scaling == nil {
		return nil
	}
	seen := map[uint64]bool{}
	for _, m := range g.Scaling.Metrics {
		if m.VM != nil && !seen[m.VM.ID()] {
			seen[m.VM.ID()] = true
			numbers = append(numbers, m.VM)
		}
	}
	return numbers
}
