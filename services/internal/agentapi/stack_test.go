//go:build !race

package agentapi_test

import (
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

// stacks returns the bytes of stack that each of so many goroutines takes while it waits for the next report.
func stacks(t *testing.T, n int, run func(wait func(), end <-chan struct{})) uint64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC() // gives back the stacks of goroutines that are no more
	runtime.ReadMemStats(&before)
	var waiting, all sync.WaitGroup
	end := make(chan struct{})
	waiting.Add(n)
	for range n {
		all.Go(func() { run(waiting.Done, end) })
	}
	waiting.Wait()
	runtime.ReadMemStats(&after)
	close(end)
	all.Wait()
	return (after.StackInuse - min(before.StackInuse, after.StackInuse)) / uint64(n) //nolint:gosec // a thousand
}

// A stack that has grown once stays as it is, and there is one for each agent. What nearly all reports are must not
// make it grow beyond what reading them takes, 4 KiB. (What the race detector adds does not count.)
func TestUnchangedReportsTakeLittleStack(t *testing.T) {
	w := newWorld(t)
	id, _, _ := w.registered(t)
	number, ok := w.World.Connected(id)
	if !ok || !w.World.Reported(id, number, shardstate.Report{Healthy: true, RuntimeHash: "r1",
		Files: []shardstate.FileState{}, Keys: []shardstate.KeyState{}}) {
		t.Fatal("the instance is not heard")
	}
	var said []*nstancev1.ReportHealthRequest
	rate := 1.5
	for n := range uint64(3) {
		said = append(said, &nstancev1.ReportHealthRequest{InstanceId: id.String(), Sequence: n + 1, Unchanged: true,
			Healthy: true, RuntimeHash: "r1", AgentVersion: "v1",
			Metrics: &nstancev1.Metrics{Cpu: 0.5, NetworkReceiveRate: &rate}, Ipv4: "10.0.0.1",
			Ipv6: "2001:db8::192.0.2.1", Hostname: "node-1", Message: "well"})
	}
	const agents = 1000
	least := stacks(t, agents, func(wait func(), end <-chan struct{}) { wait(); <-end })
	each := stacks(t, agents, func(wait func(), end <-chan struct{}) {
		wants(t, "the end", w.service.Read(w.leader.Load(), id, number, &told{left: said, quiet: wait, silence: end}),
			codes.Unknown, "EOF")
	})
	t.Logf("%d bytes, %d at the beginning", each, least)
	if each > max(4<<10+512, least+least/8) {
		t.Errorf("%d bytes of stack for each agent, want 4 KiB (%d at the beginning)", each, least)
	}
	if now, _ := w.World.LastReport(id); now.Version != "v1" || now.Metrics.CPU != 0.5 || now.Files == nil {
		t.Errorf("nobody has taken the reports: %+v", now)
	}
}
