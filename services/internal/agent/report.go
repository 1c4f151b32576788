package agent

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/notice"
)

const (
	intervalHeader  = "nstance-report-interval"
	endpointsHeader = "nstance-agent-endpoints"
	renewHeader     = "nstance-renew-within"
	// processHeader is a header of every call. See agentapi.ProcessHeader.
	processHeader = "nstance-agent-process"
	// keyRequestsHeader is a header of the health stream. A server that sends key requests on the stream of files sets
	// it.
	keyRequestsHeader = "nstance-key-requests"
	defaultInterval   = time.Minute
	minInterval       = 50 * time.Millisecond
	maxInterval       = time.Hour
)

// announcement tells the server that the agent stops, and why. It ends when the server confirms it, or when another
// announcement replaces it.
type announcement struct {
	reason   nstancev1.StoppingReason
	done     chan struct{}
	finished bool // confirmed or replaced; guarded by Client.mu, like the closing of done
}

// Notice reports the cloud's notices immediately, and in every report from now on.
func (c *Client) Notice(notices notice.Notices) {
	c.update(func(s *standing) { s.notices, s.urgent = notices, true })
}

// Announce reports immediately why the agent is about to stop, and again at the start of every stream. It returns nil
// when the server has confirmed the announcement, or when a newer announcement has replaced it. It returns ctx's error
// if ctx ends first. If the agent is not registered, it returns an error immediately. After an error, the agent no
// longer reports this announcement. STOPPING_REASON_UNSPECIFIED withdraws the earlier announcement.
func (c *Client) Announce(ctx context.Context, reason nstancev1.StoppingReason) error {
	if c.cert.Load() == nil {
		return errors.New("not registered: there is no server to announce to")
	}
	stop := &announcement{reason: reason, done: make(chan struct{})}
	c.update(func(s *standing) {
		s.stop.finish()
		s.stop, s.urgent = stop, true
	})
	select {
	case <-stop.done:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if stop.finished {
		return nil
	}
	c.standing.stop = nil // it is still this one: a replaced announcement is finished
	return ctx.Err()
}

// finish ends an announcement. The caller must hold Client.mu.
func (a *announcement) finish() {
	if a != nil && !a.finished {
		a.finished = true
		close(a.done)
	}
}

// reporter sends the reports of one session.
type reporter struct {
	*Client
	api      nstancev1.AgentServiceClient
	onAccept func() // called once, when the server has accepted the agent
	// onOldServer is called if the server is too old to send key requests on the stream of files.
	onOldServer func()

	// role is the role in the last complete report: its health checks are those of that role.
	role    nstancev1.InstanceRole
	facts   Facts
	metrics *nstancev1.Metrics
	uptime  time.Duration
	// sentFiles, sentKeys and sentChecks are the states that the last complete report contained.
	sentFiles  []*nstancev1.FileState
	sentKeys   []*nstancev1.KeyState
	sentChecks *nstancev1.HealthCheckReport
}

// run opens one health stream after another until a stream fails. A stream ends without an error when the server has
// confirmed an announcement, and run then opens the next one.
func (r *reporter) run(ctx context.Context) error {
	for {
		if err := r.stream(ctx); err != nil {
			return err
		}
	}
}

func (r *reporter) stream(ctx context.Context) error {
	stream, err := r.api.ReportHealth(ctx)
	if err != nil {
		return ended("reports", err)
	}
	intervals, answer := make(chan time.Duration, 1), make(chan error, 1)
	go r.listen(stream, intervals, answer)

	interval, tick := defaultInterval, time.NewTimer(defaultInterval)
	defer tick.Stop()
	changed := true // collect files, keys, checks, and metrics; a notice does not wait for them
	for sequence := uint64(1); ; sequence++ {
		report, stop := r.next(ctx, sequence, changed)
		if err := stream.Send(report); err != nil && !errors.Is(err, io.EOF) {
			return ended("reports", err)
		} else if err != nil {
			return ended("reports", <-answer)
		}
		r.counts.reported(time.Now())
		switch {
		case stop == nil:
		case stop.reason == nstancev1.StoppingReason_STOPPING_REASON_UNSPECIFIED:
			r.confirm(stop)
		default:
			// The server answers a closed stream only after it has read all reports. Without that answer, a report may
			// still be in a buffer when the network goes down.
			if err := stream.CloseSend(); err != nil {
				return ended("reports", err)
			}
			if err := r.await(ctx, answer); err != nil {
				return err
			}
			r.confirm(stop)
			return nil
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-answer:
				return ended("reports", err)
			case interval = <-intervals:
				r.reportInterval.Store(int64(interval))
				if r.onAccept != nil {
					r.onAccept()
					r.onAccept = nil
				}
				// Agents may have reconnected at the same time. The random delay spreads their reports.
				r.schedule(tick, interval/2+rand.N(interval/2), interval)
			case <-tick.C:
				r.schedule(tick, interval, interval)
				changed, waiting = true, false
			case <-r.wake:
				changed, waiting = r.takeNews(), false
			}
		}
	}
}

