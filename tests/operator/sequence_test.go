package operator

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/tests/kube"
)

var (
	sequenceSteps = flag.Int("steps", 50, "number of random steps of each subtest of TestSequence")
	sequenceSeed  = flag.Uint64("seed", 1, "seed of the first subtest of TestSequence; the others have the next ones")
)

const (
	// sequences is the number of subtests of TestSequence. They run at the same time, each in its own lab.
	sequences = 2
	// roundSteps is the number of steps in a round. After each round, the test checks the invariants of a converged
	// state.
	roundSteps = 25
	// reaction is the time that a deletion may take to reach a shard that answers. If the shard creates an instance of
	// the deleted group after that time, the test fails.
	reaction = 5 * time.Second
	// convergence limits the time from the end of a round until the state has converged. A Machine without instance is
	// removed after a minute.
	convergence = 4 * time.Minute
	// stillness is how long a converged operator must write nothing to count as quiet.
	stillness = 2 * time.Second
)

// TestSequence makes random changes and faults: edits, scalings, deletions, pods, restarts, hanging shards and lost
// VMs. After every change:
//
//   - no VM is created while a deletion is under way.
//
// After every round, when everything answers again:
//
//   - every group has the size in the test's model;
//   - every Machine has an instance, every instance has a Node, and nothing of a deleted object is left;
//   - no pod was evicted from a Node that still exists;
//   - the operator stops writing to the API server.
func TestSequence(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	for i := range sequences {
		seed := *sequenceSeed + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			runSequence(t, seed)
		})
	}
}

func runSequence(t *testing.T, seed uint64) {
	t.Helper()
	l := newLab(t)
	l.settleServers(t)
	s := &sequence{lab: l, t: t, random: rand.New(rand.NewPCG(seed, 0)), freed: map[*shard]time.Time{},
		seen: map[*shard]int{}, deletions: map[string]time.Time{}, nodes: map[string]string{}}
	url, err := l.Front(t.Context(), s.recordWrites)
	if err != nil {
		t.Fatal(err)
	}
	s.url = url
	s.configureOperator()
	l.bootstrap(t)
	l.imported(t)
	s.secrets = s.listSecrets(t.Context())
	s.resetModel()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, step %d of %d; the last events:\n%s", seed, s.step, *sequenceSteps, s.tail(60))
			all := filepath.Join(l.dir, "sequence.log")
			if err := os.WriteFile(all, []byte(s.tail(len(s.log))), 0o600); err == nil {
				t.Logf("all events are in %s", all)
			}
		}
	})
	for s.step = 1; s.step <= *sequenceSteps && !t.Failed(); s.step++ {
		s.makeStep()
		s.inspect()
		if s.step%roundSteps == 0 || s.step == *sequenceSteps {
			s.finishRound()
		}
	}
	t.Logf("seed %d: %d steps, %d creations, %d restarts of the operator, %d evicted pods; rounds ended within %.1f s",
		seed, s.step-1, l.countCreations(), len(l.operators)-1, s.evictions, s.slowest.Seconds())
}

// sequence is the state of one run of TestSequence and of its checks.
type sequence struct {
	*lab
	t       *testing.T
	random  *rand.Rand
	url     string // The API server's address for the operator.
	step    int
	model   model
	hanging *shard
	freed   map[*shard]time.Time // When a shard continued after it hung.
	// deletions has the time at which each deleted group was deleted. A deleted group may not create instances.
	deletions map[string]time.Time
	seen      map[*shard]int    // The number of inspected events of a shard.
	nodes     map[string]string // The Nodes of running pods, by the pod's name.
	evicted   map[string]string // The Nodes of pods that were evicted in this round.
	disturbed map[string]bool   // The shards whose server hung or was killed in this round.
	evictions int
	secrets   []string
	slowest   time.Duration

	mu     sync.Mutex
	log    []string
	writes []string // Writes of the operator since the last reset.
}

// recordWrites is a proxy in front of the API server. It records all writes of the operator, except writes of leases
// and events.
func (s *sequence) recordWrites(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method != http.MethodGet && strings.HasPrefix(r.UserAgent(), "nstance-operator") &&
		!strings.Contains(r.URL.Path, "/events") && !strings.Contains(r.URL.Path, "/leases") {
		s.record("operator", r.Method+" "+r.URL.Path)
		s.mu.Lock()
		s.writes = append(s.writes, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
	}
	next.ServeHTTP(w, r)
}

// record adds an event to the log that is printed when the test fails.
func (s *sequence) record(kind, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%s %-8s %s", time.Now().Format("15:04:05.000"), kind, text))
}

func (s *sequence) tail(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.log[max(0, len(s.log)-n):], "\n")
}

// takeWrites returns the operator's writes since the previous call of takeWrites.
func (s *sequence) takeWrites() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.writes
	s.writes = nil
	return out
}

// configureOperator writes the operator's configuration and a kubeconfig. The kubeconfig contains a new token, because
// such tokens are valid for only an hour.
func (s *sequence) configureOperator() {
	s.t.Helper()
	s.configure(s.t.Context(), s.t, s.url, func(_ *shard, addr string) string { return addr })
}

