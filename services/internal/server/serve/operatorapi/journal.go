package operatorapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/api/messages"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
	"github.com/nstance-kit/nstance/services/internal/server/watch"
)

// eventPage is the largest number of events in one answer.
const eventPage = 1000

// A follower that does not read keeps at most followPage events that were read from the file, and followQueue events
// that came later.
const followPage, followQueue = 32, 128

// addEvent adds to the journal an event that the caller caused. The server logs each event of the journal. In a
// rehearsal, addEvent does nothing.
func (c *call) addEvent(e record.Event) {
	if c.rehearsal != nil {
		return
	}
	e.Tenant, e.Actor = c.tenant, cmp.Or(c.name, c.operator.String())
	c.Journal.Record(e)
}

// ListEvents lists stored events of the caller's tenant and of the shard as a whole.
func (c *call) ListEvents(_ context.Context, req *nstancev1.ListEventsRequest) (*nstancev1.ListEventsResponse, error) {
	query, err := c.eventQuery(req.GetFilter())
	if err != nil {
		return nil, err
	}
	if query.After, err = parsePosition("page_token", req.GetPageToken()); err != nil {
		return nil, err
	}
	if req.GetUntil() != nil {
		query.Until = req.GetUntil().AsTime()
	}
	size := int(min(cmp.Or(req.GetPageSize(), eventPage), eventPage))
	query.Limit = size + 1 // one more shows whether there is another page
	events, err := c.Journal.List(c, query)
	if err != nil {
		return nil, err
	}
	answer := &nstancev1.ListEventsResponse{}
	if len(events) > size {
		events = events[:size]
		answer.NextPageToken = messages.Position(events[size-1])
	}
	for _, e := range events {
		answer.Events = append(answer.Events, messages.Event(e))
	}
	return answer, nil
}

// FollowEvents sends the stored events that a filter selects, then new ones. If a client reads more slowly than events
// come, FollowEvents reads the events that it missed from the file.
func (c *call) FollowEvents(req *nstancev1.FollowEventsRequest,
	to nstancev1.OperatorService_FollowEventsServer) error {
	query, err := c.eventQuery(req.GetFilter())
	if err != nil {
		return c.ended(err)
	}
	if query.After, err = parsePosition("after", req.GetAfter()); err != nil {
		return c.ended(err)
	}
	// Subscribe before the list is read, so that no event is missed. An event may be both in the list and in the
	// subscription, but it is sent only once. The subscription skips events that are not newer than the last event
	// sent.
	queue := min(c.service.queue, followQueue)
	sub := c.Journal.Subscribe(queue)
	defer func() { sub.Close() }()
	query.Limit = followPage
	var ready []record.Event
	stored := true
	return serve(c, to, nil, func(ctx context.Context) (*nstancev1.FollowEventsResponse, error) {
		for len(ready) == 0 {
			if stored {
				if ready, err = c.Journal.List(ctx, query); err != nil {
					return nil, err
				}
				stored = len(ready) == followPage
				continue
			}
			e, err := sub.Next(ctx)
			if errors.Is(err, watch.ErrSlow) {
				sub.Close()
				sub, stored = c.Journal.Subscribe(queue), true
				continue
			}
			if err != nil {
				return nil, err
			}
			if matches(query, e) {
				ready = append(ready, e)
			}
		}
		e := ready[0]
		ready = ready[1:]
		query.After = localdb.PositionOf(e)
		return &nstancev1.FollowEventsResponse{Event: messages.Event(e)}, nil
	})
}

// eventQuery checks a filter and returns its query for the caller's tenant.
func (c *call) eventQuery(f *nstancev1.EventFilter) (localdb.EventQuery, error) {
	query := localdb.EventQuery{Tenant: c.tenant, Group: f.GetGroup(), Cause: f.GetCause()}
	if query.Group != "" {
		if err := groupName("filter.group", query.Group); err != nil {
			return query, err
		}
	}
	if f.GetInstanceId() != "" {
		id, err := instanceID(f.GetInstanceId())
		if err != nil {
			return query, err
		}
		query.Instance = id.String()
	}
	if err := checkText("filter.cause", query.Cause, maxText); err != nil {
		return query, err
	}
	if n := len(f.GetKinds()); n > maxList {
		return query, invalid("filter.kinds", "has %d entries, at most %d are allowed", n, maxList)
	}
	for _, kind := range f.GetKinds() {
		if !slices.Contains(record.EventKinds(), record.EventKind(kind)) {
			return query, invalid("filter.kinds", "%q is not a kind of event, there are: %s", kind, eventKinds())
		}
		query.Kinds = append(query.Kinds, record.EventKind(kind))
	}
	if f.GetSince() != nil {
		query.Since = f.GetSince().AsTime()
	}
	return query, nil
}

func eventKinds() string {
	var names []string
	for _, kind := range record.EventKinds() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

// matches reports whether a query without Until selects an event.
func matches(q localdb.EventQuery, e record.Event) bool {
	at := localdb.PositionOf(e)
	return (e.Tenant == q.Tenant || e.Tenant == "") && (q.Group == "" || e.Group == q.Group) &&
		(q.Instance == "" || e.Instance == q.Instance) && (q.Cause == "" || e.Cause == q.Cause) &&
		(len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind)) && !e.At.Before(q.Since) &&
		(at.Term > q.After.Term || at.Term == q.After.Term && at.Sequence > q.After.Sequence)
}

// parsePosition parses a text that messages.Position has returned. The empty text is the position before all events.
func parsePosition(field, text string) (at localdb.Position, err error) {
	if text == "" {
		return at, nil
	}
	if err := checkText(field, text, maxText); err != nil {
		return at, err
	}
	if _, err := fmt.Sscanf(text, "%d-%d", &at.Term, &at.Sequence); err != nil ||
		text != fmt.Sprintf("%d-%d", at.Term, at.Sequence) || at.Term > 1<<62 || at.Sequence > 1<<62 {
		return at, invalid(field, "%q is not a position of an event", text)
	}
	return at, nil
}
