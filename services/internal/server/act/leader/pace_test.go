package leader_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// tokens is a token bucket for requests, as EC2 has it: 5 requests, refilled with 2 per second.
type tokens struct {
	mu      sync.Mutex
	left    float64
	at      time.Time
	asked   int
	created map[string][]time.Time // by group
}

func newTokens() *tokens {
	return &tokens{left: 5, at: time.Now(), created: map[string][]time.Time{}}
}

func (b *tokens) answer(call mock.Call) mock.Outcome {
	if call.Kind != mock.Create {
		return mock.Outcome{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.left, b.at = min(5, b.left+2*now.Sub(b.at).Seconds()), now
	b.asked++
	if b.left < 1 {
		return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "request limit exceeded")}
	}
	b.left--
	b.created[call.Request.Tags.Group] = append(b.created[call.Request.Tags.Group], now)
	return mock.Outcome{Latency: time.Second}
}

func (b *tokens) count() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, times := range b.created {
		n += len(times)
	}
	return n
}

// configureGroups configures groups with the given sizes.
func (s *shard) configureGroups(sizes map[string]int) {
	groups := map[config.GroupKey]config.Group{}
	for name, size := range sizes {
		key := config.GroupKey{Tenant: workers.Tenant, Group: name}
		g := config.Group{GroupKey: key, Static: true, Kind: "wrk", Template: "t", Size: size, MaxSurge: 1,
			Subnets: []string{"a"}, InfraHash: "i1"}
		g.MaxUnhealthy, _ = config.ParseLimit("40%")
		groups[key] = g
	}
	s.State.Configure((&config.Shard{}).WithDefaults(), groups)
}

// TestThrottledCreatesUseTheWholeRate checks how long the creates of 100 missing instances take if EC2 limits requests
// by a token bucket. If the leader uses every token of the bucket, they take 47.5 s. The test also checks that few
// requests are refused.
func TestThrottledCreatesUseTheWholeRate(t *testing.T) {
	const missing = 100
	inBubble(t, missing, func(t *testing.T, s *shard) {
		bucket := newTokens()
		s.answer(bucket.answer)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		for bucket.count() < missing && time.Since(began) < 10*time.Minute {
			time.Sleep(time.Second) // fake time
			synctest.Wait()
		}
		if took := time.Since(began); took > 55*time.Second {
			t.Errorf("%d of %d creates after %s, want all within 55 s", bucket.count(), missing, took)
		}
		if most := 3 * missing; bucket.asked > most {
			t.Errorf("%d requests for %d instances, want at most %d", bucket.asked, missing, most)
		}
		t.Logf("%d creates with %d requests in %s", missing, bucket.asked, time.Since(began))
	})
}

// TestThrottledCreatesAreFair checks that the missing instance of a small group does not wait for those of a large
// group.
func TestThrottledCreatesAreFair(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, s *shard) {
		bucket := newTokens()
		s.answer(bucket.answer)
		sizes := map[string]int{"large": 100}
		s.configureGroups(sizes)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		time.Sleep(10 * time.Second)
		sizes = maps.Clone(sizes)
		sizes["small"] = 2
		s.configureGroups(sizes)
		began := time.Now()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		bucket.mu.Lock()
		defer bucket.mu.Unlock()
		if n := len(bucket.created["small"]); n != 2 {
			t.Errorf("%d instances of the small group after %s, want 2 (the large group has %d)", n, time.Since(began),
				len(bucket.created["large"]))
		}
	})
}
