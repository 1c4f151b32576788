package server

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/journal"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

// openJournal starts the journal of a term. It ends with ctx and then writes its last part, for which the end of the
// term does not wait.
func (s *server) openJournal(ctx context.Context, term uint64) *journal.Journal {
	j := journal.New(journal.Options{Shard: s.opts.Shard, Term: term, Store: s.documents, Cache: s.cache,
		Retention: func() time.Duration { return s.manager.Shard().Server.JournalRetention.D() }, Now: time.Now,
		Log: s.log, Stored: s.measureReplacements(s.manager.Shard().Cluster.ID)})
	s.env.Go("journal", func() { _ = j.Run(ctx) }) // it returns nil
	j.Record(record.Event{Kind: record.EventLeaderStarted, Actor: "leader",
		Message: fmt.Sprintf("server %s, version %s",
			s.opts.ID, s.cfg.Version)})
	return j
}

// measureReplacements returns a function that counts, measures and traces replacements from the events of a journal,
// after they are stored: it never delays a replacement.
func (s *server) measureReplacements(cluster string) func([]record.Event) {
	var replacements journal.Replacements
	return func(events []record.Event) {
		for i := range events {
			if e := &events[i]; e.Kind == record.EventInstanceCreating && e.Replaces != "" {
				s.metrics.Replacements.WithLabelValues(e.Cause).Inc()
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

// journalInstance records a step in the life of an instance.
func journalInstance(j *journal.Journal, e shardstate.InstanceEvent) {
	event := record.Event{At: e.At, Kind: "instance_" + record.EventKind(e.Type), Tenant: e.Tenant, Group: e.Group,
		Instance: e.Instance.String(), Cause: string(e.Cause), Actor: actors[e.Type], Message: e.Reason,
		TookSeconds: e.Took.Seconds()}
	if !e.Replaces.IsZero() {
		event.Replaces = e.Replaces.String()
	}
	if e.Type == shardstate.EventPendingDeletion && e.Drain {
		return // the announcement of a drain; the deletion itself has an event before
	}
	j.Record(event)
}

// actors say who causes the events of a kind.
var actors = map[shardstate.InstanceEventType]string{
	shardstate.EventCreating: "leader", shardstate.EventCreated: "provider", shardstate.EventRegistered: "agent",
	shardstate.EventHealthy: "agent", shardstate.EventUnhealthy: "agent", shardstate.EventNotice: "agent",
	shardstate.EventPendingDeletion: "leader", shardstate.EventDeleted: "leader", shardstate.EventFilesPushed: "leader",
}

// journalAlert records that an alert was raised or resolved.
func journalAlert(j *journal.Journal, e shardstate.ErrorEvent) {
	event := record.Event{At: e.At, Kind: record.EventAlertRaised, Tenant: e.Tenant, Group: e.Group,
		Cause: string(e.Kind), Actor: "leader", Message: e.Message}
	if e.Resolved {
		event.Kind = record.EventAlertResolved
	}
	if !e.Instance.IsZero() {
		event.Instance = e.Instance.String()
	}
	j.Record(event)
}
