package operatorapi

import (
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/observe"
	"github.com/nstance-kit/nstance/services/internal/watch"
)

// Events hands what happens in a shard on to the watch streams. It keeps nothing that no stream waits for, renders nothing, and never
// blocks. One belongs to one leadership.
type Events struct {
	groups    watch.Hub[config.GroupKey, config.GroupKey]
	instances watch.Hub[instanceKey, observe.InstanceEvent]
	errors    watch.Hub[observe.ErrorKey, observe.ErrorEvent]
}

// instanceKey is what coalesces: of each sort of event the newest. An announced drain is a sort of its own, so that nothing that is said of
// the same deletion afterwards takes its place.
type instanceKey struct {
	tenant string
	id     ident.ID
	what   observe.InstanceEventType
	drain  bool
}

var _ observe.Events = (*Events)(nil)

// NewEvents returns Events without streams.
func NewEvents() *Events { return &Events{} }

// Instance implements observe.Events.
func (e *Events) Instance(event observe.InstanceEvent) {
	e.instances.Publish(instanceKey{event.Tenant, event.Instance, event.Type, event.Drain}, event)
}

// Group implements observe.Events.
func (e *Events) Group(key config.GroupKey) { e.groups.Publish(key, key) }

// Error implements observe.Events.
func (e *Events) Error(event observe.ErrorEvent) { e.errors.Publish(event.ErrorKey, event) }
