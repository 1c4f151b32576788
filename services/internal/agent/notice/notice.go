// Package notice watches a cloud's metadata service for notices that this VM will be terminated.
//
// Invariant: each notice is reported once, however often the service repeats it. While the service does not answer,
// nothing is reported.
package notice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"

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
		o.Client = &http.Client{Transport: &http.Transport{MaxIdleConns: 2, IdleConnTimeout: time.Minute,
			ResponseHeaderTimeout: patience}, Timeout: patience}
	}
	return o
}

// watcher reports only changes.
type watcher struct {
	Options
	announce func(*nstancev1.TerminationNotice)
	last     *nstancev1.TerminationNotice
	failed   bool
}

// saw handles the result of one request to the metadata service: a notice, no notice, or an error. It logs only the
// first of consecutive errors.
func (w *watcher) saw(notice *nstancev1.TerminationNotice, err error) {
	switch {
	case err != nil && !w.failed:
		w.Log.Warn("The metadata service does not answer; termination notices may be missed", "error", err)
		w.failed = true
	case err == nil && w.failed:
		w.Log.Info("The metadata service answers again")
		w.failed = false
	}
	if err != nil || proto.Equal(notice, w.last) && (notice == nil) == (w.last == nil) {
		return
	}
	if notice != nil {
		w.Log.Info("The cloud will take this machine away", "kind", notice.GetKind(), "deadline",
			notice.GetDeadline().AsTime())
	} else {
		w.Log.Info("The cloud took its termination notice back")
	}
	w.last = notice
	w.announce(notice)
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
