package plan_test

import (
	"fmt"
	"testing"

	"github.com/nstance-kit/nstance/services/internal/proof/plantest"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

func group(n int) *plantest.Fleet {
	f := plantest.New(1)
	f.Spread = true
	f.Group.Size = n
	for range n {
		f.Add()
	}
	return f
}

// BenchmarkNext plans groups after various changes, such as none, the loss of all instances, or a new configuration.
func BenchmarkNext(b *testing.B) {
	cases := []struct {
		name  string
		spoil func(*plantest.Fleet)
	}{
		{"quiet", func(*plantest.Fleet) {}},
		{"one-notice", func(f *plantest.Fleet) { f.VMs[len(f.VMs)/2].Notice = true }},
		{"all-lost", func(f *plantest.Fleet) {
			for _, vm := range f.VMs {
				vm.Provider.Value = plan.ProviderGone
			}
		}},
		{"drifted", func(f *plantest.Fleet) { f.Group.InfraHash = "v2" }},
		{"half-the-size", func(f *plantest.Fleet) { f.Group.Size /= 2 }},
	}
	for _, size := range []int{100, 1000, 5000} {
		for _, c := range cases {
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				f := group(size)
				f.Snapshot()
				c.spoil(f)
				s := f.Snapshot()
				b.ReportAllocs()
				for b.Loop() {
					plan.Next(s)
				}
			})
		}
	}
}

// TestAllocations checks that a plan without actions allocates only its scratch space, for any group size. A plan that
// replaces one instance may allocate only a little more.
func TestAllocations(t *testing.T) {
	quiet := group(1000).Snapshot()
	if n := testing.AllocsPerRun(20, func() { plan.Next(quiet) }); n > 3 {
		t.Errorf("a quiet plan of 1000 allocates %v times", n)
	}
	f := group(1000)
	f.VMs[500].Notice = true
	one := f.Snapshot()
	if n := testing.AllocsPerRun(20, func() { plan.Next(one) }); n > 10 {
		t.Errorf("replacing one of 1000 allocates %v times", n)
	}
}
