package notice

import (
	"context"
	"crypto/rand"
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
	"github.com/nstance-kit/nstance/services/contract/ident"
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
	google := strings.HasPrefix(r.URL.Path, "/computeMetadata/")
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
	case google && r.Header.Get("Metadata-Flavor") != "Google":
		http.Error(w, "no flavor", http.StatusForbidden)
	case !google && r.Header.Get("X-aws-ec2-metadata-token") != fmt.Sprint(m.token):
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

// watch watches a source until the test ends. The returned channel receives each reported notice.
func watch(t *testing.T, s Source) <-chan Notices {
	ctx, cancel := context.WithCancel(context.Background())
	notices, done := make(chan Notices, 16), make(chan error, 1)
	go func() { done <- s.Watch(ctx, func(n Notices) { notices <- n }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch ended with %v", err)
		}
	})
	return notices
}

// wantNotice waits until a source has reported the given notices. Before that, it may report that there is no
// recommendation and no maintenance.
func wantNotice(t *testing.T, notices <-chan Notices, want Notices) {
	t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case got := <-notices:
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff == "" {
				return
			} else if got.Any() {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
		case <-timeout:
			t.Fatalf("no notice, want %v", want)
		}
	}
}

// none are the notices of a metadata service that has none, with the given termination.
func none(termination *nstancev1.TerminationNotice) Notices {
	return Notices{termination, &nstancev1.Recommendation{}, &nstancev1.Maintenance{}}
}

func options(base string) Options {
	return Options{Base: base, Interval: time.Millisecond, Log: slog.New(slog.DiscardHandler)}
}

func TestAWS(t *testing.T) {
	m, base := newIMDS(t)
	notices := watch(t, NewAWS(options(base)))
	deadline := time.Date(2026, 11, 21, 8, 22, 0, 0, time.UTC)

	want := none(nil)
	wantNotice(t, notices, want)
	m.change(func() { m.values[rebalancePath] = `{"noticeTime": "2026-11-21T08:00:00Z"}` })
	want.Recommendation = &nstancev1.Recommendation{Replace: true}
	wantNotice(t, notices, want)
	m.change(func() { m.values[scheduledPath] = scheduled })
	want.Maintenance = &nstancev1.Maintenance{Kind: "system-reboot",
		Begins: timestamppb.New(time.Date(2019, 1, 21, 9, 0, 43, 0, time.UTC))}
	wantNotice(t, notices, want)
	m.change(func() { m.values[actionPath] = `{"action": "terminate", "time": "2026-11-21T08:22:00Z"}` })
	want.Termination = &nstancev1.TerminationNotice{Kind: "spot-terminate", Deadline: timestamppb.New(deadline)}
	wantNotice(t, notices, want)

	// The notice does not change while the metadata service is down, refuses an expired token, or answers malformed
	// text.
	m.change(func() { m.down = true })
	m.change(func() { m.down, m.token = false, 7 })
	m.change(func() { m.values[actionPath] = `{"action": 7}` })
	m.change(func() { m.values[actionPath] = `{"action": "stop", "time": "2026-11-21T08:22:00Z", "more": 1}` })
	want.Termination = &nstancev1.TerminationNotice{Kind: "spot-stop", Deadline: timestamppb.New(deadline)}
	wantNotice(t, notices, want)
	m.change(func() { m.values[scheduledPath] = "[]" })
	want.Maintenance = &nstancev1.Maintenance{}
	wantNotice(t, notices, want)
	m.change(func() { delete(m.values, actionPath) })
	want.Termination = nil
	wantNotice(t, notices, want)
	m.change(func() { clear(m.values) })
	wantNotice(t, notices, none(nil))
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
	awaitTermination(t, notices, want)
	m.change(func() { m.date = "Sat, 21 Nov 2026 08:20:03 GMT" })
	m.change(func() { m.values[actionPath] = `{"action": "stop", "time": "2026-11-21T08:22:00Z"}` })
	want.Kind = "spot-stop"
	awaitTermination(t, notices, want)
}

