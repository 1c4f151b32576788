package shards_test

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// TestSource checks that a controller that starts late gets the current state first and then every change.
func TestSource(t *testing.T) {
	set := shardstest.New("a", "b")
	a := set.Of("a")
	a.SetGroup(&nstancev1.GroupStatus{Group: "web", Size: 1})
	id := a.Instances("web")[0].GetInstanceId()
	a.Drain(id, "expired", fleettest.Now)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	name := func(c shards.Change) types.NamespacedName {
		return types.NamespacedName{Namespace: c.Shard, Name: []string{"", "state", "group", "instance", "drain",
			"error"}[c.Kind] + c.Group + c.Instance}
	}
	source := shards.Source(set, func(c shards.Change) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: name(c)}}
	})
	if err := source.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	var got []string
	next := func(n int) {
		t.Helper()
		got = nil
		for range n {
			taken := make(chan reconcile.Request, 1)
			go func() { request, _ := queue.Get(); taken <- request }()
			select {
			case request := <-taken:
				got = append(got, request.String())
				queue.Done(request)
			case <-time.After(10 * time.Second):
				t.Fatalf("only %v", got)
			}
		}
		slices.Sort(got)
	}
	next(4)
	if want := []string{"a/drainweb" + id, "a/groupweb", "a/state", "b/state"}; !slices.Equal(got, want) {
		t.Errorf("what holds: %v, want %v", got, want)
	}
	set.Of("b").SetState(func(s *shards.State) { s.Reachable = false })
	next(1)
	if !slices.Equal(got, []string{"b/state"}) {
		t.Errorf("a change: %v", got)
	}
}
