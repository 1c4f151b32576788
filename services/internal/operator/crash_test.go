package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	"github.com/nstance-kit/nstance/services/internal/operator"
)

// everyKill is the name of an environment variable. If it is set, TestOperatorKilledAtEveryChange kills the operator at
// every change, which takes about ten minutes. Otherwise the test kills it at a sample of the changes.
const everyKill = "NSTANCE_TEST_EVERY_KILL"

var errKilled = errors.New("the process was killed")

// killer counts an operator's changes in Kubernetes and on the servers, and kills the operator before or after one of
// them. A killed operator makes no further requests.
type killer struct {
	at    int // number of the change, 0 for none
	after bool
	kill  func()

	mu      sync.Mutex
	changes []string
	dead    bool
}

// enter is called before each request. If the request changes something, turn is its number among all changes, counted
// from 1. Otherwise turn is 0. enter returns false if the request must not be sent.
func (s *killer) enter(what string, change bool) (turn int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead || !change {
		return 0, !s.dead
	}
	s.changes = append(s.changes, what)
	turn = len(s.changes)
	if turn == s.at && !s.after {
		s.killLocked()
		return turn, false
	}
	return turn, true
}

// leave is called after each request, with the number turn that enter returned. It returns false if the operator was
// killed during the request. The operator then must not see the answer.
func (s *killer) leave(turn int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn == s.at && turn > 0 && !s.dead {
		s.killLocked()
	}
	return !s.dead
}

// killLocked kills the operator. The caller must hold mu.
func (s *killer) killLocked() {
	s.dead = true
	go s.kill()
}

type roundTripper struct {
	*killer
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper. A request that writes a Kubernetes Event does not count as a change.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	change := request.Method != http.MethodGet && !strings.Contains(request.URL.Path, "/events")
	turn, ok := r.enter(request.Method+" "+request.URL.Path, change)
	if !ok {
		return nil, errKilled
	}
	response, err := r.next.RoundTrip(request)
	if !r.leave(turn) {
		if err == nil {
			_ = response.Body.Close() // the answer is dropped
		}
		return nil, errKilled
	}
	return response, err
}

func (s *killer) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	name := path.Base(method)
	turn, ok := s.enter("call "+name, !strings.HasPrefix(name, "List") && !strings.HasPrefix(name, "Get"))
	if !ok {
		return status.FromContextError(context.Canceled).Err()
	}
	err := invoke(ctx, method, request, reply, conn, opts...)
	if !s.leave(turn) {
		return status.Error(codes.Unavailable, errKilled.Error())
	}
	return err
}

func (s *killer) intercept(c *operator.Config) {
	c.Rest = rest.CopyConfig(c.Rest)
	c.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return roundTripper{s, next} })
	c.Dial = []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.unary)}
}

// runKilled runs the scenario with an operator that is killed at one change, and then starts another operator. It
// returns the changes that the first operator made.
func runKilled(deployment *testDeployment, at int, after bool) []string {
	s := &killer{at: at, after: after}
	// The killer must kill only the first process, so give it this process through a channel. The variable p does not
	// suffice: the first process may have ended before the killer acts, and p is then the second process.
	born := make(chan *process, 1)
	s.kill = func() { (<-born).kill() }
	p := deployment.start(s.intercept)
	born <- p
	killed := false
	deployment.runScenario(func() {
		if !p.ended() {
			return
		}
		if killed || at == 0 {
			deployment.t.Fatalf("the operator has ended: %v", p.err)
		}
		killed = true
		p = deployment.start(nil)
	})
	if err := p.stop(); err != nil {
		deployment.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at > 0 && !s.dead {
		deployment.t.Logf("this run had no change %d", at)
	}
	return s.changes
}

// TestOperatorKilledAtEveryChange runs the scenario many times. Each run kills the operator before or after a different
// change. After a restart the operator must reach the same result: nothing exists twice and nothing is missing.
func TestOperatorKilledAtEveryChange(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	k := kubernetes(t)
	var changes []string
	if !t.Run("undisturbed", func(t *testing.T) {
		changes = runKilled(newTestDeployment(t, k, "undisturbed", scenarioGroups), 0, false)
	}) {
		return
	}
	t.Logf("%d changes:\n%s", len(changes), strings.Join(changes, "\n"))
	if len(changes) < 30 {
		t.Fatalf("the scenario makes only %d changes, want at least 30", len(changes))
	}
	step := 2
	if os.Getenv(everyKill) == "" {
		step = len(changes) / 5
	}
	for n := 1; n <= len(changes); n += max(1, step/2) {
		for _, after := range []bool{false, true} {
			if step > 2 && after != (n%2 == 0) {
				continue // a sample alternates between before and after
			}
			what := "before"
			if after {
				what = "after"
			}
			t.Run(fmt.Sprintf("%s-%d", what, n), func(t *testing.T) {
				t.Logf("%s %s", what, changes[n-1])
				runKilled(newTestDeployment(t, k, fmt.Sprintf("%s-%d", what, n), scenarioGroups), n, after)
			})
		}
	}
}