// awaitTermination waits until a source has reported the given termination notice, whatever else it reports.
func awaitTermination(t *testing.T, notices <-chan Notices, want *nstancev1.TerminationNotice) {
	t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case got := <-notices:
			if got.Termination == nil || want.GetKind() != got.Termination.GetKind() {
				continue
			}
			if diff := cmp.Diff(want, got.Termination, protocmp.Transform()); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
			return
		case <-timeout:
			t.Fatalf("no notice, want %v", want)
		}
	}
}

// scheduled is the example of the EC2 User Guide.
const scheduled = `[
  {
    "NotBefore" : "21 Jan 2019 09:00:43 GMT",
    "Code" : "system-reboot",
    "Description" : "scheduled reboot",
    "EventId" : "instance-event-0d59937288b749b32",
    "NotAfter" : "21 Jan 2019 09:17:23 GMT",
    "State" : "active"
  }
]`

func TestParseScheduled(t *testing.T) {
	event := func(code, notBefore, state, description string) string {
		return fmt.Sprintf(`{"Code":%q,"NotBefore":%q,"State":%q,"Description":%q}`, code, notBefore, state, description)
	}
	for body, want := range map[string]*nstancev1.Maintenance{
		"[]": {},
		"[" + event("instance-stop", "3 May 2021 22:00:00 GMT", "active", "") + "," +
			event("instance-retirement", "1 May 2021 22:00:00 GMT", "active", "") + "]": {Kind: "instance-retirement",
			Begins: timestamppb.New(time.Date(2021, 5, 1, 22, 0, 0, 0, time.UTC))},
		"[" + event("system-reboot", "1 May 2021 22:00:00 GMT", "completed", "") + "," +
			event("system-reboot", "1 May 2021 22:00:00 GMT", "active", "[Canceled] scheduled reboot") + "]": {},
	} {
		got, err := parseScheduled([]byte(body))
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%s: %v %s", body, err, diff)
		}
	}
	for _, body := range []string{"", "{}", `[{"State":"active","NotBefore":"soon"}]`} {
		if got, err := parseScheduled([]byte(body)); err == nil {
			t.Errorf("%q was read as %v", body, got)
		}
	}
}

func TestParseUpcoming(t *testing.T) {
	for body, want := range map[string]*nstancev1.Maintenance{
		"NONE\n": {}, `"NONE"`: {}, "{ }": {},
		`{ "error": "no notifications have been received yet, try again later" }`: {},
		upcoming: {Kind: "host-maintenance",
			Begins: timestamppb.New(time.Date(2025, 9, 10, 9, 28, 15, 0, time.UTC))},
	} {
		got, err := parseUpcoming([]byte(body))
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%s: %v %s", body, err, diff)
		}
	}
	for _, body := range []string{"", "[]", `{"window_start_time":"soon"}`} {
		if got, err := parseUpcoming([]byte(body)); err == nil {
			t.Errorf("%q was read as %v", body, got)
		}
	}
}

