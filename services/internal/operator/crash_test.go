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

// everyKill has TestKilledAnywhere go through all kill points, which takes some ten minutes; without it, through a
// sample.
const everyKill = "NSTANCE_TEST_EVERY_KILL"

var errKilled = errors.New("the process was killed")

// scythe counts what an operator changes, in Kubernetes and on the servers, and kills it at one change: before or after
// that took effect. From then on nothing of that operator reaches anybody.
type scythe struct {
	at    int // 0: never
	after bool
	kill  func()

	mu      sync.Mutex
	changes []string
	dead    bool
}

// enter counts a change, if it is one. It returns false when it is not to take effect.
func (s *scythe) enter(what string, change bool) (turn int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead || !change {
		return 0, !s.dead
	}
	s.changes = append(s.changes, what)
	turn = len(s.changes)
	if turn == s.at && !s.after {
		s.die()
		return turn, false
	}
	return turn, true
}

// leave returns false when the one who made the change does not live to hear of it.
func (s *scythe) leave(turn int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn == s.at && turn > 0 && !s.dead {
		s.die()
	}
	return !s.dead
}

// die is called with mu held.
func (s *scythe) die() {
	s.dead = true
	go s.kill()
}

type roundTripper struct {
	*scythe
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper. Events and questions about rights are no changes.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	change := request.Method != http.MethodGet && !strings.Contains(request.URL.Path, "/events")
	turn, ok := r.enter(request.Method+" "+request.URL.Path, change)
	if !ok {
		return nil, errKilled
	}
	response, err := r.next.RoundTrip(request)
	if !r.leave(turn) {
		if err == nil {
			_ = response.Body.Close() // nobody reads it
		}
		return nil, errKilled
	}
	return response, err
}

func (s *scythe) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
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

func (s *scythe) wield(c *operator.Config) {
	c.Rest = rest.CopyConfig(c.Rest)
	c.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return roundTripper{s, next} })
	c.Dial = []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.unary)}
}

// reap plays the scenario with an operator that is killed at one change and then started again. It returns what the
// first one changed.
func reap(r *rig, at int, after bool) []string {
	s := &scythe{at: at, after: after}
	// The scythe ends the first process only: that one may have ended by itself, and the next one have started, before
	// the scythe strikes.
	born := make(chan *process, 1)
	s.kill = func() { (<-born).kill() }
	p := r.start(s.wield)
	born <- p
	killed := false
	r.play(func() {
		if !p.ended() {
			return
		}
		if killed || at == 0 {
			r.t.Fatalf("the operator has ended: %v", p.err)
		}
		killed = true
		p = r.start(nil)
	})
	if err := p.stop(); err != nil {
		r.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at > 0 && !s.dead {
		r.t.Logf("there was no change %d this time", at)
	}
	return s.changes
}

// Wherever an operator is cut off, the next one comes to the same end: nothing is there twice, nothing is missing.
func TestKilledAnywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	k := kubernetes(t)
	var changes []string
	if !t.Run("undisturbed", func(t *testing.T) {
		changes = reap(newRig(t, k, "undisturbed", scenarioGroups), 0, false)
	}) {
		return
	}
	t.Logf("%d changes:\n%s", len(changes), strings.Join(changes, "\n"))
	if len(changes) < 30 {
		t.Fatalf("only %d changes", len(changes))
	}
	step := 2
	if os.Getenv(everyKill) == "" {
		step = len(changes) / 5
	}
	for n := 1; n <= len(changes); n += max(1, step/2) {
		for _, after := range []bool{false, true} {
			if step > 2 && after != (n%2 == 0) {
				continue // of a sample, either
			}
			what := "before"
			if after {
				what = "after"
			}
			t.Run(fmt.Sprintf("%s-%d", what, n), func(t *testing.T) {
				t.Logf("%s %s", what, changes[n-1])
				reap(newRig(t, k, fmt.Sprintf("%s-%d", what, n), scenarioGroups), n, after)
			})
		}
	}
}
