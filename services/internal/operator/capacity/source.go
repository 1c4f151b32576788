package capacity

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

const (
	// askTimeout is the timeout of one request to a shard for a type's size.
	askTimeout = 5 * time.Second
	// askAgain is the time after which a shard is asked again if it gave no valid answer. A valid answer stays in use,
	// because types do not change.
	askAgain = 10 * time.Minute
	// maxCPUs and maxMiB are the largest values that are accepted in a shard's answer.
	maxCPUs, maxMiB = 1 << 16, 1 << 30
)

// Source asks shards for the size of instance types and remembers the answers. It is safe for concurrent use.
type Source struct {
	Now func() time.Time

	mu    sync.Mutex
	known map[typeKey]answer
}

type typeKey struct{ shard, instanceType string }

type answer struct {
	machine machine
	ok      bool
	at      time.Time
}

// Of returns the CPUs and the memory of an instance type. The source is the shard's provider or, if that has no answer,
// the table of this package. If neither knows the type, Of returns nil. It asks the shard only if the shard is
// reachable, and waits at most five seconds for the answer.
func (s *Source) Of(ctx context.Context, shard shards.Shard, instanceType string) corev1.ResourceList {
	if instanceType == "" {
		return nil
	}
	key := typeKey{shard.ID(), instanceType}
	s.mu.Lock()
	a, asked := s.known[key]
	s.mu.Unlock()
	if shard.State().Reachable && (!asked || !a.ok && s.Now().Sub(a.at) >= askAgain) {
		limited, cancel := context.WithTimeout(ctx, askTimeout)
		size, err := shard.API().GetInstanceType(limited, &nstancev1.GetInstanceTypeRequest{InstanceType: instanceType})
		cancel()
		a = answer{at: s.Now()}
		a.machine = machine{cpus: int64(size.GetCpus()), mib: int64(size.GetMemoryMib())} //nolint:gosec // checked next
		a.ok = err == nil && a.machine.cpus > 0 && a.machine.cpus <= maxCPUs && a.machine.mib > 0 &&
			a.machine.mib <= maxMiB
		s.mu.Lock()
		if s.known == nil {
			s.known = map[typeKey]answer{}
		}
		s.known[key] = a
		s.mu.Unlock()
	}
	if a.ok {
		return a.machine.resources()
	}
	return Of(instanceType)
}
