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

// scenario imports a group and scales it. It then adds a pool as a user does, removes a shard from the pool, and
// deletes the pool. After each step, the operator makes several passes.
var scenario = []func(user *randomUser){
	func(user *randomUser) {
		user.shards.Of("a").SetGroup(staticGroup("web", 2))
		user.shards.Of("b").SetGroup(staticGroup("web", 3))
	},
	func(user *randomUser) {
		user.scale("web", 8)
		user.newPool("db", 3, v1beta1.NstanceMachinePoolSpec{Group: "db", Shards: []string{"a", "b", "c"},
			Config: jsonOf(`{"template":"worker","instance_type":"m5.large"}`)})
	},
	func(user *randomUser) {
		pool := user.pool("db")
		user.change(pool, func() { pool.Spec.Shards, pool.Spec.Config = []string{"b", "c"}, fromWorker() })
	},
	func(user *randomUser) { user.deletePool("db") },
}

// replayKilled runs the scenario with an operator that is killed at its nth effect (a write or a call) and replaced by
// a new one. It reports whether there was an nth effect.
func replayKilled(t *testing.T, n int) bool {
	t.Helper()
	op := newSimulatedOperator(t, testShards...)
	user := &randomUser{simulatedOperator: op, unreachable: map[string]bool{}}
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
	op.onWrite = effect
	for _, id := range testShards {
		op.shards.Of(id).Fail(op.recordCalls(id, func(method string) error {
			if effect(method+" "+id) != nil {
				return status.Error(codes.Unavailable, "killed")
			}
			return nil
		}))
	}
	for i, step := range scenario {
		step(user)
		for before := -1; before != count; {
			before = count
			_ = op.reconcileAll()
			if dead {
				dead = false
				op.importer, op.pools, op.groups, op.machines = newImporter(op.groups.pools),
					&poolReconciler{op.groups.pools},
					newGroupReconciler(op.groups.pools), &machineReconciler{op.groups.pools}
			}
		}
		op.settle()
		user.deleteOldMachines()
		op.settle()
		if wrong := user.differences(); len(wrong) > 0 {
			t.Fatalf("killed at effect %d, %q, in step %d:\n%s", n, at, i, fmt.Sprint(wrong))
		}
	}
	if diff := cmp.Diff(map[string]uint32{"a": 4, "b": 4}, op.sizes("web")); diff != "" {
		t.Fatalf("killed at effect %d, %q: %s", n, at, diff)
	}
	if len(op.sizes("db")) != 0 || op.exists("db", &v1beta1.NstanceMachinePool{}) {
		t.Fatalf("killed at effect %d, %q: the deleted pool is still there: %v", n, at, op.sizes("db"))
	}
	return count >= n
}

// TestKilledAnywhere kills the operator at each write and call. A new operator must reach the same result.
func TestKilledAnywhere(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 12
	}
	n := 1
	for replayKilled(t, n) {
		n += step
	}
	if n < 60 {
		t.Errorf("the story has only %d effects", n)
	}
	t.Logf("killed at each of %d effects", n)
}
