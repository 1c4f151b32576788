package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// TestFollow reads events line by line while they happen. Each line matches the schema in the OpenAPI document. The
// response reports when the connection to a shard is lost and when it is restored. The response ends when the server
// stops.
func TestFollow(t *testing.T) {
	x := newAPI(t, "")
	for query, want := range map[string]string{"all_shards=true&after=7-1": "name the shard",
		"shard=a&since=1h": "since"} {
		status, text, _ := x.do(t, request{method: "GET", path: "/events/follow?" + query})
		if status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	event := func(n int) *nstancev1.JournalEvent {
		return &nstancev1.JournalEvent{Position: fmt.Sprintf("7-%d", n), Term: 7, Kind: "group_changed",
			Group: "workers", At: timestamppb.Now()}
	}
	events := make(chan *nstancev1.JournalEvent, 3)
	x.a.History, x.a.JournalEvents = []*nstancev1.JournalEvent{event(1), event(2)}, events
	server := httptest.NewServer(x.handler)
	defer server.Close()
	_, text, _ := x.do(t, request{method: "GET", path: "/openapi.json"})
	var document struct {
		Components json.RawMessage
		Paths      map[string]struct {
			Get struct {
				Responses map[string]struct {
					Content map[string]struct{ Schema json.RawMessage }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	schema := within(document.Components,
		document.Paths["/events/follow"].Get.Responses["200"].Content["application/x-ndjson"].Schema)

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		server.URL+"/events/follow?shard=a&after=7-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	next := func(want string) {
		t.Helper()
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		check(t, schema, string(line))
		var got struct {
			Shard, Position, Kind, Group string
			Connected                    *bool
			Error                        *struct{ Code string }
		}
		if err := json.Unmarshal(line, &got); err != nil || got.Shard != "a" {
			t.Fatalf("%v: %s", err, line)
		}
		text := fmt.Sprintf("%s %s %s", got.Position, got.Kind, got.Group)
		if got.Connected != nil {
			text = fmt.Sprintf("connected %t, error %t", *got.Connected, got.Error != nil)
		}
		if text != want {
			t.Fatalf("%s, want %s: %s", text, want, line)
		}
	}
	next("7-2 group_changed workers")
	events <- event(3)
	next("7-3 group_changed workers")
	again := make(chan *nstancev1.JournalEvent, 1)
	again <- event(4)
	x.a.Do(func() { x.a.History, x.a.JournalEvents = []*nstancev1.JournalEvent{event(3)}, again })
	close(events)
	next("connected false, error true")
	next("connected true, error false")
	next("7-4 group_changed workers")
	close(x.ended)
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v after the end", rest, err)
	}
}
