package web_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// liveEvent is one server-sent event.
type liveEvent struct{ kind, id, data string }

// open opens the stream of a page's changes. The returned channel is closed when the stream ends.
func (s *site) open(t testing.TB, path, after string) <-chan liveEvent {
	t.Helper()
	server := httptest.NewServer(s.page)
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(resp.Status, resp.Header)
	}
	events := make(chan liveEvent, 100)
	go func() {
		defer close(events)
		defer resp.Body.Close()
		var e liveEvent
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "event":
				e.kind = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "":
				events <- e
				e = liveEvent{}
			}
		}
	}()
	return events
}

// next returns the next event of the given kind. It skips events of other kinds.
func next(t testing.TB, events <-chan liveEvent, kind string) liveEvent {
	t.Helper()
	patience := time.After(20 * time.Second)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("the stream ended before %q", kind)
			}
			if e.kind == kind {
				return e
			}
		case <-patience:
			t.Fatalf("there is no event %q", kind)
		}
	}
}

// liveSite returns a site whose hub runs. Tests send the events of the shard s.a through channels.
func liveSite(t testing.TB) *site {
	t.Helper()
	s := newSite(t, "")
	s.a.InstanceEvents = make(chan *nstancev1.InstanceEvent, 10)
	s.a.GroupEvents = make(chan *nstancev1.GroupEvent, 10)
	s.a.ErrorEvents = make(chan *nstancev1.ErrorEvent, 10)
	s.a.JournalEvents = make(chan *nstancev1.JournalEvent, 10)
	s.a.InstanceEvents <- &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_SNAPSHOT_END}
	s.a.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_SNAPSHOT_END}
	s.run(t)
	return s
}

// TestRowIsUpdated checks what the open page of a group receives when the shard sends events. It receives the new row
// of an instance of this group, and no row of another group.
func TestRowIsUpdated(t *testing.T) {
	s := liveSite(t)
	events := s.open(t, "/ui/live?shard=a&group=workers", "")
	next(t, events, "hello")
	lost := &nstancev1.InstanceStatus{InstanceId: first, Group: "workers", State: "registered", Health: "unhealthy"}
	for range 5 {
		sent := time.Now()
		s.a.InstanceEvents <- &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_UNHEALTHY, Instance: lost}
		e := next(t, events, "row")
		if square := next(t, events, "row"); !strings.Contains(square.data, `"id":"q-`+first) {
			t.Error(square)
		}
		t.Logf("after %v", time.Since(sent))
		var m struct{ ID, HTML string }
		if err := json.Unmarshal([]byte(e.data), &m); err != nil {
			t.Fatal(err)
		}
		if m.ID != "i-"+first || !strings.Contains(m.HTML, `<span class="bad">unhealthy</span>`) ||
			!strings.HasPrefix(m.HTML, "<tr ") {
			t.Errorf("%+v", m)
		}
	}
	other := &nstancev1.InstanceStatus{InstanceId: second, Group: "other"}
	s.a.InstanceEvents <- &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_UNHEALTHY, Instance: other}
	s.a.InstanceEvents <- &nstancev1.InstanceEvent{Type: nstancev1.InstanceEvent_TYPE_UNHEALTHY, Instance: lost}
	if e := next(t, events, "row"); strings.Contains(e.data, second) {
		t.Error("a row of another group:", e.data)
	}
}

// TestPageIsReadAgain checks which pages receive a "stale" event. A page that was read before a change receives one. A
// page that was read after all changes receives none.
func TestPageIsReadAgain(t *testing.T) {
	s := liveSite(t)
	live := regexp.MustCompile(`data-live="([^"]+)"`)
	address := func() string {
		path := live.FindStringSubmatch(s.text(t, "/ui/", 200))[1]
		return strings.ReplaceAll(path, "&amp;", "&")
	}
	old := address()
	events := s.open(t, "/ui/live", "")
	next(t, events, "hello")
	s.a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "capacity", Group: "workers", Message: "none left"}
	changed := next(t, events, "stale")
	late := s.open(t, old, "")
	next(t, late, "hello")
	next(t, late, "stale")
	current := s.open(t, address(), "")
	hello := next(t, current, "hello")
	if hello.id != changed.id {
		t.Errorf("position %s, want %s", hello.id, changed.id)
	}
	s.a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "capacity", Group: "workers", Resolved: true}
	if e := next(t, current, "stale"); e.id == hello.id {
		t.Error("it was told to read again before anything changed")
	}
	// A browser that connects again sends the ID of the last event that it received.
	again := s.open(t, old, hello.id)
	next(t, again, "hello")
	next(t, again, "stale")
}

