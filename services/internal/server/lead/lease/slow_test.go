package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// slowBuckets are the latencies of a request in the tests of slow buckets.
var slowBuckets = map[string]func(*rand.Rand) time.Duration{
	"2 s":         func(*rand.Rand) time.Duration { return 2 * time.Second },
	"3 s":         func(*rand.Rand) time.Duration { return 3 * time.Second },
	"6 s":         func(*rand.Rand) time.Duration { return 6 * time.Second },
	"20 s":        func(*rand.Rand) time.Duration { return 20 * time.Second },
	"0.1 to 18 s": func(r *rand.Rand) time.Duration { return 100*time.Millisecond + time.Duration(r.Int64N(17.9e9)) },
	"0.1 to 20 s": func(r *rand.Rand) time.Duration { return 100*time.Millisecond + time.Duration(r.Int64N(19.9e9)) },
}

// slow gives every request the latency, half of it before the request takes effect.
func (s *shard) slow(latency func(*rand.Rand) time.Duration) {
	r := rand.New(rand.NewPCG(1, 2))
	s.faults(func(mem.Request) mem.Fault {
		s.mu.Lock()
		defer s.mu.Unlock()
		d := latency(r)
		return mem.Fault{Before: d / 2, After: d - d/2}
	})
}

// led returns how many leaderships there were.
func (s *shard) led() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ledBy)
}

// TestLeaderStaysOnASlowBucket checks two servers with the default settings. A leader with an heir keeps its lock for
// an hour, and servers that start on a slow bucket get a leader that stays.
func TestLeaderStaysOnASlowBucket(t *testing.T) {
	for name, latency := range slowBuckets {
		for _, fromStart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, from the start %v", name, fromStart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newShard(t)
					h := &hub{members: map[election.Peer]*member{}}
					a, b := s.server("a"), s.server("b")
					h.join(a)
					h.join(b)
					if fromStart {
						s.slow(latency)
					}
					a.run()
					b.run()
					if !fromStart {
						pass(time.Minute)
						s.slow(latency)
					} else {
						pass(6 * time.Minute)
					}
					before := s.led()
					if s.acting != 1 || before == 0 {
						t.Fatalf("%d leaders act after %d leaderships", s.acting, before)
					}
					pass(time.Hour)
					if after := s.led(); after != before || s.acting != 1 {
						t.Errorf("%d leaderships in an hour, and %d leaders act", after-before, s.acting)
					}
					s.faults(nil)
					a.cancel()
					b.cancel()
					<-a.result
					<-b.result
				})
			})
		}
	}
}

// TestLeaderWithoutHeirStaysOnASlowBucket checks that a leader without an heir keeps a lock that is valid for 10 s,
// with requests that take nearly as long as the lock permits.
func TestLeaderWithoutHeirStaysOnASlowBucket(t *testing.T) {
	for _, latency := range []time.Duration{2 * time.Second, 3 * time.Second, 4400 * time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShard(t)
				a := s.server("a")
				s.slow(func(*rand.Rand) time.Duration { return latency })
				a.run()
				pass(2 * time.Minute)
				before := s.led()
				pass(time.Hour)
				if after := s.led(); before == 0 || after != before || s.acting != 1 {
					t.Errorf("%d leaderships in an hour after %d, and %d leaders act", after-before, before, s.acting)
				}
				s.faults(nil)
				if err := a.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestProofsDoNotDelayRenewals checks a leader without an heir that asks for a proof of its leadership all the time, as
// it does before it deletes VMs. The proofs must not take the time of the renewals.
func TestProofsDoNotDelayRenewals(t *testing.T) {
	for _, latency := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4400 * time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShard(t)
				a := s.server("a")
				proofs := 0
				a.cfg.Lead = func(ctx context.Context, authority *Authority) error {
					go func() {
						for authority.Confirm(ctx) == nil {
							proofs++
							time.Sleep(100 * time.Millisecond)
						}
					}()
					return a.lead(ctx, authority)
				}
				s.slow(func(*rand.Rand) time.Duration { return latency })
				a.run()
				pass(2 * time.Minute)
				before := s.led()
				pass(time.Hour)
				if after := s.led(); before == 0 || after != before || s.acting != 1 || proofs < 300 {
					t.Errorf("%d leaderships in an hour after %d, %d leaders act, %d proofs", after-before, before,
						s.acting, proofs)
				}
				s.faults(nil)
				if err := a.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
