package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// Environment variables of ReportHealth. The boot script sets them.
const (
	// reportAfterVariable is how long a server may be unhealthy before its machine is replaced.
	reportAfterVariable = "NSTANCE_REPORT_AFTER"
	// generationVariable contains the identifier of the configuration for which this machine was created. If it is not
	// set, ReportHealth writes no report to the bucket.
	generationVariable = "NSTANCE_SERVER_GENERATION"
)

const (
	defaultReportAfter = 10 * time.Minute
	reportInterval     = 5 * time.Second
	reportTimeout      = 5 * time.Second // of one check, and of one call of the cloud
	// crashes is the number of restarts after which a server that has not become ready counts as crashing.
	crashes = 3
	// stuckAfter is how long a server that has not become ready may give the same reason before it counts as stuck.
	stuckAfter = time.Minute
	// earlyInterval is the interval at which the problem of a crashing or stuck server is published.
	earlyInterval = 15 * time.Second
	// awaitFor is how long a ready server repeats its report to a scaling group that does not expect one. The group may
	// begin to expect it only a moment after the boot.
	awaitFor = time.Minute
)

// ReportHealth reports the health of the server on this machine to the machine's scaling group, until ctx ends. It runs
// as a separate process, so that it also reports a server that does not start.
func ReportHealth(ctx context.Context, o Options, clouds []infra.Cloud, log *slog.Logger) error {
	name, group, _ := strings.Cut(os.Getenv(bootscript.ScalingGroupVariable), "/")
	r := healthReport{check: checkHealth(o.HealthAddr), lastLog: lastLog, restarts: restarts,
		after: defaultReportAfter, log: log}
	if generation := os.Getenv(generationVariable); generation != "" {
		r.publish = func(ctx context.Context, problem error) error {
			return publishReport(ctx, o, record.ServerReport{Schema: record.ServerReportSchema, Generation: generation,
				Machine: r.member.MachineID(), ReportedAt: time.Now()}, problem)
		}
	}
	if text := os.Getenv(reportAfterVariable); text != "" {
		var err error
		if r.after, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%s: %w", reportAfterVariable, err)
		}
	}
	for _, cloud := range clouds {
		if cloud.Name() == name && cloud.Member != nil {
			var err error
			if r.member, err = cloud.Member(ctx, group); err != nil {
				return err
			}
			return r.run(ctx)
		}
	}
	return fmt.Errorf("%s: %q does not name a cloud with scaling groups and a group", bootscript.ScalingGroupVariable,
		name)
}

// healthReport decides which health the server reports to the scaling group. It is not safe for concurrent use.
type healthReport struct {
	member infra.Member
	check  func(context.Context) error
	// lastLog returns the end of the server's log, or "".
	lastLog func(context.Context) string
	// restarts returns how often the server was restarted on this machine after it ended, or 0 if that is not known.
	restarts func(context.Context) int
	// publish writes to the bucket that the server became ready, or why it did not. It may be nil.
	publish func(ctx context.Context, problem error) error
	// after is how long a server may take to become ready, and how long a ready server may be unhealthy.
	after time.Duration
	log   *slog.Logger

	// since is the last time at which the server was healthy, or the start of this process if the server was never
	// healthy. ready means that the server has been healthy once. settled means that the scaling group needs no more
	// reports about the launch of this machine.
	since          time.Time
	readySince     time.Time
	ready, settled bool
	published      bool
	// reason is the server's present problem, and reasonSince the time of the first check with this problem.
	// reportedEarly is the time of the last report that the server crashes or is stuck.
	reason                     string
	reasonSince, reportedEarly time.Time
}

func (r *healthReport) run(ctx context.Context) error {
	r.since = time.Now()
	for {
		r.step(ctx)
		if err := tasks.Sleep(ctx, reportInterval); err != nil {
			return nil // the process is asked to end
		}
	}
}