// schedule sets the time of the next report.
func (r *reporter) schedule(tick *time.Timer, in, interval time.Duration) {
	tick.Reset(in)
	if r.numbers != nil {
		r.numbers.Due(in, interval)
	}
}

// listen reads the server's header. It stores the leader's addresses, and sends the report interval to the channel
// intervals. Then it waits for the end of the stream, and sends the stream's error to the channel answer.
func (r *reporter) listen(stream grpc.ClientStreamingClient[nstancev1.ReportHealthRequest,
	nstancev1.ReportHealthResponse], intervals chan<- time.Duration, answer chan<- error) {
	if header, err := stream.Header(); err == nil && header != nil { // nil: the stream ended without a header
		interval := defaultInterval
		if values := header.Get(intervalHeader); len(values) > 0 {
			if parsed, err := time.ParseDuration(values[0]); err == nil {
				interval = min(max(parsed, minInterval), maxInterval)
			}
		}
		if values := header.Get(endpointsHeader); len(values) > 0 {
			r.storeAddrs(values[0])
		}
		if len(header.Get(keyRequestsHeader)) == 0 {
			r.onOldServer()
		}
		if values := header.Get(renewHeader); len(values) > 0 {
			if within, err := time.ParseDuration(values[0]); err == nil {
				r.renewEarly(within)
			}
		}
		intervals <- interval
	}
	answer <- stream.RecvMsg(&nstancev1.ReportHealthResponse{})
}

// await waits for the server's answer after the agent has closed the stream. It gives up after 15 s.
func (r *reporter) await(ctx context.Context, answer <-chan error) error {
	timeout := time.NewTimer(callTimeout)
	defer timeout.Stop()
	select {
	case err := <-answer:
		if err != nil {
			return ended("reports", err)
		}
		return nil
	case <-timeout.C:
		return errors.New("reports: the server does not answer the end of the stream")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeNews reports whether the next report must contain the states of files, keys and checks. A notice, an announcement
// or the end of the drain hook that the agent has not reported yet goes first: the agent sends a report without these
// states, and takeNews returns false.
func (r *reporter) takeNews() (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.standing.urgent {
		r.standing.urgent = false
		if r.standing.changed {
			nudge(r.wake)
		}
		return false
	}
	changed, r.standing.changed = r.standing.changed, false
	return changed
}

func (r *reporter) confirm(stop *announcement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stop.finish()
}

// next makes a report. It also returns the announcement that the report contains, or nil if there is none to confirm.
func (r *reporter) next(ctx context.Context, sequence uint64, changed bool) (*nstancev1.ReportHealthRequest,
	*announcement) {
	report := &nstancev1.ReportHealthRequest{
		InstanceId:   r.ID.String(),
		Sequence:     sequence,
		Unchanged:    true,
		AgentVersion: r.Version,
	}
	if sequence == 1 {
		r.facts = r.Machine.Facts()
	}
	if changed {
		r.mu.Lock()
		r.standing.changed, r.standing.urgent = false, false
		r.role = r.standing.role
		r.mu.Unlock()
		r.metrics, r.uptime = r.Machine.Sample(ctx)
		files, keys := r.files.States(), r.keys.States()
		var checks *nstancev1.HealthCheckReport
		if r.checks != nil {
			checks = r.checks.Report()
		}
		if sequence == 1 || !slices.EqualFunc(files, r.sentFiles, same) || !slices.EqualFunc(keys, r.sentKeys, same) ||
			!proto.Equal(checks, r.sentChecks) {
			report.Unchanged, report.Files, report.Keys, report.HealthChecks = false, files, keys, checks
		}
		r.sentFiles, r.sentKeys, r.sentChecks = files, keys, checks
	}
	report.Metrics, report.Uptime = r.metrics, durationpb.New(r.uptime)
	report.RuntimeHash = r.files.Hash()
	if r.numbers != nil {
		report.VmNumbers = r.numbers.Report()
	}
	report.Ipv4, report.Ipv6, report.Hostname = r.facts.IPv4, r.facts.IPv6, r.facts.Hostname

	r.mu.Lock()
	defer r.mu.Unlock()
	report.Termination = remainingNotice(r.standing.notices.Termination, time.Now())
	report.Recommendation, report.Maintenance = r.standing.notices.Recommendation, r.standing.notices.Maintenance
	report.Drain, report.Role = r.standing.drain, r.role
	report.Healthy = r.standing.unwell == ""
	report.Message = folder.Clip(cmp.Or(r.standing.unwell, r.standing.remark), folder.MaxReportedText)
	stop := r.standing.stop
	if stop == nil {
		return report, nil
	}
	report.Stopping = stop.reason
	if stop.finished {
		return report, nil
	}
	return report, stop
}

// remainingNotice returns a notice with the time that remains until its deadline, if the notice counts on the agent's
// clock.
func remainingNotice(notice *nstancev1.TerminationNotice, now time.Time) *nstancev1.TerminationNotice {
	if notice.GetRemaining() == nil {
		return notice
	}
	notice = proto.CloneOf(notice)
	notice.Remaining = durationpb.New(max(0, notice.GetDeadline().AsTime().Sub(now)))
	return notice
}

func same[M proto.Message](a, b M) bool { return proto.Equal(a, b) }
