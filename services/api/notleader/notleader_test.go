package notleader_test

import (
	"errors"
	"fmt"
	"slices"
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

func TestFollowAsksTheLeaderOnce(t *testing.T) {
	at := func(addr string) error { return notleader.Error("x", &nstancev1.NotLeader{AgentAddr: addr}) }
	failed := errors.New("failed")
	for name, tc := range map[string]struct {
		answers map[string]error
		asked   []string
		err     error
	}{
		"leader":          {map[string]error{"one": nil}, []string{"one"}, nil},
		"standby":         {map[string]error{"one": at("two")}, []string{"one", "two"}, nil},
		"two standbys":    {map[string]error{"one": at("two"), "two": failed}, []string{"one", "two"}, failed},
		"names itself":    {map[string]error{"one": at("one")}, []string{"one"}, at("one")},
		"knows no leader": {map[string]error{"one": at("")}, []string{"one"}, at("")},
		"fails":           {map[string]error{"one": failed}, []string{"one"}, failed},
		"leader moved away": {map[string]error{"one": at("two"), "two": at("three")}, []string{"one", "two"},
			at("three")},
	} {
		var asked []string
		err := notleader.Follow("one", (*nstancev1.NotLeader).GetAgentAddr, func(addr string) error {
			asked = append(asked, addr)
			return tc.answers[addr]
		})
		if fmt.Sprint(err) != fmt.Sprint(tc.err) || !slices.Equal(asked, tc.asked) {
			t.Errorf("%s: asked %v, error %v; want %v, %v", name, asked, err, tc.asked, tc.err)
		}
	}
}
