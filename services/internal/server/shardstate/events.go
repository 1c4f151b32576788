package shardstate

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// Events receives the events of a shard for the watch streams. Its methods must not block, and must not call the State
// synchronously.
type Events interface {
	Instance(InstanceEvent)
	// Group reports that a group's definition or counts may have changed.
	Group(config.GroupKey)
	Error(ErrorEvent)
}

// InstanceEventType is the kind of an InstanceEvent.
type InstanceEventType string

const (
	EventCreating        InstanceEventType = "creating" // the provider's create call is about to start
	EventCreated         InstanceEventType = "created"
	EventRegistered      InstanceEventType = "registered"
	EventHealthy         InstanceEventType = "healthy"
	EventUnhealthy       InstanceEventType = "unhealthy"
	EventLost            InstanceEventType = "lost" // the health stream closed, or the VM is gone
	EventNotice          InstanceEventType = "notice"
	EventPendingDeletion InstanceEventType = "pending_deletion"
	EventDeleted         InstanceEventType = "deleted"
	EventFilesPushed     InstanceEventType = "files_pushed"
	EventFlaps           InstanceEventType = "flaps"          // the alert of that name was raised about the instance
	EventDrainHook       InstanceEventType = "drain_hook"     // the drain hook has ended
	EventRecommendation  InstanceEventType = "recommendation" // the cloud recommends replacing the VM, or no longer
	EventMaintenance     InstanceEventType = "maintenance"    // the cloud announced, changed or withdrew maintenance
	EventPreserved       InstanceEventType = "preserved"      // it failed, and is kept
	EventPromoted        InstanceEventType = "promoted"       // it was a spare, and is a member of its group now
	EventAsleep          InstanceEventType = "asleep"         // it is a spare, and its VM is put to sleep
)

// InstanceEvent is one step in the life of an instance.
type InstanceEvent struct {
	Type     InstanceEventType
	Tenant   string
	Group    string
	Instance ident.ID
	At       time.Time
	Reason   string
	// Cause is set in EventPendingDeletion if the planner decided the deletion, in EventPreserved, in EventCreating and
	// EventPromoted if the instance replaces another one, and in the events of the cloud's notices that stand.
	Cause    plan.Cause
	Replaces ident.ID
	Deadline time.Time
	Drain    bool
	// Took is the duration of the registration. It is set in EventRegistered only.
	Took time.Duration
}

// NewEvent returns an event about the instance that rec describes.
func NewEvent(typ InstanceEventType, rec *record.Instance, reason string) InstanceEvent {
	return InstanceEvent{Type: typ, Tenant: rec.Tenant, Group: rec.Group, Instance: rec.ID, Reason: reason}
}

// ErrorKey identifies an error that lasts until ResolveError is called with the same key. Another error with the key
// replaces it.
type ErrorKey struct {
	Kind     plan.AlertKind
	Tenant   string
	Group    string
	Instance ident.ID
}

// GroupError returns the key of an error about a group, or about one of its instances if id is not zero.
func GroupError(kind plan.AlertKind, group config.GroupKey, id ident.ID) ErrorKey {
	return ErrorKey{Kind: kind, Tenant: group.Tenant, Group: group.Group, Instance: id}
}

// ErrorEvent is a fault that a person should see.
type ErrorEvent struct {
	ErrorKey
	Message  string
	At       time.Time
	Resolved bool
}

type noEvents struct{}

func (noEvents) Instance(InstanceEvent) {}
func (noEvents) Group(config.GroupKey)  {}
func (noEvents) Error(ErrorEvent)       {}

// attemptIDs matches the parts of a message that differ in each attempt: instance IDs in both forms, and request IDs of
// clouds and object stores.
var attemptIDs = regexp.MustCompile(`\b[a-z]{3}[0-9a-hjkmnp-tv-z]{26}\b|` +
	`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\(request [^)]*\)|(RequestID|HostID): [^,]*`)

// sameFault reports whether two messages are equal except for their attemptIDs.
func sameFault(a, b string) bool {
	return a == b || attemptIDs.ReplaceAllLiteralString(a, "") == attemptIDs.ReplaceAllLiteralString(b, "")
}

// RaiseError publishes an error that lasts until it is resolved. If the same fault is already published under key,
// RaiseError does nothing, and the first message stays. The State resolves the error when its instance or group is
// removed. The caller makes sure that the instance or group still exists.
func (s *State) RaiseError(key ErrorKey, message string) {
	event := ErrorEvent{ErrorKey: key, Message: message, At: s.opts.Now()}
	s.mu.Lock()
	if have, ok := s.standing[key]; ok && sameFault(have.Message, message) {
		s.mu.Unlock()
		return
	}
	s.standing[key] = event
	var events []InstanceEvent
	if inst := s.instances[key.Instance]; inst != nil && key.Kind == plan.AlertFlaps {
		inst.plan.FlapsRaised = true
		events = append(events, s.event(inst, EventFlaps, message))
	}
	s.mu.Unlock()
	s.opts.Events.Error(event)
	s.emit(events)
}

// ResolveError resolves the error with the given key. It does nothing if there is none.
func (s *State) ResolveError(key ErrorKey) {
	s.mu.Lock()
	event, ok := s.standing[key]
	delete(s.standing, key)
	if inst := s.instances[key.Instance]; inst != nil && key.Kind == plan.AlertFlaps {
		inst.plan.FlapsRaised = false
	}
	s.mu.Unlock()
	if ok {
		event.Resolved, event.At = true, s.opts.Now()
		s.opts.Events.Error(event)
	}
}

// settle resolves the errors for which the function `match` returns true. It returns an event for each resolved error,
// sorted by kind. The caller publishes the events. Call with mu held.
func (s *State) settle(match func(ErrorKey) bool) []ErrorEvent {
	var over []ErrorEvent
	for key, event := range s.standing {
		if match(key) {
			delete(s.standing, key)
			event.Resolved, event.At = true, s.opts.Now()
			over = append(over, event)
		}
	}
	slices.SortFunc(over, func(a, b ErrorEvent) int { return cmp.Compare(a.Kind, b.Kind) })
	return over
}

func (s *State) publishResolved(over []ErrorEvent) {
	for _, event := range over {
		s.opts.Events.Error(event)
	}
}

// Standing returns the unresolved errors of one tenant and those of the shard as a whole, in no particular order.
func (s *State) Standing(tenant string) []ErrorEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []ErrorEvent
	for key, event := range s.standing {
		if key.Tenant == tenant || key.Tenant == "" {
			events = append(events, event)
		}
	}
	return events
}

// Alerts returns the number of unresolved errors of each kind.
func (s *State) Alerts() map[plan.AlertKind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	alerts := map[plan.AlertKind]int{}
	for key := range s.standing {
		alerts[key.Kind]++
	}
	return alerts
}

// Publish sends an instance event to Events, with the present time if the event has none. It also tells Events that the
// group may have changed.
func (s *State) Publish(event InstanceEvent) {
	event.At = cmp.Or(event.At, s.opts.Now())
	s.opts.Events.Instance(event)
	if event.Group != "" {
		s.opts.Events.Group(config.GroupKey{Tenant: event.Tenant, Group: event.Group})
	}
}
