package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/operator/shards/shardstest"
)

const (
	namespace = "nstance-system"
	someID    = "wrk01k1bnbb2we2dbk3cgk8v7tz41"
)

type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(regarding, _ runtime.Object, kind, reason, action, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%T %s: %s %s/%s %s", regarding, regarding.(client.Object).GetName(), kind,
		reason, action, fmt.Sprintf(note, args...)))
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.events
	r.events = nil
	return out
}

func TestReports(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	object := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	c := fake.NewClientBuilder().WithScheme(scheme).WithIndex(scope.MachineByInstance.Object,
		scope.MachineByInstance.Field, scope.MachineByInstance.Values).WithObjects(
		&v1beta1.NstanceCluster{ObjectMeta: object("prod--default")},
		&v1beta1.NstanceMachinePool{ObjectMeta: object("pool"), Spec: v1beta1.NstanceMachinePoolSpec{Group: "workers"}},
		&v1beta1.NstanceShardGroup{ObjectMeta: object("workers--a"), Spec: v1beta1.NstanceShardGroupSpec{
			Group: "workers", Shard: "a"}},
		&v1beta1.NstanceShardGroup{ObjectMeta: object("workers--b"), Spec: v1beta1.NstanceShardGroupSpec{
			Group: "workers", Shard: "b"}},
		&v1beta1.NstanceMachine{ObjectMeta: object("one"), Spec: v1beta1.NstanceMachineSpec{InstanceID: someID}},
	).Build()
	const (
		ofCluster = "*v1beta1.NstanceCluster prod--default: "
		ofPool    = "*v1beta1.NstanceMachinePool pool: "
		ofGroup   = "*v1beta1.NstanceShardGroup workers--a: "
		ofMachine = "*v1beta1.NstanceMachine one: "
	)
	synctest.Test(t, func(t *testing.T) {
		set, events := shardstest.New("a", "b"), &recorder{}
		r := newReporter(scope.Scope{Client: c, Recorder: events, Shards: set, Namespace: namespace, Cluster: "prod",
			Tenant: "default", Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Start(ctx) }()
		synctest.Wait()
		for _, step := range []struct {
			name   string
			report *nstancev1.ErrorEvent
			want   []string
		}{
			{"of the shard", &nstancev1.ErrorEvent{Kind: "config", Message: "line 3"},
				[]string{ofCluster + "Warning ConfigRefused/config shard a: line 3"}},
			{"again", &nstancev1.ErrorEvent{Kind: "config", Message: "line 3"}, nil},
			{"another text", &nstancev1.ErrorEvent{Kind: "config", Message: "line 4"},
				[]string{ofCluster + "Warning ConfigRefused/config shard a: line 4"}},
			{"over", &nstancev1.ErrorEvent{Kind: "config", Resolved: true},
				[]string{ofCluster + "Normal ConfigRefused/config shard a, resolved: line 4"}},
			{"over again", &nstancev1.ErrorEvent{Kind: "config", Resolved: true}, nil},
			{"over, never heard of", &nstancev1.ErrorEvent{Kind: "storage", Resolved: true}, nil},
			{"of a group", &nstancev1.ErrorEvent{Kind: "backoff", Group: "workers", Message: "3 failures"},
				[]string{ofGroup + "Warning Blocked/backoff shard a: 3 failures", ofPool +
					"Warning Blocked/backoff shard a: 3 failures"}},
			{"of a group without objects", &nstancev1.ErrorEvent{Kind: "capacity", Group: "others", Message: "none"},
				[]string{ofCluster + "Warning ProviderError/capacity shard a: none"}},
			{"of an instance", &nstancev1.ErrorEvent{Kind: "provider", Group: "workers", InstanceId: someID,
				Message: "denied"},
				[]string{ofMachine + "Warning ProviderError/provider shard a: denied"}},
			{"of an instance without objects", &nstancev1.ErrorEvent{Kind: "provider", Group: "workers",
				InstanceId: "wrk01k1bnbb2we2dbk3cgk8v7tz42", Message: "denied"},
				[]string{ofGroup + "Warning ProviderError/provider shard a: denied", ofPool +
					"Warning ProviderError/provider shard a: denied"}},
			{"with a secret", &nstancev1.ErrorEvent{Kind: "provider", Message: "token=abc was refused"},
				[]string{ofCluster + "Warning ProviderError/provider shard a: [removed] was refused"}},
		} {
			set.Of("a").Report(step.report)
			synctest.Wait()
			if diff := cmp.Diff(step.want, events.take()); diff != "" {
				t.Errorf("%s:\n%s", step.name, diff)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestTooMany checks that the queue of pending errors has a limit.
func TestTooMany(t *testing.T) {
	set := shardstest.New("a")
	r := newReporter(scope.Scope{Shards: set, Log: slog.New(slog.DiscardHandler)})
	set.Notify(r.enqueue)
	for range maxPending + 10 {
		set.Of("a").Report(&nstancev1.ErrorEvent{Kind: "provider"})
	}
	if got := len(r.pending); got != maxPending {
		t.Errorf("%d are pending", got)
	}
}

var unclean = []string{
	"", "an error", "two\nlines\tand\x00more", "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----",
	"-----BEGIN PRIVATE KEY-----\ncut off",
	"eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln", "Authorization: Bearer abc.def", `{"password": "hunter2"}`,
	"api_key=abc", "secret = abc, more", "\xff\xfe",
	strings.Repeat("ä", 2000),
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"an error":                "an error",
		"two\nlines\tand\x00more": "two lines and more",
		"key -----BEGIN EC PRIVATE KEY-----\nMHc\n":    "key [removed]",
		"nonce eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c": "nonce [removed]",
		"Authorization: Bearer abc.def failed":         "[removed] failed",
		`{"password": "hunter2"}`:                      `{"[removed]"}`,
		"secret = abc, more":                           "[removed], more",
		"the secret is not there":                      "the secret is not there",
	} {
		if got := sanitize(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	for _, in := range unclean {
		if err := checkClean(sanitize(in)); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func checkClean(out string) error {
	switch {
	case !utf8.ValidString(out), strings.ContainsAny(out, "\n\x00"), len(out) > 1024:
		return fmt.Errorf("%q does not fit into an event", out)
	case strings.Contains(out, "PRIVATE KEY"), strings.Contains(out, "hunter2"):
		return errors.New("a secret is left in " + out)
	}
	return nil
}

func FuzzClean(f *testing.F) {
	for _, in := range unclean {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		out := sanitize("-----BEGIN PRIVATE KEY-----hunter2-----END PRIVATE KEY-----" + in)
		if !utf8.ValidString(out) || strings.ContainsAny(out, "\n\x00") || len(out) > 1024 ||
			strings.Contains(out, "hunter2-----END") {
			t.Errorf("%q", out)
		}
	})
}
