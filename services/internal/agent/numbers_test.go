package agent_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// vmNumbers returns an event with the numbers that the agent must read: the metrics with the given names. The server
// sends such events on the stream of files.
func vmNumbers(names ...string) *nstancev1.ReceiveFilesResponse {
	numbers := &nstancev1.VmNumbers{}
	for i, name := range names {
		numbers.Numbers = append(numbers.Numbers, &nstancev1.VmNumber{Id: uint64(i) + 1, Port: 80, Path: "/metrics",
			In: &nstancev1.VmNumber_Metric{Metric: name}})
	}
	return &nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_VmNumbers{VmNumbers: numbers}}
}

// TestVMNumbers checks that an agent reads the numbers that it is asked for, reports them immediately and with every
// report, and keeps them when it connects again.
func TestVMNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		s.interval = "30s"
		stopServer := s.start(t, n.listen(address))
		defer func() { stopServer() }()
		answer := make(chan string, 1)
		answer <- "inflight 7\n"
		o := newMemories(t, s).options(s, n)
		o.Numbers = func(context.Context, uint32, string) (io.ReadCloser, error) {
			text := <-answer
			answer <- text
			return io.NopCloser(strings.NewReader(text)), nil
		}
		_, stop := run(t, o)
		defer stop()
		type request = nstancev1.ReportHealthRequest
		has := func(value float64, problem string) func(*request) bool {
			return func(r *request) bool {
				got := r.GetVmNumbers()
				return len(got) == 1 && got[0].GetId() == 1 && got[0].GetValue() == value &&
					got[0].GetProblem() == problem
			}
		}
		s.next(t, "the first report", func(r *request) bool { return len(r.GetVmNumbers()) == 0 })
		s.fileSends <- vmNumbers("inflight")
		before := time.Now()
		s.next(t, "the first value", has(7, ""))
		if took := time.Since(before); took > time.Second {
			t.Errorf("the first value is reported after %v", took)
		}
		<-answer
		answer <- "other 8\n"
		before = time.Now()
		s.next(t, "the reason of a missing value", has(0, "127.0.0.1:80/metrics: no metric inflight"))
		if took := time.Since(before); took > 30*time.Second {
			t.Errorf("a new value is reported after %v", took)
		}
		<-answer
		answer <- "inflight 9\n"
		s.next(t, "the next value", has(9, ""))

		stopServer()
		s.set(func() { s.asked = nil })
		stopServer = s.start(t, n.listen(address))
		s.next(t, "the same value on a new stream", has(9, ""))
		synctest.Wait()
		asked := get(s, func() *nstancev1.ReceiveFilesRequest { return s.asked })
		if ids := asked.GetVmNumbers(); !asked.GetWithVmNumbers() || len(ids) != 1 || ids[0] != 1 {
			t.Errorf("the agent asks for its files with %v", asked)
		}
		s.fileSends <- vmNumbers()
		s.next(t, "no numbers", func(r *request) bool { return len(r.GetVmNumbers()) == 0 })
	})
}

// TestHangingProgram checks that a program that does not answer delays no report.
func TestHangingProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		s.interval = "1s"
		stopServer := s.start(t, n.listen(address))
		defer stopServer()
		o := newMemories(t, s).options(s, n)
		o.Numbers = func(ctx context.Context, _ uint32, _ string) (io.ReadCloser, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		_, stop := run(t, o)
		defer stop()
		s.fileSends <- vmNumbers("a", "b")
		last := time.Now()
		for range 20 {
			s.next(t, "a report", func(*nstancev1.ReportHealthRequest) bool { return true })
			if now := time.Now(); now.Sub(last) > time.Second {
				t.Errorf("a report is %v after the one before", now.Sub(last))
			}
			last = time.Now()
		}
		s.next(t, "the reason", func(r *nstancev1.ReportHealthRequest) bool {
			return len(r.GetVmNumbers()) == 2 &&
				strings.HasSuffix(r.GetVmNumbers()[0].GetProblem(), ": no complete answer within 2s")
		})
	})
}

// TestWithoutNumbers checks that an agent that reads no numbers ignores the event, as agents of earlier versions do.
func TestWithoutNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		stopServer := s.start(t, n.listen(address))
		defer stopServer()
		s.set(func() { s.firstFiles = []*nstancev1.ReceiveFilesResponse{vmNumbers("a")} })
		_, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		report := s.next(t, "sequence 2", func(r *nstancev1.ReportHealthRequest) bool { return r.GetSequence() == 2 })
		if report.GetVmNumbers() != nil || get(s, func() *nstancev1.ReceiveFilesRequest { return s.asked }).
			GetWithVmNumbers() {
			t.Errorf("%v", report)
		}
	})
}
