package fleet

import (
	"context"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// FollowHistory passes the events of a shard's journal to the function `each`: first the stored events after the
// position `after`, then new events. An empty position means the beginning of the journal. FollowHistory returns an
// error when the connection is lost or ctx ends.
func (f *Fleet) FollowHistory(ctx context.Context, shard string, filter HistoryFilter, after string,
	each func(JournalEvent)) *Error {
	return asError(shard, f.reach(ctx, shard, func(ctx context.Context, c Client) error {
		stream, err := c.FollowEvents(ctx, &nstancev1.FollowEventsRequest{After: after,
			Filter: &nstancev1.EventFilter{Group: filter.Group, InstanceId: filter.InstanceID, Kinds: filter.Kinds,
				Cause: filter.Cause, Since: timestampOf(filter.Since)}})
		return receive(stream, err, func(r *nstancev1.FollowEventsResponse) {
			after = r.GetEvent().GetPosition() // reach may repeat the call with another server
			each(viewJournalEvent(r.GetEvent()))
		})
	}))
}
