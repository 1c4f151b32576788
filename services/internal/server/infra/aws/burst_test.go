package aws_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// BenchmarkBurst makes many creates at the same time with the real client. In case "128", at most 128 calls run at the
// same time, as in the server. In case "all", there is no limit. Each call has the server's default request timeout.
// The cloud handles one call at a time, as fast as it can. The CPU seconds include client and cloud, because both run
// in this process.
func BenchmarkBurst(b *testing.B) {
	for name, atOnce := range map[string]int{"all": 1000, "128": 128} {
		b.Run("under-way="+name, func(b *testing.B) { benchmarkBurst(b, atOnce) })
	}
}

func benchmarkBurst(b *testing.B, atOnce int) {
	const burst, timeout = 1000, 30 * time.Second
	r := newTestCloud(b)
	p := r.open(nil)
	for b.Loop() {
		requests := make([]infra.CreateRequest, burst)
		for i := range requests {
			requests[i] = r.request()
		}
		var failed atomic.Int64
		var slowest longest
		var all errgroup.Group
		all.SetLimit(atOnce)
		used, began := cpuTime(b), time.Now()
		for i := range requests {
			all.Go(func() error {
				ctx, cancel := context.WithTimeout(b.Context(), timeout)
				defer cancel()
				entered := time.Now()
				if _, err := p.Create(ctx, requests[i]); err != nil {
					failed.Add(1)
				}
				slowest.note(time.Since(entered))
				return nil
			})
		}
		_ = all.Wait() // failures are counted
		b.ReportMetric(time.Since(began).Seconds(), "all-s")
		b.ReportMetric(time.Duration(slowest.Load()).Seconds(), "longest-call-s")
		b.ReportMetric((cpuTime(b) - used).Seconds(), "cpu-s")
		b.ReportMetric(float64(failed.Load()), "failed")
		b.ReportMetric(0, "ns/op")
	}
}

// longest returns the longest duration.
type longest struct{ atomic.Int64 }

func (l *longest) note(d time.Duration) {
	for most := l.Load(); int64(d) > most && !l.CompareAndSwap(most, int64(d)); most = l.Load() {
	}
}

// cpuTime returns the CPU time that this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
