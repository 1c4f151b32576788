package shardstate

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// ScaledGroup is a group whose size the leader chooses, with the numbers of its instances.
type ScaledGroup struct {
	config.Group
	// Size is the present size, and Least the smallest permitted one.
	Size, Least int
	Instances   []InstanceNumbers
}

// InstanceNumbers is what an instance last told about itself. Metrics are unknown if their MemoryTotal is zero.
type InstanceNumbers struct {
	ID      ident.ID
	Healthy bool
	// LastReport is zero if this leader has no report.
	LastReport time.Time
	Metrics    Metrics
}

// Number returns a metric by which a group is scaled, in the unit of its target. problem says why it is unknown; "": it
// is known. pending means that it is unknown because the agent has not read it yet.
func (m *Metrics) Number(metric *config.ScalingMetric) (value float64, problem string, pending bool) {
	switch {
	case metric.VM != nil:
		id := metric.VM.ID()
		i := slices.IndexFunc(m.VM, func(n VMNumber) bool { return n.ID == id })
		switch {
		case i < 0:
			return 0, "its agent does not report it; if this lasts, the agent is too old", true
		case m.VM[i].Pending:
			return 0, "its agent has not read it yet", true
		}
		value, problem = m.VM[i].Value, m.VM[i].Problem
	case m.MemoryTotal == 0:
		problem = "its agent does not report it"
	case metric.CPU != nil:
		value = 100 * float64(m.CPU)
	case metric.Memory != nil:
		value = 100 * float64(m.MemoryUsed) / float64(m.MemoryTotal)
	case metric.Network != nil && max(m.ReceiveRate, m.TransmitRate) < 0:
		problem = "its agent watches no network interface (NSTANCE_METRICS_INTERFACE)"
	case metric.Network != nil:
		value = float64(max(m.ReceiveRate, m.TransmitRate))
	}
	if problem == "" && !(value >= 0 && value <= plan.MaxScalingValue) {
		value, problem = 0, fmt.Sprintf("its agent reports the value %v", value)
	}
	return value, problem, false
}

// ScaledGroups returns the groups whose size the leader chooses, with the instances that count towards their sizes. The
// groups are sorted by key.
func (s *State) ScaledGroups() (out []ScaledGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(s.groups), compareKeys) {
		if g, ok := s.scaledGroup(key); ok {
			out = append(out, g)
		}
	}
	return out
}

// ScaledGroup returns a group whose size the leader chooses.
func (s *State) ScaledGroup(key config.GroupKey) (ScaledGroup, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scaledGroup(key)
}

func (s *State) scaledGroup(key config.GroupKey) (ScaledGroup, bool) {
	g := s.groups[key]
	if g == nil || g.Scaling == nil || g.Deleted {
		return ScaledGroup{}, false
	}
	now := s.opts.Now()
	scaled := ScaledGroup{Group: g.Group, Least: g.LeastAt(now)}
	scaled.Size, _ = g.SizeAt(now)
	for _, inst := range g.instances {
		if p := &inst.plan; plan.Counts(p) {
			scaled.Instances = append(scaled.Instances, InstanceNumbers{p.ID, p.Healthy, p.LastReport,
				inst.report.Metrics})
		}
	}
	return scaled, true
}

// NoteScaling records the last choice of a group's size, for display.
func (s *State) NoteScaling(key config.GroupKey, d plan.ScalingDecision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[key]; g != nil {
		g.scaling = &d
	}
}