// upcoming has the form of the metadata server's answer.
const upcoming = `{"can_reschedule":"true","latest_window_start_time":"2025-09-10T09:28:16+00:00",` +
	`"maintenance_status":"PENDING","type":"SCHEDULED","window_end_time":"2025-09-10T13:28:15+00:00",` +
	`"window_start_time":"2025-09-10T09:28:15+00:00"}`

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
		if notice, err := a.readAction(t.Context()); err == nil {
			t.Errorf("%q: %v", token, notice)
		}
	}
	s.set(http.StatusOK, goodToken, `{"action":"stop"}`, "", "")
	if notice, err := a.readAction(t.Context()); err != nil || notice.GetKind() != "spot-stop" {
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
	upcomingValue, _, _ := strings.Cut(upcomingPath, "?")
	m.change(func() {
		m.values[preemptedPath], m.values[eventPath], m.values[policyPath] = "FALSE", "NONE", "TERMINATE"
	})
	g := NewGCP(options(base))
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	g.now = func() time.Time { return now }
	notices := watch(t, g)
	want := none(&nstancev1.TerminationNotice{Kind: "preemption", Deadline: timestamppb.New(now.Add(30 * time.Second)),
		Remaining: durationpb.New(30 * time.Second)})
	want.Recommendation = nil // Compute Engine has none
	wantNotice(t, notices, Notices{Maintenance: &nstancev1.Maintenance{}})

	m.change(func() { m.values[preemptedPath] = "TRUE" })
	wantNotice(t, notices, want)
	m.change(func() { m.values[preemptedPath] = "PERHAPS" })
	m.change(func() { m.down = true })
	m.change(func() { m.down = false; m.values[preemptedPath] = "TRUE" })
	m.change(func() { m.values[preemptedPath] = "FALSE" })
	want.Termination = nil
	wantNotice(t, notices, want)

	// A live migration is no maintenance. An event that has begun has no time.
	m.change(func() { m.values[eventPath] = "MIGRATE_ON_HOST_MAINTENANCE" })
	m.change(func() { m.values[upcomingValue], m.values[policyPath] = upcoming, "MIGRATE" })
	m.change(func() { m.values[policyPath] = "TERMINATE" })
	want.Maintenance = &nstancev1.Maintenance{Kind: "host-maintenance",
		Begins: timestamppb.New(time.Date(2025, 9, 10, 9, 28, 15, 0, time.UTC))}
	wantNotice(t, notices, want)
	m.change(func() { m.values[eventPath] = "TERMINATE_ON_HOST_MAINTENANCE" })
	want.Maintenance = &nstancev1.Maintenance{Kind: "host-maintenance"}
	wantNotice(t, notices, want)
	m.change(func() { m.values[upcomingValue] = "NONE" })
	m.change(func() { m.values[eventPath] = "NONE" })
	for got := range notices { // the value of upcoming maintenance is read seldom
		if !got.Any() {
			break
		}
	}
}

// TestGCPWaits checks that no further requests are sent while a request hangs.
func TestGCPWaits(t *testing.T) {
	m, base := newIMDS(t)
	m.change(func() { m.values[preemptedPath], m.values[eventPath] = "FALSE", "NONE" })
	o := options(base)
	o.Interval = 20 * time.Millisecond // upcoming maintenance is read once, because it takes 600 ms until the next time
	notices := watch(t, NewGCP(o))
	for timeout := time.After(100 * time.Millisecond); timeout != nil; {
		select {
		case n := <-notices:
			if n.Any() {
				t.Errorf("told %v", n)
			}
		case <-timeout:
			timeout = nil
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests > 5 {
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

// TestAWSMember checks that an EC2 instance knows its instance ID from its launch index.
func TestAWSMember(t *testing.T) {
	answer := "3"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := goodToken
		if r.Method == http.MethodGet {
			text = answer
			if r.URL.Path != "/latest/meta-data/ami-launch-index" {
				t.Errorf("asked %s", r.URL.Path)
			}
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.URL+"/")
	batch, err := ident.NewBatch("wrk", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := batch.Member(3)
	if id, err := Find("aws", Firmware{}).Member(t.Context(), Options{}, batch); err != nil || id != want {
		t.Errorf("%s, %v, want %s", id, err, want)
	}
	for _, answer = range []string{"", "x", "-1", "128", "3\n4"} {
		if id, err := Find("aws", Firmware{}).Member(t.Context(), Options{}, batch); err == nil {
			t.Errorf("launch index %q: %s", answer, id)
		}
	}
}

// TestGCPMember checks that a VM of Compute Engine knows its instance ID from its name.
func TestGCPMember(t *testing.T) {
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/computeMetadata/v1/instance/name" {
			t.Errorf("asked %s", r.URL.Path)
		}
		w.Header().Set("Metadata-Flavor", "Google")
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	var batches [2]ident.Batch
	for i := range batches {
		var err error
		if batches[i], err = ident.NewBatch("wrk", time.Now(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := batches[0].Member(3)
	answer = want.String()
	if id, err := Find("gcp", Firmware{}).Member(t.Context(), Options{}, batches[0]); err != nil || id != want {
		t.Errorf("%s, %v, want %s", id, err, want)
	}
	for _, answer = range []string{"", "x", batches[0].String(), batches[1].First().String()} {
		if id, err := Find("gcp", Firmware{}).Member(t.Context(), Options{}, batches[0]); err == nil {
			t.Errorf("name %q: %s", answer, id)
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
