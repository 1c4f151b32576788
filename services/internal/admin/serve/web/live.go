package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// livePulse is the time between two comment lines on an idle stream. The comment lines show the browser that the
	// connection works.
	livePulse = 15 * time.Second
	// liveWrite limits the time to send one message.
	liveWrite = 10 * time.Second
)

// liveURL returns the address from which a page receives changes. It contains the number of the last change, so call
// liveURL before you read anything else for the page.
func (p *page) liveURL(query url.Values) string {
	if query == nil {
		query = url.Values{}
	}
	query.Set("after", p.position(p.hub.lastChange()))
	return Path + "live?" + query.Encode()
}

// position identifies a change for the browser. Each process counts its changes from zero, so the position starts with
// a prefix that identifies the process.
func (p *page) position(number uint64) string {
	return fmt.Sprintf("%s-%d", p.process, number)
}

// serveLive sends the changes for one open page as server-sent events, until the browser disconnects:
//
//   - "row" replaces one element;
//   - "entry" adds one event to the top of a list;
//   - "stale" makes the browser read the page again.
func (p *page) serveLive(w http.ResponseWriter, r *http.Request) {
	client, ok := p.client(r)
	if !ok {
		p.fail(w, r, &httpError{http.StatusUnauthorized, "You are not logged in.", "Log in again."})
		return
	}
	s := &liveStream{page: p, w: w, control: http.NewResponseController(w), filter: readFilter(r.URL.Query()),
		events: r.FormValue("events") != ""}
	l, number, end := p.hub.listen()
	defer end()
	_ = s.control.SetReadDeadline(time.Time{}) // not supported only in tests without a connection
	w.Header().Set("Content-Type", "text/event-stream")
	after := r.Header.Get("Last-Event-ID")
	if after == "" {
		after = r.FormValue("after")
	}
	err := s.send("hello", p.position(number), client.Name)
	if after != "" && after != p.position(number) && err == nil {
		err = s.send("stale", p.position(number), "")
	}
	pulse := time.NewTicker(livePulse)
	defer pulse.Stop()
	for err == nil {
		select {
		case <-r.Context().Done():
			return
		case <-s.hub.ended:
			return
		case <-l.missed:
			err = s.send("stale", p.position(p.hub.lastChange()), "")
		case c := <-l.changes:
			err = s.sendChange(c)
		case <-pulse.C:
			if _, ok := p.client(r); !ok {
				return // the session has expired
			}
			err = s.write([]byte(": pulse\n\n"))
		}
	}
}

// liveStream is the stream of one open page.
type liveStream struct {
	*page
	w       http.ResponseWriter
	control *http.ResponseController
	filter  eventFilter
	// events means that the page lists events.
	events bool
}

// sendChange sends a change if it concerns the page.
func (s *liveStream) sendChange(c change) error {
	f, at := s.filter, s.position(c.number)
	if f.Shard != "" && f.Shard != c.shard {
		return nil
	}
	switch {
	case s.events:
		if c.entry == nil || !f.matches(c.shard, c.entry) {
			return nil
		}
		return s.sendTemplate("entry", at, "events", "entry", entry{c.shard, c.entry})
	case c.event == nil && c.entry == nil: // the shard was lost or found
		return s.send("stale", at, "")
	case c.event != nil && c.event.Instance.Of.GetInstance() != nil && f.Group != "":
		i := c.event.Instance.Of.GetInstance()
		if i.GetGroup() != f.Group {
			return nil
		}
		for _, name := range []string{"row", "square"} {
			if err := s.sendTemplate("row", at, "group", name, row{c.shard, classOf(i), i}); err != nil {
				return err
			}
		}
		return s.send("stale", at, "")
	case s.concerns(c):
		return s.send("stale", at, "")
	}
	return nil
}

// lifeKinds are the kinds of events that change the statistics of a fleet or a group.
var lifeKinds = []string{"instance_healthy", "config_applied", "leader_started"}

// concerns reports whether the change c makes the page outdated, so that the browser must read the page again.
func (s *liveStream) concerns(c change) bool {
	f := s.filter
	if c.entry != nil {
		if f.Instance != "" {
			return c.entry.GetInstanceId() == f.Instance || c.entry.GetReplaces() == f.Instance
		}
		return slices.Contains(lifeKinds, c.entry.GetKind()) && (f.Group == "" || c.entry.GetGroup() == f.Group)
	}
	group, instance := c.event.Subject()
	switch {
	case f.Instance != "":
		return instance == f.Instance
	case f.Group != "":
		return group == f.Group
	}
	return c.event.Instance.Of == nil // the groups' events have the sums
}

// message is the data of a server-sent event "row" or "entry".
type message struct {
	ID   string `json:"id"`
	HTML string `json:"html"`
}

func (s *liveStream) sendTemplate(event, at, page, name string, data any) error {
	var b bytes.Buffer
	if err := s.templates[page].ExecuteTemplate(&b, name, data); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	m := message{HTML: strings.TrimSpace(b.String())}
	switch data := data.(type) {
	case row:
		m.ID = map[string]string{"row": "i-", "square": "q-"}[name] + data.GetInstanceId()
	case entry:
		m.ID = data.Anchor()
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.send(event, at, string(text))
}

// send sends one event. data must be one line.
func (s *liveStream) send(event, at, data string) error {
	return s.write([]byte("id: " + at + "\nevent: " + event + "\ndata: " + data + "\n\n"))
}

func (s *liveStream) write(text []byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(liveWrite)) // not supported only in tests without a connection
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.control.Flush()
}
