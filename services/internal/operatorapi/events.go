package operatorapi

import (
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
	"github.com/nstance-kit/nstance/services/internal/watch"
)

// Events hands what happens in a shard on to the watch streams. It keeps nothing that no stream waits for, renders
// nothing, and never blocks. One belongs to one leadership.
type Events struct {
	groups    watch.Hub[config.GroupKey, config.GroupKey]
	instances watch.Hub[instanceKey, shardstate.InstanceEvent]
	errors    watch.Hub[shardstate.ErrorKey, shardstate.ErrorEvent]
}

// instanceKey is what coalesces: of each sort of event the newest. An announced drain is a sort of its own, so that
// nothing that is said of the same deletion afterwards takes its place.
type instanceKey struct {
	tenant string
	id     ident.ID
	what   shardstate.InstanceEventType
	drain  bool
}

var _ shardstate.Events = (*Events)(nil)

// NewEvents returns Events without streams.
func NewEvents() *Events { return &Events{} }

// Instance implements shardstate.Events.
func (e *Events) Instance(event shardstate.InstanceEvent) {
	e.instances.Publish(instanceKey{event.Tenant, event.Instance, event.Type, event.Drain}, event)
}

// Group implements shardstate.Events.
func (e *Events) Group(key config.GroupKey) { e.groups.Publish(key, key) }

// Error implements shardstate.Events.
func (e *Events) Error(event shardstate.ErrorEvent) { e.errors.Publish(event.ErrorKey, event) }
