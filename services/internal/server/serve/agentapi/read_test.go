package agentapi_test

import (
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

type healthStream = grpc.ClientStreamingServer[nstancev1.ReportHealthRequest, nstancev1.ReportHealthResponse]

// scriptedStream is a health stream that receives only the given reports.
type scriptedStream struct {
	healthStream
	reports []*nstancev1.ReportHealthRequest
}

func (s *scriptedStream) Recv() (*nstancev1.ReportHealthRequest, error) {
	if len(s.reports) == 0 {
		return nil, io.EOF
	}
	next := s.reports[0]
	s.reports = s.reports[1:]
	return next, nil
}

// panickingStream is a health stream that panics. It simulates a bug in the server.
type panickingStream struct{ healthStream }

func (panickingStream) Recv() (*nstancev1.ReportHealthRequest, error) { panic("a bug") }

func TestPanicEndsOneStreamOnly(t *testing.T) {
	w := newTestLeader(t)
	id, _, _ := w.registered(t)
	number, _ := w.State.Connected(id)
	wants(t, "a panic while reading", w.service.TakeReports(w.leader.Load(), id, number, panickingStream{}),
		codes.Internal, "internal error")
	leader := *w.leader.Load()
	leader.State = nil // methods of a nil State panic
	report := &nstancev1.ReportHealthRequest{InstanceId: id.String(), Sequence: 1}
	wants(t, "a panic while a report is taken", w.service.TakeReports(&leader, id, number,
		&scriptedStream{reports: []*nstancev1.ReportHealthRequest{report}}), codes.Internal, "internal error")
}
