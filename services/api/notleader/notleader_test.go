package notleader_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

func TestErrorNamesTheLeader(t *testing.T) {
	err := notleader.Error("two leads", &nstancev1.NotLeader{Shard: "a", LeaderId: "two", OperatorAddr: "two:8993"})
	if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "two leads" {
		t.Errorf("got %v", err)
	}
	if leader := notleader.FromError(fmt.Errorf("call: %w", err)); leader.GetOperatorAddr() != "two:8993" {
		t.Errorf("got the leader %v", leader)
	}
	for _, other := range []error{nil, errors.New("x"), status.Error(codes.Unavailable, "x")} {
		if leader := notleader.FromError(other); leader != nil || leader.GetAgentAddr() != "" {
			t.Errorf("%v: got the leader %v", other, leader)
		}
	}
}
