package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// EventKind is the kind of an event of the journal.
type EventKind string

// The kinds of events. Those that begin with "instance" are steps in the life of one instance.
const (
	EventInstanceCreating        EventKind = "instance_creating" // the provider's create call is about to start
	EventInstanceCreated         EventKind = "instance_created"
	EventInstanceRegistered      EventKind = "instance_registered"
	EventInstanceHealthy         EventKind = "instance_healthy"
	EventInstanceUnhealthy       EventKind = "instance_unhealthy"
	EventInstanceLost            EventKind = "instance_lost"
	EventInstanceNotice          EventKind = "instance_notice"
	EventInstancePendingDeletion EventKind = "instance_pending_deletion"
	EventInstanceDeleted         EventKind = "instance_deleted"
	EventInstanceFilesPushed     EventKind = "instance_files_pushed"
	EventInstanceFlaps           EventKind = "instance_flaps"      // it fails and recovers again and again
	EventInstanceDrainHook       EventKind = "instance_drain_hook" // its drain hook has ended
	// It failed, and is kept.
	EventInstancePreserved EventKind = "instance_preserved"
	// It was a warm spare, and is a member of its group now.
	EventInstancePromoted EventKind = "instance_promoted"
	// It is a warm spare, and its VM is put to sleep.
	EventInstanceAsleep EventKind = "instance_asleep"
	// The cloud recommends replacing its VM, or no longer does.
	EventInstanceRecommendation EventKind = "instance_recommendation"
	// The cloud has announced, changed or withdrawn maintenance of its VM.
	EventInstanceMaintenance EventKind = "instance_maintenance"
	EventRegistrationRefused EventKind = "registration_refused"
	EventOperatorRegistered  EventKind = "operator_registered"
	EventGroupChanged        EventKind = "group_changed" // by an operator; not by the configuration
	EventGroupDeleted        EventKind = "group_deleted"
	EventOverrideEnded       EventKind = "override_ended" // a value that an operator had set in a static group
	EventGroupSize           EventKind = "group_size"     // the counts of its instances have changed
	EventDeletionRequested   EventKind = "deletion_requested"
	EventInstanceRequested   EventKind = "instance_requested" // on demand
	EventLeaderStepsDown     EventKind = "leader_steps_down"  // because an operator asked for it
	EventOrphanConfirmed     EventKind = "orphan_confirmed"
	EventConfigApplied       EventKind = "config_applied"
	EventAlertRaised         EventKind = "alert_raised"
	EventAlertResolved       EventKind = "alert_resolved"
	EventLeaderStarted       EventKind = "leader_started"
	EventLeaderEnded         EventKind = "leader_ended"
	// EventLost says that the journal itself lost events, because they came faster than they could be stored.
	EventLost EventKind = "events_lost"
)

// EventKinds lists all kinds of events.
func EventKinds() []EventKind {
	return []EventKind{EventInstanceCreating, EventInstanceCreated, EventInstanceRegistered, EventInstanceHealthy,
		EventInstanceUnhealthy, EventInstanceLost, EventInstanceNotice, EventInstancePendingDeletion,
		EventInstanceDeleted, EventInstanceFilesPushed, EventRegistrationRefused, EventGroupChanged, EventGroupDeleted,
		EventDeletionRequested, EventInstanceRequested, EventConfigApplied, EventAlertRaised, EventAlertResolved,
		EventLeaderStarted, EventLeaderEnded, EventLost, EventLeaderStepsDown, EventOrphanConfirmed,
		EventOperatorRegistered, EventInstanceFlaps, EventInstanceDrainHook, EventGroupSize,
		EventInstanceRecommendation, EventInstanceMaintenance, EventInstancePreserved, EventOverrideEnded,
		EventInstancePromoted, EventInstanceAsleep}
}

