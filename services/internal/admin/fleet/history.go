package fleet

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// HistoryFilter selects events. A field that is zero excludes no events.
type HistoryFilter struct {
	Group, InstanceID string
	Kinds             []string
	Cause             string
	Since, Until      time.Time
}

func (h HistoryFilter) message() *nstancev1.EventFilter {
	return &nstancev1.EventFilter{Group: h.Group, InstanceId: h.InstanceID, Kinds: h.Kinds, Cause: h.Cause,
		Since: timestampOf(h.Since)}
}

// History returns the events in the journals of shards, from the oldest to the newest. It reads all pages.
func (f *Fleet) History(ctx context.Context, shards []string, filter HistoryFilter) []HistoryAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *HistoryAnswer) error {
		all := &nstancev1.ListEventsResponse{}
		err := pages(ctx, f, shard, func(ctx context.Context, c Client, token string) (string, error) {
			if token == "" {
				all.Events = nil
			}
			r, err := c.ListEvents(ctx, &nstancev1.ListEventsRequest{Filter: filter.message(),
				Until: timestampOf(filter.Until), PageToken: token})
			all.Events = append(all.Events, r.GetEvents()...)
			return r.GetNextPageToken(), err
		})
		if err == nil {
			into.Message = all
		}
		return err
	})
}

// FollowHistory passes the events of a shard's journal to the function `each`: first the stored events after the
// position `after`, then new events. An empty position means the beginning of the journal. FollowHistory returns an
// error when the connection is lost or ctx ends.
func (f *Fleet) FollowHistory(ctx context.Context, shard string, filter HistoryFilter, after string,
	each func(*nstancev1.JournalEvent)) *Error {
	return asError(shard, f.reach(ctx, shard, func(ctx context.Context, c Client) error {
		stream, err := c.FollowEvents(ctx, &nstancev1.FollowEventsRequest{After: after, Filter: filter.message()})
		return receive(stream, err, func(r *nstancev1.FollowEventsResponse) {
			after = r.GetEvent().GetPosition() // reach may repeat the call with another server
			each(r.GetEvent())
		})
	}))
}

func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Time returns the time of a message. It is zero if the message has none.
func Time(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
