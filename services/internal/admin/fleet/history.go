package fleet

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// HistoryAnswer lists events of a shard's journal, from the oldest to the newest.
type HistoryAnswer struct {
	Outcome
	Events []JournalEvent `json:"events,omitzero"`
}

// JournalEvent is one entry of a shard's journal. JournalEvent in operator.proto explains the fields.
type JournalEvent struct {
	At       time.Time `json:"at,omitzero"`
	Kind     string    `json:"kind"`
	Group    string    `json:"group,omitempty"`
	ID       string    `json:"instance_id,omitempty"`
	Replaces string    `json:"replaces,omitempty"`
	Cause    string    `json:"cause,omitempty" jsonschema:"description=Why an instance is deleted or the kind of an alert"`
	Actor    string    `json:"actor,omitempty" jsonschema:"description=Who caused the event: agent or leader or provider or an operator's name or ID"`
	Message  string    `json:"message,omitempty"`
	Took     float64   `json:"took_seconds,omitempty" jsonschema:"description=Duration of the step that ended with the event"`
	Term     uint64    `json:"term"`
	Position string    `json:"position"`
}

// HistoryFilter selects events. A field that is zero excludes no events.
type HistoryFilter struct {
	Group, InstanceID string
	Kinds             []string
	Cause             string
	Since, Until      time.Time
}

// History returns the events in the journals of shards. It reads all pages.
func (f *Fleet) History(ctx context.Context, shards []string, filter HistoryFilter) []HistoryAnswer {
	request := &nstancev1.ListEventsRequest{Filter: &nstancev1.EventFilter{Group: filter.Group,
		InstanceId: filter.InstanceID, Kinds: filter.Kinds, Cause: filter.Cause, Since: timestampOf(filter.Since)},
		Until: timestampOf(filter.Until)}
	return each(ctx, shards, func(ctx context.Context, shard string, into *HistoryAnswer) error {
		into.Events = []JournalEvent{}
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			for token := ""; ; {
				r, err := c.ListEvents(ctx, &nstancev1.ListEventsRequest{Filter: request.GetFilter(),
					Until: request.GetUntil(), PageToken: token})
				if err != nil {
					return err
				}
				for _, e := range r.GetEvents() {
					into.Events = append(into.Events, viewJournalEvent(e))
				}
				if token = r.GetNextPageToken(); token == "" {
					return nil
				}
			}
		})
	})
}

func viewJournalEvent(e *nstancev1.JournalEvent) JournalEvent {
	return JournalEvent{at(e.GetAt()), e.GetKind(), e.GetGroup(), e.GetInstanceId(), e.GetReplaces(), e.GetCause(),
		e.GetActor(), e.GetMessage(), e.GetTookSeconds(), e.GetTerm(), e.GetPosition()}
}

func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