// step checks the server once and reports the result to the scaling group. If a report fails, it logs the error, and
// the next step repeats the report.
func (r *healthReport) step(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*reportTimeout)
	defer cancel()
	problem := r.check(ctx)
	now := time.Now()
	if problem != nil && now.Sub(r.since) >= r.after {
		if text := r.lastLog(ctx); text != "" {
			problem = fmt.Errorf("%w; the end of the server's log: %s", problem, text)
		}
		// Also log the problem to the machine's console. After the report, the machine may be replaced, but its console
		// stays readable for a while.
		r.log.Error("the server is unhealthy", "for", now.Sub(r.since).String(), "problem", problem)
	}
	switch {
	case problem == nil:
		r.since = now
		r.publishOnce(ctx, nil)
		if !r.ready {
			r.ready, r.readySince = true, now
		}
		if !r.settled {
			err := r.member.Ready(ctx)
			r.settled = err == nil || errors.Is(err, infra.ErrNotAwaited) && now.Sub(r.readySince) >= awaitFor
			r.logCall("the server is ready", err)
		}
	case now.Sub(r.since) < r.after:
		if r.reason != problem.Error() {
			r.reason, r.reasonSince = problem.Error(), now
		}
		if !r.ready && r.publish != nil && now.Sub(r.reportedEarly) >= earlyInterval {
			r.publishEarly(ctx, now, problem)
		}
	case !r.ready && !r.settled:
		r.publishOnce(ctx, problem)
		err := r.member.Abandon(ctx)
		r.settled = err == nil || errors.Is(err, infra.ErrNotAwaited)
		r.logCall("the server did not become ready in time: replace this machine", err)
	default:
		r.logCall("the server is unhealthy: replace this machine", r.member.Replace(ctx))
	}
}

// publishEarly writes to the bucket that the new server ends again and again, or is stuck, so that an apply that waits
// for it gets the reason long before the server's time is over. It repeats the report, because a reader may ignore
// reports from before its wait. If the server becomes ready after all, publishOnce replaces the report.
func (r *healthReport) publishEarly(ctx context.Context, now time.Time, problem error) {
	stuck := now.Sub(r.reasonSince)
	switch n := r.restarts(ctx); {
	case n >= crashes:
		problem = fmt.Errorf("%w; the server ended and was restarted %d times", problem, n)
	case stuck >= stuckAfter:
		problem = fmt.Errorf("%w; it has been so for %s", problem, stuck.Round(time.Second))
	default:
		return
	}
	r.reportedEarly = now
	if text := r.lastLog(ctx); text != "" {
		problem = fmt.Errorf("%w; the end of the server's log: %s", problem, text)
	}
	if err := r.publish(ctx, problem); err != nil {
		r.log.Warn("cannot write the report to the bucket", "error", err)
	}
}

// restarts asks systemd how often the server was restarted.
func restarts(ctx context.Context) int {
	n, _ := strconv.Atoi(output(ctx, "systemctl", "show", "nstance-server", "-p", "NRestarts", "--value"))
	return n // 0 without a number
}

// lastLog returns the last lines of the server's log.
func lastLog(ctx context.Context) string {
	return output(ctx, "journalctl", "-u", "nstance-server", "-o", "cat", "-n", "5", "--no-pager")
}

// output returns what a program of systemd prints. It returns "" if the machine has no systemd, or if the program does
// not end in time. The report must not wait for systemd.
func output(ctx context.Context, program string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// publishOnce writes to the bucket whether the new server became ready. After the first successful write it does
// nothing.
func (r *healthReport) publishOnce(ctx context.Context, problem error) {
	if r.publish == nil || r.published {
		return
	}
	if err := r.publish(ctx, problem); err != nil {
		r.log.Warn("cannot write the report to the bucket", "error", err)
		return
	}
	r.published = true
}

// publishReport writes the report to the bucket. If problem is not nil, the report contains it.
func publishReport(ctx context.Context, o Options, report record.ServerReport, problem error) error {
	store, err := open.Open(ctx, o.Location)
	if err != nil {
		return fmt.Errorf("open the bucket: %w", err)
	}
	if problem != nil {
		report.Problem = printable(problem.Error())
	}
	state := clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ShardID: o.Shard})
	return state.WriteServerReport(ctx, report)
}

// printable returns a text as one line of at most record.MaxProblem bytes.
func printable(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), unicode.IsControl), " ")
	if len(text) > record.MaxProblem {
		text = strings.ToValidUTF8(text[:record.MaxProblem], "")
	}
	return text
}

// logCall logs the result of a report to the scaling group. It logs nothing if the group did not expect the report.
func (r *healthReport) logCall(report string, err error) {
	switch {
	case err == nil:
		r.log.Info("reported to the scaling group", "report", report)
	case !errors.Is(err, infra.ErrNotAwaited):
		r.log.Warn("cannot report to the scaling group", "report", report, "error", err)
	}
}

// checkHealth returns a function that asks the server on this machine for its health. If the server is not healthy, the
// function returns an error with the server's reason.
func checkHealth(addr string) func(context.Context) error {
	client := http.Client{Timeout: reportTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	host, port, _ := net.SplitHostPort(addr) // ParseOptions has checked it.
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	url := "http://" + net.JoinHostPort(host, port) + "/health"
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // The status alone is a reason, too.
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(reason)))
	}
}
