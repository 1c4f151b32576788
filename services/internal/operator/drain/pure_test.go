package drain

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

const (
	idA = "wrk06ftgans01r018b1c5gp2rb1c4"
	idB = "wrk06ftgans01r018k2c9h64rk2c8"
)

func nodeOf(name, providerID, mark string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	if mark != "" {
		n.Annotations = map[string]string{v1beta1.InstanceAnnotation: mark}
	}
	for _, fn := range change {
		fn(n)
	}
	return n
}

func TestPlanNodes(t *testing.T) {
	live := map[string]instance{"p:live": {key{"a", idA}, &nstancev1.InstanceStatus{State: "registered"}}}
	dead := map[string]key{"p:dead": {"a", idB}, "p:dead-silent": {"b", idB}, "p:live": {"a", idB}}
	synced := map[string]bool{"a": true, "b": false}
	for name, c := range map[string]struct {
		node *corev1.Node
		mark *key // always that of "p:live"
		ask  *key
	}{
		"of a live instance":                         {nodeOf("n", "p:live", ""), &key{"a", idA}, nil},
		"annotated":                                  {nodeOf("n", "p:live", "a/"+idA), nil, nil},
		"annotated with another instance":            {nodeOf("n", "p:live", "a/"+idB), &key{"a", idA}, nil},
		"with an invalid annotation":                 {nodeOf("n", "p:live", "a/b/c"), &key{"a", idA}, nil},
		"of a deleted instance":                      {nodeOf("n", "p:dead", ""), nil, &key{"a", idB}},
		"annotated, not listed":                      {nodeOf("n", "p:other", "a/"+idA), nil, &key{"a", idA}},
		"annotated, shard unreachable":               {nodeOf("n", "p:other", "b/"+idA), nil, nil},
		"annotated, shard unknown":                   {nodeOf("n", "p:other", "c/"+idA), nil, nil},
		"deleted, shard unreachable":                 {nodeOf("n", "p:dead-silent", ""), nil, nil},
		"of no instance":                             {nodeOf("n", "p:other", ""), nil, nil},
		"of no instance, with an invalid annotation": {nodeOf("n", "p:other", "a/"), nil, nil},
		"without a provider ID, annotated":           {nodeOf("n", "", "a/"+idA), nil, nil},
		"being deleted, annotated, not listed": {nodeOf("n", "p:other", "a/"+idA, func(n *corev1.Node) {
			n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := planNodes([]*corev1.Node{c.node}, live, dead, synced)
			want := nodePlan{ask: map[string]map[key][]*corev1.Node{}}
			if c.mark != nil {
				want.change = []nodeChange{{node: c.node, of: live["p:live"], mark: true}}
			}
			if c.ask != nil {
				want.ask[c.ask.shard] = map[key][]*corev1.Node{*c.ask: {c.node}}
			}
			if !reflect.DeepEqual(want, p) {
				t.Errorf("%+v, want %+v", p, want)
			}
		})
	}
}

func FuzzParseMark(f *testing.F) {
	for _, s := range []string{"", "a/" + idA, "a", "/" + idA, "a/b/" + idA, "A/" + idA, "a/" + strings.ToUpper(idA)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if k, ok := parseMark(s); ok && k.shard+"/"+k.instance != s {
			t.Errorf("%q parses as %v", s, k)
		}
	})
}

// TestSlots checks that a free slot goes to the drain with the earliest deadline at that moment, because deadlines can
// change.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slots{free: 1}
		at := func(d time.Duration) func() time.Time {
			deadline := time.Now().Add(d)
			return func() time.Time { return deadline }
		}
		if !s.acquire(t.Context(), at(time.Hour)) {
			t.Fatal("a free slot was not granted")
		}
		var order []string
		wait := func(name string, ctx context.Context, deadline func() time.Time) {
			go func() {
				if s.acquire(ctx, deadline) {
					order = append(order, name)
				} else {
					order = append(order, "not "+name)
				}
			}()
			synctest.Wait()
		}
		soon := time.Now().Add(3 * time.Hour)
		gaveUp, giveUp := context.WithCancel(t.Context())
		wait("two hours", t.Context(), at(2*time.Hour))
		wait("never", gaveUp, at(time.Second))
		wait("minute", t.Context(), at(time.Minute))
		wait("moved", t.Context(), func() time.Time { return soon })
		giveUp()
		synctest.Wait()
		soon = time.Now().Add(time.Second)
		for range 3 {
			s.release()
			synctest.Wait()
		}
		if want := []string{"not never", "moved", "minute", "two hours"}; !slices.Equal(order, want) {
			t.Errorf("drains in the order %q, want %q", order, want)
		}
		s.release()
		if s.free != 1 || len(s.waiting) != 0 {
			t.Errorf("%d free, %d waiting", s.free, len(s.waiting))
		}
	})
}

func TestRemainingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for given, want := range map[time.Duration]time.Duration{time.Hour: time.Hour - 5*time.Second,
			10 * time.Second: 9 * time.Second, 0: 0, -time.Minute: 0} {
			if got := remaining(shards.Drain{Deadline: time.Now().Add(given)}); got != want {
				t.Errorf("%s: %s, want %s", given, got, want)
			}
		}
		if got := remaining(shards.Drain{}); got != unlimited {
			t.Errorf("without a deadline: %s", got)
		}
	})
}

func TestInstanceIsGone(t *testing.T) {
	for state, want := range map[string]bool{"running": false, "pending": false, "stopping": false, "deleting": false,
		"unknown": false, "": false, "stopped": true, "deleted": true,
		"failed": true} {
		if got := isGone(&nstancev1.InstanceStatus{State: "deleting", ProviderState: state}); got != want {
			t.Errorf("%s: %v", state, got)
		}
	}
	if !isGone(&nstancev1.InstanceStatus{State: "deleted", ProviderState: "running"}) {
		t.Error("an instance that the server reports as deleted does not count as gone")
	}
}

func TestJoinNamesAndTruncate(t *testing.T) {
	if got := joinNames([]string{"a/b", "c/d"}); got != "a/b, c/d" {
		t.Error(got)
	}
	many := make([]string, 500)
	for i := range many {
		many[i] = "namespace/pod-with-a-name"
	}
	if got := joinNames(many); len(got) > 700 || !strings.HasSuffix(got, "more") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	if got := scope.Truncate(strings.Repeat("ä", 1000)); len(got) > 920 || !strings.HasSuffix(got, " ...") {
		t.Errorf("%d bytes", len(got))
	}
}
