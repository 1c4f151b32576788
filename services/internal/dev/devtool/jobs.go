package devtool

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// jobsPerInstance is how many waiting jobs one instance of the demo can take.
const jobsPerInstance = 10

// jobs is a queue whose length the leader reads from a URL, to scale a group.
type jobs struct {
	waiting  atomic.Int64
	listener net.Listener
}

// open serves the length of the queue until the process ends.
func (j *jobs) open(ctx context.Context) (err error) {
	if j.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"waiting": %d}`, j.waiting.Load()) })}
	go func() { _ = server.Serve(j.listener) }()
	return nil
}

// url returns the URL of the queue, or "" before it is open.
func (j *jobs) url() string {
	if j.listener == nil {
		return ""
	}
	return "http://" + j.listener.Addr().String() + "/jobs"
}

// scaleByJobs lets the leader scale the group by a queue in which more jobs wait than two instances can take.
func (d *demo) scaleByJobs(ctx context.Context) error {
	if err := d.jobs.open(ctx); err != nil {
		return err
	}
	if err := d.operator.ResetSize(ctx, group); err != nil { // from now on, the leader chooses it
		return err
	}
	if err := d.terraform.Apply(ctx, d.variables()); err != nil {
		return err
	}
	if _, err := d.operator.Refresh(ctx); err != nil {
		return err
	}
	return d.scaleTo(ctx, largerSize, largerSize*jobsPerInstance)
}

// finishJobs empties the queue.
func (d *demo) finishJobs(ctx context.Context) error { return d.scaleTo(ctx, size, 0) }

// scaleTo changes the number of waiting jobs, and waits until the leader has scaled the group.
func (d *demo) scaleTo(ctx context.Context, to int, waiting int64) error {
	began := time.Now()
	d.jobs.waiting.Store(waiting)
	d.timeline.note(began, fromDemo, time.Time{}, "%d jobs wait; an instance takes %d", waiting, jobsPerInstance)
	instances, err := d.operator.AwaitHealthy(ctx, to)
	if err != nil {
		return err
	}
	why, err := d.awaitScaling(ctx, began)
	if err != nil {
		return err
	}
	d.timeline.note(why.GetAt().AsTime(), fromServer, began, "%s", why.GetMessage())
	d.timeline.note(time.Now(), fromServer, began, "%d instances are healthy", len(instances))
	return nil
}

// awaitScaling waits until the journal says why the leader changed the size of the group. The journal stores its events
// a little later than the leader acts.
func (d *demo) awaitScaling(ctx context.Context, since time.Time) (*nstancev1.JournalEvent, error) {
	request := &nstancev1.ListEventsRequest{Filter: &nstancev1.EventFilter{Group: group,
		Kinds: []string{string(record.EventGroupChanged)}, Since: timestamppb.New(since)}}
	for {
		answer, err := d.operator.ListEvents(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, e := range answer.GetEvents() {
			if e.GetActor() == "leader" {
				return e, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the journal does not say why the group was scaled: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
