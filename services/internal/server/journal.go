package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// openJournal starts the journal of a term. When ctx ends, the journal writes the events that are not stored yet. The
// end of the term does not wait for that write.
func (s *server) openJournal(ctx context.Context, term uint64) *journal.Journal {
	j := journal.New(journal.Options{Shard: s.opts.Shard, Term: term, Store: s.documents, DB: s.localDB,
		Retention: func() time.Duration { return s.manager.Shard().Server.JournalRetention.D() }, Now: time.Now,
		Log: s.log, Stored: s.recordStored(s.manager.Shard().Cluster.ID)})
	s.env.Go("journal", func() { _ = j.Run(ctx) }) // it returns nil
	message := fmt.Sprintf("server %s, version %s", s.opts.ID, s.cfg.Version)
	if o := s.bucket.ended(); !o.since.IsZero() {
		// The earlier leader could not write this to the bucket.
		message += fmt.Sprintf("; it could not %s from %s to %s: %s", o.what, s.clockTime(o.since),
			s.clockTime(o.until), o.cause)
	}
	j.Record(record.Event{Kind: record.EventLeaderStarted, Actor: "leader", Message: message})
	return j
}

// recordStored returns a function that logs the events of a journal, and counts, measures and traces the replacements
// that the events describe. The journal calls this function only after it has stored the events, so it cannot delay a
// replacement.
func (s *server) recordStored(cluster string) func([]record.Event) {
	var replacements journal.Replacements
	return func(events []record.Event) {
		for i := range events {
			e := &events[i]
			logEvent(s.log, e)
			if e.Kind == record.EventInstanceCreating && e.Replaces != "" {
				s.metrics.Replacements.WithLabelValues(e.Cause).Inc()
			}
			switch e.Kind {
			case record.EventInstanceNotice, record.EventInstanceRecommendation, record.EventInstanceMaintenance:
				if e.Cause != "" {
					s.metrics.Notices.WithLabelValues(e.Cause).Inc()
				}
			}
			if done, ok := replacements.Add(&events[i]); ok {
				s.traces.Export(cluster, s.opts.Shard, &done)
				for _, step := range done.Steps() {
					s.metrics.ReplacementTime.WithLabelValues(string(step.Stage)).Observe(step.Took().Seconds())
				}
			}
		}
	}
}

// logEvent logs an event. The log line contains the time of the event, which is a little earlier than the time of the
// line.
func logEvent(log *slog.Logger, e *record.Event) {
	attrs := []slog.Attr{slog.String("kind", string(e.Kind)), slog.Time("at", e.At)}
	for _, a := range []struct{ name, value string }{{"tenant", e.Tenant}, {"group", e.Group}, {"instance", e.Instance},
		{"replaces", e.Replaces}, {"cause", e.Cause}, {"actor", e.Actor}, {"reason", e.Message}} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.name, a.value))
		}
	}
	level := slog.LevelInfo
	if e.Kind == record.EventAlertRaised {
		level = slog.LevelWarn
	}
	log.LogAttrs(context.Background(), level, "event", attrs...)
}

// journalInstance records a step in the life of an instance.
func journalInstance(j *journal.Journal, e shardstate.InstanceEvent) {
	event := record.Event{At: e.At, Kind: "instance_" + record.EventKind(e.Type), Tenant: e.Tenant, Group: e.Group,
		Instance: e.Instance.String(), Replaces: e.Replaces.String(), Cause: string(e.Cause), Actor: actors[e.Type],
		Message: e.Reason, TookSeconds: e.Took.Seconds()}
	if e.Type == shardstate.EventPendingDeletion && e.Drain {
		return // the announcement of a drain; the deletion itself has an event before
	}
	j.Record(event)
}

// sizeInterval is the time between two looks at the sizes of groups for the journal.
const sizeInterval = time.Minute

// journalSizes passes the counts of each group's instances to journal when they have changed, at most once per
// sizeInterval, until ctx ends.
func journalSizes(ctx context.Context, state *shardstate.State, journal func(record.Event)) {
	last := map[config.GroupKey]record.GroupSize{}
	for tasks.Sleep(ctx, sizeInterval) == nil {
		for _, key := range state.GroupKeys() {
			g, ok := state.GroupView(key)
			size := record.GroupSize{Desired: g.Size, Actual: g.Actual, Healthy: g.Healthy}
			if before, known := last[key]; !ok || known && before == size {
				continue
			}
			last[key] = size
			journal(record.Event{Kind: record.EventGroupSize, Tenant: key.Tenant, Group: key.Group, Actor: "leader",
				Message: fmt.Sprintf("desired %d, actual %d, healthy %d", size.Desired, size.Actual, size.Healthy),
				Size:    size})
		}
	}
}

// actors maps each type of event to the component that causes it.
var actors = map[shardstate.InstanceEventType]string{
	shardstate.EventCreating: "leader", shardstate.EventCreated: "provider", shardstate.EventRegistered: "agent",
	shardstate.EventHealthy: "agent", shardstate.EventUnhealthy: "agent", shardstate.EventNotice: "agent",
	shardstate.EventPendingDeletion: "leader", shardstate.EventDeleted: "leader", shardstate.EventFilesPushed: "leader",
	shardstate.EventFlaps: "leader", shardstate.EventDrainHook: "agent", shardstate.EventPreserved: "leader",
	shardstate.EventRecommendation: "agent", shardstate.EventMaintenance: "agent",
	shardstate.EventPromoted: "leader", shardstate.EventAsleep: "leader",
}

// journalAlert records that an alert was raised or resolved.
func journalAlert(j *journal.Journal, e shardstate.ErrorEvent) {
	event := record.Event{At: e.At, Kind: record.EventAlertRaised, Tenant: e.Tenant, Group: e.Group,
		Instance: e.Instance.String(), Cause: string(e.Kind), Actor: "leader", Message: e.Message}
	if e.Resolved {
		event.Kind = record.EventAlertResolved
	}
	j.Record(event)
}
