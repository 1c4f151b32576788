package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"
)

// strain contains the resources that were used until the time `at`. Some are those of this process, in which the server
// runs. Others are those of the whole machine. The difference between two strains shows why something took long.
type strain struct {
	at      time.Time
	cpu     time.Duration // of this process
	delayed time.Duration // time in which threads of this process waited for a core: proc(5), schedstat
	// softirq is the time that the whole machine spent in soft interrupts, which also handle packets on the loopback.
	// Some kernels do not count this time separately.
	softirq  time.Duration
	accepted uint64 // TCP connections of the whole machine: SNMP's PassiveOpens, RFC 4022
	segments uint64 // InSegs of the whole machine, RFC 4022
	runtime  []metrics.Sample
}

// Metrics of the runtime, in the order of strain.runtime.
const (
	runLatencies = iota
	collections
	collectorCPU
	assistCPU
	allocated
)

func strainNow() strain {
	s := strain{at: time.Now(), runtime: []metrics.Sample{{Name: "/sched/latencies:seconds"},
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/cpu/classes/gc/total:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"}, {Name: "/gc/heap/allocs:bytes"}}}
	metrics.Read(s.runtime)
	var spent syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &spent) == nil {
		s.cpu = time.Duration(spent.Utime.Nano() + spent.Stime.Nano())
	}
	threads, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, thread := range threads {
		var ran, waited int64
		if text, err := os.ReadFile(thread); err == nil { // otherwise the thread has ended
			_, _ = fmt.Sscan(string(text), &ran, &waited)
			s.delayed += time.Duration(waited)
		}
	}
	if text, err := os.ReadFile("/proc/stat"); err == nil {
		var name string
		var ticks [7]int64
		_, _ = fmt.Sscan(string(text), &name, &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5],
			&ticks[6])
		s.softirq = time.Duration(ticks[6]) * 10 * time.Millisecond // proc_stat(5): 1/100 s
	}
	s.accepted, s.segments = snmp("PassiveOpens"), snmp("InSegs")
	return s
}

// snmp reads one of the kernel's TCP counters from /proc/net/snmp. That file has one line with the names of the
// counters, and one line with their values.
func snmp(name string) (count uint64) {
	text, _ := os.ReadFile("/proc/net/snmp")
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case fields[0] != "Tcp:":
		case names == nil:
			names = fields
		default:
			for n, field := range fields {
				if names[n] == name {
					_, _ = fmt.Sscan(field, &count)
				}
			}
		}
	}
	return count
}

// since describes the resources that were used from the moment of `before` to the moment of s.
func (s strain) since(before strain) string {
	seconds := s.at.Sub(before.at).Seconds()
	number := func(n int) float64 { return float64(s.runtime[n].Value.Uint64() - before.runtime[n].Value.Uint64()) }
	float := func(n int) float64 { return s.runtime[n].Value.Float64() - before.runtime[n].Value.Float64() }
	now, then := s.runtime[runLatencies].Value.Float64Histogram(), before.runtime[runLatencies].Value.Float64Histogram()
	counts, total := make([]uint64, len(now.Counts)), uint64(0)
	for n := range counts {
		counts[n] = now.Counts[n] - then.Counts[n]
		total += counts[n]
	}
	quantile := func(q float64) time.Duration {
		left := uint64(math.Ceil(float64(total) * q))
		for n, count := range counts {
			if count >= left {
				return time.Duration(min(now.Buckets[n+1], 1000) * float64(time.Second))
			}
			left -= count
		}
		return 0
	}
	return fmt.Sprintf(
		"%.1f s: %.2f cores, threads delayed %.2f s/s, softirq %.2f cores, %.0f connections/s, %.0f segments/s; "+
			"runnable goroutines waited p99 %s, p99.9 %s, most %s; "+
			"%.0f collections, %.2f cores of them, assist %.2f; %.1f MiB/s allocated", seconds,
		(s.cpu-before.cpu).Seconds()/seconds, (s.delayed-before.delayed).Seconds()/seconds,
		(s.softirq-before.softirq).Seconds()/seconds, float64(s.accepted-before.accepted)/seconds,
		float64(s.segments-before.segments)/seconds,
		quantile(0.99), quantile(0.999), quantile(1), number(collections), float(collectorCPU)/seconds,
		float(assistCPU)/seconds, number(allocated)/seconds/(1<<20))
}

// profileCPU writes a CPU profile of this process if BENCH_PROFILE names a directory. The profile ends when stop is
// called.
func profileCPU(b testing.TB, name string) (stop func()) {
	b.Helper()
	path := profiles(name + ".cpu")
	if path == "" {
		return func() {}
	}
	file, err := os.Create(path)
	if err == nil {
		err = pprof.StartCPUProfile(file)
	}
	if err != nil {
		b.Fatal(err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}
}