// makeStep makes one random change that is possible now, and pauses.
func (s *sequence) makeStep() {
	total := 0
	for _, k := range stepKinds {
		total += k.weight
	}
	for {
		n := s.random.IntN(total)
		at := slices.IndexFunc(stepKinds, func(k stepKind) bool { n -= k.weight; return n < 0 })
		if did := stepKinds[at].run(s); did != "" {
			s.record("step", fmt.Sprintf("%d: %s", s.step, did))
			break
		}
	}
	<-time.After(time.Duration(s.random.IntN(200)) * time.Millisecond)
}

// inspect checks the invariants that hold at all times.
func (s *sequence) inspect() {
	s.t.Helper()
	for _, shard := range s.shards() {
		for _, event := range shard.eventsFrom(s.seen[shard]) {
			s.seen[shard]++
			s.inspectEvent(shard, event)
		}
	}
	s.inspectPods()
	operator := s.operators[len(s.operators)-1]
	select {
	case <-operator.Ended():
		s.t.Fatalf("the operator ended with exit code %d:\n%s", operator.ExitCode(), kube.Tail(operator.Log, 20))
	default:
	}
}

// inspectEvent fails the test if a group creates an instance although the group was deleted.
func (s *sequence) inspectEvent(at *shard, event *nstancev1.InstanceEvent) {
	s.t.Helper()
	group, id := event.GetInstance().GetGroup(), event.GetInstance().GetInstanceId()
	s.record(at.id, fmt.Sprintf("%s %s of %s", event.GetType(), id, group))
	since, deleted := s.deletions[group]
	if event.GetType() != nstancev1.InstanceEvent_TYPE_CREATING || !deleted {
		return
	}
	// A paused server continues with the requests that it got before the pause. So the time limit for its reaction
	// begins at the end of the pause.
	if freed := s.freed[at]; freed.After(since) {
		since = freed
	}
	if created := event.GetAt().AsTime(); at != s.hanging && created.Sub(since) > reaction {
		s.t.Errorf("%s was created on %s at %s, but its group %s is being deleted since %s", id, at.id,
			created.Format(time.TimeOnly), group, since.Format(time.TimeOnly))
	}
}

// eventsFrom returns the events of a shard from the given number on.
func (s *shard) eventsFrom(n int) []*nstancev1.InstanceEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[min(n, len(s.events)):])
}

// inspectPods records the Nodes of the running pods, and finds pods that were deleted by another client than the test.
func (s *sequence) inspectPods() {
	s.t.Helper()
	var list corev1.PodList
	if err := s.Client.List(s.t.Context(), &list, client.InNamespace(namespace)); err != nil {
		s.t.Fatal(err)
	}
	alive := map[string]bool{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp.IsZero() {
			alive[pod.Name] = true
			if pod.Spec.NodeName != "" {
				s.nodes[pod.Name] = pod.Spec.NodeName
			}
		}
	}
	for _, name := range s.model.podNames() {
		if alive[name] {
			continue
		}
		s.model.forgetPod(name)
		s.evictions++
		s.record("pod", fmt.Sprintf("%s on %s was deleted by others", name, s.nodes[name]))
		s.evicted[name] = s.nodes[name]
	}
}

// finishRound lets the paused server and the paused pools continue. It waits until the state has converged, and then
// checks the state.
func (s *sequence) finishRound() {
	s.t.Helper()
	s.record("round", "ends")
	s.proceed()
	s.unpause()
	began := time.Now()
	s.until("converged", convergence, s.converged)
	s.slowest = max(s.slowest, time.Since(began))
	s.t.Logf("step %d: converged after %.1f s", s.step, time.Since(began).Seconds())
	s.takeWrites()
	var writes []string
	s.until("the operator is quiet", 30*time.Second, func(context.Context) error {
		<-time.After(stillness)
		if writes = s.takeWrites(); len(writes) > 0 {
			return fmt.Errorf("it wrote %s", strings.Join(writes, ", "))
		}
		return nil
	})
	if err := s.converged(s.t.Context()); err != nil {
		s.t.Fatalf("it did not stay converged: %v", err)
	}
	for pod, node := range s.evicted {
		if s.hasInstance(node) {
			s.t.Errorf("pod %s was evicted from %s, whose instance stayed", pod, node)
		}
	}
	if s.model.ended {
		s.recreateCluster()
	}
	s.startRound()
}

// until calls "try" until it returns no error. Between the calls it checks the invariants. At the time limit it fails
// the test.
func (s *sequence) until(what string, within time.Duration, try func(context.Context) error) {
	s.t.Helper()
	_, err := poll(s.t.Context(), within, func(ctx context.Context) error {
		err := try(ctx)
		if err != nil {
			s.inspect()
		}
		return err
	})
	if err != nil {
		s.t.Fatalf("%s: not within %s: %v", what, within, err)
	}
}
