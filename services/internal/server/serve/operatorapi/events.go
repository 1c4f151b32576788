package operatorapi

import (
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/internal/server/watch"
)

// Events forwards the events of a shard to the watch streams, and never blocks. While no stream is open, events are
// dropped. The streams convert the events to messages. Each leadership has a separate Events.
type Events struct {
	groups    watch.Hub[config.GroupKey, config.GroupKey]
	instances watch.Hub[instanceKey, shardstate.InstanceEvent]
	errors    watch.Hub[shardstate.ErrorKey, shardstate.ErrorEvent]
}

// instanceKey is the key of an event. Of the waiting events with the same key, a stream keeps only the newest. The
// start of a drain has a separate key, so that later events of the same deletion do not replace it.
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
