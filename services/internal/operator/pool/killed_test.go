package pool

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// story is an import, scaling, a pool of a user's own, a shard that leaves, and a deletion. Each step begins when pass
// has been called a few times.
var story = []func(p *player){
	func(p *player) {
		p.shards.Of("a").SetGroup(static("web", 2))
		p.shards.Of("b").SetGroup(static("web", 3))
	},
	func(p *player) {
		p.scale("web", 8)
		p.newPool("db", 3, v1beta1.NstanceMachinePoolSpec{Group: "db", Shards: []string{"a", "b", "c"},
			InstanceType: "m5.large"})
	},
	func(p *player) {
		pool := p.pool("db")
		p.change(pool, func() { pool.Spec.Shards, pool.Spec.InstanceType = []string{"b", "c"}, "" })
	},
	func(p *player) { p.deletePool("db") },
}

// killed runs the story with an operator that ends at its nth effect, a write or a call, and another that takes over
// where it was. It reports whether there was an nth effect.
func killed(t *testing.T, n int) bool {
	t.Helper()
	w := newWorld(t, testShards...)
	p := &player{world: w, lost: map[string]bool{}}
	count, dead, at := 0, false, ""
	effect := func(what string) error {
		if count++; count == n {
			dead, at = true, what
		}
		if dead {
			return errors.New("killed")
		}
		return nil
	}
	w.onWrite = effect
	for _, id := range testShards {
		w.shards.Of(id).Fail(w.counted(id, func(method string) error {
			if effect(method+" "+id) != nil {
				return status.Error(codes.Unavailable, "killed")
			}
			return nil
		}))
	}
	for i, step := range story {
		step(p)
		for before := -1; before != count; {
			before = count
			_ = w.pass()
			if dead {
				dead = false
				w.importer, w.pools, w.groups, w.machines = newImporter(w.groups.Options), newPools(w.groups.Options),
					newGroups(w.groups.Options), newMachines(w.groups.Options)
			}
		}
		w.settle()
		p.forget()
		w.settle()
		if wrong := p.check(); len(wrong) > 0 {
			t.Fatalf("killed at effect %d, %q, in step %d:\n%s", n, at, i, fmt.Sprint(wrong))
		}
	}
	if diff := cmp.Diff(map[string]uint32{"a": 4, "b": 4}, w.sizes("web")); diff != "" {
		t.Fatalf("killed at effect %d, %q: %s", n, at, diff)
	}
	if len(w.sizes("db")) != 0 || w.exists("db", &v1beta1.NstanceMachinePool{}) {
		t.Fatalf("killed at effect %d, %q: the deleted pool is still there: %v", n, at, w.sizes("db"))
	}
	return count >= n
}

// The operator may end at any write and any call: whoever takes over comes to the same.
func TestKilledAnywhere(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 12
	}
	n := 1
	for killed(t, n) {
		n += step
	}
	if n < 60 {
		t.Errorf("the story has only %d effects", n)
	}
	t.Logf("killed at each of %d effects", n)
}
