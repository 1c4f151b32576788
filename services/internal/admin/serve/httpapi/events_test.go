package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// TestFollow reads events line by line while they happen. Each line matches the schema in the OpenAPI document. The
// response reports when the connection to a shard is lost and when it is restored. The response ends when the server
// stops.
func TestFollow(t *testing.T) {
	x := newAPI(t, "")
	open := func() chan *nstancev1.GroupEvent {
		events := make(chan *nstancev1.GroupEvent, 3)
		events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Status: x.a.Groups[0]}
		events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_SNAPSHOT_END}
		return events
	}
	events := open()
	x.a.GroupEvents = events
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

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/events/follow?shard=a", nil)
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
			Shard      string
			Snapshot   bool
			GroupEvent struct {
				Type, Group string
				Status      struct{ Group string }
			} `json:"group_event"`
			Connected *bool
			Error     *struct{ Code string }
		}
		if err := json.Unmarshal(line, &got); err != nil || got.Shard != "a" {
			t.Fatalf("%v: %s", err, line)
		}
		e := got.GroupEvent
		text := fmt.Sprintf("%s %s%s %t", e.Type, e.Group, e.Status.Group, got.Snapshot)
		if got.Connected != nil {
			text = fmt.Sprintf("connected %t, error %t", *got.Connected, got.Error != nil)
		}
		if text != want {
			t.Fatalf("%s, want %s: %s", text, want, line)
		}
	}
	next("TYPE_UPSERT workers true")
	next("TYPE_SNAPSHOT_END  true")
	events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: "gone"}
	next("TYPE_DELETE gone false")
	x.a.Do(func() { x.a.GroupEvents = open() })
	close(events)
	next("connected false, error true")
	next("connected true, error false")
	next("TYPE_UPSERT workers true")
	next("TYPE_SNAPSHOT_END  true")
	close(x.ended)
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v after the end", rest, err)
	}
}
