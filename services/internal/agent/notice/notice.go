// Package notice watches a cloud's metadata service for notices about this VM: that the cloud takes it away, recommends
// replacing it, or has announced maintenance.
//
// Invariant: each change is reported once, however often the service repeats the notice. While the service does not
// answer, nothing is reported.
package notice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Options configures a watcher. Log is required.
type Options struct {
	// Base is the URL of the metadata service, without a path. The default is the cloud's URL.
	Base string
	// Interval is the time between two requests. If requests wait for changes, Interval is the pause after an error.
	// The default is 2 s.
	Interval time.Duration
	// Client sends the requests. The default client uses no proxy and has a timeout.
	Client *http.Client
	Log    *slog.Logger
}

// maxAnswer is the maximum number of bytes that are read from an answer of the metadata service.
const maxAnswer = 4 << 10

// errNone means that the metadata service answered 404: it has nothing at the requested path.
var errNone = errors.New("not found")

func (o Options) withDefaults(base string, patience time.Duration) Options {
	if o.Base == "" {
		o.Base = base
	}
	if o.Interval <= 0 {
		o.Interval = 2 * time.Second
	}
	if o.Client == nil {
		// Use no proxy, because only this machine can reach its metadata service.
		o.Client = &http.Client{Transport: &http.Transport{MaxIdleConns: 4, IdleConnTimeout: time.Minute,
			ResponseHeaderTimeout: patience}, Timeout: patience}
	}
	return o
}

// Notices are the cloud's notices about this VM.
type Notices struct {
	Termination *nstancev1.TerminationNotice // nil: none
	// Recommendation and Maintenance are nil until the metadata service has answered.
	Recommendation *nstancev1.Recommendation
	Maintenance    *nstancev1.Maintenance
}

// Any reports whether the cloud has announced anything.
func (n Notices) Any() bool {
	return n.Termination != nil || n.Recommendation.GetReplace() || n.Maintenance.GetKind() != ""
}

// watcher reports only changes. It is safe for concurrent use.
type watcher struct {
	Options
	announce func(Notices)
	mu       sync.Mutex
	last     Notices
	failed   map[string]bool // by path, whether the last request failed
}

func newWatcher(o Options, announce func(Notices)) *watcher {
	return &watcher{Options: o, announce: announce, failed: map[string]bool{}}
}

// saw handles the result of one request to the metadata service: an error, or a change of the notices. It logs only the
// first of consecutive errors of a path.
func (w *watcher) saw(path string, err error, change func(*Notices)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && !w.failed[path]:
		w.Log.Warn("The metadata service does not answer; notices of the cloud may be missed", "path", path, "error",
			err)
	case err == nil && w.failed[path]:
		w.Log.Info("The metadata service answers again", "path", path)
	}
	w.failed[path] = err != nil
	next := w.last
	if err == nil {
		change(&next)
	}
	if same(w.last.Termination, next.Termination) && same(w.last.Recommendation, next.Recommendation) &&
		same(w.last.Maintenance, next.Maintenance) {
		return
	}
	before := w.last
	w.last = next
	w.logChange(before)
	w.announce(next)
}

// same reports whether two messages are equal. A missing message differs from an empty one.
func same[M interface {
	proto.Message
	comparable
}](a, b M) bool {
	var missing M
	return (a == missing) == (b == missing) && proto.Equal(a, b)
}

// logChange logs how the notices differ from those before.
func (w *watcher) logChange(before Notices) {
	now := w.last
	switch was, is := before.Termination, now.Termination; {
	case same(was, is):
	case is != nil:
		w.Log.Info("The cloud will take this machine away", "kind", is.GetKind(), "deadline", is.GetDeadline().AsTime())
	default:
		w.Log.Info("The cloud took its termination notice back")
	}
	if is := now.Recommendation.GetReplace(); is != before.Recommendation.GetReplace() {
		w.Log.Info("The cloud's recommendation to replace this machine changed", "replace", is)
	}
	if is := now.Maintenance; !proto.Equal(is, before.Maintenance) && (is.GetKind() != "" ||
		before.Maintenance.GetKind() != "") {
		w.Log.Info("The cloud's maintenance of this machine changed", "kind", is.GetKind(), "begins",
			is.GetBegins().AsTime())
	}
}

// maxKind is the maximum length of the kind of a maintenance, in bytes.
const maxKind = 64

// maintenance returns an announcement for a report. Servers accept a kind of one line.
func maintenance(kind string, begins *timestamppb.Timestamp) *nstancev1.Maintenance {
	kind = strings.ToValidUTF8(kind[:min(len(kind), maxKind)], "")
	return &nstancev1.Maintenance{Kind: strings.Join(strings.Fields(kind), " "), Begins: begins}
}

// ask sends a request and returns the body and the header of an answer with status 200. If the status is 404, the error
// is [errNone]. For any other status, it is a [statusError].
func (o Options) ask(ctx context.Context, method, path string, header http.Header) (body []byte, answered http.Header,
	err error) {
	req, err := http.NewRequestWithContext(ctx, method, o.Base+path, http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	req.Header = header
	resp, err := o.Client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, resp.Header, errNone
	case resp.StatusCode != http.StatusOK:
		return nil, resp.Header, statusError(resp.StatusCode)
	case err != nil:
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	case len(body) > maxAnswer:
		return nil, nil, fmt.Errorf("read %s: the answer has more than %d bytes", path, maxAnswer)
	}
	return body, resp.Header, nil
}

type statusError int

func (s statusError) Error() string { return fmt.Sprintf("status %d", int(s)) }
