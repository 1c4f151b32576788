package system

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

// figure is the result of one round. All times count from the moment when the leader is killed, paused or stopped.
// acts, attached and used are set only if the test has a fake cloud.
type figure struct {
	leads    time.Duration // the successor became leader
	acts     time.Duration // its first RunInstances call arrived
	attached time.Duration // it has the leader's network interface
	heirless bool          // the leader had lost its heir just before
	used     cpuTimes      // until the last of these moments
}

// cpuTimes are processor times of the successor, the object store, and this process, which is the fake EC2. On a busy
// machine they are more telling than elapsed times.
type cpuTimes struct{ successor, store, cloud time.Duration }

func (c cpuTimes) minus(before cpuTimes) cpuTimes {
	return cpuTimes{c.successor - before.successor, c.store - before.store, c.cloud - before.cloud}
}

// String returns the times in seconds.
func (c cpuTimes) String() string {
	return fmt.Sprintf("CPU s: server %.1f, store %.1f, fake EC2 %.1f", c.successor.Seconds(), c.store.Seconds(),
		c.cloud.Seconds())
}

// cpuTimes returns the processor times so far. A time that cannot be read is zero.
func (f *failover) cpuTimes(ctx context.Context, successor *local.Process) cpuTimes {
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
	return cpuTimes{of(successor.PID), of(f.store.PID), of(os.Getpid())}
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

// print prints the percentiles of the rounds in which the leader got the given signal.
func (f figures) print(signal string, heir bool) {
	who, heirless := "its follower", 0
	if heir {
		who = "its heir"
	}
	for _, one := range f {
		if one.heirless {
			heirless++
		}
	}
	fmt.Printf("%s of the leader → %s may act, %d times: %s\n", signal, who, len(f), summary(f.leading()))
	if heirless > 0 {
		fmt.Printf("  %d of these leaders had just lost their heir\n", heirless)
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

// countIdleRequests counts the requests to the bucket while nothing happens, and prints them.
func (f *failover) countIdleRequests(ctx context.Context) error {
	if _, err := f.awaitLeader(ctx); err != nil {
		return err
	}
	if err := local.Pause(ctx, time.Minute); err != nil { // until the work after the failover is done
		return err
	}
	before, err := f.requests(ctx)
	if err != nil {
		return err
	}
	if err := local.Pause(ctx, failoverOptions.idle); err != nil {
		return err
	}
	after, err := f.requests(ctx)
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
	fmt.Printf("requests of the idle shard, both servers, in %v: %.0f, that is %.0f an hour\n",
		failoverOptions.idle, sum,
		sum*float64(time.Hour)/float64(failoverOptions.idle))
	return nil
}

// requests returns the number of requests to the bucket so far, by server and kind.
func (f *failover) requests(ctx context.Context) (map[string]float64, error) {
	made := map[string]float64{}
	for n := 1; n <= servers; n++ {
		text, err := page(ctx, f.stack, n, "/metrics")
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
		return nil, errors.New("the metrics of the servers have no nstance_storage_requests_total")
	}
	return made, nil
}
