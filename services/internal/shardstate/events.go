package shardstate

import (
	"cmp"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/plan"
)

// Events receives what happens in a shard, for the watch streams. Implementations must not block and must not call back
// into the State synchronously.
type Events interface {
	Instance(InstanceEvent)
	// Group says that a group's definition or counts may have changed.
	Group(config.GroupKey)
	Error(ErrorEvent)
}

// InstanceEventType is what happened to an instance.
type InstanceEventType string

const (
	EventCreating        InstanceEventType = "creating" // the provider's create call is about to be entered
	EventCreated         InstanceEventType = "created"
	EventRegistered      InstanceEventType = "registered"
	EventHealthy         InstanceEventType = "healthy"
	EventUnhealthy       InstanceEventType = "unhealthy"
	EventLost            InstanceEventType = "lost" // stream closed, or the provider says gone
	EventNotice          InstanceEventType = "notice"
	EventPendingDeletion InstanceEventType = "pending_deletion"
	EventDeleted         InstanceEventType = "deleted"
	EventFilesPushed     InstanceEventType = "files_pushed"
)

// InstanceEvent is one step in an instance's life.
type InstanceEvent struct {
	Type     InstanceEventType
	Tenant   string
	Group    string
	Instance ident.ID
	At       time.Time
	Reason   string
	Replaces ident.ID
	Deadline time.Time
	Drain    bool
}

// ErrorKey names what an error is about; a standing error is replaced or resolved by its key.
type ErrorKey struct {
	Kind     plan.AlertKind
	Tenant   string
	Group    string
	Instance ident.ID
}

// ErrorEvent is a fault that people should see.
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

// Raise publishes a standing error. Raising the same message again is silent. What is raised about an
// instance or a group ends with it; who raises it makes sure that it is still there.
func (w *State) Raise(key ErrorKey, message string) {
	event := ErrorEvent{ErrorKey: key, Message: message, At: w.opts.Now()}
	w.mu.Lock()
	if have, ok := w.standing[key]; ok && have.Message == message {
		w.mu.Unlock()
		return
	}
	w.standing[key] = event
	w.mu.Unlock()
	w.opts.Events.Error(event)
}

// Resolve ends a standing error, if there is one.
func (w *State) Resolve(key ErrorKey) {
	w.mu.Lock()
	event, ok := w.standing[key]
	delete(w.standing, key)
	w.mu.Unlock()
	if ok {
		event.Resolved, event.At = true, w.opts.Now()
		w.opts.Events.Error(event)
	}
}

// settle ends the standing errors that match and returns their ends, in order, to be published. Call with mu held.
func (w *State) settle(match func(ErrorKey) bool) []ErrorEvent {
	var over []ErrorEvent
	for key, event := range w.standing {
		if match(key) {
			delete(w.standing, key)
			event.Resolved, event.At = true, w.opts.Now()
			over = append(over, event)
		}
	}
	slices.SortFunc(over, func(a, b ErrorEvent) int { return cmp.Compare(a.Kind, b.Kind) })
	return over
}

// Standing returns the errors that hold now, of one tenant and of the shard as a whole.
func (w *State) Standing(tenant string) []ErrorEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	var events []ErrorEvent
	for key, event := range w.standing {
		if key.Tenant == tenant || key.Tenant == "" {
			events = append(events, event)
		}
	}
	return events
}

// Publish forwards an instance event with its time filled in.
func (w *State) Publish(event InstanceEvent) {
	if event.At.IsZero() {
		event.At = w.opts.Now()
	}
	w.opts.Events.Instance(event)
	if event.Group != "" {
		w.opts.Events.Group(config.GroupKey{Tenant: event.Tenant, Group: event.Group})
	}
}
