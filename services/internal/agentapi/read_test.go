package agentapi_test

import (
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

type healthStream = grpc.ClientStreamingServer[nstancev1.ReportHealthRequest, nstancev1.ReportHealthResponse]

// told is a health stream on which an agent says as much as is in left, and then nothing until silence ends.
type told struct {
	healthStream
	left    []*nstancev1.ReportHealthRequest
	quiet   func()
	silence <-chan struct{}
}

func (s *told) Recv() (*nstancev1.ReportHealthRequest, error) {
	if len(s.left) == 0 {
		s.quiet()
		<-s.silence
		return nil, io.EOF
	}
	next := s.left[0]
	s.left = s.left[1:]
	return next, nil
}

// broken is a stream whose next message is a bug of ours.
type broken struct{ healthStream }

func (broken) Recv() (*nstancev1.ReportHealthRequest, error) { panic("no such thing") }

func TestPanicEndsOneStreamOnly(t *testing.T) {
	w := newWorld(t)
	id, _, _ := w.registered(t)
	number, _ := w.World.Connected(id)
	wants(t, "a panic while reading", w.service.Read(w.leader.Load(), id, number, broken{}), codes.Internal,
		"internal error")
	// On another stack it is the same: the World is asked for a group, and there is none.
	first := &nstancev1.ReportHealthRequest{InstanceId: id.String(), Sequence: 1}
	leader := *w.leader.Load()
	leader.World = nil
	wants(t, "a panic while a report is taken", w.service.Read(&leader, id, number,
		&told{left: []*nstancev1.ReportHealthRequest{first}}), codes.Internal, "internal error")
}
