// Package shardstest fakes shards for tests of reconcilers. Its leaders keep groups and instances in memory and change
// them immediately.
//
// Invariant: the leaders give the same answers as real servers (package operatorapi), and the mirrors show the state of
// the leaders. Only time, failures and VMs are simulated.
package shardstest

import (
	"maps"
	"slices"
	"sync"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Kind is the prefix of all instance IDs.
const Kind = "wrk"

// Set is a set of fake shards.
type Set struct {
	mu     sync.Mutex
	shards map[string]*Shard
	notify []func(shards.Change)
}

var _ shards.Shards = (*Set)(nil)

// New returns a set of shards that are reachable, synced and empty.
func New(ids ...string) *Set {
	s := &Set{shards: map[string]*Shard{}}
	for _, id := range ids {
		s.Add(id)
	}
	return s
}

// Add adds a shard, as a change of the configuration file does.
func (s *Set) Add(id string) *Shard {
	shard := &Shard{id: id, set: s, groups: map[string]*nstancev1.GroupStatus{},
		static: map[string]*nstancev1.GroupStatus{}, own: map[string]config.GroupSpec{},
		instances: map[string]*nstancev1.InstanceStatus{}, drains: map[string]shards.Drain{},
		decremented: map[string]bool{}, types: map[string]*nstancev1.GetInstanceTypeResponse{},
		state: shards.State{Reachable: true, Synced: true, Zone: id, Region: "test"}}
	shard.SetType("m5.large", 2, 8<<10)
	shard.SetType("c5.xlarge", 4, 8<<10)
	s.mu.Lock()
	s.shards[id] = shard
	s.mu.Unlock()
	s.notifyAll(shards.Change{Shard: id, Kind: shards.ShardState})
	return shard
}

// Remove removes a shard, as a change of the configuration file does.
func (s *Set) Remove(id string) {
	s.mu.Lock()
	delete(s.shards, id)
	s.mu.Unlock()
	s.notifyAll(shards.Change{Shard: id, Kind: shards.ShardState})
}

// Of returns a shard. It panics if there is none.
func (s *Set) Of(id string) *Shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	shard, ok := s.shards[id]
	if !ok {
		panic("shardstest: no shard " + id)
	}
	return shard
}

// All implements shards.Shards.
func (s *Set) All() (all []shards.Shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.shards)) {
		all = append(all, s.shards[id])
	}
	return all
}

// Shard implements shards.Shards.
func (s *Set) Shard(id string) (shards.Shard, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shard, ok := s.shards[id]
	if !ok {
		return nil, false
	}
	return shard, true
}

// Notify implements shards.Shards.
func (s *Set) Notify(fn func(shards.Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = append(s.notify, fn)
}

func (s *Set) notifyAll(changes ...shards.Change) {
	s.mu.Lock()
	to := slices.Clone(s.notify)
	s.mu.Unlock()
	for _, change := range changes {
		for _, fn := range to {
			fn(change)
		}
	}
}

var _ shards.Shard = (*Shard)(nil)
