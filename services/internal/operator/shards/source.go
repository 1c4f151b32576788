package shards

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source adds requests to a controller's queue when a shard changes. The function requests returns the requests for a
// change. At the start, Source calls this function once for every shard, group and drain that exists. The function must
// not block, but may read a cache.
func Source(s Shards, requests func(Change) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		add := func(c Change) {
			if ctx.Err() != nil {
				return
			}
			for _, request := range requests(c) {
				queue.Add(request)
			}
		}
		s.Notify(add)
		go func() { // requests may read a cache that has yet to be filled
			for _, change := range currentState(s) {
				add(change)
			}
		}()
		return nil
	})
}

// currentState returns one change for every shard, group and drain that exists now.
func currentState(s Shards) (changes []Change) {
	for _, one := range s.All() {
		id := one.ID()
		changes = append(changes, Change{Shard: id, Kind: ShardState})
		for _, g := range one.Groups() {
			changes = append(changes, Change{Shard: id, Kind: GroupChanged, Group: g.GetGroup()})
		}
		for _, d := range one.Drains() {
			changes = append(changes, Change{Shard: id, Kind: DrainPending, Group: d.Instance.GetGroup(),
				Instance: d.Instance.GetInstanceId()})
		}
	}
	return changes
}
