package plan

import (
	"testing"

	"github.com/nstance-kit/nstance/services/internal/proof/mutate"
)

// mutant is a plausible mistake in the choice of a size.
type mutant struct {
	name string
	edit mutate.Edit
}

var mutants = []mutant{
	{"missing values are idle when the group would shrink", mutate.Edit{In: "Reading.wanted",
		Find:    "slices.Repeat([]int64{r.Target}, missing)",
		Replace: "make([]int64, missing)"}},
	{"booting instances are idle when the group would shrink", mutate.Edit{In: "Reading.wanted",
		Find:    "r.Unready > 0 && ratio > 1",
		Replace: "r.Unready > 0"}},
	{"booting instances do not count when the group would grow", mutate.Edit{In: "Reading.wanted",
		Find:    "r.Unready > 0 && ratio > 1",
		Replace: "r.Unready < 0 && ratio > 1"}},
	{"instances that settle do not count", mutate.Edit{In: "Reading.wanted",
		Find:    "r.Missing + r.Settling",
		Replace: "r.Missing"}},
	{"any number of values may be missing", mutate.Edit{In: "Reading.wanted",
		Find:    "r.Missing > ready",
		Replace: "r.Missing < 0"}},
	{"rounded down", mutate.Edit{In: "Reading.wanted",
		Find:    "int(math.Ceil(ratio * float64(ready)))",
		Replace: "int(ratio * float64(ready))"}},
	{"no tolerance", mutate.Edit{In: "within",
		Find:    "1-tolerance <= ratio && ratio <= 1+tolerance",
		Replace: "ratio == 1 && tolerance >= 0"}},
	{"the smallest metric wins", mutate.Edit{In: "Scale",
		Find:    "m.Wanted > d.Wanted",
		Replace: "m.Wanted < d.Wanted"}},
	{"a metric that fails does not hinder shrinking", mutate.Edit{In: "Scale",
		Find:    "!known || d.Wanted < in.Size",
		Replace: "!known"}},
	{"a new leader shrinks at once", mutate.Edit{In: "ScalingDecision.window",
		Find:    "in.Since.Add(down)",
		Replace: "in.Since"}},
	{"the smallest size of the window down", mutate.Edit{In: "ScalingDecision.window",
		Find:    "a.Size >= most",
		Replace: "a.Size <= most"}},
	{"no step up", mutate.Edit{In: "ScalingDecision.window",
		Find:    "size > most",
		Replace: "size < 0"}},
	{"no step down", mutate.Edit{In: "ScalingDecision.window",
		Find:    "size < least",
		Replace: "size < 0"}},
	{"no largest size", mutate.Edit{In: "ScalingDecision.window",
		Find:    "size > p.Max || a",
		Replace: "size < 0"}},
}

// TestMutantsApply checks that every mutant still matches the source. TestMutants, with the build tag mutation, runs
// them.
func TestMutantsApply(t *testing.T) {
	for _, m := range mutants {
		if _, err := m.edit.WriteOverlay(".", t.TempDir()); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
