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

func (a *api) followEvents(c *call, send func(any)) {
	a.Fleet.FollowShards(c.Context(), c.shards, fleet.Watcher{
		Event: func(e fleet.Event) { send(e) },
		Lost: func(err *fleet.Error, _ time.Duration) {
			send(Connection{Outcome: fleet.Outcome{Shard: err.Shard, Err: err}})
		},
		Found: func(shard string) { send(Connection{fleet.Outcome{Shard: shard}, true}) },
	})
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
	lines, ended := make(chan []byte), make(chan struct{})
	go func() {
		defer close(ended)
		r.follow(c, func(value any) {
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
		case <-ended:
			return nil
		case line := <-lines:
			write(line)
		case <-ticker.C:
			write(nil)
		case <-a.Ended:
			cancel()
			<-ended
			return nil
		}
	}
}