// Event is one entry of a shard's journal. Term and Sequence identify it in its shard. They also order events: first by
// term, because a later leader has a higher term. A field is zero if the event's kind does not use it.
type Event struct {
	Term uint64 `json:"term"`
	// Sequence counts the events of a term from 1.
	Sequence uint64    `json:"sequence"`
	At       time.Time `json:"at"` // UTC, by the leader's clock
	Kind     EventKind `json:"kind"`
	// Tenant is empty for events of the shard as a whole.
	Tenant string `json:"tenant,omitempty"`
	Group  string `json:"group,omitempty"`
	// Instance and Replaces are instance IDs.
	Instance string `json:"instance,omitempty"`
	Replaces string `json:"replaces,omitempty"`
	// Cause is the planner's reason for the step, such as scale_down. For an alert, it is the kind of the alert.
	Cause string `json:"cause,omitempty"`
	// Actor is who caused the event: "agent", "provider", "leader", or an operator's name or ID.
	Actor   string `json:"actor,omitempty"`
	Message string `json:"message,omitempty"`
	// TookSeconds is the duration of the step that the event completes, if it is known.
	TookSeconds float64 `json:"took_seconds,omitempty"`
	// Size is set in EventGroupSize only.
	Size GroupSize `json:"size,omitzero"`
}

// GroupSize counts the instances that a group should have, those that it has, and the healthy ones among these.
type GroupSize struct {
	Desired int `json:"desired"`
	Actual  int `json:"actual"`
	Healthy int `json:"healthy"`
}

// MaxEvents is the largest number of events in one part of a journal, and maxEventLine the longest line.
const (
	MaxEvents    = 16384
	maxEventLine = 32 << 10
	maxMessage   = 4 << 10
)

// EncodeEvents writes events as lines of JSON. It cuts a message that is longer than maxMessage.
func EncodeEvents(events []Event) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i := range events {
		e := events[i]
		utc(&e.At)
		if len(e.Message) > maxMessage {
			e.Message = string(bytes.ToValidUTF8([]byte(e.Message[:maxMessage]), nil)) + "…"
		}
		if err := enc.Encode(e); err != nil {
			return nil, fmt.Errorf("encode event: %w", err)
		}
	}
	return b.Bytes(), nil
}

// DecodeEvents reads a part of a journal. It skips unknown fields, because newer servers may add some. Each event must
// have a term, a sequence number, a time and a kind.
func DecodeEvents(data []byte) ([]Event, error) {
	var events []Event
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxEventLine)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("decode event %d: %w", len(events)+1, err)
		}
		if e.Term == 0 || e.Sequence == 0 || e.At.IsZero() || e.Kind == "" {
			return nil, fmt.Errorf("decode event %d: it lacks its term, sequence number, time or kind", len(events)+1)
		}
		if len(events) == MaxEvents {
			return nil, fmt.Errorf("decode events: there are more than %d", MaxEvents)
		}
		events = append(events, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("decode event %d: %w", len(events)+1, err)
	}
	return events, nil
}

// ClusterEventSchema is the newest version of an entry of the cluster journal.
const ClusterEventSchema = 1

// ClusterEvent is one change that a person made in the bucket, `cluster/journal/{time}.{nonce}.json`. It never holds a
// secret. It is written once, after the change, and never changed.
type ClusterEvent struct {
	Schema int       `json:"schema"`
	At     time.Time `json:"at"`
	// Kind is what was done, such as secret_set.
	Kind string `json:"kind"`
	// Actor is the user and the machine that made the change, according to that machine.
	Actor string `json:"actor"`
	// Shard, Tenant and Subject name what was changed. Subject is the name of a secret or the ID of an operator.
	Shard   string `json:"shard,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Subject string `json:"subject,omitempty"`
	Message string `json:"message,omitempty"`
}

// Encode checks the entry and returns it as one line of JSON, with times in UTC.
func (e ClusterEvent) Encode() ([]byte, error) {
	utc(&e.At)
	return encode(e)
}

func (ClusterEvent) kind() (string, int) { return "cluster event", ClusterEventSchema }

// Validate returns an error that lists everything wrong with the entry.
func (e ClusterEvent) Validate() error {
	var p problems
	p.check(e.Schema == ClusterEventSchema, "schema: is %d, want %d", e.Schema, ClusterEventSchema)
	p.time("at", e.At, true)
	p.text("kind", e.Kind, maxText, true)
	p.text("actor", e.Actor, maxText, true)
	p.text("shard", e.Shard, maxText, false)
	p.text("tenant", e.Tenant, maxText, false)
	p.text("subject", e.Subject, maxText, false)
	p.text("message", e.Message, maxText, false)
	return p.err("cluster event")
}
