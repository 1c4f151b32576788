package k8s

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// watchTime is the duration of a watch without a requested timeout.
	watchTime = time.Hour
	// bookmarkTime is the time between two bookmarks.
	bookmarkTime = 30 * time.Second
)

// watch streams changes until the client disconnects, the server stops, or the timeout of the watch ends.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
func (h *handler) watch(w http.ResponseWriter, req *http.Request, t target, options metav1.ListOptions,
	partial bool) error {
	selected, err := selectorOf(options, t)
	if err != nil {
		return err
	}
	bookmarks := options.AllowWatchBookmarks
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if match := options.ResourceVersionMatch; match != "" && (options.SendInitialEvents == nil ||
		match != metav1.ResourceVersionMatchNotOlderThan) {
		return invalid("resourceVersionMatch", match, "a watch allows it only with sendInitialEvents, and only as "+
			"NotOlderThan")
	}
	var from uint64
	if text := options.ResourceVersion; text != "" {
		if from, err = strconv.ParseUint(text, 10, 64); err != nil {
			return invalid("resourceVersion", text, "it is not a number")
		}
	}
	limit := watchTime
	if seconds := options.TimeoutSeconds; seconds != nil && *seconds > 0 {
		limit = time.Duration(*seconds) * time.Second
	}
	s := stream{w: w, resource: t.resource, partial: partial, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if s.control.Flush() != nil {
		return nil
	}
	// A watch without a resource version starts with the current state. A resource version above the current one is not
	// from this store, so the watch ends immediately.
	begins := initial || from == 0 && options.SendInitialEvents == nil
	if current := h.store.currentVersion(); from > current {
		s.expire()
		return nil
	} else if from == 0 {
		from = current
	}
	if begins {
		items, now := h.store.list(t.resource, t.namespace)
		for _, o := range items {
			if selected.matches(o) && !s.send(watch.Added, o) {
				return nil
			}
		}
		from = now
		if initial && bookmarks && !s.bookmark(from, true) || s.control.Flush() != nil {
			return nil
		}
	}
	end, mark := time.NewTimer(limit), time.NewTicker(bookmarkTime)
	defer end.Stop()
	defer mark.Stop()
	for {
		changes, now, next, ok := h.store.since(t.resource, from)
		if !ok {
			s.expire()
			return nil
		}
		for _, c := range changes {
			if !s.sendChange(selected, c) {
				return nil
			}
		}
		from = now
		if len(changes) > 0 && s.control.Flush() != nil {
			return nil
		}
		select {
		case <-next:
		case <-mark.C:
			if bookmarks && (!s.bookmark(from, false) || s.control.Flush() != nil) {
				return nil
			}
		case <-end.C:
			if bookmarks {
				s.bookmark(from, false)
			}
			return nil
		case <-req.Context().Done():
			return nil
		}
	}
}

// stream writes the events of one watch. Its methods return false when the client has disconnected.
type stream struct {
	w        http.ResponseWriter
	resource *resource
	partial  bool
	control  *http.ResponseController
}

// sendChange sends a change to the client. If the object matches the client's selector only after the change,
// sendChange sends an addition. If it matched only before, sendChange sends a deletion.
func (s *stream) sendChange(selected selector, c change) bool {
	before, after := c.before != nil && selected.matches(c.before), c.after != nil && selected.matches(c.after)
	switch {
	case before && after:
		return s.send(watch.Modified, c.after)
	case after:
		return s.send(watch.Added, c.after)
	case before && c.after == nil:
		return s.send(watch.Deleted, c.before)
	case before:
		last := without(c.before)
		last["metadata"] = without(meta(last))
		setVersion(last, c.version)
		return s.send(watch.Deleted, last)
	}
	return true
}

func (s *stream) send(kind watch.EventType, o map[string]any) bool {
	return s.write(kind, s.resource.form(o, s.partial))
}

// bookmark tells the client that it has all changes up to a version. If `first` is true, the bookmark marks the end of
// the initial state.
func (s *stream) bookmark(version uint64, first bool) bool {
	m := map[string]any{"resourceVersion": strconv.FormatUint(version, 10)}
	if first {
		m["annotations"] = map[string]any{metav1.InitialEventsAnnotationKey: "true"}
	}
	o := map[string]any{"apiVersion": s.resource.apiVersion(), "kind": s.resource.kind, "metadata": m}
	return s.write(watch.Bookmark, s.resource.form(o, s.partial))
}

// expire ends the watch with 410, so that the client lists again.
func (s *stream) expire() {
	s.write(watch.Error, statusOf(apierrors.NewResourceExpired("the resource version is too old: list again")))
	_ = s.control.Flush()
}

func (s *stream) write(kind watch.EventType, o any) bool {
	line, err := json.Marshal(map[string]any{"type": kind, "object": o})
	if err == nil {
		_, err = s.w.Write(append(line, '\n'))
	}
	return err == nil
}