// TestAlerts shows that alerts are on the pages of the fleet and of the group while they are active.
func TestAlerts(t *testing.T) {
	s := liveSite(t)
	events := s.open(t, "/ui/live", "")
	next(t, events, "hello")
	s.a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "capacity", Group: "workers", Message: "none left",
		At: timestamppb.New(fleettest.Now)}
	next(t, events, "stale")
	if text := s.text(t, "/ui/", 200); !strings.Contains(text, "none left") ||
		!strings.Contains(text, "docs/runbooks/capacity.md") {
		t.Error(text)
	}
	if text := s.text(t, "/ui/shards/a/groups/workers", 200); !strings.Contains(text, "none left") {
		t.Error(text)
	}
	if text := s.text(t, "/ui/shards/b/groups/workers", 200); strings.Contains(text, "none left") {
		t.Error("the alert of another shard")
	}
	s.a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "capacity", Group: "workers", Resolved: true}
	next(t, events, "stale")
	if text := s.text(t, "/ui/shards/a/groups/workers", 200); strings.Contains(text, "none left") {
		t.Error(text)
	}
}

// TestLiveEvents checks that an open list of events receives the new events that its filter selects. It also checks
// that the pages count replacements.
func TestLiveEvents(t *testing.T) {
	s := liveSite(t)
	events := s.open(t, "/ui/live?events=true&cause=unhealthy", "")
	all := s.open(t, "/ui/live?events=true", "")
	next(t, events, "hello")
	next(t, all, "hello")
	add := func(n int, e *nstancev1.JournalEvent) {
		e.Position, e.Group = fmt.Sprintf("3-%d", n), "workers"
		e.At = timestamppb.New(fleettest.Now.Add(time.Duration(n-10) * time.Second))
		s.a.JournalEvents <- e
	}
	add(1, &nstancev1.JournalEvent{Kind: "instance_unhealthy", InstanceId: first, Cause: "silent"})
	add(2, &nstancev1.JournalEvent{Kind: "instance_pending_deletion", InstanceId: first, Cause: "unhealthy"})
	add(3, &nstancev1.JournalEvent{Kind: "instance_creating", InstanceId: second, Replaces: first})
	add(5, &nstancev1.JournalEvent{Kind: "instance_healthy", InstanceId: second})
	if e := next(t, events, "entry"); !strings.Contains(e.data, "e-a-3-2") {
		t.Error(e)
	}
	for range 4 {
		next(t, all, "entry")
	}
	if text := s.text(t, "/ui/", 200); !strings.Contains(text, "p50&nbsp;4 s, p99&nbsp;4 s") {
		t.Error(text)
	}
	if text := s.text(t, "/ui/shards/a/groups/workers", 200); !strings.Contains(text, "median; 99 % within 4 s") {
		t.Error(text)
	}
}

// TestLostShardIsSeen checks that pages receive a "stale" event when a shard stops answering, and again when it
// answers. While the shard does not answer, its page shows when it stopped answering.
func TestLostShardIsSeen(t *testing.T) {
	s := liveSite(t)
	events := s.open(t, "/ui/live", "")
	next(t, events, "hello")
	old := s.a.GroupEvents
	s.a.Do(func() {
		s.a.GroupEvents = make(chan *nstancev1.GroupEvent, 10)
		s.a.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_SNAPSHOT_END}
		s.a.Before = func(string) error { return fleettest.NotLeader("a", "", "") }
	})
	close(old)
	next(t, events, "stale")
	if text := s.text(t, "/ui/shards/a", 200); !strings.Contains(text, "No answer (began") {
		t.Error(text)
	}
	s.a.Do(func() { s.a.Before = nil })
	next(t, events, "stale")
	if text := s.text(t, "/ui/shards/a", 200); strings.Contains(text, "No answer (began") {
		t.Error(text)
	}
}
