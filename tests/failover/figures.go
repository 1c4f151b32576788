package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// figure is what one round took, from the signal on. acts and attached are zero without a cloud.
type figure struct {
	leads    time.Duration // the successor may act
	acts     time.Duration // its first call that needs permission, other than for the network interface, has arrived
	attached time.Duration // the interface is the successor's
	heirless bool          // the leader had lost its heir just before
	used     cpu           // until all of that
}

// cpu is processor time: of the successor, of the object store, and of this process, which is the fake EC2. On a busy
// machine it says more than a clock.
type cpu struct{ successor, store, cloud time.Duration }

func (c cpu) less(before cpu) cpu {
	return cpu{c.successor - before.successor, c.store - before.store, c.cloud - before.cloud}
}

func (c cpu) String() string {
	s := func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }
	return fmt.Sprintf("CPU s: server %s, store %s, fake EC2 %s", s(c.successor), s(c.store), s(c.cloud))
}

// used is what was used so far; nothing of what cannot be read.
func (t *trial) used(ctx context.Context, successor *local.Process) cpu {
	of := func(pid int) time.Duration {
		p, err := process.NewProcessWithContext(ctx, int32(pid))
		if err != nil {
			return 0
		}
		times, err := p.TimesWithContext(ctx)
		if err != nil {
			return 0
		}
		return time.Duration((times.User + times.System) * float64(time.Second))
	}
	return cpu{of(successor.PID), of(t.store.PID), of(os.Getpid())}
}

type figures []figure

func (f figures) leading() []time.Duration {
	return f.each(func(f figure) time.Duration { return f.leads })
}

func (f figures) each(of func(figure) time.Duration) (all []time.Duration) {
	for _, one := range f {
		all = append(all, of(one))
	}
	return all
}

func (f figures) print(signal string, heir bool) {
	who, without := "its follower", 0
	if heir {
		who = "its heir"
	}
	for _, one := range f {
		if one.heirless {
			without++
		}
	}
	fmt.Printf("%s of the leader → %s may act, %d times: %s\n", signal, who, len(f), summary(f.leading()))
	if without > 0 {
		fmt.Printf("  %d of these leaders had just lost their heir\n", without)
	}
	if f[0].acts != 0 {
		fmt.Printf("%s of the leader → first permitted call of the provider: %s\n", signal,
			summary(f.each(func(f figure) time.Duration {
				return f.acts
			})))
		fmt.Printf("%s of the leader → its network interface is attached: %s\n", signal,
			summary(f.each(func(f figure) time.Duration {
				return f.attached
			})))
		fmt.Printf("%s of the leader → first permitted call of the provider, successor's processor time: %s\n", signal,
			summary(f.each(func(f figure) time.Duration { return f.used.successor })))
	}
}

func percentile(waits []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(waits))
	return sorted[(len(sorted)*p+99)/100-1]
}

func summary(waits []time.Duration) string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	return fmt.Sprintf("p50 %s, p99 %s, most %s", ms(percentile(waits, 50)), ms(percentile(waits, 99)),
		ms(slices.Max(waits)))
}

// idleRequests counts the requests to the bucket while nothing happens.
func (t *trial) idleRequests(ctx context.Context) error {
	if _, err := t.leader(ctx); err != nil {
		return err
	}
	if err := pause(ctx, time.Minute); err != nil { // what came with the change of leader is over
		return err
	}
	before, err := t.requests(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, t.idle); err != nil {
		return err
	}
	after, err := t.requests(ctx)
	if err != nil {
		return err
	}
	var sum float64
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if made := after[name] - before[name]; made > 0 {
			fmt.Printf("  %s: %.0f\n", name, made)
			sum += made
		}
	}
	fmt.Printf("requests of the idle shard, both servers, in %v: %.0f, that is %.0f an hour\n", t.idle, sum,
		sum*float64(time.Hour)/float64(t.idle))
	return nil
}

// requests are how many each server has made of each kind.
func (t *trial) requests(ctx context.Context) (map[string]float64, error) {
	made := map[string]float64{}
	for n := 1; n <= servers; n++ {
		text, err := t.page(ctx, n, "/metrics")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok &&
				strings.HasPrefix(name, "nstance_storage_requests_total{") {
				number, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return nil, err
				}
				made[local.ServerName(n)+" "+strings.TrimPrefix(name, "nstance_storage_requests_total")] = number
			}
		}
	}
	if len(made) == 0 {
		return nil, errors.New("the servers do not say how many requests they made")
	}
	return made, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
