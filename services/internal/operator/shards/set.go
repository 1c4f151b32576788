package shards

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Options configures [New]. All fields are required except Dial.
type Options struct {
	// TLS returns the configuration of a handshake with a server of a shard.
	TLS func(shard string) (*tls.Config, error)
	Now func() time.Time
	Log *slog.Logger
	// Dial holds additional options for every connection.
	Dial []grpc.DialOption
}

// Set holds the shards of a configuration file. They are connected while [Set.Run] runs.
type Set struct {
	options Options
	calls   *prometheus.HistogramVec // duration by shard, method and code
	// grace is how long a shard may be disconnected before it counts as unreachable.
	grace time.Duration

	mu      sync.Mutex
	shards  map[string]*shard
	notify  []func(Change)
	start   func(*shard) // nil while Run does not run
	running sync.WaitGroup
}

var _ Shards = (*Set)(nil)

// New returns a Set without shards.
func New(o Options) *Set {
	return &Set{options: o, calls: newCallDuration(), grace: grace, shards: map[string]*shard{}}
}

// Configure sets the shards and their operator addresses from a new configuration file. It connects new shards and
// disconnects removed ones. A shard with a new address reconnects and keeps its mirror.
func (s *Set) Configure(addrs map[string]string) {
	var changed []string
	s.mu.Lock()
	for id, one := range s.shards {
		addr, ok := addrs[id]
		if ok && one.address() == addr {
			continue
		}
		changed = append(changed, id)
		if ok {
			one.setAddress(addr)
			continue
		}
		delete(s.shards, id)
		one.remove()
		s.calls.DeletePartialMatch(prometheus.Labels{"shard": id})
	}
	for id, addr := range addrs {
		if s.shards[id] != nil {
			continue
		}
		changed = append(changed, id)
		one := newShard(id, addr, s)
		s.shards[id] = one
		if s.start != nil {
			s.start(one)
		}
	}
	s.mu.Unlock()
	slices.Sort(changed)
	for _, id := range changed {
		s.notifyAll(Change{Shard: id, Kind: ShardState})
	}
}

// Reconnect makes all shards connect again, with the present client certificate.
func (s *Set) Reconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.shards {
		one.setAddress(one.address())
	}
}

// Run keeps all shards connected until ctx ends. It may be called once.
func (s *Set) Run(ctx context.Context) {
	s.mu.Lock()
	s.start = func(one *shard) {
		ctx, cancel := context.WithCancel(ctx)
		one.remove = cancel
		s.running.Go(func() { one.run(ctx) })
	}
	for _, one := range s.shards {
		s.start(one)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.start = nil
	s.mu.Unlock()
	s.running.Wait()
}

// All implements [Shards].
func (s *Set) All() (all []Shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.shards)) {
		all = append(all, s.shards[id])
	}
	return all
}

// Shard implements [Shards].
func (s *Set) Shard(id string) (Shard, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.shards[id]
	if !ok {
		return nil, false // a nil *shard would be a non-nil interface
	}
	return one, true
}

// Notify implements [Shards].
func (s *Set) Notify(fn func(Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = append(s.notify, fn)
}

func (s *Set) notifyAll(changes ...Change) {
	if len(changes) == 0 {
		return
	}
	s.mu.Lock()
	to := slices.Clone(s.notify)
	s.mu.Unlock()
	for _, change := range changes {
		for _, fn := range to {
			fn(change)
		}
	}
}
