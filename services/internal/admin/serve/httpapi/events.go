package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

const (
	// maxFollowers is the limit of concurrent requests that stream events.
	maxFollowers = 32
	// pulse is the time between two empty lines, which the API sends to find out whether the client still reads.
	pulse = 15 * time.Second
	// lineTime limits the time to send one line.
	lineTime = 10 * time.Second
)

// Connection is a line of GET /events/follow about the connection to a shard. With an error, the events of the shard
// cannot be followed, and the server tries again unless the response ends. Without one, they are followed again.
type Connection struct {
	fleet.Outcome
	Connected bool `json:"connected"`
}

func (a *api) eventRoutes() []route {
	return []route{
		{
			method: http.MethodGet, path: "/events", name: "events",
			summary: "Events of the shards' journals, the oldest first.", shards: true,
			query: []parameter{{"since", "string", "Only events from this time on (RFC 3339)."},
				{"group", "string", "Only events of this group."},
				{"instance_id", "string", "Only events of this instance."},
				{"kind", "string", "Only events of this kind."}, {"cause", "string", "Only events with this cause."}},
			answer: fleet.Answers[fleet.HistoryAnswer]{},
			do:     a.events,
		}, {
			method: http.MethodGet, path: "/events/follow", name: "eventsFollow", shards: true,
			summary: "What happens in shards, one event on each line, beginning with the present state. The response " +
				"ends when the client disconnects. Empty lines show that the connection works.",
			answer: fleet.Event{}, follow: a.followEvents,
		},
	}
}

func (a *api) events(c *call) (int, any, error) {
	query := c.URL.Query()
	filter := fleet.HistoryFilter{Group: query.Get("group"), InstanceID: query.Get("instance_id"),
		Cause: query.Get("cause")}
	if kind := query.Get("kind"); kind != "" {
		filter.Kinds = []string{kind}
	}
	if text := query.Get("since"); text != "" {
		var err error
		if filter.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return 0, nil, badRequest("query: since: want a time like 2026-01-02T15:04:05Z")
		}
	}
	return answer(a.Fleet.History(c.Context(), c.shards, filter))
}

func (a *api) followEvents(c *call, send func(any)) error {
	a.Fleet.FollowShards(c.Context(), c.shards, fleet.Watcher{
		Event: func(e fleet.Event) { send(e) },
		Lost: func(err *fleet.Error, _ time.Duration) {
			send(Connection{Outcome: fleet.Outcome{Shard: err.Shard, Err: err}})
		},
		Found: func(shard string) { send(Connection{fleet.Outcome{Shard: shard}, true}) },
	})
	return nil
}

// serveFollow calls the route's follow function and streams the values that this function sends. It ends when the
// client disconnects or stops reading, or when the server stops.
func (a *api) serveFollow(w http.ResponseWriter, r route, c *call) error {
	select {
	case a.followers <- struct{}{}:
		defer func() { <-a.followers }()
	default:
		return &refused{http.StatusServiceUnavailable, fmt.Sprintf(
			"%d clients follow something already; try again later", maxFollowers)}
	}
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	c.Request = c.WithContext(ctx)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // fails only without a connection, in tests
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, ended := make(chan []byte), make(chan error, 1)
	go func() {
		ended <- r.follow(c, func(value any) {
			line, err := json.Marshal(value)
			if err != nil {
				panic("httpapi: a followed value cannot be written as JSON: " + err.Error())
			}
			select {
			case lines <- line:
			case <-ctx.Done():
			}
		})
	}()
	write := func(line []byte) {
		_ = control.SetWriteDeadline(time.Now().Add(lineTime)) // as above
		if _, err := w.Write(append(line, '\n')); err != nil || control.Flush() != nil {
			cancel()
		}
	}
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case line := <-lines:
			write(line)
		case <-ticker.C:
			write(nil)
		case <-a.Ended:
			cancel()
			return <-ended
		}
	}
}
