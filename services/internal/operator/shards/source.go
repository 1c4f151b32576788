package shards

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source makes requests for a controller of the changes of shards. What holds already when the controller starts comes
// first, as changes of every shard, group and drain. requests must not block: it may read a cache, nothing else.
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
		go func() { // the cache that requests reads may have to be filled first
			for _, change := range standing(s) {
				add(change)
			}
		}()
		return nil
	})
}

// standing is what holds, as changes.
func standing(s Shards) (changes []Change) {
	for _, id := range s.IDs() {
		one, ok := s.Shard(id)
		if !ok {
			continue
		}
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
