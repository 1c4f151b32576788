package plan_test

import (
	"fmt"
	"testing"

	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/plan/plantest"
)

func group(n int) *plantest.World {
	w := plantest.New(1)
	w.Spread = true
	w.Group.Size = n
	for range n {
		w.Add()
	}
	return w
}

// Planning a quiet group, as after every event; one of which an instance was lost; one of which all were; one that
// rotates.
func BenchmarkNext(b *testing.B) {
	cases := []struct {
		name  string
		spoil func(*plantest.World)
	}{
		{"quiet", func(*plantest.World) {}},
		{"one-notice", func(w *plantest.World) { w.VMs[len(w.VMs)/2].Notice = true }},
		{"all-lost", func(w *plantest.World) {
			for _, vm := range w.VMs {
				vm.Provider.Value = plan.ProviderGone
			}
		}},
		{"drifted", func(w *plantest.World) { w.Group.InfraHash = "v2" }},
		{"half-the-size", func(w *plantest.World) { w.Group.Size /= 2 }},
	}
	for _, size := range []int{100, 1000, 5000} {
		for _, c := range cases {
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				w := group(size)
				w.Snapshot()
				c.spoil(w)
				s := w.Snapshot()
				b.ReportAllocs()
				for b.Loop() {
					plan.Next(s)
				}
			})
		}
	}
}

// A quiet plan of any size allocates its scratch space and nothing else; a plan that replaces all allocates per action
// only.
func TestAllocations(t *testing.T) {
	quiet := group(1000).Snapshot()
	if n := testing.AllocsPerRun(20, func() { plan.Next(quiet) }); n > 3 {
		t.Errorf("a quiet plan of 1000 allocates %v times", n)
	}
	w := group(1000)
	w.VMs[500].Notice = true
	one := w.Snapshot()
	if n := testing.AllocsPerRun(20, func() { plan.Next(one) }); n > 10 {
		t.Errorf("replacing one of 1000 allocates %v times", n)
	}
}
