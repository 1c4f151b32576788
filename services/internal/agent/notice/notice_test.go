package notice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// imds is a fake metadata service. It implements only what the watchers use.
type imds struct {
	mu       sync.Mutex
	values   map[string]string
	token    int // the valid token
	down     bool
	version  int
	changed  chan struct{}
	refused  int
	requests int
	date     string // The header Date of the answers; none if it is empty.
}

func newIMDS(t *testing.T) (*imds, string) {
	m := &imds{values: map[string]string{}, changed: make(chan struct{})}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	return m, server.URL
}

func (m *imds) change(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn()
	m.version++
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *imds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.requests++
	if r.URL.Query().Get("wait_for_change") == "true" && r.URL.Query().Get("last_etag") == fmt.Sprint(m.version) {
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	value, ok := m.values[r.URL.Path]
	w.Header()["Date"] = nil
	if m.date != "" {
		w.Header().Set("Date", m.date)
	}
	switch {
	case m.down:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case r.Method == http.MethodPut && r.URL.Path == tokenPath:
		if r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "21600" {
			http.Error(w, "no life", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, m.token)
	case r.URL.Path == preemptedPath && r.Header.Get("Metadata-Flavor") != "Google":
		http.Error(w, "no flavor", http.StatusForbidden)
	case r.URL.Path != preemptedPath && r.Header.Get("X-aws-ec2-metadata-token") != fmt.Sprint(m.token):
		m.refused++
		http.Error(w, "no token", http.StatusUnauthorized)
	case !ok:
		http.NotFound(w, r)
	default:
		w.Header().Set("Metadata-Flavor", "Google")
		w.Header().Set("ETag", fmt.Sprint(m.version))
		fmt.Fprint(w, value)
	}
}

type source interface {
	Watch(ctx context.Context, notice func(*nstancev1.TerminationNotice)) error
}

// watch watches a source until the test ends. The returned channel receives each reported notice.
func watch(t *testing.T, s source) <-chan *nstancev1.TerminationNotice {
	ctx, cancel := context.WithCancel(context.Background())
	notices, done := make(chan *nstancev1.TerminationNotice, 16), make(chan error, 1)
	go func() { done <- s.Watch(ctx, func(n *nstancev1.TerminationNotice) { notices <- n }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch ended with %v", err)
		}
	})
	return notices
}

func wantNotice(t *testing.T, notices <-chan *nstancev1.TerminationNotice, want *nstancev1.TerminationNotice) {
	t.Helper()
	select {
	case got := <-notices:
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no notice, want %v", want)
	}
}

func options(base string) Options {
	return Options{Base: base, Interval: time.Millisecond, Log: slog.New(slog.DiscardHandler)}
}

func TestAWS(t *testing.T) {
	m, base := newIMDS(t)
	notices := watch(t, NewAWS(options(base)))
	deadline := time.Date(2026, 11, 21, 8, 22, 0, 0, time.UTC)

	m.change(func() { m.values[rebalancePath] = `{"noticeTime": "2026-11-21T08:00:00Z"}` })
	wantNotice(t, notices, &nstancev1.TerminationNotice{Kind: "rebalance"})
	m.change(func() { m.values[actionPath] = `{"action": "terminate", "time": "2026-11-21T08:22:00Z"}` })
	wantNotice(t, notices, &nstancev1.TerminationNotice{Kind: "spot-terminate", Deadline: timestamppb.New(deadline)})

	// The notice does not change while the metadata service is down, refuses an expired token, or answers malformed
	// text.
	m.change(func() { m.down = true })
	m.change(func() { m.down, m.token = false, 7 })
	m.change(func() { m.values[actionPath] = `{"action": 7}` })
	m.change(func() { m.values[actionPath] = `{"action": "stop", "time": "2026-11-21T08:22:00Z", "more": 1}` })
	wantNotice(t, notices, &nstancev1.TerminationNotice{Kind: "spot-stop", Deadline: timestamppb.New(deadline)})
	m.change(func() { clear(m.values) })
	wantNotice(t, notices, nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused == 0 {
		t.Error("the token was never refused: its renewal was not tested")
	}
}

// TestAWSCountsOnItsOwnClock checks that the deadline of an interruption is as far away as on AWS's clock, whatever
// this machine's clock says, and that the deadline does not move.
func TestAWSCountsOnItsOwnClock(t *testing.T) {
	m, base := newIMDS(t)
	a := NewAWS(options(base))
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	a.now = func() time.Time { now = now.Add(time.Second); return now }
	m.change(func() {
		m.date = "Sat, 21 Nov 2026 08:20:00 GMT"
		m.values[actionPath] = `{"action": "terminate", "time": "2026-11-21T08:22:00Z"}`
	})
	notices := watch(t, a)
	want := &nstancev1.TerminationNotice{Kind: "spot-terminate", Remaining: durationpb.New(2 * time.Minute),
		Deadline: timestamppb.New(time.Date(2026, 11, 21, 12, 2, 1, 0, time.UTC))}
	wantNotice(t, notices, want)
	m.change(func() { m.date = "Sat, 21 Nov 2026 08:20:03 GMT" })
	m.change(func() { m.values[actionPath] = `{"action": "stop", "time": "2026-11-21T08:22:00Z"}` })
	want.Kind = "spot-stop"
	wantNotice(t, notices, want)
}

func TestParseAction(t *testing.T) {
	for body, want := range map[string]*nstancev1.TerminationNotice{
		`{"action":"hibernate","time":"2026-11-21T08:22:00Z"}`: {Kind: "spot-hibernate",
			Deadline: timestamppb.New(time.Date(2026, 11, 21, 8, 22, 0, 0, time.UTC))},
		`{"action":"dance"}`: {Kind: "spot"},
		`{}`:                 {Kind: "spot"},
	} {
		got, err := parseAction([]byte(body))
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%s: %v %s", body, err, diff)
		}
	}
	for _, body := range []string{"", "terminate", `{"time":"soon"}`, `[]`} {
		if got, err := parseAction([]byte(body)); err == nil {
			t.Errorf("%q was read as %v", body, got)
		}
	}
}

// TestAWSOddToken checks that the watcher drops a token that cannot be sent in a header.
func TestAWSOddToken(t *testing.T) {
	s := &scripted{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	a := NewAWS(options(server.URL))
	for _, token := range []string{"a\x00b", "a\nb", "", "é"} {
		s.set(http.StatusOK, token, `{"action":"stop"}`, "", "")
		if notice, err := a.readNotice(t.Context()); err == nil {
			t.Errorf("%q: %v", token, notice)
		}
	}
	s.set(http.StatusOK, goodToken, `{"action":"stop"}`, "", "")
	if notice, err := a.readNotice(t.Context()); err != nil || notice.GetKind() != "spot-stop" {
		t.Errorf("with a good token: %v, %v", notice, err)
	}
}

func FuzzParseAction(f *testing.F) {
	f.Add([]byte(`{"action":"terminate","time":"2026-11-21T08:22:00Z"}`))
	f.Add([]byte(`{"action":"stop","time":"9999-12-31T23:59:60Z"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		notice, err := parseAction(body)
		if err == nil && notice.GetDeadline() != nil && notice.GetDeadline().CheckValid() != nil {
			t.Errorf("%q gave the deadline %v", body, notice.GetDeadline())
		}
	})
}

func TestGCP(t *testing.T) {
	m, base := newIMDS(t)
	m.change(func() { m.values[preemptedPath] = "FALSE" })
	g := NewGCP(options(base))
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	g.now = func() time.Time { return now }
	notices := watch(t, g)
	want := &nstancev1.TerminationNotice{Kind: "preemption", Deadline: timestamppb.New(now.Add(30 * time.Second)),
		Remaining: durationpb.New(30 * time.Second)}

	m.change(func() { m.values[preemptedPath] = "TRUE" })
	wantNotice(t, notices, want)
	m.change(func() { m.values[preemptedPath] = "PERHAPS" })
	m.change(func() { m.down = true })
	m.change(func() { m.down = false; m.values[preemptedPath] = "TRUE" })
	m.change(func() { m.values[preemptedPath] = "FALSE" })
	wantNotice(t, notices, nil)
}

// TestGCPWaits checks that no further requests are sent while a request hangs.
func TestGCPWaits(t *testing.T) {
	m, base := newIMDS(t)
	m.change(func() { m.values[preemptedPath] = "FALSE" })
	notices := watch(t, NewGCP(options(base)))
	select {
	case n := <-notices:
		t.Errorf("told %v", n)
	case <-time.After(100 * time.Millisecond):
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests > 2 {
		t.Errorf("%d requests in 100 ms", m.requests)
	}
}

// TestAWSAttest checks that the agent sends the signed identity document exactly as the metadata service returns it.
func TestAWSAttest(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		text := goodToken
		if r.Method == http.MethodGet {
			text = "MIAG\nCSqG"
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.URL+"/")
	proof, err := Find("aws", Firmware{}).Attest(t.Context(), Options{}, "knc01")
	if err != nil || string(proof) != "MIAG\nCSqG" {
		t.Errorf("proof %q, %v", proof, err)
	}
	if want := "PUT /latest/api/token, GET /latest/dynamic/instance-identity/rsa2048"; strings.Join(asked,
		", ") != want {
		t.Errorf("asked %q, want %s", asked, want)
	}
	for _, name := range []string{"proxmox", NoCloud} {
		if Find(name, Firmware{}).Attest != nil {
			t.Errorf("%s has a proof, but no server can check it", name)
		}
	}
}

// TestGCPAttest checks that the agent asks for an identity token in the format "full", with its instance as the
// audience. The agent accepts a token only from Google's metadata service.
func TestGCPAttest(t *testing.T) {
	flavor := "Google"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := "/computeMetadata/v1/instance/service-accounts/default/identity?audience=nstance%3Aknc01&format=full"
		if r.URL.RequestURI() != want || r.Header.Get("Metadata-Flavor") != "Google" {
			t.Errorf("asked %s with flavor %q, want %s", r.URL.RequestURI(), r.Header.Get("Metadata-Flavor"), want)
		}
		w.Header().Set("Metadata-Flavor", flavor)
		_, _ = w.Write([]byte("a.b.c"))
	}))
	t.Cleanup(server.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	proof, err := Find("gcp", Firmware{}).Attest(t.Context(), Options{}, "knc01")
	if err != nil || string(proof) != "a.b.c" {
		t.Errorf("proof %q, %v", proof, err)
	}
	flavor = ""
	if _, err := Find("gcp", Firmware{}).Attest(t.Context(), Options{}, "knc01"); err == nil {
		t.Error("an answer without Google's header is taken")
	}
}
