package agentapi_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// scaled configures the group with metrics that agents read from their VMs.
func (l *testLeader) scaled(metrics ...*config.ScalingVM) {
	l.group.Scaling = nil
	if len(metrics) > 0 {
		l.group.Scaling = &config.Scaling{Max: 9}
	}
	for _, m := range metrics {
		l.group.Scaling.Metrics = append(l.group.Scaling.Metrics, config.ScalingMetric{VM: m})
	}
	l.Configure(l.group)
	l.service.Configured()
}

// numberStream opens a stream of files of an agent that already reads the given numbers.
func (c *client) numberStream(reads ...uint64) filesStream {
	c.t.Helper()
	stream, err := c.ReceiveFiles(c.t.Context(), &nstancev1.ReceiveFilesRequest{InstanceId: c.id.String(),
		WithVmNumbers: true, VmNumbers: reads})
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

// receiveNumbers returns the next message of a stream, which must hold numbers.
func receiveNumbers(t *testing.T, stream filesStream) *nstancev1.VmNumbers {
	t.Helper()
	message, err := stream.Recv()
	if err != nil || message.GetVmNumbers() == nil {
		t.Fatalf("no numbers: %v, %v", message, err)
	}
	return message.GetVmNumbers()
}

// TestNumbersAreSent checks that an agent is told which numbers it must read when its stream opens, unless it reads
// them already, and when they change. An agent that reads no numbers is told nothing.
func TestNumbersAreSent(t *testing.T) {
	w := newTestLeader(t)
	inflight := &config.ScalingVM{Port: 9100, Path: "/metrics", Metric: "inflight", Target: 100}
	waiting := &config.ScalingVM{Port: 80, Path: "/state", JSON: "/waiting", Target: 5}
	w.scaled(inflight, waiting, inflight)
	c := w.agent(t)
	stream := c.numberStream()
	want := &nstancev1.VmNumbers{Numbers: []*nstancev1.VmNumber{
		{Id: inflight.ID(), Port: 9100, Path: "/metrics", In: &nstancev1.VmNumber_Metric{Metric: "inflight"}},
		{Id: waiting.ID(), Port: 80, Path: "/state", In: &nstancev1.VmNumber_Json{Json: "/waiting"}},
	}}
	if diff := cmp.Diff(want, receiveNumbers(t, stream), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	retargeted := *inflight
	retargeted.Target = 50
	w.scaled(&retargeted, waiting) // the agent reads the same numbers
	w.scaled(waiting)
	if got := receiveNumbers(t, stream); len(got.GetNumbers()) != 1 || got.GetNumbers()[0].GetId() != waiting.ID() {
		t.Errorf("%v", got)
	}
	if b := receive(t, stream); b.commit == nil {
		t.Error("no files follow the changed numbers")
	}
	w.scaled()
	if got := receiveNumbers(t, stream); len(got.GetNumbers()) != 0 {
		t.Errorf("%v", got)
	}

	w.scaled(waiting)
	has := c.again().numberStream(waiting.ID())
	w.scaled(inflight)
	if got := receiveNumbers(t, has); len(got.GetNumbers()) != 1 || got.GetNumbers()[0].GetId() != inflight.ID() {
		t.Errorf("an agent that reads another number gets %v", got)
	}

	old := w.agent(t)
	files := old.files()
	w.scaled(waiting)
	if err := old.push(); err != nil {
		t.Fatal(err)
	}
	if b := receive(t, files); b.commit == nil { // fails at a message that is no file
		t.Error("no batch")
	}
}

// TestReportedNumbers checks what the server makes of the numbers of reports, also of those of no genuine agent.
func TestReportedNumbers(t *testing.T) {
	w := newTestLeader(t)
	metric := config.ScalingMetric{VM: &config.ScalingVM{Port: 9100, Path: "/metrics", Metric: "inflight"}}
	id := metric.VM.ID()
	value := func(v float64) *nstancev1.VmNumberState {
		return &nstancev1.VmNumberState{Id: id, Result: &nstancev1.VmNumberState_Value{Value: v}}
	}
	problem := func(text string) *nstancev1.VmNumberState {
		return &nstancev1.VmNumberState{Id: id, Result: &nstancev1.VmNumberState_Problem{Problem: text}}
	}
	const tooOld = "its agent does not report it; if this lasts, the agent is too old"
	other := value(8)
	other.Id++
	c := w.agent(t)
	r := c.reports()
	for _, test := range []struct {
		reported []*nstancev1.VmNumberState
		value    float64
		problem  string
		pending  bool
	}{
		{[]*nstancev1.VmNumberState{value(7)}, 7, "", false},
		{[]*nstancev1.VmNumberState{other, value(0)}, 0, "", false},
		{[]*nstancev1.VmNumberState{problem("refused")}, 0, "refused", false},
		{[]*nstancev1.VmNumberState{{Id: id}}, 0, "its agent has not read it yet", true},
		{[]*nstancev1.VmNumberState{other}, 0, tooOld, true},
		{nil, 0, tooOld, true},
		{[]*nstancev1.VmNumberState{value(-1)}, 0, "its agent reports the value -1", false},
		{[]*nstancev1.VmNumberState{value(math.NaN())}, 0, "its agent reports the value NaN", false},
		{[]*nstancev1.VmNumberState{value(math.Inf(1))}, 0, "its agent reports the value +Inf", false},
		{[]*nstancev1.VmNumberState{value(1e300)}, 0, "its agent reports the value 1e+300", false},
	} {
		r.send(func(m *nstancev1.ReportHealthRequest) { m.Unchanged, m.VmNumbers = true, test.reported })
		view, _ := w.State.Instance(c.id)
		got, why, pending := view.Report.Metrics.Number(&metric)
		if got != test.value || why != test.problem || pending != test.pending {
			t.Errorf("%v: %v, %q, %v; want %v, %q, %v", test.reported, got, why, pending, test.value, test.problem,
				test.pending)
		}
	}
	for want, numbers := range map[string][]*nstancev1.VmNumberState{
		"vm_numbers: 11 of them, at most 10 are allowed": make([]*nstancev1.VmNumberState, 11),
		"vm_numbers[1].problem: has a control character": {value(1), problem("a\nb")},
		"vm_numbers[0].problem: 257 bytes, at most 256":  {problem(strings.Repeat("a", 257))},
	} {
		c := w.agent(t)
		r := c.reports()
		if err := r.Send(&nstancev1.ReportHealthRequest{InstanceId: c.id.String(), Sequence: 1, Healthy: true,
			VmNumbers: numbers}); err != nil {
			t.Fatal(err)
		}
		wants(t, want, r.RecvMsg(&nstancev1.ReportHealthResponse{}), codes.InvalidArgument, want)
	}
}
