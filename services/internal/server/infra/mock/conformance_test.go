package mock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/mock"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/infratest"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// clock is a time that changes only when a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Sleep advances the clock.
func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

func TestConformance(t *testing.T) {
	for name, cfg := range map[string]mock.Config{
		"instant": {},
		"slow": {Boot: 3 * time.Second, Shutdown: 2 * time.Second, FallAsleep: 2 * time.Second, WakeUp: time.Second,
			Script: func(context.Context, mock.Call) mock.Outcome { return mock.Outcome{Latency: time.Millisecond} }},
	} {
		t.Run(name, func(t *testing.T) {
			infratest.Run(t, func(*testing.T) infratest.Harness {
				clock, cfg := newClock(), cfg
				cfg.Now, cfg.Sleep = clock.Now, clock.Sleep
				said := map[string]infra.MemberHealth{}
				cfg.Health = func(lb string) (map[string]infra.MemberHealth, error) {
					if lb != "web" {
						return nil, infra.Invalid
					}
					return said, nil
				}
				cfg.Delay = func(lb string) (time.Duration, error) {
					if lb != "web" {
						return 0, infra.NotFound
					}
					return time.Minute, nil
				}
				p := mock.New(cfg)
				return infratest.Harness{
					Provider: p,
					Kill: func(t *testing.T, vm infra.VM) {
						if err := p.Kill(vm.ProviderID); err != nil {
							t.Fatal(err)
						}
					},
					Settle: func(t *testing.T) { clock.Sleep(t.Context(), time.Second) },
					Balance: func(*testing.T) (string, func(*testing.T, infra.VM, bool)) {
						return "web", func(_ *testing.T, vm infra.VM, healthy bool) {
							said[vm.ProviderID] = infra.MemberHealth{Healthy: healthy}
							if !healthy {
								said[vm.ProviderID] = infra.MemberHealth{Reason: "timeout"}
							}
						}
					},
					Room: func(_ *testing.T, vms int) {
						p.SetCapacity(mock.Place{Type: "small", Subnet: "subnet-a"}, vms)
					},
					Delay:   time.Minute,
					Sleeps:  contract.Block.Sleeps,
					Unknown: "mock-99999999",
				}
			})
		})
	}
}
