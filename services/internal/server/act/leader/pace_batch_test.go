package leader_test

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/rate"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// documentedBuckets are the token buckets that EC2 documents for RunInstances: one for requests, and one for instances.
type documentedBuckets struct {
	mu             sync.Mutex
	limits         *rate.Limits
	asked, created int
}

func (b *documentedBuckets) answer(call mock.Call) mock.Outcome {
	count := 1
	switch call.Kind {
	case mock.CreateBatch:
		count = call.Batch.Count
	case mock.Create:
	default:
		return mock.Outcome{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if err := b.limits.Take(&wire.Call{Service: "ec2", Action: "RunInstances", Now: time.Now(),
		Form: url.Values{"MaxCount": {strconv.Itoa(count)}}}); err != nil {
		return mock.Outcome{Err: infra.Errorf(infra.Throttled, "create", "%w", err)}
	}
	b.created += count
	return mock.Outcome{Latency: time.Second}
}

func (b *documentedBuckets) counts() (asked, created int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked, b.created
}

// TestBatchesExhaustTheResourceBucket checks how long the creates of 1,200 missing instances take in batches. EC2's
// bucket has tokens for 1,000 instances and gets 2 per second, so the last 200 instances take at least 100 s.
func TestBatchesExhaustTheResourceBucket(t *testing.T) {
	const missing, bucket = 1200, 1000
	inBubble(t, missing, func(t *testing.T, s *shard) {
		buckets := &documentedBuckets{limits: rate.Documented()}
		s.Executor.Batches = func() int { return execute.SmallestBatch }
		s.Executor.Renderer = awsRenderer{s, "ami-1"}
		s.answer(buckets.answer)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
		var burst, all time.Duration
		for all == 0 && time.Since(began) < 10*time.Minute {
			time.Sleep(time.Second) // fake time
			synctest.Wait()
			_, created := buckets.counts()
			if burst == 0 && created >= bucket*9/10 {
				burst = time.Since(began)
			}
			if created >= missing {
				all = time.Since(began)
			}
		}
		asked, created := buckets.counts()
		if burst == 0 || burst > 15*time.Second || all == 0 || all > 130*time.Second || asked > 100 {
			t.Error("want 900 within 15 s, all within 130 s, and at most 100 requests")
		}
		t.Logf("%d of %d instances with %d requests: %d after %s, all after %s", created, missing, asked, bucket*9/10,
			burst, all)
	})
}
