package shards_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

// TestTypes checks that the capacity of a type is the provider's, that a shard is asked again for a type without one
// after a minute, and that a shard without an answer is told from a provider that does not know the type.
func TestTypes(t *testing.T) {
	shard, now := shardstest.New("a").Of("a"), shardstest.Start
	types := shards.Types{Now: func() time.Time { return now }}
	want := func(what, instanceType, memory string, wantKnown bool) {
		t.Helper()
		capacity, known := types.Capacity(t.Context(), shard, instanceType)
		got := ""
		if capacity != nil {
			got = capacity.Memory().String()
		}
		if got != memory || known != wantKnown {
			t.Errorf("%s: %v, %t", what, capacity, known)
		}
	}
	reachable := func(is bool) { shard.SetState(func(s *shards.State) { s.Reachable = is }) }
	reachable(false)
	want("unreachable", "m5.large", "", false)
	reachable(true)
	want("known type", "m5.large", "8Gi", true)
	want("no type", "", "", true)
	want("unknown type", "toaster", "", true)
	shard.SetType("toaster", 1, 512)
	shard.SetType("m5.large", 1, 512)
	want("asked already", "toaster", "", true)
	now = now.Add(time.Minute)
	want("asked again", "toaster", "512Mi", true)
	reachable(false)
	want("unreachable later", "m5.large", "8Gi", true)
	reachable(true)
	for _, mib := range []uint64{0, 1 << 31} {
		shard.SetType("odd", 1, mib)
		want("impossible size", "odd", "", true)
		now = now.Add(time.Minute)
	}
}
