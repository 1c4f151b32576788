package shards

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source makes requests for a controller of the changes of shards. requests must not block: it may read a cache, nothing else.
func Source(s Shards, requests func(Change) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		s.Notify(func(c Change) {
			if ctx.Err() != nil {
				return
			}
			for _, request := range requests(c) {
				queue.Add(request)
			}
		})
		return nil
	})
}
